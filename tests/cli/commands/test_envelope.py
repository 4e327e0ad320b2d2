"""``parley envelope``: requests, streams and unsolicited messages, as text and as JSON."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import parley as package
from parley import Agent, Turn
from parley.server.run import serving

agent = Agent("Desk", description="Answers", version="1.0.0")


class Search(msgspec.Struct):
    """The input of a search."""

    query: str


@agent.skill
async def search(turn: Turn, wanted: Search) -> list[dict[str, str]]:
    """Finds articles."""
    return [{"title": f"about {wanted.query}"}]


@agent.skill
async def browse(turn: Turn) -> list[dict[str, str]]:
    """Finds nothing."""
    return []


@agent.skill(replies="task")
async def report(turn: Turn) -> str:
    """Writes a report."""
    await turn.working("reading")
    return "all is well"


@agent.skill(replies="task")
async def book(turn: Turn) -> str:
    """Books a table."""
    answer = await turn.ask("For how many?")
    return f"booked for {answer.text}"


@contextmanager
def served(agents: Agent = agent, **options: Any) -> Iterator[str]:
    addresses: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(package.asgi(agents, drain=0, **options)) as address:
            addresses.append(address)
            ready.set()
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as pool:
        serves = pool.submit(asyncio.run, serve())
        serves.add_done_callback(lambda _: ready.set())
        assert ready.wait(10)
        try:
            yield addresses[0]
        finally:
            over.set()
            serves.result(10)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as address:
        yield address


Parley = Callable[..., Any]


def test_a_stream_prints_events_and_a_question_the_next_command(parley: Parley, url: str) -> None:
    ran = parley("envelope", "send", url, "report", "--stream", "--sub-type", "command", "-ojson")
    assert ran.status == 0
    statuses = [line["payload"]["status"] for line in ran.lines]
    assert statuses[0] == "accepted"
    assert statuses[-1] == "success"
    assert "partial" in statuses
    asked = parley("envelope", "send", url, "book")
    assert asked.field("Status") == "input-required"
    assert "For how many?" in asked.stdout
    task = asked.field("Task")
    next_command = f"""envelope send --task-id {task} {url} book --parameters '"<reply>"'"""
    assert asked.field("Next").endswith(next_command)
    ran = parley("envelope", "send", "--task-id", task, url, "book", "-p", '"four"')
    assert ran.field("Result") == "booked for four"
