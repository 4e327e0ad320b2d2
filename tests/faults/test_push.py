"""Webhooks are told everything, in order, however often the server is killed meanwhile."""

from __future__ import annotations

import os
import random
import signal

import pytest

import parley
from parley import Task, TaskState
from parley.model.encoding import encode
from parley.model.requests import StreamResponse
from parley.store.protocols.webhooks import PushState
from parley.store.sqlite.store import SqliteTaskStore
from tests.faults.conftest import Served
from tests.polling import let_time_pass
from tests.webhooks import Webhook, is_over, webhook

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = max(1, int(os.environ.get("PARLEY_KILLS", "20")) // 5)


async def events_of(served: Served, task_id: str) -> list[bytes]:
    """Return the events of a task, as webhooks are told them, from the store of a dead server."""
    store = SqliteTaskStore(served.store)
    await store.open(lambda _: None)
    try:
        events = []
        while page := await store.events(task_id, len(events), 500):
            events += [encode(StreamResponse.of(e.event)) for e in page]  # type: ignore[arg-type]
        [push] = await store.pushes(task_id)
        assert (push.cursor, push.state) == (len(events), PushState.DONE)
        return events
    finally:
        await store.close()


def check(hook: Webhook, events: list[bytes]) -> None:
    """What came in is everything, in order; what came again had come before."""
    said = dict(enumerate(events, 1))
    seen = 0
    for told in hook.told:
        assert told.number <= seen + 1, "an event was passed over"
        assert told.body == said[told.number]
        seen = max(seen, told.number)
    assert seen == len(events)


@pytest.mark.parametrize("seed", range(KILLS))
async def test_delivery_goes_on_from_its_cursor_after_kills(served: Served, seed: int) -> None:
    chance = random.Random(seed)
    async with webhook() as hook, parley.connect(served.url) as agent:
        task = await agent.send(
            "go", metadata={"skill": "report"}, push=hook.url, return_immediately=True
        )
        assert isinstance(task, Task)
        for _ in range(3):
            count = len(hook.told)
            await hook.until(
                lambda told, count=count: len(told) > count or (told and is_over(told[-1]))
            )
            await let_time_pass(chance.uniform(0.0, 0.2))
            await served.end()
            await served.start()
        await hook.until_over(60)
        assert (await agent.wait(task.id, timeout=30)).state is TaskState.COMPLETED
    assert await served.end(signal.SIGTERM) == 0
    check(hook, await events_of(served, task.id))
    repeated = len(hook.told) - len({told.number for told in hook.told})
    assert repeated <= 3, "more came again than one for each kill"


async def test_what_a_dead_webhook_missed_is_told_by_the_next_server(served: Served) -> None:
    async with webhook() as hook:
        url, port = hook.url, int(hook.url.rsplit(":", 1)[1].split("/")[0])
    async with parley.connect(served.url) as agent:
        task = await agent.send("go", metadata={"skill": "report"}, push=url)
        assert isinstance(task, Task)
        assert task.state is TaskState.COMPLETED
        await served.end()
        async with webhook(port) as hook:
            await served.start()
            await hook.until_over(30)
            await served.end(signal.SIGTERM)
    check(hook, await events_of(served, task.id))
