"""Callbacks: a POST to a signed address completes an event of an agent.

The signed address is the credential, so callers are not identified. An address that was not made
here, or for another agent, gets the answer of one that does not exist.
"""

from __future__ import annotations

import logging
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.errors import A2AError, OverloadedError
from parley.security.sealing import TokenExpired, TokenInvalid
from parley.server.address import route_path
from parley.server.dispatch import Dispatcher
from parley.server.endpoint import CallbackReceiver
from parley.server.failures import log_unforeseen
from parley.server.http.body import BodyTooLarge, ClientGone, read_body
from parley.server.http.media_types import base
from parley.server.http.responses import (
    NO_STORE,
    refuse_method,
    reply_with_message,
    reply_without_body,
)
from parley.server.lifecycle import Lifecycle
from parley.server.limits.byte_budget import ByteReservation
from parley.server.settings import Settings
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import MAX_EVENT_BYTES, EventCompleted, event_value
from parley.wire.json import protojson
from parley.wire.json.syntax import without_bom

FORM = b"application/x-www-form-urlencoded"

BODY = "the body of a callback"

_log = logging.getLogger("parley.server")
_RETRY = (b"retry-after", b"1")
_MAX_FIELDS = 1000


class CallbackRefused(Exception):
    """A callback is refused with a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class SignedAddresses:
    """Reads requests to the signed addresses of one agent, or of one ``tenant`` of it.

    All methods raise ``CallbackRefused``.
    """

    def __init__(
        self,
        *,
        tenant: str = "",
        settings: Settings,
        dispatcher: Dispatcher,
        lifecycle: Lifecycle,
        request_bytes: ByteReservation,
    ) -> None:
        self.tenant = tenant
        self._settings = settings
        self._dispatcher = dispatcher
        self._lifecycle = lifecycle
        self._request_bytes = request_bytes

    async def ready(self) -> None:
        """Wait until the agents are started."""
        if self._lifecycle.draining:
            raise CallbackRefused(503, "the server is shutting down; call again in a moment")
        await self._dispatcher.start()

    async def content(self, scope: Scope, receive: Receive, *, limit: int, what: str) -> object:
        """Return what the body of a request is (see ``read_content``); ``what`` names it.

        Raises ``ClientGone``, too.
        """
        headers = dict(scope["headers"])
        length = headers.get(b"content-length")
        limit = min(self._settings.max_body_bytes, limit)
        try:
            body = await read_body(receive, scope, length, limit, self._request_bytes)
        except BodyTooLarge:
            raise CallbackRefused(413, f"{what} has {limit} bytes at most") from None
        media_type = headers.get(b"content-type", b"")
        return read_content(media_type, body, max_depth=self._settings.max_depth)


class CallbackRoute:
    """Answers callbacks below ``path``."""

    def __init__(self, receiver: CallbackReceiver, path: str, addresses: SignedAddresses) -> None:
        self._receiver = receiver
        self._start = len(path) + 1
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] != "POST":
            message = "a callback is a POST; its body, if any, is the value of the event as JSON"
            await refuse_method(scope, send, "POST", message)
            return
        try:
            await self._complete(scope, receive)
        except ClientGone:
            return
        except CallbackRefused as refused:
            headers = [NO_STORE, _RETRY] if refused.status == 503 else [NO_STORE]
            await reply_with_message(scope, send, refused.status, refused.message, headers)
        except Exception:
            message = log_unforeseen("a callback").message
            await reply_with_message(scope, send, 500, message, [NO_STORE])
        else:
            await reply_without_body(send, 204, [NO_STORE])

    async def _complete(self, scope: Scope, receive: Receive) -> None:
        """Complete the event. Raises ``CallbackRefused``, ``ClientGone``."""
        addresses = self._addresses
        try:
            await addresses.ready()
            token = route_path(scope)[self._start :]
            key = await self._receiver.event_of(token, addresses.tenant)
            content = await addresses.content(scope, receive, limit=MAX_EVENT_BYTES, what=BODY)
            await self._receiver.complete(key, value_of(content))
        except TokenExpired:
            raise CallbackRefused(410, "this callback address has expired") from None
        except TokenInvalid:
            raise CallbackRefused(
                404, "this is no callback address of this agent; check that all of it is there"
            ) from None
        except EventCompleted:
            message = "this callback has been made before, with another value: the first one counts"
            raise CallbackRefused(409, message) from None
        except OverloadedError as error:
            raise CallbackRefused(503, error.message) from None
        except StoreError as error:
            _log.warning("a callback is refused for now: %s", error)
            message = "the store is not available just now; call again in a moment"
            raise CallbackRefused(503, message) from error


def value_of(content: object) -> bytes:
    """Return what a body is, as the store keeps it. Raises ``CallbackRefused``."""
    try:
        return event_value(content)
    except ValueError as error:
        raise CallbackRefused(413, str(error)) from None


def read_content(media_type: bytes, body: bytes, *, max_depth: int) -> object:
    """Return what a body is: a JSON value, the fields of a form, or ``None``.

    Raises ``CallbackRefused``.
    """
    media_type = base(media_type)
    if not body:
        return None
    if media_type == FORM:
        return _fields(body)
    if media_type and media_type != b"application/json" and not media_type.endswith(b"+json"):
        named = media_type[:60].decode("latin-1")
        raise CallbackRefused(
            415, f"the body of a callback is JSON (application/json) or a form, not {named!r}"
        )
    try:
        protojson.check_limits(body, max_depth, max_parts=len(body))
        return msgspec.json.decode(without_bom(body))
    except A2AError as error:
        raise CallbackRefused(400, error.message) from None
    except (ValueError, RecursionError) as error:
        message = f"the body of a callback is JSON, and this is not: {error}"
        raise CallbackRefused(400, message) from None


def _fields(body: bytes) -> dict[str, str | list[str]]:
    """Return the fields of a form; a field that is repeated is a list."""
    try:
        fields = parse_qs(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError:  # UnicodeDecodeError is one
        raise CallbackRefused(
            400, f"the body is no form: up to {_MAX_FIELDS} fields in UTF-8, percent-encoded"
        ) from None
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
