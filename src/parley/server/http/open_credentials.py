"""The credentials of open streams and sockets, which are verified repeatedly while these are
open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from parley.model.errors import A2AError, UnauthenticatedError
from parley.model.service import Caller
from parley.security.evidence import JUDGED_AGAIN
from parley.security.schemes.scheme import Granted
from parley.server.limits import SharedTimeouts

_log = logging.getLogger("parley.server")

SECONDS = 0.9
"""The time between two judgements: expired credentials end a stream within a second."""


class CredentialsExpired(UnauthenticatedError):
    """The credentials that opened a stream or a connection are no longer valid."""


class OpenCredentials:
    """The credentials that opened a stream or a socket.

    Credentials of security schemes are verified again. A caller that a function of the application
    identified (``caller=``) is accepted until the ``exp`` of its claims.
    """

    __slots__ = ("_exp", "_identify", "_scope", "caller")

    def __init__(
        self,
        identify: Callable[[Any], Caller | Awaitable[Caller]],
        scope: Mapping[str, Any],
        caller: Caller,
    ) -> None:
        self.caller = caller
        exp = None if isinstance(caller.granted, Granted) else caller.claims.get("exp")
        self._exp = exp if isinstance(exp, int | float) else None
        self._identify = identify
        self._scope = {**scope, JUDGED_AGAIN: True} if self._exp is None else {}

    def judge(self) -> Caller | Awaitable[Caller]:
        """Return the caller that its credentials prove now.

        Raises ``CredentialsExpired``, and other errors while this cannot be verified.
        """
        if self._exp is not None:
            if time.time() >= self._exp:
                raise _expired("")
            return self.caller
        try:
            found = self._identify(self._scope)
        except UnauthenticatedError as error:
            raise _expired(error.message) from None
        return found if isinstance(found, Caller) else self._judge_later(found)

    async def _judge_later(self, identifying: Awaitable[Caller]) -> Caller:
        try:
            return await identifying
        except UnauthenticatedError as error:
            raise _expired(error.message) from None


def open_credentials(
    identify: Callable[[Any], Caller | Awaitable[Caller]] | None,
    scope: Mapping[str, Any],
    caller: Caller,
) -> OpenCredentials | None:
    """Return the credentials of a request, if they can expire before its end."""
    if identify is None or not (isinstance(caller.granted, Granted) or "exp" in caller.claims):
        return None
    return OpenCredentials(identify, scope, caller)


class CredentialWatch:
    """Verifies credentials again each second, and reports expired ones, once.

    Streams stay open while an issuer or a store is unavailable.
    """

    def __init__(self) -> None:
        self._expired: dict[OpenCredentials, Callable[[CredentialsExpired], None]] = {}
        self._judging: set[asyncio.Task[None]] = set()
        self._timeouts = SharedTimeouts(SECONDS, self._judge)

    def add(
        self, credentials: OpenCredentials, expired: Callable[[CredentialsExpired], None]
    ) -> None:
        """Call ``expired`` when credentials are no longer valid."""
        self._expired[credentials] = expired
        self._timeouts.set(credentials)

    def remove(self, credentials: OpenCredentials) -> None:
        """Stop verifying these credentials. Idempotent."""
        self._expired.pop(credentials, None)
        self._timeouts.clear(credentials)

    def _judge(self, credentials: OpenCredentials) -> None:
        try:
            found = credentials.judge()
        except Exception as error:
            self._judged(credentials, error)
            return
        if isinstance(found, Caller):
            self._judged(credentials)
            return
        # Not cancelled with its stream, as others wait for the same verdict.
        task = asyncio.create_task(self._judge_later(credentials, found))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def _judge_later(self, credentials: OpenCredentials, judging: Awaitable[Caller]) -> None:
        try:
            await judging
        except Exception as error:
            self._judged(credentials, error)
        else:
            self._judged(credentials)

    def _judged(self, credentials: OpenCredentials, failure: Exception | None = None) -> None:
        expired = self._expired.get(credentials)
        if expired is None:
            return  # closed in the meantime
        if isinstance(failure, CredentialsExpired):
            self.remove(credentials)
            expired(failure)
            return
        if failure is not None and not isinstance(failure, A2AError):
            _log.error("credentials cannot be judged again", exc_info=failure)
        self._timeouts.set(credentials)


def _expired(reason: str) -> CredentialsExpired:
    return CredentialsExpired(
        "the credentials of this connection have expired: open another with new ones"
        + (f" ({reason})" if reason else "")
    )
