"""Webhooks receive every event in order, even if the server is killed often."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

import parley
from parley import TaskState
from parley.extensions import PushDelivery, PushOptions
from parley.model.operations import StreamResponse
from parley.model.struct import encode
from parley.store.protocols.webhooks import PushState
from parley.store.sqlite.store import SqliteTaskStore
from tests.faults.conftest import Served
from tests.faults.served import CHUNKS
from tests.kit.processes import free_port
from tests.kit.waiting import let_time_pass
from tests.kit.webhooks import Told, Webhook, is_over, webhook
from tests.push.proofs.receiving import asking, is_signed

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = max(1, int(os.environ.get("PARLEY_KILLS", "15")) // 5)


async def events_of(served: Served, task_id: str) -> list[bytes]:
    """Return a task's events as webhook deliveries, from a stopped server's store."""
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
    """Check that all events arrived in order; a repeat may only follow its first delivery."""
    said = dict(enumerate(events, 1))
    seen = 0
    for told in hook.told:
        assert told.number <= seen + 1, "a delivery skipped an event"
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
        assert task.id
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
    assert repeated <= 3, "more than one repeat per kill"


async def test_what_a_dead_webhook_missed_is_told_by_the_next_server(served: Served) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/hook"
    async with parley.connect(served.url) as agent:
        task = await agent.send("go", metadata={"skill": "report"}, push=url)
        assert task.id
        assert task.state is TaskState.COMPLETED
        await served.end()
        async with webhook(port) as hook:
            await served.start()
            await hook.until_over(30)
            await served.end(signal.SIGTERM)
    check(hook, await events_of(served, task.id))


async def test_a_delivery_that_a_kill_repeats_has_its_id_and_a_proof_of_its_own(
    served: Served,
) -> None:
    """The kill comes after the webhook receives a delivery, and before its response."""
    secret = "a-secret-of-thirty-characters!"
    async with webhook() as hook, parley.connect(served.url) as agent:
        is_dead = asyncio.Event()

        async def answer(told: Told) -> int:
            if len(hook.told) == 2:
                await is_dead.wait()
            return 200

        hook.answer = answer
        push = asking(hook.url, "HMAC-SHA256", secret)
        await agent.send("go", metadata={"skill": "report"}, push=push, return_immediately=True)
        await hook.until(lambda told: len(told) >= 2)
        await served.end()
        is_dead.set()
        await let_time_pass(1.1)  # the time of an attempt is in seconds
        await served.start()
        await hook.until_over(60)
    cut, again = [told for told in hook.told if told.number == hook.told[1].number]
    assert cut.headers["webhook-id"] == again.headers["webhook-id"]
    assert cut.body == again.body
    assert int(cut.headers["webhook-timestamp"]) < int(again.headers["webhook-timestamp"])
    assert all(is_signed(told, secret.encode()) for told in hook.told)
    mixed = {**again.headers, "webhook-timestamp": cut.headers["webhook-timestamp"]}
    assert not is_signed(again._replace(headers=mixed), secret.encode())


@pytest.mark.parametrize("seed", range(KILLS))
async def test_significant_events_survive_kills_of_the_server_and_of_the_receiver(
    served: Served, seed: int
) -> None:
    """Each state and the complete artifact arrive at least once, in order, with the same bodies."""
    chance = random.Random(seed)
    metadata = {"skill": "report", **PushDelivery.says(PushOptions(events="significant"))}
    port = free_port()
    url = f"http://127.0.0.1:{port}/hook"
    told: list[Told] = []
    async with parley.connect(served.url, extensions=[PushDelivery()]) as agent:
        task = await agent.send("go", metadata=metadata, push=url, return_immediately=True)
        assert task.id
        while not (told and is_over(told[-1])):
            async with webhook(port) as hook:
                hook.answer = lambda _: 200 if chance.random() < 0.6 else 503
                await let_time_pass(chance.uniform(0.1, 0.6))
                told += hook.told
            if chance.random() < 0.5:
                await served.end()
                await served.start()
        hook.answer = lambda _: 200
        assert (await agent.wait(task.id, timeout=30)).state is TaskState.COMPLETED
    async with webhook(port) as hook:
        store = SqliteTaskStore(served.store)
        await served.end(signal.SIGTERM)
        await store.open(lambda _: None)
        [push] = await store.pushes(task.id)
        await store.close()
        if push.state is not PushState.DONE:  # its last response was 503
            await served.start()
            await hook.until_over(60)
            await served.end(signal.SIGTERM)
            told += hook.told
    by_number: dict[int, set[bytes]] = {}
    for each in told:
        by_number.setdefault(each.number, set()).add(each.body)
    firsts = list(by_number)
    assert firsts == sorted(firsts), "the deliveries are out of order"
    assert all(len(bodies) == 1 for bodies in by_number.values()), "a repeat has another body"
    artifacts = [each.json["artifactUpdate"] for each in told if "artifactUpdate" in each.json]
    assert artifacts, "the complete artifact is missing"
    text = "".join(part["text"] for part in artifacts[0]["artifact"]["parts"])
    assert text == "".join(f"{n} " for n in range(CHUNKS))
    assert len(firsts) <= 8
