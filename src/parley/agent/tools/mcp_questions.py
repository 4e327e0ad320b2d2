"""What MCP servers ask during calls (elicitation), asked of the turn's caller."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
from jsonschema.validators import extend  # type: ignore[import-untyped]
from mcp import types
from referencing import Registry

from parley.engine.turn.attempt import Answer, Attempt
from parley.extensions.questions import schema_part
from parley.model.errors import FieldViolation
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role
from parley.model.tasks import TaskState

MOST_TRIES = 20
"""How often a caller is asked until the answer fits."""

DECLINED = frozenset({"decline", "declined", "cancel"})
"""The texts of answers that decline."""

ASKED_CHARACTERS = 4000
"""How many characters of a server's question are passed on."""


async def ask(
    attempt: Attempt, params: types.ElicitRequestParams, *, key: str, tool: str
) -> types.ElicitResult:
    """Ask the caller, in this turn or a later one, and return the answer as MCP has it.

    A form goes out with its JSON Schema, and is asked again until the answer fits. An address to
    open is AUTH_REQUIRED; any message says that it is done.
    """
    said = params.message[:ASKED_CHARACTERS]
    if isinstance(params, types.ElicitRequestURLParams):
        text = f"{said}\n\n{tool} asks you to open {params.url} and to answer when you are done."
        answer = await attempt.ask(TaskState.AUTH_REQUIRED, text, key)
        return _declined(answer) or types.ElicitResult(action="accept")
    schema = dict(params.requested_schema)
    problems: tuple[FieldViolation, ...] = ()
    for times in range(1, MOST_TRIES + 1):
        parts: tuple[Part, ...] = (Part(text=said),)
        if problems:
            parts += (Part(text=f"That does not fit: {problems[0].description}"),)
        message = Message(
            message_id=new_id(), role=Role.AGENT, parts=(*parts, schema_part(schema, problems))
        )
        answer = await attempt.ask(
            TaskState.INPUT_REQUIRED, message, key if times == 1 else f"{key}:again:{times}"
        )
        if (declined := _declined(answer)) is not None:
            return declined
        value = _value_of(answer, schema)
        wrong = _wrong(schema, value)
        if not wrong:
            return types.ElicitResult(action="accept", content=value)
        problems = (FieldViolation("$", wrong),)
    return types.ElicitResult(action="cancel")


def _declined(answer: Answer) -> types.ElicitResult | None:
    if answer.text.strip().lower() in DECLINED:
        return types.ElicitResult(action="decline")
    return None


def _value_of(answer: Answer, schema: Mapping[str, Any]) -> Any:
    """Return the values of a form: data, a JSON object, or a text for the only field."""
    for part in answer.parts:
        if part.has_data:
            return part.data
    text = answer.text.strip()
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    if isinstance(value, dict):
        return value
    fields = schema.get("properties")
    if not isinstance(fields, dict) or len(fields) != 1:
        return value
    ((name, field),) = fields.items()
    kind = field.get("type") if isinstance(field, dict) else None
    if kind == "boolean" and text.lower() in ("yes", "no"):
        value = text.lower() == "yes"
    return {name: text if kind == "string" else value}


def _wrong(schema: Mapping[str, Any], value: Any) -> str:
    if not isinstance(value, dict):
        return "the answer is a JSON object with the fields of the schema"
    try:
        error = next(_validator(msgspec.json.encode(schema)).iter_errors(value), None)
    except (jsonschema.SchemaError, msgspec.MsgspecError, RecursionError):
        return ""  # the server's schema is not one: it judges the answer itself
    return (
        "" if error is None else f"{'.'.join(map(str, error.path)) or '$'}: {error.message[:500]}"
    )


_LEFT_TO_SERVERS = ("$ref", "$dynamicRef", "pattern", "patternProperties")
"""What is not checked here: a server could make it take for ever, or name addresses to read."""


def _unchecked(*_: object) -> tuple[()]:
    return ()


_Flat = extend(jsonschema.Draft202012Validator, dict.fromkeys(_LEFT_TO_SERVERS, _unchecked))


@lru_cache(maxsize=64)
def _validator(schema: bytes) -> Any:
    decoded = msgspec.json.decode(schema)
    jsonschema.Draft202012Validator.check_schema(decoded)
    return _Flat(decoded, registry=Registry())
