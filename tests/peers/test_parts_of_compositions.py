"""Agents of other implementations as parts of compositions: normal, slow, failing, asking."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

import parley
from parley import RemoteAgent, TaskState
from parley.compose import Composition, broadcast, fallback, map_reduce, parallel, part, sequence
from parley.compose.parts import CompositionPart
from parley.server.run import serving
from tests.kit.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NAMES = ["python-1.3", "python-0.3", "js-1.3", "js-0.3"]
"""The peers that need no compiler. Go has a separate test, as it needs one."""


@pytest.fixture(
    params=[
        pytest.param(NAMES, id="python and js"),
        pytest.param(["go-2.4", "python-1.3"], id="go", marks=pytest.mark.may_be_missing),
    ]
)
def peers(
    request: pytest.FixtureRequest, official_servers: Callable[[str], str]
) -> list[CompositionPart]:
    """Return agents of other implementations as parts, each named after its peer."""
    return [
        part(official_servers(name), name=name, version="0.3" if name.endswith("0.3") else "1.0")
        for name in request.param
    ]


@asynccontextmanager
async def served(composition: Composition) -> AsyncIterator[RemoteAgent]:
    app = parley.asgi(composition, drain=0.2, allow_private_agents=True)
    async with serving(app) as url, parley.connect(url) as remote:
        yield remote


async def test_all_of_them_work_at_once_and_each_in_a_chain(peers: list[CompositionPart]) -> None:
    async with served(parallel(*peers)) as remote:
        task = await remote.send("report 3 0.05")
        assert task.state is TaskState.COMPLETED
        assert task.text.count("chunk 0. chunk 1. chunk 2. ") == len(peers)
        task = await remote.send("hello")  # a direct message from each
        assert task.text.count("hello yourself") == len(peers)
    async with served(sequence(*peers)) as remote:
        task = await remote.send("Oslo")
        assert task.text == "booked: " * len(peers) + "Oslo"
    async with served(map_reduce(split, peers[0], limit=2)) as remote:
        task = await remote.send("Oslo Rome Bonn")
        assert re.findall(r"booked: (\w+)", task.text) == ["Oslo", "Rome", "Bonn"]


def split(text: str) -> list[str]:
    return text.split()


async def test_each_asks_by_its_name_and_gets_its_own_answer(peers: list[CompositionPart]) -> None:
    async with served(parallel(*peers)) as remote:
        task = await remote.send("book")
        told = {}
        for _ in peers:
            assert task.state is TaskState.INPUT_REQUIRED
            name = task.status.message.text.removesuffix(": where to?")
            told[name] = f"City{len(told)}"
            task = await remote.send(told[name], task=task)
        assert task.state is TaskState.COMPLETED
        for name, city in told.items():
            assert f"{name}: booked: {city}" in task.text
        assert len(told) == len(peers)


async def test_failures_are_named_and_others_take_their_place(peers: list[CompositionPart]) -> None:
    async with served(broadcast(*peers)) as remote:
        task = await remote.send("fail")
        assert task.state is TaskState.FAILED
        for each in peers:
            assert f"{each.name}: it did not work" in task.text
    first, *others = [part(each, timeout=0.6) for each in peers]
    before = [await working(each) for each in peers]  # earlier tests leave tasks there

    def steady(text: str) -> str:
        return f"steady {text}"

    async with served(fallback(first, *others, steady)) as remote:
        task = await remote.send("slow")  # all hang, and are canceled
        assert task.text == "steady slow"
    for each, known in zip(peers, before, strict=True):

        async def none_works(each: CompositionPart = each, known: set[str] = known) -> bool:
            return await working(each) <= known

        await until(none_works, seconds=timedelta(seconds=10).total_seconds())


async def working(peer: CompositionPart) -> set[str]:
    """Return the ids of the working tasks there; none for 0.3, which cannot list tasks."""
    options = dict(peer.connection)
    if options["version"] == "0.3":
        return set()
    async with parley.connect(str(peer.target), **options) as direct:
        return {task.id async for task in direct.tasks(status=TaskState.WORKING)}
