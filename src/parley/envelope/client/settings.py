"""How a client holds its envelope connection."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from parley.client.bindings.http import HttpTransport, OpenResponse, redacted
from parley.client.bindings.request_auth import NOTHING, Refusal, RequestAuth, override, refusal_in
from parley.client.bindings.websocket import HandshakeRefused, OpenSocket, SocketRefused
from parley.client.errors import AuthenticationRequired
from parley.client.origin import http_address
from parley.envelope.codec import UnreadableEnvelope, read_message
from parley.envelope.errors import a2a_error
from parley.envelope.messages import SUBPROTOCOL, ResponsePayload
from parley.model.backoff import Backoff
from parley.model.errors import A2AError, UnauthenticatedError

Transport = Literal["auto", "socket", "http"]

TRANSPORTS = ("auto", "socket", "http")


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an envelope connection. Times are in seconds.

    ``heartbeat`` is the interval of HEARTBEATs: after ``tolerance`` of them without any message the
    connection counts as dead. ``ping`` is that of WebSocket pings. ``handshake``
    is how long a server has to open a WebSocket, after connecting. ``retries`` is how often in a
    row a request is sent again; pauses are those of ``backoff``. ``idle`` bounds the silence in a
    stream over HTTP. ``socket_again`` is how long HTTP is used before a WebSocket is tried again,
    twice as long after each failure, up to ten times. ``max_message`` is the largest message in
    bytes, in both directions; at most ``max_in_flight`` requests are under way, others wait; a
    stream whose reader is ``max_waiting`` messages behind is taken up again later.

    Raises ``ValueError`` for a value out of range.
    """

    transport: Transport = "auto"
    heartbeat: float = 30.0
    tolerance: int = 3
    ping: float | None = 20.0
    handshake: float = 10.0
    retries: int = 8
    backoff: Backoff = Backoff(0.2, 10.0, jitter=(0.5, 1.0))
    idle: float | None = 120.0
    socket_again: float = 60.0
    max_message: int = 10 * 1024 * 1024
    max_in_flight: int = 64
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ValueError(
                f"transport is one of {', '.join(TRANSPORTS)}, not {self.transport!r:.60}"
            )
        for name, least in (("heartbeat", 0.01), ("handshake", 0.01), ("socket_again", 0.0)):
            _check_seconds(name, getattr(self, name), least)
        for name in ("ping", "idle"):
            if getattr(self, name) is not None:
                _check_seconds(name, getattr(self, name), 0.01)
        for name, least in (
            ("tolerance", 1),
            ("retries", 0),
            ("max_message", 1024),
            ("max_in_flight", 1),
            ("max_waiting", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is a whole number from {least} on, not {value!r:.60}")


def _check_seconds(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:  # type: ignore[arg-type,operator]
        raise ValueError(f"{name} is a number of seconds from {least:g} on, not {value!r:.60}")


# -- endpoints --------------------------------------------------------------------------------
#
# The addresses of an agent's envelope interface, and how they are opened: with credentials.


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
