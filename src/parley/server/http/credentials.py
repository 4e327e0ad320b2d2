"""Credentials for tasks arrive here: posted to a callback address, or with a browser's redirect.

A callback address names a task, an operation and a caller, and is good for one credential. Where
callers are identified, whoever posts must be that caller. A redirect comes from a browser, which
has no credentials of the caller: its ``state`` alone says what it is for.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from parley.model.errors import A2AError, UnauthenticatedError
from parley.model.service import Caller
from parley.security.sealing import TokenExpired, TokenInvalid
from parley.server.address import route_path
from parley.server.endpoint import CredentialReceiver, CredentialRefused, NoLongerNeeded
from parley.server.failures import log_unforeseen
from parley.server.http.body import ClientGone
from parley.server.http.callbacks import CallbackRefused, SignedAddresses
from parley.server.http.exchange import error_headers
from parley.server.http.responses import (
    NO_STORE,
    refuse_method,
    reply,
    reply_with_message,
    reply_without_body,
)
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import EventCompleted

MAX_BYTES = 256 * 1024
"""The size of a posted credential."""

MAX_QUERY = 64 * 1024

_log = logging.getLogger("parley.server")
_RETRY = (b"retry-after", b"1")
_PRIVATE = [
    NO_STORE,
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
]


class CredentialRoute:
    """Takes the credentials that are posted below ``path``."""

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
        headers: list[tuple[bytes, bytes]] = []
        try:
            await self._take(scope, receive)
        except ClientGone:
            return
        except A2AError as error:
            refused = CallbackRefused(error.http_status, error.message)
            headers = [*error_headers(error)]
        except (CallbackRefused, StoreError) as error:
            refused = _refusal(error)
        except (TokenInvalid, CredentialRefused, NoLongerNeeded) as error:
            refused = _refusal(error)
        except Exception:
            refused = CallbackRefused(500, log_unforeseen("a credential for a task").message)
        else:
            await self._reply(send, scope, None)
            return
        if refused.status == 503 and not headers:
            headers = [_RETRY]
        await self._reply(send, scope, refused, headers)

    async def _reply(
        self,
        send: Send,
        scope: Scope,
        refused: CallbackRefused | None,
        headers: list[tuple[bytes, bytes]] = [],  # noqa: B006
    ) -> None:
        if refused is None:
            await reply_without_body(send, 204, [NO_STORE])
        else:
            await reply_with_message(
                scope, send, refused.status, refused.message, [NO_STORE, *headers]
            )

    async def _take(self, scope: Scope, receive: Receive) -> None:
        """Take a credential. Raises what ``__call__`` answers."""
        addresses = self._addresses
        await addresses.ready()
        claim = await self._receiver.claim_of(route_path(scope)[self._start :], addresses.tenant)
        if claim.caller:
            await self._check_caller(scope, claim.caller)
        given = await addresses.content(scope, receive, limit=MAX_BYTES, what="a credential")
        await self._receiver.receive(claim, given)

    async def _check_caller(self, scope: Scope, owner: str) -> None:
        """Refuse anybody but the caller that the task works for."""
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
    """Takes what an authorization server sends with a browser: a code and a state, or an error."""

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

    async def _reply(
        self,
        send: Send,
        scope: Scope,
        refused: CallbackRefused | None,
        headers: list[tuple[bytes, bytes]] = [],  # noqa: B006
    ) -> None:
        """Answer with a page for a person. It quotes nothing of the request."""
        text = "Done. The task goes on; you may close this page."
        if refused is not None:
            text = f"That did not work: {refused.message}."
        page = f"<!doctype html><meta charset=utf-8><title>Authorization</title><p>{text}</p>"
        status = 200 if refused is None else refused.status
        await reply(send, status, page.encode(), [*_PRIVATE, *headers], b"text/html; charset=utf-8")


def _refusal(error: Exception) -> CallbackRefused:
    """Return the answer to what went wrong."""
    match error:
        case CallbackRefused():
            return error
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
        case _:
            _log.warning("a credential for a task is refused for now: %s", error)
            return CallbackRefused(503, "the store is not available just now; try again")
