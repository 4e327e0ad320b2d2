"""A client written from the specification page alone, and a Parley server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import parley
from parley import Agent, Caller, CardDetails, EnvelopeSettings, Turn
from parley.envelope import EnvelopeBinding, EnvelopeKey, HeartbeatSettings
from parley.security import Bearer, anonymous
from parley.security.signing.keys import SigningKeys, encode, new_key_set, write_key_set
from parley.server.run import serving

pytestmark = pytest.mark.anyio

CLIENT = Path(__file__).with_name("from_the_page.py")
SECRET = bytes(range(32))
SCHEME = Bearer({"stock-token": Caller(id="stock")}.get) | anonymous


class Search(msgspec.Struct):
    """What to look for."""

    query: str


def library(name: str) -> Agent:
    details = CardDetails(envelope=EnvelopeSettings(agent_type="library"))
    agent = Agent(name, key=name, card=details, security=SCHEME)

    @agent.skill
    async def search(turn: Turn, wanted: Search) -> list[dict[str, str]]:
        return [{"title": wanted.query, "by": name}]

    @agent.skill(replies="task")
    async def count(turn: Turn) -> AsyncIterator[str]:
        for number in range(20):
            yield str(number)
            await asyncio.sleep(0.005)

    @agent.skill(replies="task")
    async def lend(turn: Turn) -> str:
        answer = await turn.ask("Which one?")
        return f"{answer.text}, for two weeks"

    return agent


def narrow() -> Agent:
    """An agent that reports the order in which its requests ran."""
    agent, noted, gate = Agent("narrow", key="narrow"), [], asyncio.Event()
    holding = 0

    @agent.skill
    async def hold(turn: Turn) -> str:
        nonlocal holding
        holding = 1
        await gate.wait()
        return "held"

    @agent.skill
    async def held(turn: Turn) -> list[int]:
        return [holding]

    @agent.skill
    async def release(turn: Turn) -> str:
        gate.set()
        return "released"

    @agent.skill
    async def note(name: str) -> str:
        noted.append(name)
        return name

    @agent.skill(id="noted")
    async def noted_names(turn: Turn) -> list[list[str]]:
        return [noted]

    @agent.skill(replies="task")
    async def endless(turn: Turn) -> AsyncIterator[str]:
        yield "begun"
        await asyncio.Event().wait()

    return agent


@pytest.fixture(scope="module")
async def said() -> dict[str, Any]:
    key = EnvelopeKey(id="key-1", owner="shop", algorithm="HMAC-SHA256", material=SECRET)
    binding = EnvelopeBinding(
        keys=[key], heartbeats=HeartbeatSettings(interval=0.1), max_requests_per_socket=1
    )
    app = parley.asgi(
        {"/one": library("one"), "/two": library("two"), "/narrow": narrow()},
        bindings=[binding],
        signing_keys=SigningKeys.parse(write_key_set(new_key_set(["EdDSA"], 0))),
        drain=0.0,
    )
    async with serving(app) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(CLIENT), f"{url}/one/envelope", encode(SECRET),
            stdout=asyncio.subprocess.PIPE, cwd=CLIENT.parent, env={"PATH": ""},
        )  # fmt: skip
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    found: dict[str, Any] = json.loads(output)
    return found


async def test_it_has_nothing_of_parley(said: dict[str, Any]) -> None:
    assert said["imported"] == []


async def test_requests_and_streams(said: dict[str, Any]) -> None:
    assert said["requests"] == {
        "subprotocol": "parley.envelope.v1",
        "results": [{"title": "tides", "by": "one"}],
        "same by POST": True,
        "correlation": "RESPONSE",
        "stream": ["partial", "success"],
        "stream numbers": True,
        "sse": ["text/event-stream", "accepted", "success"],
        "notification": 204,
        "violation": "payload.parameters.query",
        "unknown": [404, "UNKNOWN_ACTION"],
        "no json": [400, "INVALID_JSON"],
        "question": ["input-required", "Tides, for two weeks"],
        "once": True,
        "reused": "MESSAGE_ID_REUSED",
    }


async def test_a_stream_whose_socket_is_cut(said: dict[str, Any]) -> None:
    assert said["resumption"] == {
        "no gap and nothing twice": True,
        "ends": "success",
        "one task": 1,
        "followed": True,
    }


async def test_signatures_and_whose_ids_are_refused(said: dict[str, Any]) -> None:
    assert said["signatures"] == {
        "accepted": "success",
        "answer is signed by the server": True,
        "replayed": [401, "MESSAGE_REPLAYED"],
        "signed anew": True,
        "forged": "SIGNATURE_INVALID",
        "altered": "SIGNATURE_INVALID",
        "untargeted": "TARGET_NOT_FOUND",
        "old": "MESSAGE_OUTDATED",
        "on a socket that signed": ["success", "SIGNATURE_REQUIRED"],
        "stranger with the id of a key": "SIGNATURE_REQUIRED",
    }


async def test_messages_to_others_and_the_order_of_a_broadcast(said: dict[str, Any]) -> None:
    assert said["broadcasts"] == {
        "query": ["EVENT", "EVENT", "RESPONSE"],
        "outcomes": {"one": "success", "two": "success"},
        "accepted": ["accepted", "accepted"],
        "summary": ["RESPONSE", "accepted"],
        "ends": ["success", "success"],
        "in order": True,
        "balanced": "success",
        "direct": "two",
        "nobody": "TARGET_NOT_FOUND",
    }


async def test_priorities_heartbeats_timeouts_and_cancellation(said: dict[str, Any]) -> None:
    assert said["order"] == {
        "order": ["urgent", "normal", "low"],
        "heartbeat": ["HEARTBEAT", ["draining", "interval", "load", "time"]],
        "late": "DEADLINE_EXCEEDED",
        "canceled": "TASK_STATE_CANCELED",
        "last event": ["error", "TASK_CANCELED"],
        "left alone": "TASK_STATE_WORKING",
    }


async def test_an_agent_behind_a_socket(said: dict[str, Any]) -> None:
    assert said["registration"] == {
        "registered": [{"agentId": "stock", "acceptsRequests": True}],
        "asked": ["stock", {"item": "bolt"}, {"agentId": "page"}],
        "answer": [[{"count": 7}], "stock"],
        "heartbeat": ["stock"],
        "left": [{"agentId": "stock", "registered": False}],
        "gone": "TARGET_NOT_FOUND",
        "stranger": "UNAUTHENTICATED",
        "another source": "SOURCE_MISMATCH",
        "stranger with its id": [403, "SOURCE_MISMATCH"],
    }


async def test_the_schemes_of_addresses(said: dict[str, Any]) -> None:
    assert said["addresses"] == {
        "id": "one",
        "primary": True,
        "backup": True,
        "on the A2A card": True,
    }
