"""Questions of agents as elicitations and as text, and the JSON Schemas of tools and forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from mcp import types

from parley.extensions.questions import auth_request, question
from parley.model.tasks import Task, TaskState

WRAPPED_ANSWER = "answer"
"""The field of a form whose answer is a text or another value that is not an object."""

ANSWER_TASK = "answer_task"


class Asked(NamedTuple):
    """A task's question: its text, its form, how the fields map to the answer, or an address."""

    key: str
    text: str
    form: dict[str, Any]
    kind: str
    url: str = ""
    is_auth: bool = False

    @property
    def params(self) -> types.ElicitRequestFormParams | types.ElicitRequestURLParams:
        """The question as an elicitation."""
        if self.url:
            return types.ElicitRequestURLParams(
                message=self.text, url=self.url, elicitation_id=self.key
            )
        return types.ElicitRequestFormParams(message=self.text, requested_schema=self.form)

    def content(self, answer: Any) -> dict[str, Any]:
        """Return the options of ``RemoteAgent.send`` for the fields of a form, or for an answer
        written by a model.
        """
        if self.kind != "fields" and isinstance(answer, dict) and answer.keys() == {WRAPPED_ANSWER}:
            answer = answer[WRAPPED_ANSWER]
        if self.kind == "text":
            text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
            return {"message": text}
        if isinstance(answer, str) and self.kind != "value":
            try:
                return {"data": msgspec.json.decode(answer)}
            except msgspec.DecodeError:
                fields = self.form["properties"]
                if self.kind != "fields" or len(fields) != 1:
                    return {"message": answer}
                return {"data": {next(iter(fields)): answer}}
        return {"data": answer}

    def can_be_asked(self, capabilities: types.ClientCapabilities | None) -> bool:
        """Return whether a host can ask its user: secrets never go through a form."""
        found = None if capabilities is None else capabilities.elicitation
        if found is None:
            return False
        if self.url:
            return found.url is not None
        return not self.is_auth and (found.form is not None or found.url is None)

    def said(self, handle: str) -> str:
        """Return the question with instructions for the answer, for a host without elicitation."""
        if self.is_auth:
            where = f" Open {self.url}." if self.url else ""
            return (
                f"The agent needs an authorization: {self.text}{where}\n"
                f"The task is {handle}; after the authorization, follow it with follow_task."
            )
        lines = [f"The agent asks: {self.text}"]
        if self.kind != "text":
            lines.append(f"The schema of the answer: {msgspec.json.encode(self.form).decode()}")
        lines.append(
            f"Answer with the tool {ANSWER_TASK}: task={handle!r}, answer=... "
            "Ask the user if you do not know the answer."
        )
        return "\n".join(lines)


def asked_by(task: Task) -> Asked:
    """Return the question of a task to its caller."""
    message = task.status.message
    key = f"q-{message.message_id if message else task.id}"[-64:]
    text = (message.text if message else "") or "What do you want?"
    if task.state is TaskState.AUTH_REQUIRED:
        needed = auth_request(task)
        url = needed.authorization_url if needed else ""
        return Asked(key, (needed.text if needed else "") or text, {}, "text", url, is_auth=True)
    typed = question(task)
    form, kind = form_schema(None if typed is None else typed.schema)
    if typed is not None:
        problems = "; ".join(f"{each.field}: {each.description}" for each in typed.problems)
        text = f"{typed.text or text}\n{problems}" if problems else typed.text or text
    return Asked(key, text, form, kind)


# -- schemas: objects, in tools and in forms --------------------------------------------------

_PRIMITIVES = frozenset({"string", "number", "integer", "boolean"})
_KEPT = frozenset(
    {
        "type", "title", "description", "minLength", "maxLength", "format", "minimum", "maximum",
        "enum", "enumNames", "oneOf", "default", "items", "minItems", "maxItems", "pattern",
    }
)  # fmt: skip


def object_schema(schema: Mapping[str, Any], wrapped: str) -> tuple[dict[str, Any], bool]:
    """Return the schema as an object's schema, and whether the value was wrapped in a member."""
    root = _resolved(schema)
    if root.get("type") == "object":
        return root, False
    definitions = root.pop("$defs", None)
    return _one_field(root, wrapped) | ({"$defs": definitions} if definitions else {}), True


def struct_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a struct, without its name and its docstring."""
    schema = _resolved(msgspec.json.schema(kind))
    others = {name: each for name, each in schema.pop("$defs").items() if name != kind.__name__}
    own = {name: value for name, value in schema.items() if name not in ("title", "description")}
    return own | ({"$defs": others} if others else {})


def form_schema(schema: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Return the form for an answer of this schema, and how its fields map to the answer.

    Forms have flat fields: text, numbers, yes or no, choices. ``fields``: they are the answer;
    ``value``: the only field is; ``json``: its text is the answer as JSON; ``text``: its text is.
    """
    if schema is None:
        return _one_field({"type": "string", "title": "Answer"}), "text"
    root = _resolved(schema)
    properties = root.get("properties")
    if root.get("type") == "object" and isinstance(properties, dict) and properties:
        fields = {name: _field(each, root) for name, each in properties.items()}
        if all(fields.values()):
            required = [name for name in root.get("required", ()) if name in fields]
            return {"type": "object", "properties": fields, "required": required}, "fields"
    elif (field := _field(root, root)) is not None:
        return _one_field(field), "value"
    asked = {
        "type": "string",
        "title": "Answer",
        "description": "JSON that matches the schema of the question",
    }
    return _one_field(asked), "json"


def _one_field(field: Mapping[str, Any], name: str = WRAPPED_ANSWER) -> dict[str, Any]:
    return {"type": "object", "properties": {name: dict(field)}, "required": [name]}


def _field(schema: Any, root: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a field of a form, ``None`` if forms do not support it."""
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        schema = _resolved({**schema, "$defs": root.get("$defs", {})})
    kind = schema.get("type")
    choices = schema.get("enum")
    if kind is None and isinstance(choices, list):
        kind = "string" if all(isinstance(each, str) for each in choices) else None
    if kind == "array":
        items = schema.get("items")
        if not (isinstance(items, dict) and ("enum" in items or "anyOf" in items)):
            return None
    elif kind not in _PRIMITIVES:
        return None
    kept = {name: value for name, value in schema.items() if name in _KEPT}
    return {**kept, "type": kind}


def _resolved(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose root is not a reference to one of its definitions."""
    root, definitions = dict(schema), schema.get("$defs")
    for _ in range(8):
        reference = root.get("$ref")
        if not isinstance(reference, str) or not isinstance(definitions, dict):
            break
        named = definitions.get(reference.removeprefix("#/$defs/"))
        if not isinstance(named, dict):
            break
        root = {**named, **{k: v for k, v in root.items() if k not in ("$ref", "$defs")}}
        root["$defs"] = definitions
    return root
