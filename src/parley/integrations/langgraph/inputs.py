"""Input and questions of a graph: schemas, messages as input, interrupts, answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python

from parley.extensions.questions import SCHEMA_MEDIA_TYPE, schema_part
from parley.integrations.answers import DoesNotFit, decision_in, fitting_answer
from parley.llm.model import Json
from parley.model.parts import Message, Part

Resume = Callable[[Any, Message], Any]
"""Returns the value to resume a graph with, from its interrupt's value and the caller's answer."""

TEXT_KEYS = ("question", "message", "prompt", "text", "query", "description", "instruction", "task")
"""The members that may hold the question of an interrupt whose value is an object."""

MAX_SHOWN = 2000
"""The number of characters of arguments a question shows."""


def question_of(value: Any, schema: Mapping[str, Any] | None, problem: str = "") -> list[Part]:
    """Return an interrupt as a message: words, its data if any, the answer's schema."""
    shown = to_jsonable_python(value, serialize_unknown=True)
    text = _words(shown)
    parts = [Part(text=f"{problem} {text}" if problem else text)]
    if not isinstance(shown, str):
        parts.append(Part(data=shown, media_type="application/json"))
    if schema is not None:
        parts.append(schema_part(schema))
    return parts


def resume_value(value: Any, schema: Mapping[str, Any] | None, answer: Message) -> Any:
    """Return the value to resume the graph with.

    The approval of tool calls accepts yes or no, or the decisions as data. An interrupt with a
    schema accepts data, or text in JSON form. Any other interrupt accepts data, else text.

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
        said = answer.text.strip() if data is msgspec.UNSET else data
        fields = schema.get("properties", {})
        if schema.get("type") == "object" and isinstance(said, str) and len(fields) == 1:
            found = json_in(said)
            said = {next(iter(fields)): said} if found is None or isinstance(found, str) else found
        return fitting_answer(schema, answer, said)
    return answer.text if data is msgspec.UNSET else data


def unfit(value: Any, schema: Mapping[str, Any] | None) -> str:
    """Return the error text for an answer that the graph could not use."""
    if schema is not None:
        return "That does not fit."
    shape = "" if isinstance(value, str) else f", in answer to {_json(value)}"
    return f"The graph cannot use this text: it needs data (JSON){shape}."


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
    """Return the calls that LangChain's middleware submits for review, ``None`` for other
    interrupts.
    """
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
            raise DoesNotFit(f"Give {len(requests)} decisions, one for each call, in order.")
        return [_checked_decision(*each) for each in zip(may, data, strict=True)]
    return [_decision(each, answer) for each in may]


KINDS = ("approve", "edit", "reject", "respond")


def _checked_decision(allowed: Sequence[str] | None, decision: Any) -> Any:
    """Return a decision given as data. Raises ``DoesNotFit`` for invalid data."""
    kinds = [each for each in KINDS if allowed is None or each in allowed]
    kind = decision.get("type") if isinstance(decision, Mapping) else None
    if kind not in kinds:
        raise DoesNotFit(f"A decision must be an object with one of the types {', '.join(kinds)}.")
    edited = decision.get("edited_action")
    if kind == "edit" and not (
        isinstance(edited, Mapping)
        and isinstance(edited.get("name"), str)
        and isinstance(edited.get("args"), Mapping)
    ):
        raise DoesNotFit("A decision to edit must have an edited_action with a name and args.")
    if not isinstance(decision.get("message", ""), str):
        raise DoesNotFit("The message of a decision must be text.")
    return decision


def _decision(allowed: Sequence[str] | None, answer: Message) -> Json:
    """Return a decision given in words. Raises ``DoesNotFit``."""
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
    raise DoesNotFit(
        f"The decision must be data with one of these types: {', '.join(sorted(may))}."
    )


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


def _inbox(action: Mapping[str, Any], answer: Message) -> Json:
    may = action.get("config") or {}
    decision = decision_in(answer)
    if decision is not None and decision.is_approved and may.get("allow_accept"):
        return {"type": "accept", "args": None}
    if decision is not None and not decision.is_approved and may.get("allow_ignore"):
        return {"type": "ignore", "args": None}
    if may.get("allow_respond") and answer.text:
        return {"type": "response", "args": answer.text}
    raise DoesNotFit("Please answer yes or no, or with data.")


# -- inputs -----------------------------------------------------------------------------------


UNREADABLE = (PydanticUserError, NameError, TypeError)
"""Errors of pydantic for a type that it cannot handle; such a type is not checked here."""

MESSAGES = "messages"
"""The key of a state's conversation."""

STRUCTURED = "structured_response"
"""The key of the structured output of LangChain's agents."""

LARGEST_SCHEMA = 16_000
"""The number of bytes of a schema a card shows."""


class GraphSchemas:
    """The declared input and output of a graph.

    ``takes_messages`` is true for a state with ``messages``. ``input`` and ``output`` are JSON
    Schemas without the conversation, ``None`` without further declarations.
    """

    def __init__(self, graph: Any) -> None:
        builder = getattr(graph, "builder", None)
        state = getattr(builder, "state_schema", None)
        taken = getattr(builder, "input_schema", None) or state
        given = getattr(builder, "output_schema", None) or state
        self.fields = _fields(taken)
        self.takes_messages = MESSAGES in self.fields
        self.returns_messages = MESSAGES in _fields(given)
        own_input = taken is not state or _is_model(taken)
        self._input = _adapter(taken, strict=own_input) if builder is not None else _whole(graph)
        self.input = _schema(self._input)
        is_declared = given is not state or not self.returns_messages
        if builder is None:
            self.output = _declared(graph, "get_output_jsonschema")
        else:
            self.output = _schema(_adapter(given, strict=True)) if is_declared else None
        others = (MESSAGES, STRUCTURED)
        self._output_fields = [name for name in _fields(given) if name not in others]
        self._is_state = builder is not None
        self.returns_data = is_declared and (not self._is_state or bool(self._output_fields))

    def input_in(self, message: Message) -> Any:
        """Return the input in a message. Raises ``DoesNotFit``, with the expected input."""
        text = message.text
        for part in message.parts:
            if part.has_data:
                return self.checked(part.data)
        schema, found = self.input or {}, json_in(text)
        if schema.get("type") == "string":
            return self._read(text)
        if isinstance(found, dict):
            return self.checked(found)
        if not self._is_state and not schema.get("properties"):
            return self._read(text if found is None else found)
        required = schema.get("required") or list(schema.get("properties", ()))
        fits = {
            name: value for name in required if (value := self._of_text(name, text)) is not None
        }
        texts = [name for name in fits if schema["properties"][name].get("type") == "string"]
        if text and len(names := texts or list(fits)) == 1:
            return self.checked({names[0]: fits[names[0]]})
        raise DoesNotFit(self._wanted)

    def checked(self, data: Any) -> Any:
        """Return data as valid input of the graph. Raises ``DoesNotFit``."""
        if self._is_state and not isinstance(data, Mapping):
            raise DoesNotFit(f"The input must be an object. {self._wanted}")
        if self._is_state and self._input and (unknown := sorted(set(data) - set(self.fields))):
            raise DoesNotFit(
                f"The input has {', '.join(map(repr, unknown))}, which is unknown; it accepts "
                f"{', '.join(map(repr, self.fields))}."
            )
        self._read(data)
        return data

    def _read(self, data: Any) -> Any:
        """Return data as the type of the input. Raises ``DoesNotFit``."""
        try:
            return data if self._input is None else self._input.validate_python(data)
        except ValidationError as error:
            said = "; ".join(
                f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}"
                for each in error.errors(include_url=False, include_input=False)
            )
            raise DoesNotFit(f"The input does not fit: {said}.") from error

    def _of_text(self, name: str, text: str) -> Any:
        """Return text as the value of a field, ``None`` if it is invalid there."""
        assert self._input is not None
        try:
            found = self._input.validate_python({name: text})
        except ValidationError as error:
            is_own = any(each["loc"][:1] == (name,) for each in error.errors())
            return None if is_own else text  # other fields would be missing
        return found[name] if isinstance(found, dict) else getattr(found, name, text)

    @property
    def _wanted(self) -> str:
        schema = self.input or {}
        fields = ", ".join(map(repr, schema.get("properties", self.fields)))
        if not fields:
            return "Send data (JSON) that fits the schema."
        begins = "" if schema.get("required") else " {} begins with none of them."
        return f"Send data (JSON) with {fields}.{begins}"

    def is_structured(self, values: Any) -> bool:
        """Return whether a state has the structured output of LangChain's agents."""
        return isinstance(values, dict) and values.get(STRUCTURED) is not None

    def result(self, values: Any) -> Any:
        """Return the output of a graph as JSON, without the conversation; ``UNSET``
        without output.
        """
        if self.is_structured(values):
            return to_jsonable_python(values[STRUCTURED], serialize_unknown=True)
        if not self.returns_data:
            return msgspec.UNSET
        if not self._is_state:
            return to_jsonable_python(values, serialize_unknown=True)
        state = values if isinstance(values, dict) else vars(values)
        found = {name: state.get(name) for name in self._output_fields}
        found = {name: value for name, value in found.items() if value is not None}
        return to_jsonable_python(found, serialize_unknown=True)

    def result_schema(self, values: Any) -> Json | None:
        """Return the JSON Schema of ``result(values)``."""
        if self.is_structured(values):
            kind = type(values[STRUCTURED])
            if _is_model(kind):
                return _schema(TypeAdapter(kind))
            return None
        return self.output


def json_in(text: str) -> Any:
    """Return parsed JSON text, ``None`` for other text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def default_context(graph: Any) -> Any:
    """Return the default runtime context of a graph's schema, or ``None``."""
    try:
        return graph.context_schema()
    except (AttributeError, TypeError, ValueError):  # includes pydantic's errors
        return None


def _fields(kind: Any) -> list[str]:
    if kind is None:
        return []
    try:
        return list(get_type_hints(kind))
    except (NameError, TypeError):
        return list(getattr(kind, "__annotations__", {}))


def _is_model(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, BaseModel)


def _adapter(kind: Any, *, strict: bool) -> TypeAdapter[Any] | None:
    """Return a validator of a state without its conversation.

    If a ``TypedDict`` is the whole state, nodes fill in keys, so no key is required.
    """
    if _is_model(kind) and MESSAGES not in kind.model_fields:
        return TypeAdapter(kind)
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return None
    required = getattr(kind, "__required_keys__", frozenset(hints)) if strict else frozenset()
    fields: Json = {}
    for name, hint in hints.items():
        if name == MESSAGES:
            continue
        plain = _plain(hint)
        if name in required:
            fields[name] = (plain, ...)
        else:
            fields[name] = (plain, getattr(kind, name, None))
    if not fields:
        return None
    try:
        model = create_model(
            getattr(kind, "__name__", "Input"),
            __config__=ConfigDict(arbitrary_types_allowed=True),
            **fields,
        )
        return TypeAdapter(model)
    except UNREADABLE:
        return None


def _plain(hint: Any) -> Any:
    """Return a type without the reducer in ``Annotated``, and without ``Required``."""
    while get_origin(hint) is not None and str(get_origin(hint)).endswith(
        ("Required", "NotRequired", "ReadOnly")
    ):
        hint = get_args(hint)[0]
    if get_origin(hint) is Annotated:
        kept = [each for each in get_args(hint)[1:] if not callable(each)]
        base = get_args(hint)[0]
        return Annotated[(base, *kept)] if kept else base
    return hint


def _whole(graph: Any) -> TypeAdapter[Any] | None:
    """Return a validator of the input of a workflow of the functional API."""
    try:
        kind = graph.InputType
        return None if kind is Any else TypeAdapter(kind)
    except UNREADABLE:
        return None


def _declared(graph: Any, name: str) -> Json | None:
    try:
        found: Json = getattr(graph, name)()
    except UNREADABLE:
        return None
    return found


def _schema(adapter: TypeAdapter[Any] | None) -> Json | None:
    if adapter is None:
        return None
    try:
        found = adapter.json_schema()
    except UNREADABLE:
        return None
    return found if len(msgspec.json.encode(found)) <= LARGEST_SCHEMA else None
