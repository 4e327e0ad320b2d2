"""The circuit of a destination: opened by failures in a row, probed by one, closed by an answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from parley import Agent
from parley.model.service import Caller
from parley.push.scheduler import OPENS_AFTER, DeliveryJob, Destination
from parley.store.protocols.webhooks import PushState
from tests.kit.waiting import until
from tests.kit.webhooks import Webhook, webhook
from tests.push.pushing import PATIENT, Pushed, gated, pushing, writer

pytestmark = pytest.mark.anyio

SHORT = replace(PATIENT, longest_delay=10.0)
FOREVER = replace(PATIENT, first_delay=10_000.0, longest_delay=10_000.0)


def at(hook: Webhook, path: str) -> str:
    return hook.url.replace("/hook", path)


def count(hook: Webhook, path: str) -> int:
    return len([told for told in hook.told if told.path == path])


def circuit_of(pushed: Pushed, hook: Webhook, caller: str = "ada") -> Destination:
    destinations = pushed.host.push._scheduler._destinations
    origin = hook.url.removesuffix("/hook")
    [found] = [d for (who, where), d in destinations.items() if where == origin and caller in who]
    return found


async def idle(pushed: Pushed) -> None:
    async with asyncio.timeout(10):
        await until(lambda: not pushed.host.push._scheduler._running)


async def test_it_opens_after_failures_in_a_row_over_all_webhooks_and_a_probe_closes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "parley.push")
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, retry_policy=FOREVER) as pushed:
        hook.answer = lambda told: 503
        tasks = []
        for n in range(OPENS_AFTER + 4):
            tasks.append(await pushed.task("go", at(hook, f"/{n}")))
            await idle(pushed)
        assert len(hook.told) == OPENS_AFTER
        assert "is open for" in caplog.text
        blocked = tasks[-1]
        [attempt] = await pushed.store.push_attempts(blocked.id, "default")
        assert attempt.error.startswith("not sent: the circuit of its destination is open: ")
        assert attempt.status == 0
        assert attempt.next_at > attempt.at
        [push] = await pushed.store.pushes(blocked.id)
        assert push.note == "the circuit of its destination is open: it answers with HTTP 503"

        hook.answer = lambda told: 200
        circuit = circuit_of(pushed, hook)
        circuit.until = 0.0  # it is time for a probe
        more = await pushed.task("go", at(hook, "/probe"))
        for task in (*tasks, more):
            done = await pushed.settled(task.id, PushState.DONE)
            assert done.note == ""
        assert "is closed" in caplog.text
        assert not circuit.is_open


async def test_a_probe_is_one_delivery_and_its_failure_opens_the_circuit_again() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, retry_policy=FOREVER) as pushed:
        hook.answer = lambda told: 500
        for n in range(OPENS_AFTER):
            await pushed.task("go", at(hook, f"/{n}"))
        await hook.until(lambda told: len(told) >= OPENS_AFTER)
        await idle(pushed)
        circuit = circuit_of(pushed, hook)
        release = asyncio.Event()

        async def hang(told: Any) -> int:
            await release.wait()
            return 500

        hook.answer = hang
        circuit.until = 0.0
        await pushed.task("go", at(hook, "/probe"))
        await hook.until(lambda told: len(told) == OPENS_AFTER + 1)
        for n in range(3):
            await pushed.task("go", at(hook, f"/more{n}"))
        await idle_but_one(pushed)
        assert len(hook.told) == OPENS_AFTER + 1
        release.set()
        await idle(pushed)
        assert circuit.opened == 2
        assert len(hook.told) == OPENS_AFTER + 1


async def idle_but_one(pushed: Pushed) -> None:
    async with asyncio.timeout(10):
        await until(lambda: len(pushed.host.push._scheduler._running) == 1)


async def test_a_webhook_that_has_not_hung_is_delivered_to_while_others_hold_the_circuit_open() -> (
    None
):
    policy = replace(FOREVER, timeout=0.7)
    async with webhook() as hook, pushing(writer(1), retry_policy=policy) as pushed:
        never = asyncio.Event()

        async def answer(told: Any) -> int:
            if told.path == "/hang":
                await never.wait()
            return 200

        hook.answer = answer
        for _ in range(10):
            await pushed.task("go", at(hook, "/hang"), return_immediately=True)
        async with asyncio.timeout(10):
            await until(lambda: circuit_of(pushed, hook).is_open)
        begun = asyncio.get_running_loop().time()
        task = await pushed.task("go", hook.url)
        await pushed.settled(task.id, PushState.DONE)
        assert asyncio.get_running_loop().time() - begun < 4.0
        never.set()


async def test_a_webhook_that_asks_for_a_day_does_not_hold_up_others_for_a_day() -> None:
    async with webhook() as hook, pushing(writer(1), retry_policy=SHORT) as pushed:
        later = {"Retry-After": "86400"}
        hook.answer = lambda told: web.Response(status=429, headers=later)
        for n in range(OPENS_AFTER):
            await pushed.task("go", at(hook, f"/{n}"))
        async with asyncio.timeout(10):
            await until(lambda: circuit_of(pushed, hook).is_open)
        await idle(pushed)
        left = circuit_of(pushed, hook).remaining(asyncio.get_running_loop().time())
        assert 5.0 <= left <= 15.0


async def test_refusals_are_answers() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, retry_policy=FOREVER) as pushed:
        hook.answer = lambda told: 404
        for n in range(OPENS_AFTER + 3):
            await pushed.task("go", at(hook, f"/{n}"))
        paths = {f"/{n}" for n in range(OPENS_AFTER + 3)}
        await hook.until(lambda told: {each.path for each in told} == paths)
        assert not circuit_of(pushed, hook).is_open


async def test_one_callers_circuit_is_not_anothers() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, retry_policy=FOREVER) as pushed:
        hook.answer = lambda told: 500 if told.path != "/well" else 200
        for n in range(OPENS_AFTER):
            await pushed.task("go", at(hook, f"/{n}"))
        await hook.until(lambda told: len(told) >= OPENS_AFTER)
        await idle(pushed)
        assert circuit_of(pushed, hook).is_open
        grace = replace(pushed.context, caller=Caller(id="grace"))
        task = await pushed.task("go", at(hook, "/well"), context=grace)
        await pushed.settled(task.id, PushState.DONE)


async def test_a_webhook_that_waits_for_a_day_is_suspended_too() -> None:
    policy = replace(PATIENT, first_delay=0.05, longest_delay=0.1, gives_up_after=0.3)
    async with webhook() as hook, pushing(writer(1), retry_policy=policy) as pushed:
        hook.answer = lambda told: 500
        tasks = [await pushed.task("go", at(hook, f"/{n}")) for n in range(40)]
        for task in tasks:
            push = await pushed.settled(task.id, PushState.SUSPENDED)
            assert "it answers with HTTP 500" in push.note
        sent = [count(hook, f"/{n}") for n in range(len(tasks))]
        assert min(sent) == 0, "the last ones never were a probe"


async def test_direct_replies_wait_for_it_and_are_given_up() -> None:
    agent = Agent("Direct")

    @agent.skill
    async def say(text: str) -> str:
        return text

    async with webhook() as hook, pushing(agent, retry_policy=FOREVER) as pushed:
        hook.answer = lambda told: 500
        for n in range(OPENS_AFTER + 3):
            await pushed.send("hi", at(hook, f"/{n}"))
            await idle(pushed)
        assert len(hook.told) == OPENS_AFTER


def test_what_was_under_way_when_it_opened_changes_nothing() -> None:
    async def nothing() -> None: ...

    circuit, jobs = Destination("ada"), [DeliveryJob(Destination("ada"), nothing) for _ in range(9)]
    opened = [circuit.failed(job, "HTTP 500") for job in jobs]
    assert opened == [False] * 4 + [True] + [False] * 4
    circuit.until = 10.0
    assert circuit.wait(jobs[0], 9.0, 5.0) > 0
    assert circuit.wait(jobs[0], 10.0, 5.0) == 0.0
    assert circuit.wait(jobs[1], 10.0, 5.0) > 0
    circuit.released(jobs[0])
    assert circuit.wait(jobs[1], 10.0, 5.0) == 0.0
    assert circuit.failed(jobs[1], "HTTP 502")
    assert circuit.reason == "HTTP 502"
    assert circuit.succeeded()
    assert not circuit.succeeded()
