"""Webhooks receive all events of a task, and delay neither tasks nor callers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from parley import Agent, Execution, Turn
from parley.model.operations import StreamResponse
from parley.model.struct import encode
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.webhooks import PushState
from parley.store.task_store import TaskStore
from tests.kit.waiting import until
from tests.kit.webhooks import Webhook, is_over, webhook
from tests.push.pushing import Pushed, config, gated, of_version, pushing

pytestmark = pytest.mark.anyio


async def logged(caller: Pushed, task_id: str, after: int = 0) -> list[bytes]:
    """Return a task's events after a sequence number, in the form sent to a webhook."""
    events = await caller.store.events(task_id, after, 10_000)
    return [encode(StreamResponse.of(event.event)) for event in events]  # type: ignore[arg-type]


def bodies(hook: Webhook) -> list[bytes]:
    return [told.body for told in hook.told]


async def test_a_configuration_that_is_created_later_is_told_what_happens_from_then_on(
    new_store: Callable[[], TaskStore],
) -> None:
    agent, gate = gated()
    async with webhook() as hook, pushing(agent, new_store()) as caller:
        task = await caller.task("go", return_immediately=True)
        await caller.create(task.id, hook.url)
        before = (await caller.store.pushes(task.id))[0].cursor
        gate.set()
        await hook.until_over()
        assert before > 0
        assert bodies(hook) == await logged(caller, task.id, after=before)


async def test_a_webhook_that_is_gone_is_suspended_at_once(
    caplog: pytest.LogCaptureFixture, new_store: Callable[[], TaskStore]
) -> None:
    agent, gate = gated()
    async with webhook() as hook, webhook() as other, pushing(agent, new_store()) as caller:
        hook.answer = lambda told: 410
        task = await caller.task("go", hook.url, return_immediately=True)
        push = await caller.settled(task.id, PushState.SUSPENDED)
        assert (push.cursor, push.note) == (0, "it answers with HTTP 410: it is gone")
        # The second webhook gets the end of the task; a delivery to the first would come earlier.
        await caller.create(task.id, other.url, id="other")
        gate.set()
        await other.until_over()
        assert len(hook.told) == 1
    assert "is suspended after event 0: it answers with HTTP 410" in caplog.text


async def test_a_suspended_webhook_goes_on_when_it_is_created_again() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent) as caller:
        hook.answer = lambda told: 410
        task = await caller.task("go", hook.url)
        await caller.settled(task.id, PushState.SUSPENDED)
        hook.answer = lambda told: 200
        await caller.create(task.id, hook.url)
        await caller.settled(task.id, PushState.DONE)
        assert bodies(hook)[1:] == await logged(caller, task.id)


async def test_a_removed_configuration_is_told_nothing_more() -> None:
    agent, gate = gated()
    async with webhook() as hook, webhook() as other, pushing(agent) as caller:
        task = await caller.task("go", config(hook.url, id="mine"), return_immediately=True)
        await hook.until(lambda told: len(told) >= 2)
        await caller.create(task.id, other.url, id="other")
        await caller.delete(task.id, "mine")
        told = len(hook.told)
        gate.set()
        await other.until_over()
        assert len(hook.told) == told


async def test_direct_replies_that_nobody_takes_are_given_up() -> None:
    agent = Agent("Direct")

    @agent.skill
    async def say(text: str) -> str:
        return text

    async with webhook() as hook, pushing(agent) as caller:
        hook.answer = lambda told: 500
        await caller.send("hello", hook.url)
        await hook.until(lambda told: len(told) >= 3)
        async with asyncio.timeout(10):
            await until(lambda: not caller.host.push._reply_counts)


async def test_a_hybrid_skill_that_takes_longer_tells_of_its_task() -> None:
    agent = Agent("Hybrid", execution=Execution(direct_reply_timeout=0.01))
    gate = asyncio.Event()

    @agent.skill
    async def think(text: str) -> str:
        await gate.wait()
        return text

    async with webhook() as hook, pushing(agent) as caller:
        sending = asyncio.create_task(caller.send("hello", hook.url))
        await hook.until(bool)
        gate.set()
        task = await sending
        assert task.id
        await hook.until_over()
        assert bodies(hook) == await logged(caller, task.id)


async def test_a_name_that_leads_to_a_private_address_is_told_nothing() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, allowed=False) as caller:
        host = caller.host

        class Names:
            async def resolve(self, name: str, port: int = 0, family: Any = 0) -> list[Any]:
                return [
                    {
                        "hostname": name, "host": "127.0.0.1", "port": port,
                        "family": socket.AF_INET, "proto": 0, "flags": socket.AI_NUMERICHOST,
                    }
                ]  # fmt: skip

        host.push._sender._resolver = Names()  # type: ignore[assignment]
        task = await caller.task("go", hook.url.replace("127.0.0.1", "rebinding.example.com"))
        push = await caller.settled(task.id, PushState.SUSPENDED)
        assert push.note == "it is at a loopback address"
        assert hook.told == []


async def test_hosts_on_the_list_are_told_wherever_they_are() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, allowed=["localhost"]) as caller:
        await caller.task("go", hook.url.replace("127.0.0.1", "localhost"))
        await hook.until_over()


# -- version 0.3 ---------------------------------------------------------------------------------


async def test_a_webhook_of_0_3_is_told_the_task_as_it_stands() -> None:
    agent, gate = gated()
    async with webhook() as hook, pushing(agent) as caller:
        old = of_version(caller.context, "0.3")
        task = await caller.task("go", hook.url, return_immediately=True, context=old)
        await hook.until(bool)
        gate.set()
        await hook.until_over()
        for told in hook.told:
            assert told.json["id"] == task.id
            assert told.json["kind"] == "task"
            assert told.headers["content-type"] == "application/json"
            assert told.headers["a2a-version"] == "0.3"
        assert hook.told[-1].json["status"]["state"] == "completed"
        numbers = [told.number for told in hook.told]
        assert numbers == sorted(set(numbers))


async def test_many_chunks_are_told_as_few_tasks() -> None:
    """What is sent grows with the artifact, not with its square."""
    agent = Agent("Writer")

    @agent.skill
    async def write(turn: Turn) -> Any:
        for n in range(1000):
            yield f"{n:09} "
            if n % 10 == 0:
                await asyncio.sleep(0)

    async with webhook() as hook, pushing(agent) as caller:
        old = of_version(caller.context, "0.3")
        await caller.task("go", hook.url, context=old)
        await hook.until_over()
        assert len(hook.told) < 30
        assert sum(len(told.body) for told in hook.told) < 10 * len(hook.told[-1].body)


# -- restarts ------------------------------------------------------------------------------------


async def test_a_server_that_stops_tells_what_there_is_to_tell() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook:
        async with pushing(agent, drain=5.0) as caller:
            task = await caller.task("go", hook.url)
            count = len(await logged(caller, task.id))
        assert len(hook.told) == count
        assert is_over(hook.told[-1])


async def test_a_store_that_fails_for_a_while_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.push.dispatcher.STORE_PAUSE", 0.01)
    monkeypatch.setattr("parley.push.delivery.STORE_PAUSE", 0.01)

    class Failing(MemoryTaskStore):
        failures = 3

        async def pushes(self, task_id: str) -> Any:
            self._fail()
            return await super().pushes(task_id)

        async def save_delivery(self, task_id: str, push: Any, attempt: Any = None) -> bool:
            self._fail()
            return await super().save_delivery(task_id, push, attempt)

        def _fail(self) -> None:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("full")

    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, Failing()) as caller:
        task = await caller.task("go", hook.url)
        await hook.until_over()
        push = await caller.settled(task.id, PushState.DONE)
        assert push.cursor == len(await logged(caller, task.id))
        assert sorted({told.number for told in hook.told}) == list(range(1, push.cursor + 1))
