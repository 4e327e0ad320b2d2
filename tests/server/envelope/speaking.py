"""Messages of the envelope protocol, sent with third-party libraries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import aiohttp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

WAIT = 4.0
SUBPROTOCOL = "parley.envelope.v1"

Json = dict[str, Any]


def request(
    action: str,
    parameters: Any = None,
    *,
    id: str,
    sub: str = "query",
    kind: str = "REQUEST",
    agent: str = "me",
    priority: str = "normal",
    **metadata: Any,
) -> Json:
    """A REQUEST as JSON."""
    return {
        "version": "1.0",
        "messageId": id,
        "timestamp": "2026-01-31T12:00:00Z",
        "source": {"agentId": agent},
        "message": {"type": kind, "subType": sub, "priority": priority},
        "payload": {
            "action": action,
            "parameters": {} if parameters is None else parameters,
            "metadata": metadata,
        },
    }


def is_last(answer: Json) -> bool:
    """Whether an answer ends its exchange."""
    status = answer["payload"]["status"]
    if answer["message"]["type"] == "RESPONSE":
        return not (answer["message"].get("subType") == "command" and status == "accepted")
    return answer["message"].get("subType") == "command" and status not in ("partial", "accepted")


def sequences(answers: list[Json]) -> list[int]:
    """The numbers of the EVENTs."""
    found = [a["payload"]["metadata"].get("sequence") for a in answers]
    return [number for number in found if number is not None]


class Speaker(Protocol):
    """A client over either transport."""

    async def ask(self, message: Json) -> list[Json]:
        """Send a message, and return its answers."""
        ...


class PostSpeaker:
    """Sends each message in its own POST."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/envelope"

    async def ask(self, message: Json) -> list[Json]:
        """Send a message, and return its answers, from JSON or server-sent events."""
        async with asyncio.timeout(WAIT), self._session.post(self._url, json=message) as answer:
            if not answer.content_type.endswith(("json", "event-stream")):
                return []
            if answer.content_type != "text/event-stream":
                return [await answer.json()]
            lines = [line async for line in answer.content if line.startswith(b"data:")]
            return [json.loads(line[5:]) for line in lines]


class SocketSpeaker:
    """Sends messages over one WebSocket, and assigns the answers to them."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._answers: dict[str, asyncio.Queue[Json]] = {}
        self.order: list[Json] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(ConnectionClosed):
            async for text in self.socket:
                answer = json.loads(text)
                self.order.append(answer)
                self._of(answer["message"].get("correlationId", "")).put_nowait(answer)

    def _of(self, id: str) -> asyncio.Queue[Json]:
        return self._answers.setdefault(id, asyncio.Queue())

    async def send(self, message: Json | str) -> None:
        """Send a message."""
        await self.socket.send(message if isinstance(message, str) else json.dumps(message))

    async def next(self, id: str, seconds: float = WAIT) -> Json:
        """The next answer to a message."""
        return await asyncio.wait_for(self._of(id).get(), seconds)

    async def rest(self, id: str) -> list[Json]:
        """The answers to a message, until the last."""
        found = [await self.next(id)]
        while "status" in found[-1]["payload"] and not is_last(found[-1]):
            found.append(await self.next(id))
        return found

    async def ask(self, message: Json) -> list[Json]:
        """Send a message, and return its answers."""
        await self.send(message)
        if message["message"]["subType"] == "notification":
            await self.ask(request("a2a.ListTasks", id=f"after {message['messageId']}"))
            return []
        return await self.rest(message["messageId"])

    async def close(self) -> None:
        """Close the socket."""
        await self.socket.close()
        await self._reading


@asynccontextmanager
async def by_post(url: str, **headers: str) -> AsyncIterator[PostSpeaker]:
    """A client that posts."""
    async with aiohttp.ClientSession(headers=headers) as session:
        yield PostSpeaker(session, url)


@asynccontextmanager
async def by_socket(url: str, **headers: str) -> AsyncIterator[SocketSpeaker]:
    """A client with a WebSocket."""
    address = f"{url.replace('http', 'ws', 1)}/envelope"
    async with connect(
        address, subprotocols=[SUBPROTOCOL], additional_headers=headers, proxy=None
    ) as socket:
        speaker = SocketSpeaker(socket)
        try:
            yield speaker
        finally:
            await speaker.close()


TRANSPORTS = {"post": by_post, "socket": by_socket}
