"""Protobuf message classes made at run time from schemas, in descriptor pools of their own.

Protobuf's default pool stays untouched: it may hold another implementation of the same packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import msgspec
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from parley.model.errors import FieldViolation, InvalidParamsError, InvalidRequestError
from parley.model.struct import A2AStruct
from parley.wire.json.syntax import Bytes

Message = Any
"""A protobuf message, of a class that is made at run time."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
}
_KNOWN_FILES = (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2)
_KNOWN = ("Any", "Duration", "Empty", "Struct", "Timestamp", "Value")
_FACT = re.compile(
    r"(?P<number>\d+) (?P<name>\w+)(?:@(?P<json>\w+))? (?P<type>\w+)(?P<many>\[\]|\{\}|\?)?"
    r"(?: \|(?P<oneof>\w+))?"
)


class Schema(msgspec.Struct, frozen=True):
    """The messages, enums and services of one protobuf package (proto3).

    A message is its fields, ``number name type``, separated by commas. After the type, ``[]``
    marks a repeated field, ``{}`` a map from strings, ``?`` a field with presence, and ``|name`` a
    member of a oneof. ``name@other`` gives the field another name in JSON. The values of an enum
    are numbered from 0. A method has a request and a response, with ``[]`` for a stream.
    """

    package: str
    messages: Mapping[str, str]
    enums: Mapping[str, Sequence[str]] = {}
    services: Mapping[str, Mapping[str, tuple[str, str]]] = {}


class Messages:
    """The message classes of one schema, in a ``pool`` of their own."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.pool = DescriptorPool()
        self._classes: dict[str, Any] = {}
        for known in _KNOWN_FILES:
            self.pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        self.pool.AddSerializedFile(file_of(schema).SerializeToString())

    def __getitem__(self, name: str) -> Any:
        """Return the class of a message of the schema, or of one of protobuf's own by its name."""
        made = self._classes.get(name)
        if made is None:
            package = self.schema.package if name in self.schema.messages else "google.protobuf"
            descriptor = self.pool.FindMessageTypeByName(f"{package}.{name}")
            made = self._classes[name] = message_factory.GetMessageClass(descriptor)
        return made

    def parse(self, name: str, data: Bytes) -> Message:
        """Return the message that ``data`` holds. Raises ``InvalidRequestError``."""
        message = self[name]()
        try:
            message.ParseFromString(bytes(data))
        except DecodeError:
            full = message.DESCRIPTOR.full_name
            raise InvalidRequestError(
                f"the bytes are no {full} in protobuf, or it is nested more than 100 levels deep"
            ) from None
        return message


def file_of(schema: Schema) -> Any:
    """Return the descriptor of the file for a schema."""
    file = descriptor_pb2.FileDescriptorProto(
        # The name is its own: tools that see several files of one package keep them apart.
        name=f"parley/{schema.package}.proto",
        package=schema.package,
        syntax="proto3",
        dependency=[known.DESCRIPTOR.name for known in _KNOWN_FILES],
    )
    for name, values in schema.enums.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, facts in schema.messages.items():
        _describe(file.message_type.add(name=name), facts, schema)
    for name, methods in schema.services.items():
        service = file.service.add(name=name)
        for method, (request, response) in methods.items():
            service.method.add(
                name=method,
                input_type=_full_name(request.removesuffix("[]"), schema),
                output_type=_full_name(response.removesuffix("[]"), schema),
                client_streaming=request.endswith("[]"),
                server_streaming=response.endswith("[]"),
            )
    return file


def _describe(message: Any, facts: str, schema: Schema) -> None:
    fields = list(_facts(message.name, facts))
    oneofs = list(dict.fromkeys(fact["oneof"] for fact in fields if fact["oneof"]))
    # Synthetic oneofs come after the real ones.
    alone = [f"_{fact['name']}" for fact in fields if fact["many"] == "?"]
    for oneof in (*oneofs, *alone):
        message.oneof_decl.add(name=oneof)
    for fact in fields:
        field = message.field.add(
            name=fact["name"],
            json_name=fact["json"] or _camel_case(fact["name"]),
            number=int(fact["number"]),
            label=_Field.LABEL_REPEATED if fact["many"] in ("[]", "{}") else _Field.LABEL_OPTIONAL,
        )
        if fact["many"] == "{}":
            entry = message.nested_type.add(name=f"{_capitalized(fact['name'])}Entry")
            entry.options.map_entry = True
            entry.field.add(
                name="key",
                json_name="key",
                number=1,
                label=_Field.LABEL_OPTIONAL,
                type=_Field.TYPE_STRING,
            )
            value = entry.field.add(
                name="value", json_name="value", number=2, label=_Field.LABEL_OPTIONAL
            )
            _set_type(value, fact["type"], schema)
            field.type = _Field.TYPE_MESSAGE
            field.type_name = f".{schema.package}.{message.name}.{entry.name}"
        else:
            _set_type(field, fact["type"], schema)
        if fact["oneof"]:
            field.oneof_index = oneofs.index(fact["oneof"])
        elif fact["many"] == "?":
            field.proto3_optional = True
            field.oneof_index = len(oneofs) + alone.index(f"_{fact['name']}")


def _facts(message: str, facts: str) -> Iterator[dict[str, str]]:
    for each in filter(None, facts.split(", ")):
        fact = _FACT.fullmatch(each)
        if fact is None:
            raise ValueError(f"{message}: {each!r} describes no field")
        yield fact.groupdict("")


def _set_type(field: Any, kind: str, schema: Schema) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in schema.enums else _Field.TYPE_MESSAGE
        field.type_name = _full_name(kind, schema)


def _full_name(kind: str, schema: Schema) -> str:
    if kind in schema.messages or kind in schema.enums:
        return f".{schema.package}.{kind}"
    if kind in _KNOWN:
        return f".google.protobuf.{kind}"
    raise ValueError(f"{schema.package} has no {kind}")


def _capitalized(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def _camel_case(name: str) -> str:
    capitalized = _capitalized(name)
    return name[:1] + capitalized[1:]


DEEPEST = 60
"""Protobuf accepts no request that is nested deeper than this many arrays and objects.

Messages may be nested 100 deep; an array or an object in a ``Value`` takes two.
"""


def check_parts(parts: Sized, max_parts: int, field: str = "message.parts") -> None:
    """Reject a message with too many parts. Raises ``InvalidParamsError``."""
    if len(parts) > max_parts:
        violation = FieldViolation(field, f"at most {max_parts} parts are taken")
        raise InvalidParamsError(
            f"the message has more than {max_parts} parts", violations=(violation,)
        )


def check_depth(request: A2AStruct, max_depth: int) -> None:
    """Reject a request that is nested too deeply. Raises ``InvalidParamsError``."""
    if max_depth < DEEPEST and _depth(request) > max_depth:
        raise InvalidParamsError(f"the body is nested more than {max_depth} levels deep")


def _depth(value: Any) -> int:
    """Return how deep the arrays and objects in the JSON of a value are nested."""
    deepest = 0
    pending = [(value, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, msgspec.Struct):
            items = [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, dict):
            items = list(value.values())
        elif isinstance(value, list | tuple):
            items = list(value)
        else:
            continue
        if value == ():  # a field that is left out
            continue
        deepest = max(deepest, depth)
        pending += [(item, depth + 1) for item in items]
    return deepest
