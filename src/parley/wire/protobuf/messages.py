"""Protobuf message classes from the descriptors of the specification, in a separate pool.

``descriptors.binpb`` has the files of both versions and of ``google.rpc``, made by
``tests/wire/protobuf/descriptors.py``. Protobuf's default pool is not used: it may contain another
implementation of the same packages.
"""

from __future__ import annotations

from collections.abc import Sized
from importlib.resources import files
from typing import Any

import msgspec
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from parley.model.errors import FieldViolation, InvalidParamsError, InvalidRequestError
from parley.model.struct import A2AStruct
from parley.wire.json.syntax import Bytes

Message = Any
"""A protobuf message, of a class that is created at run time."""

POOL = DescriptorPool()
for _file in FileDescriptorSet.FromString(
    files("parley.wire.protobuf").joinpath("descriptors.binpb").read_bytes()
).file:
    POOL.Add(_file)


class Messages:
    """The message classes of a package in ``POOL``, by their names."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._classes: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return the class of a message of the package."""
        made = self._classes.get(name)
        if made is None:
            package = "google.protobuf" if name == "Empty" else self.package
            descriptor = POOL.FindMessageTypeByName(f"{package}.{name}")
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


DEEPEST = 60
"""The maximum nesting of arrays and objects in a request that protobuf accepts.

Messages may be nested 100 deep; an array or an object in a ``Value`` takes two levels.
"""


def check_parts(parts: Sized, max_parts: int, field: str = "message.parts") -> None:
    """Reject a message with too many parts. Raises ``InvalidParamsError``."""
    if len(parts) > max_parts:
        violation = FieldViolation(field, f"at most {max_parts} parts are allowed")
        raise InvalidParamsError(
            f"the message has more than {max_parts} parts", violations=(violation,)
        )


def check_depth(request: A2AStruct, max_depth: int) -> None:
    """Reject a request that is nested too deeply. Raises ``InvalidParamsError``."""
    if max_depth < DEEPEST and _depth(request) > max_depth:
        raise InvalidParamsError(f"the body is nested more than {max_depth} levels deep")


def _depth(value: Any) -> int:
    """Return the nesting depth of arrays and objects in the JSON of a value."""
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
        if value == ():  # a field that was left out
            continue
        deepest = max(deepest, depth)
        pending += [(item, depth + 1) for item in items]
    return deepest
