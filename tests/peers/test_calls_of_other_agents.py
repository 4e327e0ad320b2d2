"""A turn calls agents of other implementations; its process is killed while it waits."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

import parley
from parley import RemoteAgent, Task, TaskState
from parley.testing import FaultProxy
from tests.faults.conftest import Served
from tests.faults.test_calls import CALLING
from tests.kit.waiting import until

from .conftest import case

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PEERS = [
    case(peer, version)
    for peer, version in [
        ("python-1.3", "1.0"),
        ("python-0.3", "0.3"),
        ("js-1.3", "1.0"),
        ("js-0.3", "0.3"),
    ]
]


class Calling:
    """A planner in its own process that calls a peer, and the messages that the peer got."""

    def __init__(self, served: Served, proxy: FaultProxy) -> None:
        self.served = served
        self.proxy = proxy

    @property
    def messages(self) -> int:
        """Return how many messages reached the peer."""
        return sum(len(self.proxy.of(name)) for name in ("SendMessage", "SendStreamingMessage"))

    def known(self) -> int:
        """Return how many messages of the peer's task are in the log."""
        where = f"file:{self.served.store}?mode=ro"
        with closing(sqlite3.connect(where, uri=True)) as database:
            rows = database.execute("SELECT payload FROM log WHERE sub > 0").fetchall()
        calls = [json.loads(payload) for (payload,) in rows]
        values = [call["value"] for call in calls if isinstance(call.get("value"), dict)]
        return len({value["taskId"] for value in values if value.get("taskId")})

    async def restart(self) -> None:
        await self.served.end()
        await self.served.start()


@pytest.fixture(params=PEERS, ids=" ".join)
async def calling(
    request: pytest.FixtureRequest, official_servers: Callable[[str], str], tmp_path: Path
) -> AsyncIterator[Calling]:
    peer, version = request.param
    url = official_servers(peer)
    async with FaultProxy(url) as proxy:
        async with parley.connect(proxy.url, binding="JSONRPC", version=version) as direct:
            card = tmp_path / "card.json"
            card.write_bytes(direct.card_json)
        served = Served(tmp_path / "tasks.db", script=CALLING, args=[str(card)])
        await served.start()
        try:
            yield Calling(served, proxy)
        finally:
            if served.process is not None and served.process.returncode is None:
                await served.end()


async def begin(remote: RemoteAgent, text: str) -> Task:
    task = await remote.send(text, return_immediately=True)
    assert task.id
    return task


async def test_a_message_is_sent_once_although_the_caller_is_killed(calling: Calling) -> None:
    async with parley.connect(calling.served.url) as remote:
        task = await begin(remote, "report 20 0.1")
        await until(lambda: calling.messages == 2)
        await until(lambda: calling.known() == 2)
        await calling.restart()
        done = await remote.wait(task.id, timeout=30)
    assert done.state is TaskState.COMPLETED
    assert calling.messages == 2
    assert done.text.count("chunk 19. ") == 2


async def test_questions_go_up_and_answers_down_over_a_kill(calling: Calling) -> None:
    async with parley.connect(calling.served.url) as remote:
        task = await begin(remote, "book")
        for city in ("Rome", "Oslo"):
            asked = await remote.wait(task.id, timeout=30)
            assert asked.state is TaskState.INPUT_REQUIRED
            assert asked.status.message is not None
            assert asked.status.message.text == "where to?"
            await calling.restart()
            await remote.send(city, task=asked)
        done = await remote.wait(task.id, timeout=30)
    assert done.state is TaskState.COMPLETED
    assert sorted(re.findall(r"booked: (\w+)", done.text)) == ["Oslo", "Rome"]
    assert calling.messages == 4


async def test_a_canceled_task_cancels_those_of_the_peer(calling: Calling) -> None:
    async with parley.connect(calling.served.url) as remote:
        task = await begin(remote, "slow")
        await until(lambda: calling.messages == 2)
        await until(lambda: calling.known() == 2)
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    assert len(calling.proxy.of("CancelTask")) == 2
