"""Backoff and retries after a webhook did not accept a notification."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from itertools import pairwise

import pytest
from aiohttp import web
from msgspec.structs import replace

from parley import Agent, Turn
from parley.push.delivery import RetryPolicy
from parley.push.http_sender import DeliveryFailure
from parley.store.protocols.webhooks import PushState
from tests.kit.waiting import until
from tests.kit.webhooks import Told, webhook
from tests.push.pushing import PATIENT, config, gated, pushing

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("status", [400, 401, 404, 405, 413, 422, 301, 307])
async def test_a_webhook_that_refuses_is_tried_again_and_slowly(status: int) -> None:
    agent, gate = gated()
    gate.set()
    retry_policy = replace(PATIENT, first_delay=60.0, longest_delay=60.0)
    async with (
        webhook() as hook,
        webhook() as elsewhere,
        pushing(agent, retry_policy=retry_policy) as caller,
    ):
        hook.answer = lambda told: web.Response(
            status=status, headers={"Location": elsewhere.url}, body=b"x" * 100_000
        )
        task = await caller.task("go", hook.url, return_immediately=True)
        await hook.until(lambda told: len(told) >= 3)
        assert elsewhere.told == []
        hook.answer = lambda told: 200
        push = await caller.settled(task.id, PushState.DONE)
        assert [told.number for told in hook.told][-push.cursor :] == list(
            range(1, push.cursor + 1)
        )


def test_the_retry_policy_outlives_a_deploy_of_the_receiver_and_then_gives_up() -> None:
    retry_policy = RetryPolicy()
    for failure, first, longest in (
        (DeliveryFailure("it answers with HTTP 500"), 1.0, 15 * 60.0),
        (DeliveryFailure("it answers with HTTP 404", is_refusal=True), 60.0, 3600.0),
    ):
        delays = [retry_policy.delay(count, failure) for count in range(1, 200)]
        assert 0.75 * first <= delays[0] <= 1.25 * first
        assert all(0.75 * longest <= delay <= 1.25 * longest for delay in delays[20:])
        assert all(later >= 1.2 * delay for delay, later in pairwise(delays[:6]))
        tries = 1 + sum(
            sum(delays[:count]) < retry_policy.gives_up_after for count in range(len(delays))
        )
        assert 20 < tries < 140
        asked = failure._replace(retry_after=7200.0)
        assert 7200.0 <= retry_policy.delay(1, asked) <= 7200.0 * 1.1
        asked = failure._replace(retry_after=1e9)
        assert 86_400.0 <= retry_policy.delay(1, asked) <= 86_400.0 * 1.1
        asked = failure._replace(retry_after=0.0)
        assert retry_policy.delay(30, asked) >= 0.75 * longest  # never sooner than without


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"first_delay": -1}, {"longest_delay": float("nan")}, {"quick": 1e9}]
)
def test_a_retry_policy_with_impossible_times_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("is_date", [False, True])
async def test_a_webhook_is_not_called_again_before_it_wants_to_be(
    status: int, is_date: bool
) -> None:
    agent, gate = gated()
    gate.set()
    times: list[float] = []

    def answer(told: Told) -> web.Response:
        times.append(time.time())
        if len(times) > 1:
            return web.Response()
        wish = formatdate(times[0] + 3, usegmt=True) if is_date else "2"
        return web.Response(status=status, headers={"Retry-After": wish})

    async with webhook() as hook, pushing(agent, retry_policy=PATIENT) as caller:
        hook.answer = answer
        await caller.task("go", hook.url)
        await hook.until(lambda told: len(told) >= 2)
        assert times[1] - times[0] >= 1.9  # a date has no fractions


async def test_other_answers_say_nothing_about_when_to_come_again() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, retry_policy=PATIENT) as caller:
        hook.answer = lambda told: web.Response(status=500, headers={"Retry-After": "3600"})
        await caller.task("go", hook.url)
        await hook.until(lambda told: len(told) >= 3)


async def test_one_that_answers_again_has_the_others_at_its_origin_told_at_once() -> None:
    """Each but once: what is well at one path may be wrong at another."""
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
        # Under way here is the first try; its failure has to be noted before the next webhook.
        async with asyncio.timeout(10):
            await until(lambda: not caller.host.push._scheduler._running)
        well = await caller.task("go", f"{base}/well", return_immediately=True)
        await hook.until(lambda told: count("/sick") == 2)
        gate.set()
        await caller.settled(well.id, PushState.DONE)
        assert count("/well") == len(await caller.store.events(well.id, 0, 100))
        assert count("/sick") == 2
        assert (await caller.settled(sick.id, PushState.ACTIVE)).cursor == 0


async def test_one_that_is_to_come_later_is_not_woken_before() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, retry_policy=PATIENT) as caller:
        hook.answer = lambda told: (
            web.Response(status=503, headers={"Retry-After": "3600"})
            if told.path == "/later"
            else 200
        )
        base = hook.url.removesuffix("/hook")
        await caller.task("go", config(f"{base}/later"))
        await hook.until(bool)
        for _ in range(3):
            task = await caller.task("go", f"{base}/well")
            await caller.settled(task.id, PushState.DONE)
        assert len([told for told in hook.told if told.path == "/later"]) == 1
