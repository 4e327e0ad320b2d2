"""Fuzz targets for clients: replies, events, errors and cards of peers, and HTTP headers.

The targets work as in ``asked``. For any reply of a peer, the caller gets a value, the peer's
error, or an error that calls the reply invalid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from parley.client.card import resolver as resolving
from parley.client.card.interface import choose
from parley.client.errors import CardInvalid, ClientError, NoCommonInterface
from parley.model.backoff import seconds_of
from parley.model.cards import AgentCard
from parley.model.errors import (
    ERRORS,
    A2AError,
    FieldViolation,
    InvalidAgentResponseError,
    PeerError,
    VersionNotSupportedError,
)
from parley.model.operations import BY_NAME
from parley.model.service import StreamItem
from parley.model.struct import InvalidField, encode
from parley.server.address import AllowedHosts, BadAddress, HostNotAllowed, server_address
from parley.server.http.exchange import extension_uris
from parley.wire import jsonrpc, sse, versions
from parley.wire.json import protojson
from parley.wire.protobuf.errors import CODES, read_status, write_status
from parley.wire.versions import Codec
from tests.fuzz import inputs
from tests.fuzz.asked import DIALECTS, Target
from tests.wire.v0_3.losses import left_of

OWN_HOST = re.compile(r"|(?:localhost|127(?:\.\d{1,3}){3})\.*(?::\d+)?|\[[0-9a-f:.]+\](?::\d+)?")
NOW = datetime(2026, 1, 31, tzinfo=UTC)
CODECS: dict[str, Codec] = {
    f"{binding} {version}": codec
    for version, dialect in DIALECTS.items()
    for binding, codec in (
        ("jsonrpc", dialect.jsonrpc),
        ("http_json", dialect.http_json),
        ("protobuf", dialect.grpc()),
    )
}


def answers(name: str) -> Target:
    """Return the target for replies and events, after a line with the operation or ``event``."""
    codec = CODECS[name]
    proto, is_old = not name.startswith("jsonrpc"), name.endswith("0.3")
    # Over HTTP, an event of a stream may be the error that ends the stream.
    may_be_refused = A2AError if name.startswith("http") else InvalidAgentResponseError
    operations = {**BY_NAME} if not name.startswith("protobuf") else dict.fromkeys(codec.names)

    def write_event(event: Any) -> bytes:
        return codec.write_event(StreamItem(event))

    def target(data: bytes) -> None:
        line, _, body = data.partition(b"\n")
        asked = line.decode("latin-1")
        if asked == "event":
            read: Callable[[bytes], Any] = codec.read_event
            write: Callable[[Any], bytes] = write_event
            refusals = may_be_refused
        elif asked in operations and not BY_NAME[asked].streaming:
            read = partial(codec.read_result, BY_NAME[asked])
            write = partial(codec.write_result, BY_NAME[asked])
            refusals = InvalidAgentResponseError
        else:
            return
        try:
            value = read(body)
        except refusals as error:
            check_told(error, body)
            return
        check_kept(value)
        webhooks = getattr(value, "configs", (value,))
        if is_old and proto and any("/" in getattr(hook, "task_id", "") for hook in webhooks):
            return  # 0.3 names a webhook by a path, where this id is ambiguous
        if is_old and isinstance(value, AgentCard) and not _says_how(value):
            return
        left = left_of(value, proto=proto) if is_old else value
        try:
            again = read(write(value))
        except (InvalidAgentResponseError, InvalidField):
            # In 0.3, a webhook without a task has no name.
            assert is_old, asked
            assert "ushNotification" in asked
            return
        if isinstance(value, AgentCard) and is_old:
            again, left = _without_empty(again), _without_empty(left)
        assert again == left, (again, left)

    return target


def _says_how(card: AgentCard) -> bool:
    """Return whether every interface names its protocol; 0.3 has a default and omits the rest."""
    return all(each.protocol_binding for each in card.supported_interfaces)


def _without_empty(card: AgentCard) -> AgentCard:
    """Return a card without the empty values that the proto of 0.3 drops."""
    given = card.capabilities
    capabilities = replace(
        given,
        streaming=given.streaming or None,
        push_notifications=given.push_notifications or None,
        extended_agent_card=given.extended_agent_card or None,
    )
    url, icon = card.documentation_url or None, card.icon_url or None
    return replace(card, capabilities=capabilities, documentation_url=url, icon_url=icon)


def check_kept(value: Any) -> None:
    """Check that a decoded reply stays equal when it is encoded and decoded again.

    An id that a peer omits is empty; our own log has no empty ids.
    """
    assert protojson.decode_answer(encode(value), type(value)) == value


def check_told(error: A2AError, body: bytes) -> None:
    """Check that the error message is bounded by the size of the peer's body."""
    assert error.message
    assert len(error.message) <= 2 * len(body) + 3000
    assert len(error.violations) <= 20 or not isinstance(error, InvalidAgentResponseError)


def answer_seeds(name: str) -> Callable[[], Iterator[bytes]]:
    codec = CODECS[name]

    def seeds() -> Iterator[bytes]:
        for operation in BY_NAME.values():
            if name.startswith("protobuf") and operation.name not in codec.names:
                continue
            for answer in inputs.answers_of(operation):
                if operation.streaming:
                    yield b"event\n" + codec.write_event(StreamItem(answer))
                    continue
                with suppress(InvalidField):  # in 0.3, every webhook has a task
                    yield operation.name.encode() + b"\n" + codec.write_result(operation, answer)
        if name == "jsonrpc 0.3":
            yield from inputs.ANSWERS_OF_0_3

    return seeds


# -- errors --------------------------------------------------------------------------------------


def refusals(data: bytes) -> None:
    """An error body, below a line such as ``jsonrpc 1.0`` or ``http_json 0.3 404``."""
    line, _, body = data.partition(b"\n")
    binding, _, rest = line.decode("latin-1").partition(" ")
    version, _, status = rest.partition(" ")
    codec = CODECS.get(f"{binding} {version}")
    if codec is None or binding == "protobuf":
        return
    given = [int(status) if status.isascii() and status.isdigit() and len(status) < 4 else 500]
    given = given if binding == "http_json" else []
    try:
        error = codec.read_error(*given, body)
    except InvalidAgentResponseError as wrong:
        check_told(wrong, body)
        return
    again = codec.read_error(*given, codec.write_error(error))
    check_same(again, error, renamed=f"{binding} {version}" == "http_json 0.3")
    check_same(read_status(again.grpc_status, again.message, write_status(again)), again, cut=True)


def check_same(
    again: A2AError, error: A2AError, *, cut: bool = False, renamed: bool = False
) -> None:
    """Check that an error stays the same when it is encoded and decoded again.

    ``cut``: except for details that were cut to fit. ``renamed``: violations name the fields as the
    version spells them, not as the peer did.
    """
    if isinstance(error, PeerError):
        return  # each binding has its own code or status for an error unknown to A2A
    assert type(again) is type(error), (again, error)
    assert again.message == error.message or not error.message or renamed
    if not cut:
        assert again.metadata == error.metadata
        assert [v.description for v in again.violations] == [
            v.description for v in error.violations
        ]
        assert abs((again.retry_after or 0) - (error.retry_after or 0)) < 0.001


def refusal_seeds() -> Iterator[bytes]:
    violations = (FieldViolation("message.parts", "must not be empty"),)
    for name, codec in CODECS.items():
        if name.startswith("protobuf"):
            continue
        for kind in ERRORS[::3]:
            error = kind("words", metadata={"a": "b"}, violations=violations, retry_after=1.5)
            status = f" {kind.http_status}" if name.startswith("http") else ""
            yield f"{name}{status}\n".encode() + codec.write_error(error)
    yield b'jsonrpc 1.0\n{"code":-32050,"message":"odd","data":{"a":[1]}}'
    yield b'http_json 0.3 422\n{"error":{"message":"x","code":404}}'
    yield b'http_json 1.0 400\n{"error":{"code":400,"status":"FAILED_PRECONDITION","message":"x"}}'


def statuses(data: bytes) -> None:
    """The status of a gRPC call: its name and message on a line, then the details."""
    line, _, details = data.partition(b"\n")
    status, _, message = line.decode("latin-1").partition(" ")
    error = read_status(status, message, details)
    assert isinstance(error, A2AError)
    check_same(read_status(error.grpc_status, error.message, write_status(error)), error, cut=True)


def status_seeds() -> Iterator[bytes]:
    for kind in ERRORS[::2]:
        violations = (FieldViolation("id", "must not be empty"),) * 3
        more = ({"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"a": 1}},)
        error = kind("words", metadata={"a": "b"}, violations=violations, details=more)
        yield f"{kind.grpc_status} words\n".encode() + write_status(error)
    yield from (f"{status} TaskNotFoundError: gone\n".encode() for status in CODES)


def responses(data: bytes) -> None:
    """A whole JSON-RPC response."""
    try:
        result = jsonrpc.parse_response(data)
    except InvalidAgentResponseError as error:
        check_told(error, data)
    except A2AError:
        return
    else:
        again = jsonrpc.parse_response(jsonrpc.response(b"1", bytes(result)))
        assert bytes(again) == bytes(result)


def response_seeds() -> Iterator[bytes]:
    yield jsonrpc.response(b"1", b'{"task":{"id":"t"}}')
    yield jsonrpc.response(b'"x"', b"null")
    for kind in ERRORS[::4]:
        yield jsonrpc.error_response(None, jsonrpc.error_object(kind("words", retry_after=2)))


# -- streams -------------------------------------------------------------------------------------


def events(data: bytes) -> None:
    """A stream of server-sent events, after a byte that says where the stream is cut."""
    size, stream = (data[0] if data else 0) % 40 + 1, data[1:]
    limit = 2000
    try:
        whole = sse.SseParser(limit).feed(stream)
    except InvalidAgentResponseError:
        whole = None
    parser, cut = sse.SseParser(limit), []
    try:
        for place in range(0, len(stream), size):
            cut += parser.feed(stream[place : place + size])
    except InvalidAgentResponseError:
        assert whole is None or len(stream) > limit
        return
    if whole is not None:
        assert cut == whole
        for event in whole:
            assert sse.SseParser().feed(sse.frame(event.data)) == [
                sse.SseEvent(None, "message", event.data)
            ]


def event_seeds() -> Iterator[bytes]:
    frames = [sse.frame(b'{"a":1}', 7), sse.KEEP_ALIVE, sse.frame(b"a\nb"), sse.frame(b"x", 8)]
    yield b"\0" + b"".join(frames)
    yield b"\7" + b"".join(frames).replace(b"\n", b"\r\n")
    head = b"\xef\xbb\xbfretry: 10\rid: 1\revent: e\rdata:x\r\rdata: "
    yield b"\3" + head + b"y" * 1500 + b"\r\r"


# -- cards ---------------------------------------------------------------------------------------


def cards(data: bytes) -> None:
    """A card of any version, and the choice of the interface to call."""
    try:
        card = resolving.read_card(data, "the card")
    except CardInvalid as error:
        assert len(str(error)) <= 2 * len(data) + 3000
        return
    check_kept(card)
    assert resolving.read_card(versions.write_card(card, "1.0"), "x") == card
    merged = json.loads(versions.write_card(card))
    if "protocolVersion" in merged:
        assert versions.read_card(merged) == card
    if _says_how(card) and json.loads(versions.write_card(card, "0.3"))["url"]:
        again = resolving.read_card(versions.write_card(card, "0.3"), "x")
        assert again == left_of(card), (again, card)
    with suppress(NoCommonInterface, CardInvalid):
        found = choose(card, card_url="https://a.example/card.json").candidates
        assert found
        assert all(map(str, found))
        _callable(found)


def _callable(found: Any) -> None:
    from parley.client.bindings.grpc import GrpcTarget

    for candidate in found:
        if candidate.binding == "GRPC":
            with suppress(ClientError):
                GrpcTarget.of(candidate.interface.url)


def card_seeds() -> Iterator[bytes]:
    for card in inputs.cards():
        for version in ("1.0", "0.3", ""):
            yield versions.write_card(card, version)
    yield from inputs.CARDS_OF_0_3


# -- headers -------------------------------------------------------------------------------------


def headers(data: bytes) -> None:
    """A header of a request or a response: ``name`` on a line, then the value."""
    name, _, value = data.partition(b"\n")
    text = value.decode("utf-8", "surrogateescape")
    match name:
        case b"a2a-version":
            for said in (value.decode("latin-1"), text):
                try:
                    assert versions.requested(said) in ("", *versions.SUPPORTED_VERSIONS)
                except VersionNotSupportedError as error:
                    assert "1.0, 0.3" in error.message
                    assert len(error.message) < 400
                assert versions.supported_for(said) in (None, *versions.SUPPORTED_VERSIONS)
        case b"a2a-extensions":
            uris = extension_uris([value])
            assert extension_uris([", ".join(uris).encode("latin-1")]) == uris
        case b"retry-after":
            seconds = seconds_of(text, NOW)
            assert seconds is None or 0 <= seconds < float("inf")
        case b"cache-control":
            control, _, age = text.partition("\n")
            assert resolving._max_age(control, age) >= 0
        case b"host":
            scope = {"headers": [(b"host", value)], "scheme": "https", "root_path": "/a"}
            with suppress(BadAddress):
                address = server_address(scope)
                assert address.isascii()
                assert not set(address) & set(" \t\r\n\"'<>\\?#@")
            with suppress(HostNotAllowed):
                AllowedHosts().check({**scope, "server": ("127.0.0.1", 80)})
                assert OWN_HOST.fullmatch(text.lower()), text


def header_seeds() -> Iterator[bytes]:
    for name, values in {
        "a2a-version": ("1.0", "0.3", "0.3.0", "1.0.1", "", "2.0", "1"),
        "a2a-extensions": ("urn:a, urn:b", "", ",, urn:x ,"),
        "retry-after": ("5", "Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:00 -0800"),
        "cache-control": ("max-age=60, public\n5", 'max-age="9"\n'),
        "host": ("agent.example:8080", "[::1]:80", "A.example", "localhost.:1", "127.0.0.1"),
    }.items():
        yield from (f"{name}\n{value}".encode() for value in values)
