"""Callbacks to agents: a POST completes an event, or delivers a credential for a task.

The signed address of an event is the credential, so the sender is not identified. A forged address,
or the address of another agent, gets the answer for an unknown address.

The address for a credential names a task, an operation and a caller, and is valid for one
credential. If callers are identified, the sender must be that caller. A browser's redirect has no
credentials of the caller: its ``state`` identifies the request.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.errors import A2AError, OverloadedError, UnauthenticatedError
from parley.model.service import Caller
from parley.security.sealing import CredentialRefused, NoLongerNeeded, TokenExpired, TokenInvalid
from parley.server.address import route_path
from parley.server.dispatch import Dispatcher
from parley.server.endpoint import CallbackReceiver, CredentialReceiver
from parley.server.http.responses import (
    NO_STORE,
    BodyTooLarge,
    ClientGone,
    answering_errors,
    base,
    error_headers,
    read_body,
    refuse_method,
    reply,
    reply_with_error,
    reply_without_body,
)
from parley.server.lifecycle import Lifecycle
from parley.server.limits import ByteReservation
from parley.server.log import failure_of
from parley.server.settings import Settings
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import MAX_EVENT_BYTES, EventCompleted, event_value
from parley.wire.json import protojson
from parley.wire.json.syntax import without_bom

FORM = b"application/x-www-form-urlencoded"

BODY = "the body of a callback"

_log = logging.getLogger("parley.server")
_MAX_FIELDS = 1000


class CallbackRefused(A2AError):
    """A callback is rejected with an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, retry_after=1 if status == 503 else None)
        self.http_status = status  # type: ignore[misc]


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
        """Return the content of a request (see ``read_content``); ``what`` names it in errors.

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

    @answering_errors("a callback")
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] != "POST":
            message = "a callback is a POST; its body, if any, is the value of the event as JSON"
            await refuse_method(scope, send, "POST", message)
            return
        await self._complete(scope, receive)
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
            _log.warning("a callback is rejected for now: %s", error)
            message = "the store is not available just now; call again in a moment"
            raise CallbackRefused(503, message) from error


def value_of(content: object) -> bytes:
    """Return the value of a body in the store's encoding. Raises ``CallbackRefused``."""
    try:
        return event_value(content)
    except ValueError as error:
        raise CallbackRefused(413, str(error)) from None


def read_content(media_type: bytes, body: bytes, *, max_depth: int) -> object:
    """Return the content of a body: a JSON value, the fields of a form, or ``None``.

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
    except ValueError:  # includes UnicodeDecodeError
        raise CallbackRefused(
            400, f"the body is no form: up to {_MAX_FIELDS} fields in UTF-8, percent-encoded"
        ) from None
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


# -- credentials ------------------------------------------------------------------------------

MAX_BYTES = 256 * 1024
"""The size of a posted credential."""

MAX_QUERY = 64 * 1024

_PRIVATE = [
    NO_STORE,
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
]


class CredentialRoute:
    """Receives the credentials that are posted below ``path``."""

    method = "POST"
    wrong_method = "a credential is posted, as JSON or as a form"

    def __init__(
        self,
        receiver: CredentialReceiver,
        path: str,
        addresses: SignedAddresses,
        *,
        identify: Callable[[Scope], Any] | None = None,
    ) -> None:
        self._receiver = receiver
        self._start = len(path) + 1
        self._addresses = addresses
        self._identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] != self.method:
            await refuse_method(scope, send, self.method, self.wrong_method)
            return
        refused = None
        try:
            await self._take(scope, receive)
        except ClientGone:
            return
        except Exception as error:
            refused = failure_of(_refusal(error), "a credential for a task")
        await self._reply(send, scope, refused)

    async def _reply(self, send: Send, scope: Scope, refused: A2AError | None) -> None:
        if refused is None:
            await reply_without_body(send, 204, [NO_STORE])
        else:
            await reply_with_error(scope, send, refused)

    async def _take(self, scope: Scope, receive: Receive) -> None:
        """Receive a credential. Raises the errors that ``__call__`` answers."""
        addresses = self._addresses
        await addresses.ready()
        claim = await self._receiver.claim_of(route_path(scope)[self._start :], addresses.tenant)
        if claim.caller:
            await self._check_caller(scope, claim.caller)
        given = await addresses.content(scope, receive, limit=MAX_BYTES, what="a credential")
        await self._receiver.receive(claim, given)

    async def _check_caller(self, scope: Scope, owner: str) -> None:
        """Reject every sender except the caller that the task works for."""
        found: Any = None if self._identify is None else self._identify(scope)
        if found is not None and not isinstance(found, Caller):
            found = await found
        if found is None or not found.owner:
            raise UnauthenticatedError(
                "this callback is for the caller of the task alone: send the credentials with "
                "which you call the agent, too"
            )
        if not hmac.compare_digest(found.owner.encode(), owner.encode()):
            raise TokenInvalid


class RedirectRoute(CredentialRoute):
    """Receives the redirect of an authorization server: a code and a state, or an error."""

    method = "GET"
    wrong_method = "an authorization server sends a browser here, with GET"

    async def _take(self, scope: Scope, receive: Receive) -> None:
        await self._addresses.ready()
        query = scope.get("query_string", b"")
        if len(query) > MAX_QUERY:
            raise CallbackRefused(414, f"a redirect has {MAX_QUERY} bytes at most")
        try:
            pairs = parse_qsl(query.decode("ascii"), errors="strict", max_num_fields=50)
        except ValueError:
            raise CallbackRefused(400, "the query of this address cannot be read") from None
        given = dict(pairs)
        if len(given) < len(pairs):
            raise CallbackRefused(400, "the query of this address has something twice")
        state, tenant = given.pop("state", ""), self._addresses.tenant
        claim = await self._receiver.claim_of(state, tenant, redirected=True)
        await self._receiver.receive(claim, given, redirected=True)

    async def _reply(self, send: Send, scope: Scope, refused: A2AError | None) -> None:
        """Answer with a page for a person. It quotes nothing of the request."""
        text, headers = "Done. The task continues; you may close this page.", [*_PRIVATE]
        if refused is not None:
            text = f"That did not work: {refused.message}."
            headers += error_headers(refused)
        page = f"<!doctype html><meta charset=utf-8><title>Authorization</title><p>{text}</p>"
        status = 200 if refused is None else refused.http_status
        await reply(send, status, page.encode(), headers, b"text/html; charset=utf-8")


def _refusal(error: Exception) -> Exception:
    """Return the answer to an expected failure, else the failure itself."""
    match error:
        case TokenExpired():
            return CallbackRefused(410, "the time for this has passed; the task asks again")
        case TokenInvalid():
            return CallbackRefused(
                404, "there is no request for a credential of yours at this address"
            )
        case CredentialRefused():
            return CallbackRefused(400, str(error))
        case NoLongerNeeded():
            return CallbackRefused(410, "the task has ended, and needs no credential")
        case EventCompleted():
            return CallbackRefused(
                409, "a credential was given before, or none is needed any more: one counts, once"
            )
        case StoreError():
            _log.warning("a credential for a task is rejected for now: %s", error)
            return CallbackRefused(503, "the store is not available just now; try again")
        case _:
            return error
