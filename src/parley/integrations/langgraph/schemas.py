"""What a graph takes and returns: its schemas, and input made of a message."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python

from parley.integrations.answers import DoesNotFit
from parley.model.parts import Message

UNREADABLE = (PydanticUserError, NameError, TypeError)
"""What pydantic raises for a type that it cannot read; such a type is not checked here."""

MESSAGES = "messages"
"""The key of a state that has a conversation."""

STRUCTURED = "structured_response"
"""The key under which LangChain's agents keep structured output."""

LARGEST_SCHEMA = 16_000
"""How many bytes of a schema a card shows."""


class GraphSchemas:
    """The input and the output of a graph, as far as it declares them.

    ``takes_messages`` is true for a state with ``messages``. ``input`` and ``output`` are JSON
    Schemas without the conversation, ``None`` where nothing else is declared.
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
            self.output = _call(graph, "get_output_jsonschema")
        else:
            self.output = _schema(_adapter(given, strict=True)) if is_declared else None
        others = (MESSAGES, STRUCTURED)
        self._output_fields = [name for name in _fields(given) if name not in others]
        self._is_state = builder is not None
        self.returns_data = is_declared and (not self._is_state or bool(self._output_fields))

    def input_in(self, message: Message) -> Any:
        """Return the input that a message has. Raises ``DoesNotFit`` that says what is wanted."""
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
        """Return input that the graph takes, made of data. Raises ``DoesNotFit``."""
        if self._is_state and not isinstance(data, Mapping):
            raise DoesNotFit(f"The input is an object. {self._wanted}")
        if self._is_state and self._input and (unknown := sorted(set(data) - set(self.fields))):
            raise DoesNotFit(
                f"The input has {', '.join(map(repr, unknown))}, which is not taken; it takes "
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
        """Return text as the value of a field, ``None`` if it is no value of that."""
        assert self._input is not None
        try:
            found = self._input.validate_python({name: text})
        except ValidationError as error:
            is_own = any(each["loc"][:1] == (name,) for each in error.errors())
            return None if is_own else text  # others lack
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
        """Return the output of a graph as JSON, without the conversation; ``UNSET`` for none."""
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

    def result_schema(self, values: Any) -> dict[str, Any] | None:
        """Return the JSON Schema of ``result(values)``."""
        if self.is_structured(values):
            kind = type(values[STRUCTURED])
            if _is_model(kind):
                return _schema(TypeAdapter(kind))
            return None
        return self.output


def json_in(text: str) -> Any:
    """Return the JSON that a text is, ``None`` for other texts."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def default_context(graph: Any) -> Any:
    """Return the runtime context that a graph's schema has by default, ``None`` without any."""
    try:
        return graph.context_schema()
    except (AttributeError, TypeError, ValueError):  # pydantic's own among them
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
    """Return what validates a state without its conversation.

    A ``TypedDict`` that is the whole state has keys that nodes fill in, so none is required there.
    """
    if _is_model(kind) and MESSAGES not in kind.model_fields:
        return TypeAdapter(kind)
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return None
    required = getattr(kind, "__required_keys__", frozenset(hints)) if strict else frozenset()
    fields: dict[str, Any] = {}
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
    """Return a type without the reducer that ``Annotated`` gives it, and without ``Required``."""
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
    """Return what validates the input of a workflow of the functional API."""
    try:
        kind = graph.InputType
        return None if kind is Any else TypeAdapter(kind)
    except UNREADABLE:
        return None


def _call(graph: Any, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = getattr(graph, name)()
    except UNREADABLE:
        return None
    return found


def _schema(adapter: TypeAdapter[Any] | None) -> dict[str, Any] | None:
    if adapter is None:
        return None
    try:
        found = adapter.json_schema()
    except UNREADABLE:
        return None
    return found if len(msgspec.json.encode(found)) <= LARGEST_SCHEMA else None
