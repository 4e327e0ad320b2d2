"""The conversation of ``conversation.cjs``, with Python's WebSocket libraries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

SUBPROTOCOL = "parley.envelope.v1"
Received = dict[str, Any]


class Line(NamedTuple):
    """An open WebSocket of any library."""

    subprotocol: str | None
    send: Callable[[str], Awaitable[object]]
    receive: Callable[[], Awaitable[str | bytes]]


@asynccontextmanager
async def by_websockets(url: str) -> AsyncIterator[Line]:
    from websockets.asyncio.client import connect
    from websockets.typing import Subprotocol

    async with connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)]) as socket:
        yield Line(socket.subprotocol, socket.send, socket.recv)


@asynccontextmanager
async def by_aiohttp(url: str) -> AsyncIterator[Line]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=(SUBPROTOCOL,)) as socket,
    ):
        yield Line(socket.protocol, socket.send_str, socket.receive_str)


async def converse(opened: Callable[[str], Any], url: str, name: str) -> dict[str, Any]:
    """Return the responses to a client, in the output format of ``conversation.cjs``."""
    seen: list[Received] = []

    async def ask(line: Line, id: str, type: str, payload: Any, **more: str) -> None:
        message = {
            "version": "1.0",
            "messageId": f"{name}-{id}",
            "timestamp": "2026-11-23T09:00:00.5+01:00",
            "source": {"agentId": name},
            "message": {"type": type, **more},
            "payload": payload,
        }
        await line.send(json.dumps(message))

    async def answer(line: Line, id: str) -> Received:
        while True:
            message: Received = json.loads(await line.receive())
            if message["message"].get("correlationId") == f"{name}-{id}":
                return message

    async with opened(url) as line:
        await ask(line, "1", "REQUEST", {"action": "search", "parameters": {"query": "tides"}})
        query = await answer(line, "1")
        await ask(line, "2", "HEARTBEAT", {})
        beat = await answer(line, "2")
        await ask(line, "3", "REQUEST", {"action": "count"}, subType="command")
        while len(seen) < 3:
            seen.append(await answer(line, "3"))
        subprotocol = line.subprotocol
    async with opened(url) as line:
        after = seen[-1]["payload"]["metadata"]["sequence"]
        metadata = {"after": after, "retryCount": 1}
        again = {"action": "count", "metadata": metadata}
        await ask(line, "3", "REQUEST", again, subType="command")
        while not _is_end(message := await answer(line, "3")):
            seen.append(message)
        seen.append(message)
        await ask(line, "4", "REQUEST", {"action": "nothing"})
        wrong = await answer(line, "4")
    payloads = [each["payload"] for each in seen]
    return {
        "subprotocol": subprotocol,
        "results": query["payload"]["results"],
        "heartbeat": beat["message"]["type"],
        "statuses": [each["status"] for each in payloads],
        "numbers": [m for each in payloads if (m := each["metadata"].get("sequence")) is not None],
        "tasks": len({m for each in payloads if (m := each["metadata"].get("taskId"))}),
        "code": wrong["payload"]["error"]["code"],
    }


def _is_end(message: Received) -> bool:
    return message["message"]["type"] == "EVENT" and message["payload"]["status"] != "partial"
