"""Retries, circuit breakers of destinations, and the delivery history for the webhook's owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from parley import Agent, Turn
from parley.extensions import GetPushHistoryRequest, PushHistory, SetPushOptionsRequest
from parley.model.errors import TaskNotFoundError
from parley.model.operations import AuthenticationInfo
from parley.model.service import Caller
from parley.push.scheduler import OPENS_AFTER, DeliveryJob, Destination
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import ATTEMPTS_KEPT, PushState
from parley.store.task_store import TaskStore
from tests.kit.waiting import let_time_pass, until
from tests.kit.webhooks import Webhook, webhook
from tests.push.pushing import PATIENT, QUICK, Pushed, config, gated, pushing, writer

pytestmark = pytest.mark.anyio


async def test_one_that_answers_again_has_the_others_at_its_origin_told_at_once() -> None:
    """Each other webhook is tried only once: one path may work while another fails."""
    agent = Agent("Steps")
    gate = asyncio.Event()

    @agent.skill(replies="task")
    async def step(turn: Turn) -> None:
        await gate.wait()
        for n in range(4):
            await turn.working(str(n))

    retry_policy = replace(PATIENT, first_delay=10_000.0, longest_delay=10_000.0)
    async with webhook() as hook, pushing(agent, retry_policy=retry_policy) as caller:
        hook.answer = lambda told: 200 if told.path == "/well" else 500
        base = hook.url.removesuffix("/hook")

        def count(path: str) -> int:
            return len([told for told in hook.told if told.path == path])

        sick = await caller.task("go", f"{base}/sick", return_immediately=True)
        await hook.until(lambda told: count("/sick") == 1)
        # The first attempt is in progress; its failure must be recorded before the next webhook.
        async with asyncio.timeout(10):
            await until(lambda: not caller.host.push._scheduler._running)
        well = await caller.task("go", f"{base}/well", return_immediately=True)
        await hook.until(lambda told: count("/sick") == 2)
        gate.set()
        await caller.settled(well.id, PushState.DONE)
        assert count("/well") == len(await caller.store.events(well.id, 0, 100))
        assert count("/sick") == 2
        assert (await caller.settled(sick.id, PushState.ACTIVE)).cursor == 0


# -- circuit breakers: opened by consecutive failures, probed once, closed by a success ------------


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
        circuit.until = 0.0  # a probe is due
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


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_webhook_that_waits_for_a_day_is_suspended_too() -> None:
    policy = replace(PATIENT, first_delay=0.05, longest_delay=0.1, gives_up_after=0.3)
    async with webhook() as hook, pushing(writer(1), retry_policy=policy) as pushed:
        hook.answer = lambda told: 500
        tasks = [await pushed.task("go", at(hook, f"/{n}")) for n in range(40)]
        for task in tasks:
            push = await pushed.settled(task.id, PushState.SUSPENDED)
            assert "it answers with HTTP 500" in push.note
        sent = [count(hook, f"/{n}") for n in range(len(tasks))]
        assert min(sent) == 0, "the last ones were never a probe"


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


# -- delivery history for the webhook's owner: every attempt, and no secrets -----------------------


async def history(pushed: Pushed, task_id: str, id: str = "default", **context: Any) -> PushHistory:
    asked = GetPushHistoryRequest(task_id=task_id, id=id)
    answer = await pushed.service.get_push_history(asked, replace(pushed.context, **context))
    [found] = answer.webhooks
    return found


async def test_it_has_each_attempt_the_newest_first(new_store: Callable[[], TaskStore]) -> None:
    agent, gate = gated()
    async with webhook() as hook, pushing(agent, new_store(), retry_policy=PATIENT) as pushed:
        answers = iter([503, 404, 200, 202])
        hook.answer = lambda told: next(answers, 200)
        task = await pushed.task("go", hook.url, return_immediately=True)
        await hook.until(lambda told: len(told) == 4)
        gate.set()
        await pushed.settled(task.id, PushState.DONE)
        found = await history(pushed, task.id)
        assert (found.state, found.note, found.events) == ("done", "", "all")
        attempts = found.attempts[::-1]
        assert [each.number for each in attempts] == list(range(1, len(hook.told) + 1))
        assert [each.status for each in attempts][:4] == [503, 404, 200, 202]
        assert [each.error for each in attempts][:3] == [
            "it answers with HTTP 503",
            "it answers with HTTP 404",
            "",
        ]
        assert [each.delivery_id for each in attempts] == [
            told.headers["a2a-notification-id"] for told in hook.told
        ]
        assert attempts[0].next is not None
        assert attempts[0].next >= attempts[0].at
        assert attempts[2].next is None


async def test_a_webhook_that_fails_says_what_it_waits_for() -> None:
    policy = replace(PATIENT, first_delay=3600.0, longest_delay=3600.0)
    async with pushing(writer(1), retry_policy=policy) as pushed:
        task = await pushed.task("go", "http://127.0.0.1:9/")
        async with asyncio.timeout(10):
            while not (await history(pushed, task.id)).attempts:
                await let_time_pass(0.01)
        found = await history(pushed, task.id)
        assert found.state == "active"
        assert found.note.startswith("it cannot be reached")
        [attempt] = found.attempts
        assert (attempt.status, attempt.error) == (0, found.note)
        assert attempt.next is not None
        assert (attempt.next - attempt.at).total_seconds() > 2000


async def test_it_has_no_secrets() -> None:
    async with webhook() as hook, pushing(writer(1), retry_policy=QUICK) as pushed:
        hook.answer = lambda told: web.Response(
            status=500, reason="s3cret", text="s3cret", headers={"X": "s3cret"}
        )
        secrets = config(
            f"{hook.url}/s3cret?key=s3cret",
            token="s3cret",
            authentication=AuthenticationInfo(scheme="Bearer", credentials="s3cret"),
        )
        task = await pushed.task("go", secrets)
        await pushed.settled(task.id, PushState.SUSPENDED)
        found = await history(pushed, task.id)
        assert found.state == "suspended"
        assert found.note.startswith("it answers with HTTP 500")
        assert "s3cret" not in repr(found)
        assert "127.0.0.1" not in repr(found)


async def test_only_the_owner_sees_it_and_unknown_and_foreign_are_one_answer() -> None:
    async with webhook() as hook, pushing(writer(1)) as pushed:
        task = await pushed.task("go", hook.url)
        await hook.until_over()
        stranger = Caller(id="eve")
        for asking in (
            history(pushed, task.id, caller=stranger),
            history(pushed, "no such task"),
            history(pushed, task.id, "no such id"),
            history(pushed, task.id, "no such id", caller=stranger),
        ):
            with pytest.raises(TaskNotFoundError):
                await asking
        for task_id, id, context in (
            (task.id, "default", replace(pushed.context, caller=stranger)),
            (task.id, "other", pushed.context),
            ("unknown", "default", pushed.context),
        ):
            asked = SetPushOptionsRequest(task_id=task_id, id=id, events="all")
            with pytest.raises(TaskNotFoundError):
                await pushed.service.set_push_options(asked, context)


async def test_a_delivery_costs_one_write_and_the_rows_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counting(MemoryTaskStore):
        saves = 0

        async def save_delivery(self, *given: Any) -> bool:
            self.saves += 1
            return await super().save_delivery(*given)

    store = Counting()
    async with webhook() as hook, pushing(writer(3 * ATTEMPTS_KEPT), store) as pushed:
        task = await pushed.task("go", hook.url)
        await hook.until_over(30)
        push = await pushed.settled(task.id, PushState.DONE)
        assert store.saves == len(hook.told) == push.attempts
        assert len((await history(pushed, task.id)).attempts) == ATTEMPTS_KEPT
