"""The JSON encoding and decoding of messages of the envelope protocol.

Reading is strict about the meaning of a message: required members must be present with the right
types, ids must be within the limits of ``model.ids``, and members must be unique. It is tolerant of
future versions: every version ``1.x`` is read, and members that 1.0 lacks are kept or ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from math import isfinite
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from parley.envelope.messages import (
    ID,
    NAME,
    Envelope,
    EnvelopeHead,
    EnvelopeVersionUnknown,
    MessageType,
    Priority,
    RequestPayload,
    ResponsePayload,
    RoutingStrategy,
    SubType,
)
from parley.model.errors import A2AError, FieldViolation, InvalidParamsError, InvalidRequestError
from parley.model.ids import RIGHT_ID, RIGHT_NAME, may_be_id, may_be_name
from parley.model.struct import Timestamp, encode, from_wire, to_wire
from parley.wire.json import protojson
from parley.wire.json.problems import InvalidValue, Problem, expected, read_items, read_members
from parley.wire.json.protojson import refuse
from parley.wire.json.syntax import check_limits, without_bom

MAX_BYTES = 10 * 1024 * 1024
"""The size of a message."""

MAX_DEPTH = 100


def parse(
    data: bytes,
    *,
    max_depth: int = MAX_DEPTH,
    max_bytes: int = MAX_BYTES,
    what: str = "the message",
) -> Any:
    """Return the value of JSON text. Every parser reads it as the same value.

    Raises ``JSONParseError`` for bytes that are not JSON in UTF-8 (NaN is invalid), and
    ``InvalidRequestError`` for too many bytes, too many levels, a number out of range, and a
    duplicate member.
    """
    if len(data) > max_bytes:
        raise InvalidRequestError(f"{what} has {len(data):,} bytes; at most {max_bytes:,} are read")
    try:
        check_limits(data, max_depth, max_parts=len(data))
        data = without_bom(data)
        value = protojson.parse(data)
    except InvalidParamsError as error:
        message = error.message.replace("the body", what)
        raise InvalidRequestError(message, violations=error.violations) from None
    # The value has as many members as the text, unless one stands there twice.
    if _members(data) != _members(protojson.encode(value)):
        _refuse_twice(data)
    return value


def outside_strings(data: bytes) -> bytes:
    """Return JSON without its strings, at the speed of memory."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without escapes, every other piece between quotation marks is the inside of a string.
    return b"".join(data.split(b'"')[::2])


def _members(data: bytes) -> int:
    """Return the number of members of all objects: their colons."""
    return outside_strings(data).count(b":")


def _refuse_twice(data: bytes) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    violation = FieldViolation(name[:60], "at most once in one object")
                    raise InvalidRequestError(
                        f"the member {name[:60]!r} stands twice in one object",
                        violations=(violation,),
                    )
                seen.add(name)
        return found

    with suppress(RecursionError):
        json.loads(data, object_pairs_hook=unique)
    raise InvalidRequestError("a member stands twice in one object")


T = TypeVar("T")

Read = Callable[[Any], Any]

_RIGHT = {NAME: (may_be_name, RIGHT_NAME), ID: (may_be_id, RIGHT_ID)}


def read_struct(kind: type[T], value: Any) -> T:
    """Return the ``kind`` that a JSON value stands for. Raises ``InvalidValue``."""
    try:
        return msgspec.convert(value, kind, strict=True, dec_hook=from_wire)
    except (msgspec.ValidationError, RecursionError):
        return _reader(kind)(value)  # type: ignore[no-any-return, arg-type]


@cache
def _reader(kind: type) -> Read:
    return _read_of(inspect.type_info(kind))


def _read_of(info: inspect.Type) -> Read:
    match info:
        case inspect.StructType():
            return _struct(info)
        case inspect.UnionType(types=types):
            (inner,) = [each for each in types if not isinstance(each, inspect.NoneType)]
            return _read_of(inner)
        case inspect.StrType(min_length=min_length, pattern=pattern):
            return lambda value: _text(value, min_length, pattern)
        case inspect.IntType(ge=lowest, le=highest):
            return lambda value: _integer(value, lowest or 0, highest or 0)
        case inspect.VarTupleType(item_type=item):
            read_item = _read_of(item)
            return lambda value: tuple(
                read_items(enumerate(_of_kind(list, "an array", value)), read_item)
            )
        case inspect.DictType(value_type=item):
            read_value = _read_of(item)
            return lambda value: read_members(object_of(value), read_value)
        case inspect.BoolType():
            return lambda value: _of_kind(bool, "true or false", value)
        case inspect.CustomType():
            return _timestamp
        case inspect.AnyType():
            return lambda value: value
    raise TypeError(f"messages have no members like {info!r}")


def _struct(info: inspect.StructType) -> Read:
    fields = {each.encode_name: (each, _read_of(each.type)) for each in info.fields}

    def read(value: Any) -> Any:
        members = object_of(value)
        given: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, (field, read_field) in fields.items():
            item = members.get(name)
            if item is None:
                if field.required:
                    problems.append((name, "required, but missing"))
                continue
            try:
                given[field.name] = read_field(item)
            except InvalidValue as wrong:
                problems += wrong.under(name)
        if problems:
            raise InvalidValue(problems)
        return info.cls(**given)

    return read


def object_of(value: Any) -> dict[str, Any]:
    """Return a value that is an object. Raises ``InvalidValue`` for others."""
    return _of_kind(dict, "an object", value)  # type: ignore[no-any-return]


def _of_kind(kind: type, words: str, value: Any) -> Any:
    if type(value) is not kind:
        raise expected(words, value)
    return value


def _text(value: Any, min_length: int | None, pattern: str | None) -> str:
    text: str = _of_kind(str, "a string", value)
    if len(text) < (min_length or 0):
        raise InvalidValue([("", "must not be empty")])
    if pattern is not None:
        is_right, right = _RIGHT[pattern]
        if not is_right(text):
            raise InvalidValue([("", f"expected {right}")])
    return text


def _integer(value: Any, lowest: int, highest: int) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not lowest <= value <= highest:
        what = f"an integer from {lowest} to {highest}"
        raise InvalidValue([("", f"expected {what}, got {str(value)[:40]}")])
    return value


def _timestamp(value: Any) -> Timestamp:
    try:
        return Timestamp.parse(_text(value, 1, None))
    except ValueError as error:
        raise InvalidValue([("", str(error))]) from None


UTF_8 = "utf-8"
"""The encoding of ``parameters``: plain JSON."""

_VERSION = re.compile(r"1(?:\.[0-9]{1,9}){0,2}")


class _Request(EnvelopeHead, frozen=True, kw_only=True):
    payload: RequestPayload


class _Answer(EnvelopeHead, frozen=True, kw_only=True):
    payload: ResponsePayload


class _Other(EnvelopeHead, frozen=True, kw_only=True):
    payload: dict[str, Any]


_KNOWN = frozenset(field.encode_name for field in msgspec.structs.fields(_Other))

_WRITTEN = {"version": "version", "message_id": "messageId"} | {
    name: name for name in ("timestamp", "source", "target", "message")
}
"""The members in the order in which they are written; the payload and the signature follow."""

# As plain strings: to go through an enum costs each message as much as to parse it.
_CHOICES = {
    path: tuple(each.value for each in kind)
    for path, kind in (
        ("message.subType", SubType),
        ("message.priority", Priority),
        ("target.routingStrategy", RoutingStrategy),
    )
}


class UnreadableEnvelope(Exception):
    """Bytes are not a message. ``error`` gives the reason.

    ``message_id`` and ``agent_id`` are the ids of the message and its sender, for an answer.
    Unreadable ids are empty.
    """

    def __init__(self, error: A2AError, message_id: str = "", agent_id: str = "") -> None:
        self.error = error
        self.message_id = message_id
        self.agent_id = agent_id
        super().__init__(error.message)


def read_message(
    data: bytes | str, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES
) -> Envelope:
    """Return the message that JSON stands for. Raises ``UnreadableEnvelope``.

    The payload of a REQUEST is a ``RequestPayload``, of a RESPONSE a ``ResponsePayload``. An EVENT
    has either, by its ``action`` or ``status``. Other payloads stay JSON.
    """
    members: Any = None
    try:
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogatepass")
        members = parse(data, max_depth=max_depth, max_bytes=max_bytes)
        return _read(members)
    except A2AError as error:
        id, sender = _at(members, "messageId"), _at(members, "source.agentId")
        raise UnreadableEnvelope(
            error,
            id if isinstance(id, str) and may_be_id(id) else "",
            sender if isinstance(sender, str) and may_be_name(sender) else "",
        ) from None


def write_message(message: Envelope) -> bytes:
    """Return a message as JSON. Raises ``ValueError`` for a number that JSON does not have."""
    data = encode(members_of(message))
    if b"null" in data:
        _refuse_no_numbers(members_of(message), "")
    return data


def members_of(message: Envelope) -> dict[str, Any]:
    """Return the members of a message as they are written.

    Defaults are left out; a REQUEST always has ``parameters``, an answer ``results`` and
    ``metadata``.
    """
    members: dict[str, Any] = dict(message.further)
    for name, written in _WRITTEN.items():
        if (value := _plain(getattr(message, name))) != {}:
            members[written] = value
    members["payload"] = _payload_members(message.payload)
    if message.security is not None:
        members["security"] = _plain(message.security)
    return members


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=to_wire)


def _payload_members(payload: RequestPayload | ResponsePayload | msgspec.Raw) -> Any:
    if isinstance(payload, msgspec.Raw):
        return msgspec.json.decode(payload)
    given = _plain(payload)
    if isinstance(payload, RequestPayload):
        given.setdefault("parameters", {})
        return given
    members = {
        "status": given["status"],
        "results": list(given.get("results", ())),
        "metadata": given.get("metadata", {}),
    }
    if (error := given.get("error")) is not None:
        members["error"] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in error.items()
        }
    return members


def _refuse_no_numbers(value: Any, path: str) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{path} is {value}, a number that JSON does not have")
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for name, item in items:
        _refuse_no_numbers(item, f"{path}.{name}" if path else str(name))


def _at(members: Any, path: str) -> Any:
    """Return the value at a path, or ``None``."""
    for name in path.split("."):
        members = members.get(name) if isinstance(members, dict) else None
    return members


def _read(members: Any) -> Envelope:
    if type(members) is not dict:
        raise InvalidRequestError("a message is a JSON object")
    _check_version(members.get("version"))
    kind, payload = _at(members, "message.type"), members.get("payload")
    said = payload if kind == MessageType.EVENT and isinstance(payload, dict) else {}
    form: type[_Request | _Answer | _Other] = _Other
    if kind == MessageType.RESPONSE or "status" in said:
        form = _Answer
    elif kind == MessageType.REQUEST or "action" in said:
        form = _Request
    problems = list(_wrong_choices(members)) if kind == MessageType.REQUEST else []
    further = {name: members[name] for name in members.keys() - _KNOWN}
    known = {name: members[name] for name in _KNOWN & members.keys()} if further else members
    try:
        read = read_struct(form, known)
        if isinstance(read, _Request) and read.payload.metadata.encoding != UTF_8:
            encoding = read.payload.metadata.encoding[:40]
            words = f"expected {UTF_8}; got {encoding!r}: send the parameters as JSON"
            problems.append(("payload.metadata.encoding", words))
    except InvalidValue as wrong:
        problems = [*wrong.problems, *problems]
    if problems:
        try:
            refuse(InvalidValue(problems).violations)
        except A2AError as error:
            raise InvalidRequestError(error.message, violations=error.violations) from None
    given: dict[str, Any] = {name: getattr(read, name) for name in read.__struct_fields__}
    if isinstance(read, _Other):
        given["payload"] = msgspec.Raw(encode(payload))
    elif isinstance(read, _Request) and read.payload.parameters is None:
        given["payload"] = msgspec.structs.replace(read.payload, parameters={})
    received = members if read.security is not None else None
    return Envelope(**given, further=further, received=received)


def _check_version(version: Any) -> None:
    """Raise ``EnvelopeVersionUnknown`` for another major version."""
    if isinstance(version, str) and version and not _VERSION.fullmatch(version):
        raise EnvelopeVersionUnknown(
            f"version {version[:40]!r} of the envelope protocol is not read here; "
            "every version 1.x is, such as 1.0",
            metadata={"requestedVersion": version[:40], "supportedVersions": "1.0"},
            violations=(FieldViolation("version", "expected 1.0, or another version 1.x"),),
        )


def _wrong_choices(members: dict[str, Any]) -> Iterator[Problem]:
    """Yield the choices of a REQUEST that this version does not have."""
    for path, known in _CHOICES.items():
        value = _at(members, path)
        if isinstance(value, str) and value not in known:
            yield path, f"expected one of {', '.join(known)}; got {value[:40]!r}"
