"""What the owner of a webhook can see: every attempt, and nothing secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from parley import CardDetails
from parley.extensions import GetPushHistoryRequest, PushHistory, SetPushOptionsRequest
from parley.model.errors import PushNotificationNotSupportedError, TaskNotFoundError
from parley.model.operations import AuthenticationInfo
from parley.model.service import Caller
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import ATTEMPTS_KEPT, PushState
from parley.store.task_store import TaskStore
from tests.kit.waiting import let_time_pass
from tests.kit.webhooks import webhook
from tests.push.pushing import PATIENT, QUICK, Pushed, config, gated, pushing, writer

pytestmark = pytest.mark.anyio


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


async def test_an_agent_without_webhooks_has_none() -> None:
    from parley import Agent
    from parley.model.extensions import PUSH_DELIVERY

    agent = Agent("Quiet", card=CardDetails(push_notifications=False))

    @agent.skill
    async def say(text: str) -> str:
        return text

    assert PUSH_DELIVERY not in [e.uri for e in agent.card("http://x").capabilities.extensions]
    async with pushing(agent) as pushed:
        with pytest.raises(PushNotificationNotSupportedError):
            await history(pushed, "t")


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
