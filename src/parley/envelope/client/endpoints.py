"""The addresses of an agent's envelope interface, and how they are opened: with credentials."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from parley.client.bindings.http import HttpTransport, OpenResponse, redacted
from parley.client.bindings.request_auth import NOTHING, Refusal, RequestAuth, refusal_in
from parley.client.bindings.websocket import HandshakeRefused, OpenSocket, SocketRefused
from parley.client.errors import AuthenticationRequired
from parley.client.headers import override
from parley.client.origin import http_address
from parley.envelope.client.settings import LinkSettings
from parley.envelope.codec import UnreadableEnvelope, read_message
from parley.envelope.errors import a2a_error
from parley.envelope.messages import SUBPROTOCOL, ResponsePayload
from parley.model.backoff import Backoff
from parley.model.errors import A2AError, UnauthenticatedError

logger = logging.getLogger(__name__)

LONGEST_REST = 10
"""How many times as long as first a way that fails again and again is left alone."""


class LinkEndpoint:
    """One address of an agent.

    ``url`` is that for HTTP, which is that of the WebSocket too. ``headers`` go with the upgrade
    and with every POST, and so does what ``auth`` says: it is asked once more after a refusal (401,
    403). ``has_socket`` and ``has_http`` say what is tried there.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        auth: RequestAuth | None,
        has_socket: bool = True,
        has_http: bool = True,
    ) -> None:
        self.url = http_address(url)
        self.has_socket = has_socket
        self.has_http = has_http
        self._headers = headers
        self._auth = auth
        self._sent = NOTHING

    def __str__(self) -> str:
        return redacted(self.url)

    async def open_socket(self, http: HttpTransport, settings: LinkSettings) -> OpenSocket:
        """Open a WebSocket. Raises ``AuthenticationRequired``, ``SocketRefused``, others.

        Raises the agent's own error if it refuses with one, such as ``UnauthenticatedError``.
        """
        may_ask = self._auth is not None
        while True:
            given = await self._auth.parameters(None) if self._auth else NOTHING
            self._sent = given
            try:
                return await http.open_socket(
                    given.add_to(self.url),
                    override(self._headers, given.headers),
                    subprotocol=SUBPROTOCOL,
                    handshake=settings.handshake,
                    max_message=settings.max_message,
                    ping=settings.ping,
                )
            except AuthenticationRequired as error:
                if not may_ask or not await self.renew(Refusal(error.status, error.challenge)):
                    said = _said_in(error)
                    if said is not None:
                        raise self._with_advice(said, error) from None
                    raise self._advised(error) from None
                may_ask = False
                logger.info("%s refuses the credentials; trying others", self)

    @asynccontextmanager
    async def post(
        self, http: HttpTransport, body: bytes, settings: LinkSettings
    ) -> AsyncIterator[OpenResponse]:
        """Post a message and yield the response. Raises ``AuthenticationRequired``, others."""
        may_ask = self._auth is not None
        ours = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
        }
        while True:
            given = await self._auth.parameters(None) if self._auth else NOTHING
            self._sent = given
            headers = override(override(self._headers, given.headers), ours)
            async with http.open(
                "POST", given.add_to(self.url), headers, body, idle=settings.idle
            ) as response:
                if response.status in (401, 403):
                    refusal = refusal_in(response.status, response.headers)
                    if may_ask and await self.renew(refusal):
                        may_ask = False
                        continue
                yield response
                return

    async def renew(self, refusal: Refusal) -> bool:
        """Return whether there are other credentials now than those that were refused."""
        return self._auth is not None and await self._auth.answer(refusal, None, self._sent)

    def refused(self, refusal: Refusal) -> AuthenticationRequired:
        """Return the error for a refusal of the credentials."""
        words = "wants credentials" if refusal.status == 401 else "refuses these credentials"
        error = AuthenticationRequired(
            f"{self} {words}", status=refusal.status, challenge=refusal.challenge
        )
        return self._advised(error)

    def _advised(self, error: AuthenticationRequired) -> AuthenticationRequired:
        """Return an error with what would help."""
        return AuthenticationRequired(
            self._and_advice(str(error), error), status=error.status, challenge=error.challenge
        )

    def _with_advice(self, said: A2AError, error: AuthenticationRequired) -> A2AError:
        """Return what the agent says of the credentials, with what would help."""
        if isinstance(said, UnauthenticatedError):
            said.message = self._and_advice(said.message, error)
            said.args = (said.message,)
        return said

    def _and_advice(self, words: str, error: AuthenticationRequired) -> str:
        advice = self._auth.advice(Refusal(error.status, error.challenge)) if self._auth else ""
        return f"{words}; {advice}" if advice else words


def _said_in(error: AuthenticationRequired) -> A2AError | None:
    """Return the error that a refused handshake has as a message of the protocol, if it has one."""
    if not isinstance(error, HandshakeRefused):
        return None
    try:
        payload = read_message(error.body).payload
    except UnreadableEnvelope:
        return None
    if not isinstance(payload, ResponsePayload) or payload.error is None:
        return None
    return a2a_error(payload.error)


class Way:
    """One way to an agent: an endpoint by WebSocket or by HTTP.

    A way that failed rests: others are tried before it until ``rest_until``, a time of the loop.
    """

    def __init__(self, endpoint: LinkEndpoint, *, is_socket: bool) -> None:
        self.endpoint = endpoint
        self.is_socket = is_socket
        self.rest_until = 0.0
        self._failures = 0

    def __str__(self) -> str:
        return f"{'a WebSocket' if self.is_socket else 'HTTP'} at {self.endpoint}"

    def rest(self, now: float, first: float, error: Exception) -> None:
        """Note that the way failed."""
        self._failures += 1
        wished = error.retry_after if isinstance(error, SocketRefused) else None
        pause = Backoff(first, first * LONGEST_REST).delay(self._failures)
        self.rest_until = now + (pause if wished is None else min(wished, first * LONGEST_REST))

    def works(self) -> None:
        """Note that the way works."""
        self.rest_until, self._failures = 0.0, 0


def ways_to(endpoints: tuple[LinkEndpoint, ...], settings: LinkSettings) -> list[Way]:
    """Return the ways to an agent in their order: each endpoint by WebSocket, then by HTTP.

    Raises ``ValueError`` if the settings leave none.
    """
    kinds = {"auto": (True, False), "socket": (True,), "http": (False,)}[settings.transport]
    ways = [
        Way(endpoint, is_socket=is_socket)
        for endpoint in endpoints
        for is_socket in kinds
        if (endpoint.has_socket if is_socket else endpoint.has_http)
    ]
    if not ways:
        raise ValueError(f"the agent has no address for transport={settings.transport!r}")
    return ways
