"""Requests and responses of HTTP: bodies, media types, complete answers."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import wraps
from typing import NamedTuple, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope, Send

from parley.model.errors import A2AError, InvalidRequestError, UnauthenticatedError
from parley.security.limits.agent_limits import LimitExceeded, fields_of
from parley.security.networks import literal_address
from parley.server.address import split_host
from parley.server.limits import ByteReservation
from parley.server.log import failure_of

# -- responses --------------------------------------------------------------------------------

Headers = Iterable[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")


async def reply(
    send: Send,
    status: int,
    body: bytes,
    headers: Headers = (),
    media_type: bytes = b"application/json",
) -> None:
    """Send a response with a body; the default media type is JSON."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", media_type),
                (b"content-length", b"%d" % len(body)),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def reply_without_body(send: Send, status: int, headers: Headers = ()) -> None:
    """Send a response that has no body (204, 304, and all to HEAD)."""
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": b""})


async def reply_with_message(
    scope: Scope, send: Send, status: int, message: str, headers: Headers = ()
) -> None:
    """Send a message for a person, as JSON."""
    if scope["method"] == "HEAD":
        await reply_without_body(send, status, headers)
    else:
        await reply(send, status, msgspec.json.encode({"error": message}), headers)


async def refuses_method(scope: Scope, send: Send, message: str) -> bool:
    """Reject a request that is neither GET nor HEAD. Return whether it was rejected."""
    if scope["method"] in ("GET", "HEAD"):
        return False
    await refuse_method(scope, send, "GET, HEAD", message)
    return True


async def refuse_method(scope: Scope, send: Send, allowed: str, message: str) -> None:
    """Send 405 with the allowed methods; to OPTIONS, only these."""
    allow = (b"allow", allowed.encode())
    if scope["method"] == "OPTIONS":
        await reply_without_body(send, 204, [allow])
    else:
        await reply_with_message(scope, send, 405, message, [allow])


# -- errors -----------------------------------------------------------------------------------


def challenges_of(error: A2AError) -> tuple[str, ...]:
    """Return the challenges of an error, at least one if credentials would help."""
    if not error.challenges and isinstance(error, UnauthenticatedError):
        return ("Bearer",)
    return error.challenges


def error_headers(error: A2AError, challenges: Iterable[str] | None = None) -> Headers:
    """Return headers with hints for a retry: ``Retry-After``, ``WWW-Authenticate``."""
    headers = []
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    if isinstance(error, LimitExceeded):
        fields = fields_of(error.standings)
        headers += [(name.encode(), value.encode()) for name, value in fields]
    found = challenges_of(error) if challenges is None else challenges
    headers += [(b"www-authenticate", each.encode("latin-1", "replace")) for each in found]
    return headers


P = TypeVar("P")
Page = Callable[[P, Scope, Receive, Send], Awaitable[None]]


def answering_errors(doing: str) -> Callable[[Page[P]], Page[P]]:
    """Make a handler answer the errors of its requests with text for people.

    ``doing`` names the work in the log. An error after the first byte of an answer cuts it.
    """

    def decorate(page: Page[P]) -> Page[P]:
        @wraps(page)
        async def answer(self: P, scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await page(self, scope, receive, send)
            except ClientGone:
                return
            except Exception as error:
                await reply_with_error(scope, send, failure_of(error, doing))

        return answer

    return decorate


async def reply_with_error(
    scope: Scope, send: Send, error: A2AError, headers: Headers = ()
) -> None:
    """Send an error for a person, as JSON, with hints for a retry in its headers."""
    headers = [NO_STORE, *headers, *error_headers(error)]
    await reply_with_message(scope, send, error.http_status, error.message, headers)


# -- media types ------------------------------------------------------------------------------

JSON_TYPE = b"application/json"

_ANY, _ANY_APPLICATION = b"*/*", b"application/*"


class _Preference(NamedTuple):
    """A caller's preference for a media type, from 0 to 1; ``named`` is no wildcard."""

    quality: float
    named: bool


def answered_with(own: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the media type of an answer: the binding's ``own`` or ``application/json``.

    Both describe the same body. The caller's preference decides (RFC 9110 §12.5.1); between equals
    the named type, and ``own`` if both are named. A caller that names neither gets the type that it
    sent, so a caller of ``application/json`` can read every error. A caller that accepts neither,
    but only streams, gets ``application/json``.
    """
    if own == JSON_TYPE:
        return own
    headers = list(headers)
    accept = b",".join([value for name, value in headers if name == b"accept"])
    if accept not in (b"", _ANY):
        qualities = _qualities(accept)
        own_preference, plain = _preference(own, qualities), _preference(JSON_TYPE, qualities)
        if not (own_preference.quality or plain.quality) or own_preference < plain:
            return JSON_TYPE
        if own_preference > plain or own_preference.named:
            return own
    sent = [base(value) for name, value in headers if name == b"content-type"]
    return JSON_TYPE if JSON_TYPE in sent else own


def prefers_html(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a caller names HTML, and prefers it to JSON, as browsers do."""
    accept = b",".join([value for name, value in headers if name == b"accept"])
    if b"text/html" not in accept.lower():
        return False
    qualities = _qualities(accept)
    html = _Preference(qualities.get(b"text/html", 0.0), named=True)
    return html.quality > 0 and html > _preference(JSON_TYPE, qualities)


def accepts_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a caller reads compressed answers."""
    qualities = _qualities(b",".join([v for name, v in headers if name == b"accept-encoding"]))
    return qualities.get(b"gzip", qualities.get(b"*", 0.0)) > 0


def base(media_type: bytes) -> bytes:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(b";")[0].strip().lower()


def _qualities(accept: bytes) -> dict[bytes, float]:
    """Return the quality of each media range in an Accept header (RFC 9110 §12.5.1)."""
    qualities: dict[bytes, float] = {}
    for each in accept.split(b","):
        quality = 1.0
        for parameter in each.split(b";")[1:]:
            name, _, value = parameter.partition(b"=")
            if name.strip().lower() == b"q":
                quality = _quality(value)
        media_range = base(each)
        qualities[media_range] = max(quality, qualities.get(media_range, 0.0))
    return qualities


def _quality(text: bytes) -> float:
    """Return a weight as a number; an invalid weight is ignored."""
    try:
        quality = float(text)
    except ValueError:
        return 1.0
    return quality if 0.0 <= quality <= 1.0 else 1.0


def _preference(media_type: bytes, qualities: Mapping[bytes, float]) -> _Preference:
    """Return the preference for a media type: its own range takes precedence over wildcards."""
    for media_range in (media_type, _ANY_APPLICATION, _ANY):
        if media_range in qualities:
            return _Preference(qualities[media_range], media_range == media_type)
    return _Preference(0.0, named=False)


# -- bodies -----------------------------------------------------------------------------------


class BodyTooLarge(InvalidRequestError):
    """The body is larger than the server accepts."""

    http_status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body has more than the {limit} bytes allowed here")


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(
    receive: Receive,
    scope: Scope,
    declared: bytes | None,
    limit: int,
    request_bytes: ByteReservation,
) -> bytes:
    """Read the body of a request, at most ``limit`` bytes of it.

    ``declared`` is the Content-Length header: a body that declares more is not read. The bytes of
    an incomplete body are reserved in ``request_bytes``.

    Raises ``BodyTooLarge``, ``ClientGone``, and ``OverloadedError`` when there is no room.
    """
    if (
        declared is not None
        and declared.isdigit()
        and (len(declared) > 18 or int(declared) > limit)
    ):
        raise BodyTooLarge(limit)
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    piece: bytes = message.get("body", b"")
    if len(piece) > limit:
        raise BodyTooLarge(limit)
    if not message.get("more_body", False):
        return piece
    client = scope.get("client")
    return await _read_on(receive, piece, limit, request_bytes, client[0] if client else "")


async def _read_on(
    receive: Receive, piece: bytes, limit: int, request_bytes: ByteReservation, address: str
) -> bytes:
    """Read the rest of a body after its first piece."""
    pieces = bytearray()
    reserved = 0
    try:
        while True:
            request_bytes.reserve(address, len(piece))
            reserved += len(piece)
            pieces += piece
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            piece = message.get("body", b"")
            if len(pieces) + len(piece) > limit:
                raise BodyTooLarge(limit)
            if not message.get("more_body", False):
                pieces += piece
                return bytes(pieces)
    finally:
        request_bytes.release(address, reserved)


# -- HSTS -------------------------------------------------------------------------------------

AddedFields = tuple[tuple[bytes, bytes], ...]

_NAME = b"strict-transport-security"


def hsts_fields(scope: Scope, max_age: int) -> AddedFields:
    """Return the HSTS header for an answer over HTTPS, unless ``max_age`` is 0.

    Names of this machine do not get it, because it applies to all ports of a host; addresses do
    not, because browsers ignore it there.
    """
    if scope.get("scheme") != "https" or not max_age or not _is_public_name(scope):
        return ()
    return ((_NAME, b"max-age=%d" % max_age),)


def with_hsts(send: Send, fields: AddedFields) -> Send:
    """Return a ``send`` that adds the header. A header of the app itself stays."""
    if not fields:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers") or ())
            if all(name.lower() != _NAME for name, _ in headers):
                headers += fields
            message = {**message, "headers": headers}
        await send(message)

    return sending


def _is_public_name(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"host":
            host = split_host(value.decode("latin-1"))
            if host is None or literal_address(host[0]) is not None:
                return False
            return host[0] != "localhost" and not host[0].endswith(".localhost")
    return False
