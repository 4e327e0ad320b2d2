"""Messages of the envelope protocol as JSON, and back.

Reading is strict about what a message means: required members are there and of their types, ids are
within the limits of ``model.ids``, no member stands there twice. It is tolerant of the future:
every version ``1.x`` is read, and members that 1.0 does not have are kept or ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import isfinite
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from parley.envelope.messages import (
    Envelope,
    EnvelopeVersionUnknown,
    MessageInfo,
    MessageType,
    Priority,
    RequestPayload,
    ResponsePayload,
    RoutingStrategy,
    Security,
    Source,
    SubType,
    Target,
)
from parley.model.errors import A2AError, FieldViolation, InvalidParamsError, InvalidRequestError
from parley.model.ids import RIGHT_ID, RIGHT_NAME, may_be_id, may_be_name
from parley.model.struct import A2AStruct, Timestamp, encode, to_wire
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
    """Return the value that JSON stands for. It stands for one value to every parser.

    Raises ``JSONParseError`` for bytes that are no JSON in UTF-8 (NaN is none), and
    ``InvalidRequestError`` for too many bytes, too many levels, a number that cannot be kept, and
    a member that an object has twice.
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


def read_struct(kind: type[T], value: Any) -> T:
    """Return the ``kind`` that a JSON value stands for. Raises ``InvalidValue``."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except (msgspec.ValidationError, RecursionError):
        return _reader(kind)(value)  # type: ignore[no-any-return, arg-type]


@cache
def _reader(kind: type) -> Read:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return _struct(info)


def _read_of(info: inspect.Type) -> Read:
    match info:
        case inspect.StructType(cls=cls):
            return lambda value: _reader(cls)(value)
        case inspect.UnionType(types=types):
            (inner,) = [each for each in types if not isinstance(each, inspect.NoneType)]
            return _read_of(inner)
        case inspect.StrType(min_length=min_length):
            return lambda value: _text_of(value, min_length or 0)
        case inspect.IntType(ge=lowest, le=highest):
            return lambda value: _integer(value, lowest or 0, highest or 0)
        case inspect.BoolType():
            return _boolean
        case inspect.AnyType():
            return lambda value: value
        case inspect.VarTupleType(item_type=item):
            read_item = _read_of(item)
            return lambda value: tuple(read_items(enumerate(_list(value)), read_item))
        case inspect.DictType(value_type=item):
            read_value = _read_of(item)
            return lambda value: read_members(object_of(value), read_value)
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
    if type(value) is not dict:
        raise expected("an object", value)
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise expected("an array", value)
    return value


def _text_of(value: Any, min_length: int) -> str:
    if type(value) is not str:
        raise expected("a string", value)
    if len(value) < min_length:
        raise InvalidValue([("", "must not be empty")])
    return value


def _integer(value: Any, lowest: int, highest: int) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not lowest <= value <= highest:
        what = f"an integer from {lowest} to {highest}"
        raise InvalidValue([("", f"expected {what}, got {str(value)[:40]}")])
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise expected("true or false", value)
    return value


S = TypeVar("S", bound=A2AStruct)

UTF_8 = "utf-8"
"""The encoding of ``parameters``: plain JSON."""

_VERSION = re.compile(r"1(?:\.[0-9]{1,9}){0,2}")

_KNOWN = frozenset(field.encode_name for field in msgspec.structs.fields(Envelope)) - {
    "further",
    "received",
}


class UnreadableEnvelope(Exception):
    """Bytes are no message. ``error`` says why.

    ``message_id`` and ``agent_id`` are the ids of the message and its sender, for an answer. Ids
    that could not be read are empty.
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

    The payload of a REQUEST is a ``RequestPayload``, that of a RESPONSE a ``ResponsePayload``; that
    of an EVENT is one of them if it has an ``action`` or a ``status``. Others stay JSON.
    """
    members: Any = None
    try:
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogatepass")
        members = parse(data, max_depth=max_depth, max_bytes=max_bytes)
        return _read(members)
    except A2AError as error:
        raise UnreadableEnvelope(error, *_identity(members)) from None


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
    for name in ("version", "message_id", "timestamp", "source", "target", "message"):
        value = _plain(getattr(message, name))
        if value != {}:
            members[_WIRE[name]] = value
    members["payload"] = _payload_members(message.payload)
    if message.security is not None:
        members["security"] = _plain(message.security)
    return members


_WIRE = {field.name: field.encode_name for field in msgspec.structs.fields(Envelope)}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=to_wire)


def _payload_members(payload: RequestPayload | ResponsePayload | msgspec.Raw) -> Any:
    if isinstance(payload, RequestPayload):
        members = _plain(payload)
        members.setdefault("parameters", {})
        return members
    if isinstance(payload, ResponsePayload):
        given = _plain(payload)
        members = {
            "status": given["status"],
            "results": list(given.get("results", ())),
            "metadata": given.get("metadata", {}),
        }
        if (error := given.get("error")) is not None:
            for name in ("violations", "details"):
                if name in error:
                    error[name] = list(error[name])
            members["error"] = error
        return members
    return msgspec.json.decode(payload)


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


def _identity(members: Any) -> tuple[str, str]:
    """Return the ids of a message and of its sender, as far as they can be ids."""
    if not isinstance(members, dict):
        return "", ""
    id, source = members.get("messageId"), members.get("source")
    sender = source.get("agentId") if isinstance(source, dict) else None
    return (
        id if isinstance(id, str) and may_be_id(id) else "",
        sender if isinstance(sender, str) and may_be_name(sender) else "",
    )


def _read(members: Any) -> Envelope:
    if type(members) is not dict:
        raise InvalidRequestError("a message is a JSON object")
    problems: list[Problem] = []

    def read(name: str, reader: Callable[[Any], Any], default: Any = None) -> Any:
        value = members.get(name)
        if value is None:
            if default is None:
                problems.append((name, "required, but missing"))
            return default
        try:
            return reader(value)
        except InvalidValue as wrong:
            problems.extend(wrong.under(name))
            return default

    version = read("version", _version)
    message_id = read("messageId", _id)
    timestamp = read("timestamp", _timestamp)
    source = read("source", _source)
    info = read("message", _message_info)
    target = read("target", _target, Target())
    security = None
    if members.get("security") is not None:
        security = read("security", _security)
    kind = info.type if info is not None else ""
    payload = read("payload", lambda value: _payload(value, kind))
    if kind == MessageType.REQUEST:
        _check_choices(info, target, problems)
    if problems:
        _refuse(problems)
    return Envelope(
        version=version,
        message_id=message_id,
        timestamp=timestamp,
        source=source,
        target=target,
        message=info,
        payload=payload,
        security=security,
        further={name: members[name] for name in members.keys() - _KNOWN},
        received=members if security is not None else None,
    )


def _refuse(problems: list[Problem]) -> None:
    try:
        refuse(InvalidValue(problems).violations)
    except A2AError as error:
        raise InvalidRequestError(error.message, violations=error.violations) from None


def _check_choices(info: MessageInfo, target: Target, problems: list[Problem]) -> None:
    """Add the choices of a REQUEST that this version does not have."""
    for path, value, known in (
        ("message.subType", info.sub_type, _SUB_TYPES),
        ("message.priority", info.priority, _PRIORITIES),
        ("target.routingStrategy", target.routing_strategy, _STRATEGIES),
    ):
        if value not in known:
            problems.append((path, f"expected one of {', '.join(known)}; got {value[:40]!r}"))


# As plain strings: to go through an enum costs each message as much as to parse it.
_SUB_TYPES, _PRIORITIES, _STRATEGIES = (
    tuple(each.value for each in kind) for kind in (SubType, Priority, RoutingStrategy)
)


def _version(value: Any) -> str:
    text = _text(value)
    if not _VERSION.fullmatch(text):
        raise EnvelopeVersionUnknown(
            f"version {text[:40]!r} of the envelope protocol is not read here; "
            "every version 1.x is, such as 1.0",
            metadata={"requestedVersion": text[:40], "supportedVersions": "1.0"},
            violations=(FieldViolation("version", "expected 1.0, or another version 1.x"),),
        )
    return text


def _text(value: Any) -> str:
    if type(value) is not str:
        raise expected("a string", value)
    if not value:
        raise InvalidValue([("", "must not be empty")])
    return value


def _id(value: Any) -> str:
    text = _text(value)
    if not may_be_id(text):
        raise InvalidValue([("", f"expected {RIGHT_ID}")])
    return text


def _timestamp(value: Any) -> Timestamp:
    try:
        return Timestamp.parse(_text(value))
    except ValueError as error:
        raise InvalidValue([("", str(error))]) from None


def _source(value: Any) -> Source:
    return _with_names(read_struct(Source, value), "agent_id", "agent_type", "instance_id")


def _target(value: Any) -> Target:
    return _with_names(read_struct(Target, value), "agent_id", "agent_type", "routing_strategy")


def _message_info(value: Any) -> MessageInfo:
    info = _with_names(read_struct(MessageInfo, value), "type", "sub_type", "priority")
    if not may_be_id(info.correlation_id):
        raise InvalidValue([("correlationId", f"expected {RIGHT_ID}")])
    return info


def _security(value: Any) -> Security:
    security = _with_names(
        read_struct(Security, value), "signature", "timestamp", "nonce", "key_id", "algorithm"
    )
    try:
        Timestamp.parse(security.timestamp)
    except ValueError as error:
        raise InvalidValue([("timestamp", str(error))]) from None
    return security


def _with_names(struct: S, *fields: str) -> S:
    problems = [
        (_camel(field), f"expected {RIGHT_NAME}")
        for field in fields
        if not may_be_name(getattr(struct, field))
    ]
    if problems:
        raise InvalidValue(problems)
    return struct


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _payload(value: Any, kind: str) -> RequestPayload | ResponsePayload | msgspec.Raw:
    members = object_of(value)
    is_event = kind == MessageType.EVENT
    if kind == MessageType.RESPONSE or (is_event and "status" in members):
        return read_struct(ResponsePayload, members)
    if kind == MessageType.REQUEST or (is_event and "action" in members):
        return _request_payload(members)
    return msgspec.Raw(encode(members))


def _request_payload(members: dict[str, Any]) -> RequestPayload:
    payload = _with_names(read_struct(RequestPayload, members), "action")
    metadata = payload.metadata
    problems = [
        (f"metadata.{name}", f"expected {RIGHT_ID}")
        for name, id in (("contextId", metadata.context_id), ("taskId", metadata.task_id))
        if not may_be_id(id)
    ]
    if metadata.encoding != UTF_8:
        words = f"expected {UTF_8}; got {metadata.encoding[:40]!r}: send the parameters as JSON"
        problems.append(("metadata.encoding", words))
    if problems:
        raise InvalidValue(problems)
    given = payload.parameters
    return payload if given is not None else msgspec.structs.replace(payload, parameters={})
