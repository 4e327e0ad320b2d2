"""The envelope client and a real server, over a line that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import parley
from parley import Agent, Turn
from parley.conformance import faults
from parley.envelope import LinkSettings
from parley.model.backoff import Backoff
from parley.server.run import serving
from parley.testing import FaultProxy

pytestmark = pytest.mark.anyio

agent = Agent("Streams")
begun: list[str] = []


@agent.skill(replies="task")
async def count(turn: Turn) -> AsyncIterator[str]:
    """Counts."""
    begun.append(turn.task_id)
    for number in range(12):
        yield f"{number} "
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(parley.asgi(agent, drain=0.0)) as address:
        yield address


def quick() -> LinkSettings:
    return LinkSettings(backoff=Backoff(0.01, 0.05), transport="socket", retries=100)


async def texts(client: parley.envelope.EnvelopeClient, sub_type: str) -> str:
    """Return the text of a stream, of its events alone."""
    found = []
    async with client.stream("count", sub_type=sub_type, timeout=30) as stream:
        async for event in stream:
            for result in event.results:
                update = result.get("artifactUpdate") if isinstance(result, dict) else None
                parts = update["artifact"]["parts"] if update else ()
                found += [part["text"] for part in parts]
    return "".join(found)


@pytest.mark.parametrize("sub_type", ["query", "command"])
async def test_a_stream_that_is_cut_at_any_byte_is_complete_and_has_nothing_twice(
    url: str, sub_type: str
) -> None:
    async with parley.envelope.connect(f"{url}/envelope", settings=quick()) as client:
        whole = await texts(client, sub_type)
    assert whole == "".join(f"{number} " for number in range(12))
    begun.clear()

    async def cut_at(byte: int) -> None:
        line = FaultProxy(url.replace("http", "tcp"))
        for place in (byte, byte + 400, byte + 900):
            line.fault(faults.cut(after_bytes=place))
        address = f"http://{line.url}/envelope"
        async with line, parley.envelope.connect(address, settings=quick()) as client:
            assert await texts(client, sub_type) == whole, byte

    for first in range(230, 4000, 377):  # behind the handshake, in steps that hit all frames
        await asyncio.gather(*[cut_at(first + 37 * n) for n in range(10)])
    assert len(begun) == len(set(begun)) == 100
