"""Parley's envelope client and a plain server of ``websockets`` that follows the specification."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

import parley
from parley.envelope import EnvelopeFailed, IncomingRequest, LinkSettings
from parley.model.backoff import Backoff
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

NUMBERS = itertools.count(1)


class PlainServer:
    """Has the action ``add`` and the command ``count``, and asks each client ``who``."""

    def __init__(self) -> None:
        self.url = ""
        self.notified: list[Any] = []
        self.answers: list[Any] = []
        self.cuts = 1
        self.connections = 0

    async def __call__(self, socket: ServerConnection) -> None:
        self.connections += 1
        try:
            await self.ask(socket)
            async for text in socket:
                await self.take(socket, json.loads(text))
        except ConnectionClosed:
            pass

    async def ask(self, socket: ServerConnection) -> None:
        """Send the client a REQUEST, the same over each connection: the client handles it once."""
        asked = self.message({"messageId": ""}, "REQUEST", {"action": "who", "parameters": [1]})
        del asked["message"]["correlationId"]
        await socket.send(json.dumps({**asked, "messageId": "asked-once"}))

    async def take(self, socket: ServerConnection, message: Any) -> None:
        info, payload = message["message"], message["payload"]
        match info["type"], info.get("subType", "query"), payload.get("action"):
            case "HEARTBEAT", _, _ if not info.get("correlationId"):
                await self.send(socket, message, "HEARTBEAT", {"ok": True})
            case "RESPONSE", _, _:
                self.answers.append((info["correlationId"], payload["results"]))
            case "REQUEST", "notification", _:
                self.notified.append(payload.get("parameters"))
            case "REQUEST", _, "add":
                results = [sum(payload["parameters"])]
                await self.send(
                    socket, message, "RESPONSE", {"status": "success", "results": results}
                )
            case "REQUEST", "command", "count":
                await self.count(socket, message, payload.get("metadata", {}).get("after", 0))
            case "REQUEST", _, _:
                error = {"code": "UNKNOWN_ACTION", "message": "no such action"}
                await self.send(socket, message, "RESPONSE", {"status": "error", "error": error})

    async def count(self, socket: ServerConnection, message: Any, after: int) -> None:
        accepted = {"status": "accepted", "metadata": {"taskId": "t-1"}}
        await self.send(socket, message, "RESPONSE", accepted)
        for number in range(after + 1, 6):
            status = "success" if number == 5 else "partial"
            metadata = {"sequence": number, "taskId": "t-1"}
            payload = {"status": status, "results": [number], "metadata": metadata}
            await self.send(socket, message, "EVENT", payload)
            if number == 2 and self.cuts:
                self.cuts -= 1
                socket.transport.abort()
                return

    async def send(self, socket: ServerConnection, asked: Any, type: str, payload: Any) -> None:
        await socket.send(json.dumps(self.message(asked, type, payload)))

    def message(self, asked: Any, type: str, payload: Any) -> Any:
        return {
            "version": "1.3",  # a later minor version, with an additional member
            "messageId": f"plain-{next(NUMBERS)}",
            "timestamp": "2026-11-23T09:00:00Z",
            "source": {"agentId": "plain"},
            "message": {"type": type, "correlationId": asked["messageId"]},
            "payload": payload,
            "later": {"members": "are ignored"},
        }


@pytest.fixture
async def server() -> AsyncIterator[PlainServer]:
    plain = PlainServer()
    async with serve(
        plain, "127.0.0.1", 0, subprotocols=[Subprotocol("parley.envelope.v1")]
    ) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        plain.url = f"ws://127.0.0.1:{port}"
        yield plain


async def test_everything_of_the_client_works_with_a_plain_server(server: PlainServer) -> None:
    settings = LinkSettings(backoff=Backoff(0.01, 0.05))
    asked: list[IncomingRequest] = []
    async with parley.envelope.connect(server.url, settings=settings) as client:

        @client.on_request
        async def who(request: IncomingRequest) -> list[Any]:
            asked.append(request)
            return ["me", request.parameters]

        assert (await client.request("add", [1, 2, 3])).result == 6
        events = [event async for event in client.stream("count", sub_type="command")]
        assert [event.status for event in events] == ["accepted", *["partial"] * 4, "success"]
        assert [event.results for event in events[1:]] == [(n,) for n in range(1, 6)]
        assert (await client.heartbeat()).payload == {"ok": True}
        await client.notify("note", {"a": 1})
        with pytest.raises(EnvelopeFailed, match="UNKNOWN_ACTION"):
            await client.request("nothing")
        await until(lambda: server.notified and len(server.answers) == server.connections)
    assert server.notified == [{"a": 1}]
    assert server.connections == 2
    assert server.answers == [("asked-once", ["me", [1]])] * 2
    assert len(asked) == 1  # the second REQUEST gets the same answer again
    assert asked[0].sender == "plain"
