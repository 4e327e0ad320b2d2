"""Webhooks of a test: through the real dispatcher, into a list."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from parley import Agent, Task, TaskPushNotificationConfig, Turn
from parley.model.errors import InvalidParamsError
from parley.model.operations import AuthenticationInfo
from parley.push.delivery import RetryPolicy
from parley.testing import artifact, assert_events, client, completed, message, submitted, working

pytestmark = pytest.mark.anyio


def worker() -> Agent:
    agent = Agent("Worker")

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.working("At it")
        return "done"

    return agent


async def test_every_event_arrives_in_order_with_its_headers() -> None:
    async with client(worker()) as remote:
        push = TaskPushNotificationConfig(
            url="https://hooks.example/in",
            token="secret",
            authentication=AuthenticationInfo(scheme="Bearer", credentials="abc"),
        )
        task = await remote.send("?", push=push)
        assert isinstance(task, Task)
        await remote.settle()
        assert_events(
            remote.webhooks, [submitted(), working("At it"), artifact("done"), completed()]
        )
        assert remote.webhooks == [submitted(), working("At it"), artifact("done"), completed()]
        first = remote.webhooks[0]
        assert first.url == "https://hooks.example/in"
        assert first.task_id == task.id
        assert first.token == "secret"
        assert first.headers["authorization"] == "Bearer abc"
        assert first.headers["a2a-version"] == "1.0"
        assert first.id.endswith("/1")
        assert first.json["task"]["id"] == task.id
        assert remote.webhooks.to("https://hooks.example/in") == list(remote.webhooks)


async def test_webhooks_of_version_0_3_get_tasks() -> None:
    async with client(worker(), version="0.3") as remote:
        await remote.send("?", push=remote.webhook)
        await remote.settle()
        assert remote.webhooks[-1] == completed("done")
        assert remote.webhooks[-1].headers["a2a-version"] == "0.3"


async def test_a_direct_reply_arrives_too() -> None:
    agent = Agent("Direct")

    @agent.skill
    async def reply(turn: Turn) -> str:
        return "Hello"

    async with client(agent) as remote:
        await remote.send("?", push=remote.webhook)
        await remote.settle()
        assert remote.webhooks == [message("Hello")]
        assert remote.webhooks[0].task_id == ""


@pytest.mark.parametrize("status", [503, 0])
async def test_failures_are_tried_again_with_backoff(status: int) -> None:
    async with client(worker()) as remote:
        remote.webhooks.fail(times=2, status=status)
        await remote.send("?", push=remote.webhook)
        await remote.settle()
        assert [each.status for each in remote.webhooks] == [status]
        await remote.advance(timedelta(seconds=2))
        assert [each.status for each in remote.webhooks] == [status, status]
        await remote.advance(timedelta(seconds=5))
        assert [each.status for each in remote.webhooks[2:]] == [200] * 4
        assert len({each.id for each in remote.webhooks}) == 4
        assert remote.webhooks.events == [submitted(), working(), artifact(), completed()]


async def test_retry_after_counts() -> None:
    async with client(worker()) as remote:
        remote.webhooks.fail(status=429, retry_after=3600)
        await remote.send("?", push=remote.webhook)
        await remote.advance(timedelta(minutes=59))
        assert not remote.webhooks.accepted
        await remote.advance(timedelta(minutes=10))
        assert remote.webhooks.events[-1] == completed()


async def test_one_address_fails_and_another_does_not() -> None:
    async with client(worker()) as remote:
        remote.webhooks.fail(times=None, url="https://bad.example/")
        await remote.send("?", push="https://bad.example/")
        await remote.send("?", push="https://good.example/")
        await remote.settle()
        assert not remote.webhooks.to("https://bad.example/")
        assert len(remote.webhooks.to("https://good.example/")) == 4
        remote.webhooks.recover()
        await remote.advance(timedelta(minutes=1))
        assert len(remote.webhooks.to("https://bad.example/")) == 4


async def test_the_server_s_rules_for_addresses_hold() -> None:
    async with client(worker()) as remote:
        with pytest.raises(InvalidParamsError, match="loopback"):
            await remote.send("?", push="http://127.0.0.1:9000/")
    async with client(worker(), allow_private_webhooks=True) as remote:
        await remote.send("?", push="http://127.0.0.1:9000/")
        await remote.settle()
        assert remote.webhooks


async def test_a_webhook_that_keeps_failing_is_suspended() -> None:
    policy = RetryPolicy(gives_up_after=3600.0)
    async with client(worker(), retry_policy=policy) as remote:
        remote.webhooks.fail(times=None)
        await remote.send("?", push=remote.webhook)
        await remote.advance(timedelta(hours=3))
        count = len(remote.webhooks)
        assert count > 3
        remote.webhooks.recover()
        await remote.advance(timedelta(hours=3))
        assert len(remote.webhooks) == count


async def test_a_number_of_failures_is_positive() -> None:
    async with client(worker()) as remote:
        with pytest.raises(ValueError, match="times is 1 or more"):
            remote.webhooks.fail(times=0)
        await asyncio.sleep(0)
