"""A scripted agent of the envelope protocol, over WebSocket and POST."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

Sent = dict[str, Any]


class Peer:
    """One connection of a client: a WebSocket, or the response to a POST."""

    def __init__(self, agent: ScriptedAgent, socket: web.WebSocketResponse | None) -> None:
        self.agent = agent
        self.socket = socket
        self.received: list[Sent] = []
        self.posted: list[Sent] = []

    async def send(self, message: Sent) -> None:
        if self.socket is None:
            self.posted.append(message)
        else:
            await self.socket.send_str(json.dumps(message))

    async def answer(self, request: Sent, status: str = "success", **payload: Any) -> None:
        await self.send(answer_to(request, "RESPONSE", status, **payload))

    async def event(self, request: Sent, number: int | None, status: str = "partial") -> None:
        metadata = {} if number is None else {"sequence": number}
        results = [{"n": number}]
        await self.send(answer_to(request, "EVENT", status, results=results, metadata=metadata))

    def cut(self) -> None:
        """Abort the connection."""
        assert self.socket is not None
        transport = self.socket._req.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.abort()


_numbers = itertools.count(1)


def answer_to(request: Sent, type: str, status: str, **payload: Any) -> Sent:
    return {
        "version": "1.0",
        "messageId": f"m-{next(_numbers)}",
        "timestamp": "2026-01-01T00:00:00Z",
        "source": {"agentId": "scripted"},
        "message": {"type": type, "correlationId": request["messageId"]},
        "payload": {"status": status, "results": [], "metadata": {}, **payload},
    }


Script = Callable[[Peer, Sent], Awaitable[None]]


class ScriptedAgent:
    """A scripted agent: its address, the messages received, its handling of WebSocket upgrades."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.url = ""
        self.received: list[Sent] = []
        self.heartbeats: list[Sent] = []
        self.upgrades: list[dict[str, str]] = []
        self.peers: list[Peer] = []
        self.refuse: Callable[[web.Request], web.StreamResponse | None] = lambda _: None
        self.answers_heartbeats = True
        self.is_deaf = False
        self.max_bytes = 0

    @property
    def requests(self) -> list[Sent]:
        return [each for each in self.received if each["message"]["type"] == "REQUEST"]

    @property
    def open_sockets(self) -> int:
        return sum(1 for peer in self.peers if peer.socket and not peer.socket.closed)

    async def upgrade(self, request: web.Request) -> web.StreamResponse:
        self.upgrades.append(dict(request.headers))
        refused = self.refuse(request)
        if refused is not None:
            return refused
        socket = web.WebSocketResponse(protocols=("parley.envelope.v1",), autoping=not self.is_deaf)
        await socket.prepare(request)
        peer = Peer(self, socket)
        self.peers.append(peer)
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for frame in socket:
                if frame.type is not WSMsgType.TEXT:
                    continue
                tasks.add(asyncio.create_task(self._take(peer, json.loads(frame.data))))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return socket

    async def post(self, request: web.Request) -> web.StreamResponse:
        peer = Peer(self, None)
        message = await request.json()
        await self._take(peer, message)
        if message["message"].get("subType") == "notification":
            return web.Response(status=202)
        if message["payload"].get("metadata", {}).get("stream") or len(peer.posted) > 1:
            body = "".join(f"data: {json.dumps(each)}\n\n" for each in peer.posted)
            return web.Response(text=body, content_type="text/event-stream")
        return web.json_response(peer.posted[0])

    async def _take(self, peer: Peer, message: Sent) -> None:
        self.received.append(message)
        peer.received.append(message)
        if message["message"]["type"] == "HEARTBEAT":
            self.heartbeats.append(message)
            if self.answers_heartbeats and not message["message"].get("correlationId"):
                answer = answer_to(message, "HEARTBEAT", "")
                await peer.send({**answer, "payload": {"load": 0.5}})
            return
        await self.script(peer, message)


@asynccontextmanager
async def scripted_agent(
    script: Script, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedAgent]:
    """Run an agent at ``url``; it accepts WebSockets and POSTs."""
    agent = ScriptedAgent(script)
    app = web.Application()
    app.router.add_get("/envelope", agent.upgrade)
    app.router.add_post("/envelope", agent.post)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
    agent.url = f"{scheme}://{host}:{runner.addresses[0][1]}/envelope"
    try:
        yield agent
    finally:
        for peer in agent.peers:
            if peer.socket is not None and not peer.socket.closed:
                peer.cut()
        await runner.cleanup()


async def echo(peer: Peer, request: Sent) -> None:
    """Answer with the parameters of the request."""
    await peer.answer(request, results=[request["payload"].get("parameters")])
