"""Interrupts of a graph as questions, and answers as what the graph resumes with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pydantic_core import to_jsonable_python

from parley.extensions.questions import SCHEMA_MEDIA_TYPE, schema_part
from parley.integrations.answers import DoesNotFit, clear_decision_in, decision_in
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role

Resume = Callable[[Any, Message], Any]
"""Returns what a graph resumes with, from the value of its interrupt and the caller's answer."""

TEXT_KEYS = ("question", "message", "prompt", "text", "query", "description", "instruction", "task")
"""Where an interrupt whose value is an object says what it asks."""

MAX_SHOWN = 2000
"""How many characters of arguments a question shows."""


def question_of(value: Any, schema: Mapping[str, Any] | None, problem: str = "") -> Message:
    """Return an interrupt as a message: words, its data if it has some, the answer's schema."""
    shown = to_jsonable_python(value, serialize_unknown=True)
    text = _words(shown)
    parts = [Part(text=f"{problem} {text}" if problem else text)]
    if not isinstance(shown, str):
        parts.append(Part(data=shown, media_type="application/json"))
    if schema is not None:
        parts.append(schema_part(schema))
    return Message(message_id=new_id(), role=Role.AGENT, parts=tuple(parts))


def resume_value(value: Any, schema: Mapping[str, Any] | None, answer: Message) -> Any:
    """Return the value to resume the graph with.

    The approval of tool calls takes yes or no, or the decisions as data. An interrupt with a schema
    takes data, or text that reads as such. Any other takes data as it is, else the text.

    Raises ``DoesNotFit``.
    """
    data = _data_of(answer)
    if (requests := _review_requests(value)) is not None:
        return {"decisions": _decisions(requests, value, answer, data)}
    if isinstance(value, Mapping) and value.get("type") == "tool_approval":
        allowed = _allowed_in(schema)
        return _decision(allowed, answer) if data is msgspec.UNSET else data
    if (actions := _inbox_actions(value)) is not None:
        found = data if data is not msgspec.UNSET else [_inbox(each, answer) for each in actions]
        return found if isinstance(value, Mapping) or isinstance(found, list) else [found]
    if schema is not None:
        return _typed(schema, answer, data)
    return answer.text if data is msgspec.UNSET else data


def unfit(value: Any, schema: Mapping[str, Any] | None) -> str:
    """Return the complaint about an answer that the graph could not use."""
    if schema is not None:
        return "That does not fit."
    shape = "" if isinstance(value, str) else f", in answer to {_json(value)}"
    return f"The graph cannot use this text: it wants data (JSON){shape}."


def go_on(answer: Message) -> bool:
    """Return whether the caller lets a graph continue that stopped at a breakpoint.

    Raises ``DoesNotFit``.
    """
    return clear_decision_in(answer).is_approved


def _words(value: Any) -> str:
    """Return the question of an interrupt, in words."""
    if isinstance(value, str):
        return value
    if (requests := _review_requests(value)) is not None:
        calls = [
            each.get("description") or _call(each.get("name", ""), each.get("args", {}))
            for each in requests
        ]
        return "\n".join([*calls, "May this be done? Answer yes or no."])
    if isinstance(value, Mapping) and value.get("type") == "tool_approval":
        call = _call(value.get("name", ""), value.get("args", {}))
        return f"{value.get('description') or call}\nMay this be done? Answer yes or no."
    if (actions := _inbox_actions(value)) is not None:
        calls = []
        for each in actions:
            request = each["action_request"]
            call = _call(request.get("action", ""), request.get("args", {}))
            calls.append(f"{each['description']}\n{call}" if each.get("description") else call)
        return "\n".join(calls)
    if isinstance(value, Mapping):
        for key in TEXT_KEYS:
            if isinstance(value.get(key), str) and value[key]:
                return str(value[key])
    return _json(value)


def _call(name: str, arguments: Any) -> str:
    return f"{name}({_json(arguments)})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:MAX_SHOWN]


def _data_of(answer: Message) -> Any:
    for part in answer.parts:
        if part.has_data and part.media_type != SCHEMA_MEDIA_TYPE:
            data = part.data
            # LangGraph's own server takes answers in this shape.
            return data["resume"] if isinstance(data, dict) and set(data) == {"resume"} else data
    return msgspec.UNSET


# -- LangChain's review of tool calls ----------------------------------------------------------


def _review_requests(value: Any) -> Sequence[Mapping[str, Any]] | None:
    """Return the calls that LangChain's middleware wants to be reviewed, ``None`` for others."""
    if isinstance(value, Mapping) and isinstance(requests := value.get("action_requests"), list):
        return requests
    return None


def _decisions(
    requests: Sequence[Mapping[str, Any]], value: Any, answer: Message, data: Any
) -> list[Any]:
    if isinstance(data, Mapping) and isinstance(data.get("decisions"), list):
        data = data["decisions"]
    if isinstance(data, Mapping) and isinstance(data.get("type"), str):
        data = [data] * len(requests)
    allowed = {
        each.get("action_name"): each.get("allowed_decisions")
        for each in value.get("review_configs") or []
    }
    may = [allowed.get(each.get("name")) for each in requests]
    if isinstance(data, list):
        if len(data) != len(requests):
            raise DoesNotFit(f"There are {len(requests)} calls to decide about, in order.")
        return [_checked_decision(*each) for each in zip(may, data, strict=True)]
    return [_decision(each, answer) for each in may]


KINDS = ("approve", "edit", "reject", "respond")


def _checked_decision(allowed: Sequence[str] | None, decision: Any) -> Any:
    """Return a decision that is data. Raises ``DoesNotFit`` for one that cannot be read."""
    kinds = [each for each in KINDS if allowed is None or each in allowed]
    kind = decision.get("type") if isinstance(decision, Mapping) else None
    if kind not in kinds:
        raise DoesNotFit(f"A decision is an object; its type is one of {', '.join(kinds)}.")
    edited = decision.get("edited_action")
    if kind == "edit" and not (
        isinstance(edited, Mapping)
        and isinstance(edited.get("name"), str)
        and isinstance(edited.get("args"), Mapping)
    ):
        raise DoesNotFit("A decision to edit has an edited_action with a name and args.")
    if not isinstance(decision.get("message", ""), str):
        raise DoesNotFit("The message of a decision is text.")
    return decision


def _decision(allowed: Sequence[str] | None, answer: Message) -> dict[str, Any]:
    """Return an answer of words as a decision. Raises ``DoesNotFit``."""
    decision = decision_in(answer)
    may = set(allowed or ("approve", "reject"))
    if decision is not None and decision.is_approved and "approve" in may:
        return {"type": "approve"}
    if decision is not None and not decision.is_approved and "reject" in may:
        return {"type": "reject", **({"message": decision.reason} if decision.reason else {})}
    if "respond" in may and answer.text:
        return {"type": "respond", "message": answer.text}
    if may >= {"approve", "reject"}:
        raise DoesNotFit("That was neither yes nor no.")
    raise DoesNotFit(f"The decision is data with one of these types: {', '.join(sorted(may))}.")


def _allowed_in(schema: Mapping[str, Any] | None) -> list[str] | None:
    """Return the decisions that the schema of an approval allows."""
    if schema is None:
        return None
    kinds = [schema, *schema.get("$defs", {}).values(), *schema.get("oneOf", ())]
    found = [each.get("properties", {}).get("type", {}).get("const") for each in kinds]
    return [each for each in found if isinstance(each, str)] or None


# -- the shape of LangChain's agent inbox ------------------------------------------------------


def _inbox_actions(value: Any) -> Sequence[Mapping[str, Any]] | None:
    """Return the actions of an interrupt in the shape of the agent inbox, ``None`` for others."""
    actions = [value] if isinstance(value, Mapping) else value
    if not isinstance(actions, list) or not actions:
        return None
    if all(isinstance(each, Mapping) and "action_request" in each for each in actions):
        return actions
    return None


def _inbox(action: Mapping[str, Any], answer: Message) -> dict[str, Any]:
    may = action.get("config") or {}
    decision = decision_in(answer)
    if decision is not None and decision.is_approved and may.get("allow_accept"):
        return {"type": "accept", "args": None}
    if decision is not None and not decision.is_approved and may.get("allow_ignore"):
        return {"type": "ignore", "args": None}
    if may.get("allow_respond") and answer.text:
        return {"type": "response", "args": answer.text}
    raise DoesNotFit("Please answer yes or no, or with data.")


# -- schemas -----------------------------------------------------------------------------------


def _typed(schema: Mapping[str, Any], answer: Message, data: Any) -> Any:
    """Return the value that an answer has for a schema, as far as its text can be read.

    Raises ``DoesNotFit`` for what cannot be of the schema's type. The graph checks the rest.
    """
    kind = schema.get("type")
    found = data
    if data is msgspec.UNSET:
        text = answer.text.strip()
        if kind == "boolean" and (decision := decision_in(answer)) is not None:
            found = decision.is_approved
        elif kind == "string":
            found = text
        else:
            try:
                found = json.loads(text)
            except ValueError:
                found = text
    fields = schema.get("properties", {})
    if kind == "object" and isinstance(found, str) and len(fields) == 1:
        found = {next(iter(fields)): found}
    types: dict[Any, type | tuple[type, ...]] = {
        "object": dict, "array": list, "string": str, "boolean": bool,
        "integer": int, "number": (int, float),
    }  # fmt: skip
    wanted = types.get(kind, object)
    is_number = kind in ("integer", "number")
    if not isinstance(found, wanted) or (is_number and isinstance(found, bool)):
        raise DoesNotFit(f"The answer is of the type {kind}.")
    if "enum" in schema and found not in schema["enum"]:
        raise DoesNotFit(f"The answer is one of {', '.join(map(str, schema['enum']))}.")
    if isinstance(found, dict) and (
        absent := [name for name in schema.get("required", ()) if name not in found]
    ):
        raise DoesNotFit(f"The answer lacks {', '.join(absent)}.")
    return found
