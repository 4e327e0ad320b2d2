"""The reference implementation: protobuf's own JSON codec, on descriptors from the facts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
)


@cache
def facts(version: str) -> dict[str, Any]:
    """Return the messages and enums of a version of the specification."""
    path = Path(__file__).parent.parent.parent / "data" / f"a2a_{version}_messages.json"
    read: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return read


_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
}


@cache
def message_class(name: str, version: str = "v1") -> Any:
    """Return protobuf's class for a message of the specification."""
    if name == "Empty":
        from google.protobuf import empty_pb2

        return empty_pb2.Empty
    package = facts(version)["package"]
    descriptor = _pool(version).FindMessageTypeByName(f"{package}.{name}")
    return message_factory.GetMessageClass(descriptor)


def parse(body: bytes, name: str, version: str = "v1") -> Any:
    """Return protobuf's decoding of JSON; unknown fields are ignored."""
    return json_format.Parse(body, message_class(name, version)(), ignore_unknown_fields=True)


def write(message: Any) -> bytes:
    """Return protobuf's JSON."""
    return json_format.MessageToJson(message, indent=None).encode()


@cache
def _pool(version: str) -> descriptor_pool.DescriptorPool:
    known_facts = facts(version)
    pool = descriptor_pool.DescriptorPool()
    for known in (struct_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="a2a.proto",
        package=known_facts["package"],
        syntax="proto3",
        dependency=["google/protobuf/struct.proto", "google/protobuf/timestamp.proto"],
    )
    for name, values in known_facts["enums"].items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    by_name: dict[str, descriptor_pb2.DescriptorProto] = {}
    for name in sorted(known_facts["messages"], key=lambda name: "." in name):
        outer, _, inner = name.rpartition(".")
        by_name[name] = (
            by_name[outer].nested_type.add(name=inner)
            if outer
            else file.message_type.add(name=name)
        )
        by_name[name].options.map_entry = name.endswith("Entry")
        _add_fields(by_name[name], known_facts["messages"][name]["fields"], known_facts["enums"])
    pool.Add(file)
    return pool


def _add_fields(
    message: descriptor_pb2.DescriptorProto, fields: list[dict[str, Any]], enums: dict[str, Any]
) -> None:
    oneofs: dict[str, int] = {}
    for fact in fields:
        if "oneof" in fact and fact["oneof"] not in oneofs:
            oneofs[fact["oneof"]] = len(oneofs)
            message.oneof_decl.add(name=fact["oneof"])
    for fact in fields:
        field = message.field.add(
            name=fact["name"],
            json_name=fact["json"],
            number=fact["number"],
            label=_Field.LABEL_REPEATED if fact["label"] == "repeated" else _Field.LABEL_OPTIONAL,
        )
        if fact["type"] in _SCALARS:
            field.type = _SCALARS[fact["type"]]
        else:
            is_enum = fact["type"].rpartition(".")[2] in enums
            field.type = _Field.TYPE_ENUM if is_enum else _Field.TYPE_MESSAGE
            field.type_name = f".{fact['type']}"
        if "oneof" in fact:
            field.oneof_index = oneofs[fact["oneof"]]
        if fact.get("presence"):  # a proto3 optional field is its own oneof
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{fact['name']}")
