"""Inputs of targets: real messages as seeds, and changes of them by hypothesis.

Each message type has a minimal value and full values, in every codec. Bytes in the spelling of
other implementations follow. ``inputs`` changes the seeds; it mostly changes JSON and protobuf by
structure, as a random byte would only make the input undecodable.
"""

from __future__ import annotations

import copy
import json
import re
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

from parley.model.cards import (
    AgentCard,
    AgentInterface,
    OAuth2SecurityScheme,
    OAuthFlows,
    SecurityScheme,
)
from parley.model.operations import (
    OPERATIONS,
    Operation,
    SendMessageResponse,
    StreamResponse,
    TaskPushNotificationConfig,
)
from parley.model.parts import Role
from parley.model.struct import A2AStruct, Timestamp
from parley.model.tasks import TaskState
from tests.contract.saying import PARTS
from tests.kit.strategies import MESSAGES, ONE_OF, json_values

MOMENT = Timestamp.from_milliseconds(1_790_000_000_123)
OBJECT = {"count": 3, "list": [1, 2.5, None, "x"], "deep": {"a": {"b": [[]]}}}
_DEEPEST = 7


def least(kind: type[A2AStruct]) -> Any:
    """Return the minimal value of a message type."""
    member = ONE_OF.get(kind, ())[:1]
    given = [f for f in _fields(kind) if f.required or f.name in member]
    return kind(**{f.name: _of(f, False, 0) for f in given})


def full(kind: type[A2AStruct], member: str = "", depth: int = 0) -> Any:
    """Return a value with all fields; of a oneof, ``member``."""
    one_of = ONE_OF.get(kind, ())
    member = member or (one_of[0] if one_of else "")
    given = {
        f.name: _of(f, True, depth + 1)
        for f in _fields(kind)
        if (f.name not in one_of or f.name == member) and (f.required or depth < _DEEPEST)
    }
    return kind(**given)


@cache
def values_of(kind: type[A2AStruct]) -> tuple[Any, ...]:
    """Return some values of a message type."""
    members = ONE_OF.get(kind, ("",))
    return tuple([least(kind), *(full(kind, member) for member in members)])


@cache
def _fields(kind: type[A2AStruct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _of(field: inspect.Field, all_of_it: bool, depth: int) -> Any:
    if field.name == "parts" and all_of_it:
        return PARTS
    return _value(field.type, field.name, all_of_it, depth)


def _value(info: inspect.Type, name: str, all_of_it: bool, depth: int) -> Any:
    match info:
        case inspect.StructType(cls=cls):
            return full(cls, depth=depth) if all_of_it else least(cls)
        case inspect.UnionType(types=types):
            (one,) = [case for case in types if not isinstance(case, inspect.NoneType)]
            return _value(one, name, all_of_it, depth)
        case inspect.VarTupleType(item_type=item, min_length=size):
            return (_value(item, name, all_of_it, depth),) if all_of_it or size else ()
        case inspect.DictType(value_type=inspect.AnyType()):
            return OBJECT if all_of_it else {}
        case inspect.DictType(value_type=item):
            return {"k": _value(item, name, all_of_it, depth)} if all_of_it else {}
        case inspect.EnumType(cls=cls):
            return {TaskState: TaskState.WORKING, Role: Role.USER}[cls]
        case inspect.StrType():
            return "https://agent.example/x" if name.endswith("url") else name[:4]
        case inspect.CustomType():
            return MOMENT
        case inspect.IntType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return b"\x00\xff"
    return OBJECT


def requests_of(operation: Operation) -> Iterator[Any]:
    """Yield requests for an operation."""
    for request in values_of(operation.request):
        if isinstance(request, TaskPushNotificationConfig) and not request.task_id:
            request = replace(request, task_id="t")
        yield request


def answers_of(operation: Operation) -> Iterator[Any]:
    """Yield replies to an operation, and events of a stream, without their wrappers."""
    for answer in values_of(operation.response):
        if isinstance(answer, SendMessageResponse | StreamResponse):
            yield answer.payload
        elif isinstance(answer, AgentCard):
            yield from cards()
        else:
            yield answer


@cache
def cards() -> tuple[AgentCard, ...]:
    """Return cards, with every kind of security scheme and with interfaces of both versions."""
    kinds = [*values_of(SecurityScheme), *map(_of_flow, ONE_OF[OAuthFlows])]
    card = full(AgentCard)
    offered = tuple(
        AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
        for url, binding, version in (
            ("https://agent.example/", "JSONRPC", "1.0"),
            ("agent.example:443", "GRPC", "1.0"),
            ("https://agent.example/", "JSONRPC", "0.3"),
            ("https://agent.example/", "HTTP+JSON", "0.3.0"),
        )
    )
    schemes = {f"s{n}": scheme for n, scheme in enumerate(kinds)}
    return (
        least(AgentCard),
        replace(card, supported_interfaces=offered),
        replace(card, supported_interfaces=offered, security_schemes=schemes),
    )


def _of_flow(member: str) -> SecurityScheme:
    scheme = replace(full(OAuth2SecurityScheme), flows=full(OAuthFlows, member))
    return SecurityScheme(oauth2_security_scheme=scheme)


def words() -> list[bytes]:
    """Return the names and values that messages are made of."""
    found: dict[str, None] = {}
    for kind in MESSAGES.values():
        for field in _fields(kind):
            found.update(dict.fromkeys((field.encode_name, field.name)))
    found.update(dict.fromkeys(state.value for state in TaskState))
    found.update(dict.fromkeys(role.value for role in Role))
    found.update(dict.fromkeys(operation.name for operation in OPERATIONS))
    found.update(dict.fromkeys(_OF_0_3.split()))
    return [word.encode() for word in found]


_OF_0_3 = """
kind type content request push_notification push_notification_config pushNotificationConfig
blocking final update msg status-update artifact-update message task text file data bytes uri
mimeType name parent config_id configId fileWithBytes fileWithUri submitted input-required canceled
TASK_STATE_CANCELLED user agent schemes sessionId acceptedOutputModes url preferredTransport
additionalInterfaces protocolVersion transport security in flows
supportsAuthenticatedExtendedCard error code details @type reason domain metadata fieldViolations
retryDelay type.googleapis.com/google.rpc.ErrorInfo type.googleapis.com/google.rpc.BadRequest
type.googleapis.com/google.rpc.RetryInfo a2a-protocol.org jsonrpc id method params result 2.0
message/send message/stream tasks/get tasks/cancel tasks/resubscribe tasks/send tasks/list
"""


# Requests in the spelling of other implementations: a line with the operation, then the body.
OTHERS: dict[str, tuple[bytes, ...]] = {
    "1.0": (
        b'SendMessage\n{"message":{"message_id":"m","role":1,"parts":[{"text":"hi","metadata":null}],'
        b'"context_id":null},"configuration":{"history_length":"3","accepted_output_modes":[]}}',
        b'ListTasks\n{"pageSize":10.0,"statusTimestampAfter":"2026-01-01T02:00:00.123456+02:00"}',
        b'GetTask\n{"id":"t","historyLength":null,"x":{"y":[]}}',
    ),
    "0.3": (
        b'message/send\n{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":'
        b'"text","text":"hi"},{"kind":"file","file":{"bytes":"AP8=","mimeType":"image/png"}},'
        b'{"kind":"data","data":{"a":1}}]},"configuration":{"acceptedOutputModes":["text/plain"],'
        b'"blocking":true,"pushNotificationConfig":{"url":"https://x.example","authentication":'
        b'{"schemes":["Bearer"],"credentials":"c"}}},"metadata":{}}',
        b'tasks/send\n{"id":"t","sessionId":"c","message":{"role":"user","parts":[{"type":"text",'
        b'"text":"hi"}]},"pushNotification":{"url":"https://x.example"},"historyLength":1}',
        b'message/stream\n{"message":{"messageId":"m","role":"user","parts":[{"kind":"data","data":'
        b'{"value":5},"metadata":{"data_part_compat":true}}],"taskId":"t","referenceTaskIds":["r"]}}',
        b'tasks/pushNotificationConfig/get\n{"id":"t"}',
        b'tasks/pushNotificationConfig/set\n{"id":"t","pushNotificationConfig":{"url":"u"}}',
        b'tasks/list\n{"status":"input-required","statusTimestampAfter":"2026-01-01T00:00:00"}',
    ),
}
OVER_HTTP: dict[str, tuple[bytes, ...]] = {
    "1.0": (
        b'POST /acme/message:send\n{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"url":'
        b'"https://x.example","mediaType":"image/png"}]}}',
        b"GET /tasks?page_size=5&status=TASK_STATE_WORKING&includeArtifacts=true&historyLength=0\n",
        b"GET /tasks/a%2Fb%20%C3%A9?history_length=2\n",
        b"POST /tasks/t:cancel\n",
        b'POST /tasks/a:b:cancel/\n{"metadata":{"why":"x"}}',
        b"GET /tasks/t:subscribe\n",
        b'POST /acme/tasks/t/pushNotificationConfigs\n{"url":"https://x.example","token":"s"}',
        b"DELETE /tasks/t/pushNotificationConfigs/p\n",
        b"GET /extendedAgentCard\n",
    ),
    "0.3": (
        b'POST /v1/message:send\n{"request":{"messageId":"m","role":"ROLE_USER","content":[{"file":'
        b'{"fileWithBytes":"UVVKRFJBPT0=","mimeType":"image/png"}}]},"configuration":{}}',
        b'POST /v1/message:stream\n{"message":{"kind":"message","messageId":"m","role":"user",'
        b'"parts":[{"kind":"text","text":"hi"}]}}',
        b'POST /tasks/send\n{"message":{"role":"user","parts":[{"type":"text","text":"hi"}]}}',
        b'POST /v1/tasks/t/pushNotificationConfigs\n{"parent":"tasks/t","configId":"c","config":'
        b'{"name":"n","pushNotificationConfig":{"id":"c","url":"https://x.example"}}}',
        b'POST /v1/tasks/t/pushNotificationConfigs\n{"pushNotificationConfig":{"url":"u"}}',
        b"GET /v1/tasks/t?historyLength=3\n",
        b"POST /tasks/t/cancel\n",
        b"GET /tasks/t/subscribe\n",
        b"GET /v1/card\n",
    ),
}
ANSWERS_OF_0_3 = (
    b'SendMessage\n{"kind":"task","id":"t","contextId":"c","status":{"state":"input-required",'
    b'"timestamp":"2026-01-01T00:00:00.123456","message":{"role":"agent","parts":[]}}}',
    b'SendMessage\n{"role":"agent","parts":[{"text":"hi"}],"messageId":"m"}',
    b'event\n{"kind":"status-update","taskId":"t","contextId":"c","status":{"state":"completed"},'
    b'"final":true}',
    b'event\n{"kind":"artifact-update","taskId":"t","contextId":"c","artifact":{"artifactId":"a",'
    b'"parts":[{"kind":"text","text":"x"}]},"append":true,"lastChunk":false}',
    b'ListTaskPushNotificationConfigs\n[{"taskId":"t","pushNotificationConfig":{"url":"u"}}]',
)
CARDS_OF_0_3 = (
    b'{"name":"A","description":"d","url":"https://a.example/","version":"1","protocolVersion":'
    b'"0.3.0","capabilities":{"streaming":true},"defaultInputModes":[],"defaultOutputModes":[],'
    b'"skills":[{"id":"s","name":"S","description":"d","tags":[],"security":[{"oauth":["a"]}]}],'
    b'"preferredTransport":"GRPC","additionalInterfaces":[{"url":"https://a.example/rest",'
    b'"transport":"HTTP+JSON"}],"securitySchemes":{"oauth":{"type":"oauth2","flows":{"password":'
    b'{"tokenUrl":"https://t","scopes":{"a":"b"}},"implicit":{"authorizationUrl":"u","scopes":{}}}},'
    b'"key":{"type":"apiKey","in":"header","name":"X"},"odd":{"type":"magic"}},'
    b'"security":[{"oauth":["a"],"key":[]}],"supportsAuthenticatedExtendedCard":true,'
    b'"signatures":[{"protected":"p","signature":"s","header":{"kid":"k"}}]}',
    b'{"name":"A","url":"https://a.example","capabilities":null,"skills":[]}',
)


# -- inputs derived from inputs ------------------------------------------------------------------

MOST_BYTES = 16_384

_STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 1.5, -0.0, 1e-7, 1e308, 2**31 - 1, 2**31, 2**53 + 1, 2**64,
    -(2**63), 10**40, "", "x", "\0", "é", "\U0001f600", "\u2028", " ", "1", "1.0", "true", "null",
    "YQ", "YQ==", "QUJDRA==", "!", "..", "a/b", "%2e", "tasks/t/pushNotificationConfigs/p",
    "2026-01-31T12:00:00.000Z", "2026-01-31T12:00:00", "9999-12-31T23:59:59.999-14:00",
    "0001-01-01T00:00:00+14:00", "x" * 300, [], {}, [[]], [None], [{}], {"": None}, {"a": [1]},
    {"value": 1}, {"data_part_compat": True}, "data_part_compat",
)  # fmt: skip
_TOKENS = (
    b"", b"\0", b"\n", b"\r\n", b"\r", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b'"', b"\\", b"\\ud800", b"\\u0000", b"{", b"}", b"[", b"]", b",", b":", b"1e400", b"-0",
    b"NaN",
    b"9" * 400, b"9" * 5000, b"[" * 200, b'{"a":' * 120, b"null", b"true", b"%2F", b"%00", b"%",
    b"//", b"?", b"&", b"=", b"+", b";", b" ",
)  # fmt: skip
_WORDS = words()
_NAMES = [word.decode() for word in _WORDS]
_DEPTHS = (1, 2, 5, 40, 130)


@st.composite
def inputs(draw: st.DrawFn, form: str, seeds: Sequence[bytes]) -> bytes:
    """Return inputs like ``seeds``, with some bytes, members or fields changed.

    ``form`` is ``text``, ``json``, ``line and json``, ``line and text`` or ``line and protobuf``.
    With ``line``, a first line names the operation.
    """
    has_line = form.startswith("line")
    change = _CHANGES[form.removeprefix("line and ")]
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 3))):
        line, end, body = data.partition(b"\n") if has_line else (b"", b"", data)
        other = draw(st.sampled_from(seeds))
        match draw(st.integers(0, 9)):
            case 0:
                data = _changed_bytes(draw, data, other)
            case 1 if end:
                data = _changed_bytes(draw, line, other) + end + body
            case _:
                data = line + end + change(draw, body, other.partition(b"\n")[2] if end else other)
    return data[:MOST_BYTES]


def _changed_bytes(draw: st.DrawFn, data: bytes, other: bytes) -> bytes:
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 12)) | st.just(len(data)))
    cut = data[start:end]
    put = draw(
        st.binary(max_size=3)
        | st.sampled_from((*_TOKENS, *_WORDS))
        | st.sampled_from((cut * 2, cut * 20, other[start:], other[-start:]))
    )
    return data[:start] + put + data[end:]


def _places(root: Any) -> list[tuple[Any, Any]]:
    """Return the position of each value in some JSON: its container, and its key or index."""
    found: list[tuple[Any, Any]] = []
    pending = [root]
    while pending:
        holder = pending.pop()
        for key, value in [*(holder.items() if isinstance(holder, dict) else enumerate(holder))]:
            found.append((holder, key))
            if isinstance(value, dict | list):
                pending.append(value)
    return found


def _changed_json(draw: st.DrawFn, body: bytes, other: bytes) -> bytes:
    try:
        root, others = [json.loads(body)], _places([json.loads(other)])
    except (ValueError, RecursionError):
        return _changed_bytes(draw, body, other)
    holder, key = draw(st.sampled_from(_places(root)))
    value, name = holder[key], draw(st.sampled_from(_NAMES))
    match draw(st.integers(0, 8)):
        case 0:
            theirs, place = draw(st.sampled_from(others))
            holder[key] = copy.deepcopy(theirs[place])
        case 1 if holder is not root:
            del holder[key]
        case 2 if isinstance(holder, list):
            holder[key:key] = [value] * draw(st.sampled_from((1, 2, 30)))
        case 2:
            holder[_other_spelling(key)] = holder.pop(key)
        case 3 if isinstance(holder, dict):
            holder[name] = value
        case 4 if isinstance(holder, dict):
            holder[name] = draw(st.sampled_from(_STRANGE))
        case 5:
            for _ in range(draw(st.sampled_from(_DEPTHS))):
                holder[key] = [holder[key]] if draw(st.booleans()) else {"a": holder[key]}
        case 6 if isinstance(value, str):
            text = _changed_bytes(draw, value.encode("utf-8", "surrogatepass"), other)
            holder[key] = text.decode("utf-8", "replace")
        case 6 if isinstance(value, int | float):
            holder[key] = draw(st.sampled_from((str(value), value * 2**20, -value)))
        case 7:
            holder[key] = draw(json_values)
        case _:
            holder[key] = draw(st.sampled_from((*_STRANGE, name)))
    try:
        text = json.dumps(root[0], ensure_ascii=draw(st.booleans()))
    except (ValueError, RecursionError):
        return body
    return text.encode("utf-8", "surrogatepass")


def _other_spelling(name: str) -> str:
    """Return a member's name in the other spelling of ProtoJSON."""
    if "_" in name:
        return re.sub(r"_(\w)", lambda match: match[1].upper(), name)
    return re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ODD_VALUES = st.one_of(
    st.tuples(st.just(_VARINT), st.integers(0, 2**64 - 1) | st.sampled_from((0, 1, 2, 5, 2**31))),
    st.tuples(st.just(_FIXED64), st.floats(width=64).map(lambda each: struct.pack("<d", each))),
    st.tuples(st.just(_BYTES), st.sampled_from((b"", b"\xff", b"YQ==", b"\x08\x01", b"x" * 200))),
)
"""Wire types and values that few fields have."""


def _changed_protobuf(draw: st.DrawFn, body: bytes, other: bytes) -> bytes:
    fields = _read_fields(body)
    if not fields:
        return _changed_bytes(draw, body, other)
    place = draw(st.integers(0, len(fields) - 1))
    number, kind, value = fields[place]
    if isinstance(value, bytes) and draw(st.integers(0, 3)):
        within = _changed_protobuf if _read_fields(value) else _changed_bytes
        fields[place] = (number, kind, within(draw, value, other))
        return _write_fields(fields)
    match draw(st.integers(0, 6)):
        case 0:
            del fields[place]
        case 1:
            fields[place:place] = [fields[place]] * draw(st.sampled_from((1, 2, 30)))
        case 2:
            fields[place] = (draw(st.integers(1, 20)), kind, value)
        case 3:
            fields[place] = (number, *draw(_ODD_VALUES))
        case 4:
            fields[place:place] = _read_fields(other)[:5]
        case 5 if isinstance(value, bytes):
            for _ in range(draw(st.sampled_from(_DEPTHS))):
                value = _write_fields([(draw(st.sampled_from((number, 1, 5, 6))), _BYTES, value)])
            fields[place] = (number, kind, value)
        case _:
            fields.insert(place, (draw(st.integers(1, 20)), *draw(_ODD_VALUES)))
    return _write_fields(fields)


def _read_fields(data: bytes) -> list[tuple[int, int, int | bytes]]:
    """Return the fields of a protobuf message, without a schema; none for an invalid message.

    A field is a number, a wire type and a value: an integer or bytes.
    """
    found: list[tuple[int, int, int | bytes]] = []
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:
                return value

    try:
        while place < len(data):
            tag = varint()
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                found.append((number, kind, varint()))
                continue
            size = varint() if kind == _BYTES else {_FIXED64: 8, _FIXED32: 4}[kind]
            if not number or place + size > len(data):
                return []
            found.append((number, kind, data[place : place + size]))
            place += size
    except (IndexError, KeyError):
        return []
    return found


def _write_fields(fields: Sequence[tuple[int, int, int | bytes]]) -> bytes:
    def varint(value: int) -> bytes:
        pieces = bytearray()
        while value > 127:
            pieces.append(value & 127 | 128)
            value >>= 7
        return bytes(pieces) + bytes([value])

    written = b""
    for number, kind, value in fields:
        written += varint(number << 3 | kind)
        if isinstance(value, int):
            written += varint(value)
        else:
            written += (varint(len(value)) if kind == _BYTES else b"") + value
    return written


_CHANGES = {"text": _changed_bytes, "json": _changed_json, "protobuf": _changed_protobuf}
