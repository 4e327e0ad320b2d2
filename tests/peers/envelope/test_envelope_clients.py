"""Third-party WebSocket clients talk to a Parley server by the envelope protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import parley
from parley import Agent, Turn
from parley.server.run import serving
from tests.kit.browser import browsing, opened
from tests.peers.envelope.speaking import by_aiohttp, by_websockets, converse
from tests.peers.environments import WS, NotMade, command

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).with_name("conversation.cjs")
agent = Agent("Library", description="Finds and counts")


class Search(msgspec.Struct):
    """What to look for."""

    query: str


@agent.skill
async def search(turn: Turn, wanted: Search) -> list[dict[str, str]]:
    """Finds articles."""
    return [{"title": wanted.query}, {"title": "more"}]


@agent.skill(replies="task")
async def count(turn: Turn) -> AsyncIterator[str]:
    """Counts, slowly enough to be left."""
    for number in range(20):
        yield str(number)
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(parley.asgi(agent, drain=0.0)) as address:
        yield address


def check(said: dict[str, Any]) -> None:
    assert said["subprotocol"] == "parley.envelope.v1"
    assert said["results"] == [{"title": "tides"}, {"title": "more"}]
    assert said["heartbeat"] == "HEARTBEAT"
    assert said["statuses"].count("accepted") == 2  # once over each connection
    assert said["statuses"][-1] == "success"
    assert said["numbers"] == sorted(set(said["numbers"]))
    assert len(said["numbers"]) > 20
    assert said["tasks"] == 1
    assert said["code"] == "UNKNOWN_ACTION"


@pytest.mark.parametrize("opened", [by_websockets, by_aiohttp], ids=["websockets", "aiohttp"])
async def test_python(url: str, opened: Any) -> None:
    said = await converse(opened, f"{url.replace('http', 'ws')}/envelope", opened.__name__)
    check(said)


async def test_javascript_with_ws(url: str) -> None:
    try:
        words = command(WS, f"envelope/{SCRIPT.name}")
    except NotMade as error:
        pytest.skip(str(error))
    process = await asyncio.create_subprocess_exec(
        *words, f"{url.replace('http', 'ws')}/envelope", stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        output, _ = await process.communicate()
    check(json.loads(output))


@pytest.mark.may_be_missing
async def test_a_browser(url: str) -> None:
    source = SCRIPT.read_text("utf-8").partition("if (typeof require")[0]
    async with browsing() as browser, opened(browser, url) as page:
        address = f"{url.replace('http', 'ws')}/envelope"
        check(
            await page.evaluate(
                f"(() => {{ {source}; return converse(WebSocket, '{address}'); }})()"
            )
        )
