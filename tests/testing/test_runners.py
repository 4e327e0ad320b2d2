"""Agents under test: on any loop, with external events, and their webhooks."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import parley
from parley import Agent, TaskPushNotificationConfig, Turn
from parley.model.operations import AuthenticationInfo
from parley.store.protocols.tables import EventCompleted
from parley.testing import artifact, assert_events, client, completed, message, submitted, working

pytestmark = pytest.mark.anyio


DAY = timedelta(days=1)


def sleeper(name: str = "Sleeper") -> Agent:
    agent = Agent(name)

    @agent.skill
    async def sleep(turn: Turn) -> str:
        await turn.working()
        await asyncio.sleep(DAY.total_seconds())
        return f"attempt {turn.attempt}"

    return agent


async def sleeps_and_crashes() -> None:
    async with client(sleeper()) as remote:
        task = await remote.send("?", return_immediately=True)
        assert task.id
        await remote.settle()
        await remote.crash()
        await remote.advance(2 * DAY)
        assert await remote.get(task.id) == completed("attempt 2")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        await sleeps_and_crashes()

    asyncio.run(main())


def test_a_loop_that_runs_once_for_the_fixture_and_again_for_the_test() -> None:
    with asyncio.Runner() as runner:

        async def opened() -> parley.testing.TestedAgent:
            return await client(sleeper())

        remote = runner.run(opened())

        async def tested() -> None:
            task = await remote.send("?", return_immediately=True)
            assert task.id
            await remote.crash()
            await remote.advance(2 * DAY)
            assert await remote.get(task.id) == completed()

        runner.run(tested())
        runner.run(remote.aclose())


def test_a_test_that_forgets_to_close_leaves_nothing_behind() -> None:
    async def main() -> None:
        remote = await client(sleeper())
        await remote.send("?", return_immediately=True)

    asyncio.run(main())
    asyncio.run(sleeps_and_crashes())


# -- turns that wait for an external event: completed by the test, and by an address ---------------


def shop() -> Agent:
    agent = Agent("Shop")

    @agent.skill
    async def order(turn: Turn) -> str:
        """Waits for a payment, at an address or by its key."""
        address = await turn.callback(f"payment:{turn.text}")
        await turn.working(address)
        paid = await turn.wait_event(f"payment:{turn.text}", timeout=timedelta(days=3))
        return f"paid {paid['amount']}"

    return agent


@pytest.fixture(params=["memory:", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/tasks.db"


async def test_a_test_completes_an_event(store: str) -> None:
    async with client(shop(), store=store) as remote:
        task = await remote.send("42", return_immediately=True)
        assert task.id
        await remote.advance(timedelta(days=1))
        await remote.crash()
        assert await remote.complete("payment:42", {"amount": 10})
        assert await remote.get(task.id) == completed("paid 10")
        assert not await remote.complete("payment:42", {"amount": 10})
        with pytest.raises(EventCompleted):
            await remote.complete("payment:42", {"amount": 11})


async def test_an_address_expires_by_moved_time() -> None:
    async with client(shop()) as remote:
        task = await remote.send("42", return_immediately=True)
        assert task.id
        await remote.settle()
        assert await remote.get(task.id) == working()
        status = (await remote.get(task.id)).status
        assert status.message is not None
        await remote.advance(timedelta(days=60))
        json = {"Content-Type": "application/json"}
        reply = await remote.http.send("POST", status.message.text, json, b'{"amount": 7}')
        assert reply.status == 410


# -- webhooks of a test: through the real dispatcher, into a list ----------------------------------


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
        assert task.id
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


async def test_a_number_of_failures_is_positive() -> None:
    async with client(worker()) as remote:
        with pytest.raises(ValueError, match="times is 1 or more"):
            remote.webhooks.fail(times=0)
        await asyncio.sleep(0)
