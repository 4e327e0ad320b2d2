"""The scripted server that tests clients, with a port for each scenario."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from parley.conformance.background_server import ScriptServer
from parley.conformance.faults.cards import operation_of

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
MAX_REQUESTS = 200
"""The most requests of one scenario; the server rejects further requests."""


class ReceivedCall(msgspec.Struct, kw_only=True):
    """A request of the client under test. ``operation`` has its name in 1.0."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    operation: str
    at: float

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty if the body is no JSON object."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the operation: ``params`` of JSON-RPC, or the body."""
        body = self.json
        if "jsonrpc" not in body:
            return body
        params = body.get("params")
        return params if isinstance(params, dict) else {}

    @property
    def message(self) -> dict[str, Any]:
        """The message in the request; empty without a message."""
        found = self.params.get("message") or self.params.get("request")
        return found if isinstance(found, dict) else {}

    def __str__(self) -> str:
        text = self.body[:700].decode("utf-8", "replace")
        return f"{self.method} {self.path}\n{text}".rstrip()


class ScenarioReply(msgspec.Struct, frozen=True, kw_only=True):
    """A response: bytes, or ``pieces`` of a stream. ``cut`` breaks the connection after them."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    body: bytes = b""
    pieces: tuple[bytes, ...] | None = None
    cut: bool = False


class ClientOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a scenario: the client's exit status as success or failure, and its output.
    Both are ``None`` for a client that is run by hand.
    """

    succeeded: bool | None = None
    output: str | None = None


class Visit(msgspec.Struct, kw_only=True):
    """One play of a scenario: its address, the received requests, the client's outcomes.

    ``grpc`` is the ``host:port`` of the agent in a gRPC scenario.
    """

    url: str
    grpc: str = ""
    requests: list[ReceivedCall] = []
    outcomes: list[ClientOutcome] = []

    def of(self, *operations: str) -> list[ReceivedCall]:
        """Return the requests for operations."""
        return [each for each in self.requests if each.operation in operations]

    @property
    def sent(self) -> list[ReceivedCall]:
        """The requests that send a message."""
        return self.of("SendMessage", "SendStreamingMessage")


Answer = Callable[[Visit, ReceivedCall], ScenarioReply]


class _Cut(Exception):
    """The connection ends in the middle of a response, as the scenario requires."""


@asynccontextmanager
async def scripted_server(
    answers: Sequence[Answer], host: str = "127.0.0.1"
) -> AsyncIterator[list[Visit]]:
    """Serve each scenario on its own port, and yield their visits in order."""
    sockets, visits, by_port = [], [], {}
    for answer in answers:
        listener = socket.socket(proto=socket.IPPROTO_TCP)
        listener.bind((host, 0))
        port = listener.getsockname()[1]
        visit = Visit(url=f"http://{host}:{port}")
        sockets.append(listener)
        visits.append(visit)
        by_port[port] = (visit, answer)

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            visit, answer = by_port[scope["server"][1]]
            await _serve(visit, answer, scope, receive, send)

    listens = asyncio.Event()
    server = ScriptServer(app, listens.set)
    serving = asyncio.create_task(server.serve(sockets=sockets))
    try:
        await listens.wait()
        yield visits
    finally:
        server.should_exit = True
        await serving
        for listener in sockets:
            listener.close()


async def _serve(
    visit: Visit,
    answer: Answer,
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    body = b""
    while True:
        piece = await receive()
        if piece["type"] != "http.request":
            return
        body += piece.get("body", b"")
        if not piece.get("more_body"):
            break
    query = scope["query_string"].decode()
    path = scope["path"] + (f"?{query}" if query else "")
    request = ReceivedCall(
        method=scope["method"],
        path=path,
        headers={name.decode().lower(): value.decode() for name, value in scope["headers"]},
        body=body,
        operation=operation_of(scope["method"], path, body),
        at=asyncio.get_running_loop().time(),
    )
    if len(visit.requests) >= MAX_REQUESTS:
        reply = ScenarioReply(status=503)
    else:
        visit.requests.append(request)
        reply = answer(visit, request)
    headers = [(name.encode(), value.encode()) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    for data in reply.pieces or ():
        await send({"type": "http.response.body", "body": data, "more_body": True})
        await asyncio.sleep(0)
    if reply.cut:
        raise _Cut
    await send({"type": "http.response.body", "body": reply.body})
