"""Agents of this server, asked in this process as their callers ask them: with the credentials of
the caller, through the middleware, the restrictions, the guard and the limits of each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.types import ASGIApp, Message

from parley.envelope.codec import UnreadableEnvelope, read_message, write_message
from parley.envelope.endpoint import AgentEnvelope
from parley.envelope.messages import BINDING, OPERATION_PREFIX, PATH, Envelope
from parley.envelope.routing.strategies import NotForCaller
from parley.envelope.server.directory import ROUTED, MessageContext, PassedOnMessage
from parley.model.cards import AgentInterface
from parley.model.errors import A2AError, InternalError
from parley.model.service import Caller
from parley.model.struct import encode
from parley.server.endpoint import Endpoint
from parley.wire.sse import SseParser
from parley.wire.versions import LATEST

log = logging.getLogger("parley.envelope")

MAX_ANSWER = 32 * 1024 * 1024
WAITING = 64
"""How many pieces of an answer wait to be read: more are not produced."""

_INTERFACE = AgentInterface(url="", protocol_binding=BINDING, protocol_version=LATEST)
_OF_UPGRADES = (b"connection", b"upgrade", b"content-", b"transfer-", b"sec-websocket-", b"accept")


class HostedAgent:
    """An agent of this server that speaks the protocol, at a path. ``names`` are its ids."""

    def __init__(self, path: str, endpoint: Endpoint, agent: AgentEnvelope, app: ASGIApp) -> None:
        self.path = path
        self.endpoint = endpoint
        self.names = frozenset((endpoint.key, *agent.guard.names))
        self._settings = agent.settings
        self.in_flight = 0
        self._app = app

    @property
    def id(self) -> str:
        """The id on its card."""
        return self.endpoint.key

    @property
    def type(self) -> str:
        """The type on its card."""
        return self._settings.agent_type

    def has(self, action: str) -> bool:
        """Return whether its public card has a skill; every agent has the operations of A2A."""
        if action.startswith(OPERATION_PREFIX):
            return True
        card = self.endpoint.card
        return card is not None and any(each.id == action for each in card(()).skills)

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether what a caller has proved already, without a signature, is enough here.

        Credentials that the agent does not know are not tried on it: they would count as refused.
        """
        shown = self.endpoint.interfaces
        if shown is not None and not (
            shown.is_public(BINDING, LATEST)
            or (caller.authenticated and shown.shown_to((_INTERFACE,), caller))
        ):
            return False  # no card tells this caller that it speaks the protocol
        rules = self.endpoint.authorization
        if self._settings.needs_signatures:
            return False
        if rules is None:
            return True
        try:
            rules.check_identity(caller)
        except A2AError:
            return False
        if rules.security is None:
            return True
        return rules.security.is_open or rules.security.is_met(caller)

    async def ask(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        """Yield the answers (``AgentCandidate``). Closing it closes the connection."""
        self.in_flight += 1
        exchange = _Exchange(_scope(self.path, context), _body(request))
        asking = asyncio.create_task(exchange.run(self._app))
        try:
            async for answer in exchange.answers():
                yield answer
        finally:
            self.in_flight -= 1
            exchange.leave()
            asking.cancel()
            [failure] = await asyncio.gather(asking, return_exceptions=True)
            if isinstance(failure, Exception):  # of a middleware: servers log those
                log.error("asking %r failed", self.id, exc_info=failure)


def _body(request: Envelope) -> bytes:
    # A signature is over the members as they came.
    return write_message(request) if request.received is None else encode(request.received)


def _scope(path: str, context: MessageContext) -> dict[str, Any]:
    """Return the scope of a POST from where a message came, with the same headers."""
    given: Mapping[str, Any] = context.scope
    root = str(given.get("root_path", ""))
    headers = [
        (name, value) for name, value in given["headers"] if not name.startswith(_OF_UPGRADES)
    ]
    headers += [
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
    ]
    scheme = {"ws": "http", "wss": "https"}.get(given.get("scheme", ""), given.get("scheme"))
    whole = root + path + PATH
    scope = {name: value for name, value in given.items() if name != "subprotocols"}
    return {
        **scope,
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": scheme or "http",
        "path": whole,
        "raw_path": whole.encode(),
        "headers": headers,
        ROUTED: PassedOnMessage(nonce_is_used=context.is_signed, peer=context.peer),
    }


class _Exchange:
    """One POST to an app of this process, with its answer as it is made."""

    def __init__(self, scope: dict[str, Any], body: bytes) -> None:
        self._scope = scope
        self._body: bytes | None = body
        self._pieces: asyncio.Queue[Message | None] = asyncio.Queue(WAITING)
        self._left = asyncio.Event()

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self._receive, self._send)
        finally:
            if not self._left.is_set():
                await self._pieces.put(None)

    def leave(self) -> None:
        """Hang up: the reader has gone."""
        self._left.set()
        while not self._pieces.empty():
            self._pieces.get_nowait()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if not self._left.is_set():
            await self._pieces.put(message)

    async def answers(self) -> AsyncIterator[Envelope]:
        """Yield the messages of the answer. Raises ``NotForCaller``, ``InternalError``."""
        status, media_type = 0, b""
        parser, body = SseParser(), bytearray()
        while (piece := await self._pieces.get()) is not None:
            if piece["type"] == "http.response.start":
                status = piece["status"]
                media_type = dict(piece.get("headers", ())).get(b"content-type", b"")
                continue
            data: bytes = piece.get("body", b"")
            if media_type.startswith(b"text/event-stream"):
                for each in parser.feed(data):
                    yield _read(each.data)
                continue
            body += data
            if len(body) > MAX_ANSWER:
                raise InternalError("the answer of the agent is too large")
        if body and media_type.startswith(b"application/json"):
            try:
                answer = read_message(bytes(body))
            except UnreadableEnvelope:  # of the server or a middleware, and of no agent
                if status >= 500:
                    raise InternalError("the server could not ask the agent") from None
                raise NotForCaller from None
            yield answer
        elif status == 0 or status >= 500:
            raise InternalError("the server could not ask the agent")
        elif body or status >= 300:
            raise NotForCaller


def _read(data: bytes) -> Envelope:
    try:
        return read_message(data)
    except UnreadableEnvelope as error:
        raise InternalError("the answer of the agent is no message") from error
