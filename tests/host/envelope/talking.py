"""Agents that speak the envelope protocol, and callers with third-party clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiohttp
from websockets.asyncio.client import ClientConnection, connect

from parley import Agent, CardDetails, Turn
from parley.envelope.declared import EnvelopeSettings

SUBPROTOCOL = "parley.envelope.v1"
CALLER = "tester"


def searching(
    name: str, *, kind: str = "agent", listed: Mapping[str, str] | None = None, **options: Any
) -> Agent:
    """Return an agent with the skill ``search``, which returns its own name and the request."""
    agent = Agent(
        name,
        key=name,
        description=name,
        card=CardDetails(envelope=EnvelopeSettings(agent_type=kind), listed_interfaces=listed),
        **options,
    )

    @agent.skill(id="search")
    async def search(turn: Turn) -> list[dict[str, Any]]:
        return [{"by": name, "query": turn.data["query"]}]

    return agent


def request(
    action: str = "search",
    parameters: Any = None,
    *,
    target: Mapping[str, Any] | None = None,
    source: str = CALLER,
    sub_type: str = "query",
    id: str = "",
    **metadata: Any,
) -> dict[str, Any]:
    """Return a REQUEST."""
    return {
        "version": "1.0",
        "messageId": id or uuid4().hex,
        "timestamp": "2026-11-23T09:00:00.000Z",
        "source": {"agentId": source},
        "target": dict(target or {}),
        "message": {"type": "REQUEST", "subType": sub_type},
        "payload": {
            "action": action,
            "parameters": {"query": "refunds"} if parameters is None else parameters,
            "metadata": metadata,
        },
    }


def answer(
    asked: Mapping[str, Any],
    results: list[Any],
    *,
    source: str,
    status: str = "success",
    kind: str = "RESPONSE",
    **metadata: Any,
) -> dict[str, Any]:
    """Return a RESPONSE, or an EVENT, from an agent at the other end of a socket."""
    return {
        "version": "1.0",
        "messageId": uuid4().hex,
        "timestamp": "2026-11-23T09:00:01.000Z",
        "source": {"agentId": source},
        "message": {"type": kind, "correlationId": asked["messageId"]},
        "payload": {"status": status, "results": results, "metadata": metadata},
    }


async def posted(
    url: str, message: Mapping[str, Any], headers: Mapping[str, str] = {}
) -> list[dict[str, Any]]:
    """Return the messages that answer a POST: a single message, or a stream."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/envelope", json=message, headers=headers) as response,
    ):
        body = await response.text()
        if response.content_type == "text/event-stream":
            lines = [line for line in body.splitlines() if line.startswith("data:")]
            return [json.loads(line.removeprefix("data:")) for line in lines]
        return [json.loads(body)] if body else []


async def post(
    url: str, message: Mapping[str, Any], headers: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Return the RESPONSE to a message sent by POST."""
    return (await posted(url, message, headers))[-1]


class Socket:
    """A WebSocket of the library ``websockets``."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, message: Mapping[str, Any]) -> None:
        await self.connection.send(json.dumps(message))

    async def receive(self, kind: str = "") -> dict[str, Any]:
        """Return the next message, of a given type if there is one."""
        async with asyncio.timeout(5):
            while True:
                message: dict[str, Any] = json.loads(await self.connection.recv())
                if kind in ("", message["message"]["type"]):
                    return message

    async def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a REQUEST and return its RESPONSE."""
        await self.send(message)
        while True:
            found = await self.receive("RESPONSE")
            if found["message"]["correlationId"] == message["messageId"]:
                return found


@asynccontextmanager
async def socket(url: str, headers: Mapping[str, str] = {}) -> AsyncIterator[Socket]:
    """Open a WebSocket to the agent at an address."""
    async with connect(
        url.replace("http", "ws", 1) + "/envelope",
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
        additional_headers=dict(headers),
    ) as connection:
        yield Socket(connection)
