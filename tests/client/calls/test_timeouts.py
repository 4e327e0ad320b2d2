"""What is tried again, what is waited for, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley.client import connect
from parley.client.errors import Disconnected, Timeout, UnexpectedStatus, Unreachable
from parley.client.retry import Retry
from parley.model.errors import UnsupportedOperationError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState
from tests.kit.scripted_server import (
    ARTIFACT,
    AT_ONCE,
    HI,
    Agent,
    Exchange,
    card,
    error,
    hang_up,
    never,
    reset,
    scripted,
    status,
    talk,
    task,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("failure", [status(502), status(503), status(429), hang_up, reset])
async def test_safe_operations_are_repeated_after_passing_failures(failure) -> None:
    async with talk(Agent(failure, failure, failure, task())) as (remote, server):
        assert (await remote.get("t-1")).id == "t-1"
        assert server.calls == ["GetTask"] * 4
    async with talk(Agent(failure)) as (remote, server):
        with pytest.raises((UnexpectedStatus, Disconnected)):
            await remote.get("t-1")
        assert server.calls == ["GetTask"] * 4


@pytest.mark.parametrize("failure", [status(500), status(400), error(-32603, "broken")])
async def test_lasting_failures_are_not_repeated(failure) -> None:
    async with talk(Agent(failure)) as (remote, server):
        with pytest.raises(Exception, match=r"answered|broken"):
            await remote.get("t-1")
        assert server.calls == ["GetTask"]


async def test_a_wish_to_be_left_alone_for_long_is_told_and_not_waited_for() -> None:
    async with talk(Agent(status(503, retry_after="3600"))) as (remote, server):
        with pytest.raises(UnexpectedStatus) as caught:
            await remote.get("t-1")
        assert caught.value.retry_after == 3600
        assert server.calls == ["GetTask"]


@pytest.mark.parametrize("failure", [status(503), hang_up, reset])
async def test_messages_and_cancellations_are_not_repeated_by_chance(failure) -> None:
    async with talk(Agent(failure)) as (remote, server):
        for call in (remote.send("go"), remote.cancel("t-1")):
            with pytest.raises((UnexpectedStatus, Disconnected)):
                await call
        assert server.calls == ["SendMessage", "CancelTask"]


@pytest.mark.parametrize("failure", [status(503), hang_up, reset])
async def test_messages_are_repeated_under_their_id_where_repeats_are_answered_once(
    failure,
) -> None:
    agent = Agent(failure, failure, failure, failure, HI)
    agent.extensions = (IDEMPOTENT_SEND,)
    async with talk(agent) as (remote, server):
        assert str(await remote.send("go")) == "hi"
        sent = [exchange.body for exchange in server.exchanges[1:]]
        ids = {exchange.params["message"]["messageId"] for exchange in server.exchanges[1:]}
        assert (len(sent), len(ids)) == (5, 1)
    agent.answers = [failure]
    async with talk(agent, idempotent=False) as (remote, server):
        with pytest.raises((UnexpectedStatus, Disconnected)):
            await remote.send("go")
        assert server.calls == ["SendMessage"]


async def test_a_message_that_never_left_is_sent_again() -> None:
    """The agent's port opens only after the first tries."""
    async with scripted(Agent(HI)) as server:
        address = server.url
    patient = Retry(calls=500, first=0.005, limit=0.01)
    async with connect(card(address), retries=patient) as remote:
        sending = asyncio.create_task(remote.send("go"))
        await asyncio.sleep(0)
        async with scripted(Agent(HI), port=int(address.rpartition(":")[2])) as server:
            assert str(await sending) == "hi"
            assert server.calls == ["SendMessage"]


async def test_an_agent_that_is_not_there_is_unreachable() -> None:
    async with scripted(Agent(HI)) as server:
        address = server.url
    async with connect(card(address), retries=AT_ONCE) as remote:
        with pytest.raises(Unreachable, match="cannot connect to http://127"):
            await remote.send("go")
    with pytest.raises(Unreachable):
        await connect(address, retries=0)


async def test_a_call_that_takes_too_long_is_given_up_with_its_connection() -> None:
    async with talk(Agent(never), timeout=0.1) as (remote, server):
        with pytest.raises(Timeout, match="did not answer in time"):
            await remote.get("t-1")
        await server.until_idle()


async def test_a_message_may_take_longer_than_other_calls_but_not_than_its_caller_says() -> None:
    async with talk(Agent(never), timeout=0.05) as (remote, server):
        with pytest.raises(Timeout, match=r"no answer within 0\.2 s"):
            await remote.send("go", timeout=0.2)
        with pytest.raises(Timeout, match=r"task t-1 did not end") as caught:
            await remote.send("go on", task_id="t-1", timeout=0.2)
        assert caught.value.task_id == "t-1"
        with pytest.raises(Timeout, match="did not answer in time"):
            await remote.send("go", return_immediately=True)
        await server.until_idle()


async def test_cancelling_a_call_gives_up_its_connection() -> None:
    async with talk(Agent(never)) as (remote, server):
        sending = asyncio.create_task(remote.send("go"))
        await server.until_asked(2)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await server.until_idle()


async def test_an_unfinished_answer_to_a_message_is_waited_for() -> None:
    answers = [
        {"task": task("WORKING")},
        task("WORKING"),
        error(-32004, "no streams today"),
        task("WORKING"),
        error(-32004, "no streams today"),
        task("COMPLETED"),
    ]
    async with talk(Agent(*answers)) as (remote, server):
        done = await remote.send("go", history_length=3)
        assert done.state is TaskState.COMPLETED
        assert server.exchanges[1].params["configuration"] == {"historyLength": 3}
        assert server.exchanges[2].params == {"id": "t-1", "historyLength": 3}
        assert server.calls == [
            "SendMessage",
            "GetTask",
            "SubscribeToTask",
            "GetTask",
            "SubscribeToTask",
            "GetTask",
        ]


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "INPUT_REQUIRED", "AUTH_REQUIRED"])
async def test_an_answer_that_is_settled_or_wanted_at_once_is_not_waited_for(state: str) -> None:
    async with talk(Agent({"task": task(state)}, {"task": task("WORKING")})) as (remote, server):
        assert (await remote.send("go")).state.value == f"TASK_STATE_{state}"
        task_ = await remote.send("go", return_immediately=True)
        assert task_.state is TaskState.WORKING
        assert server.exchanges[-1].params["configuration"] == {"returnImmediately": True}
        assert server.calls == ["SendMessage"] * 2


async def test_waiting_prefers_the_stream_of_the_task() -> None:
    async def streamed(exchange: Exchange) -> None:
        update = {"statusUpdate": {**task("COMPLETED"), "taskId": "t-1"}}
        del update["statusUpdate"]["id"]
        frames = [exchange.frame({"task": task("WORKING")}), exchange.frame(update)]
        await exchange.stream(b"".join(frames))

    agent = Agent(task("WORKING"), streamed, task("COMPLETED", artifacts=[ARTIFACT]))
    async with talk(agent) as (remote, server):
        assert (await remote.wait("t-1")).text == "noted"
        assert server.calls == ["GetTask", "SubscribeToTask", "GetTask"]


async def test_waiting_by_polling_asks_only_for_the_task_and_ends_in_time() -> None:
    agent = Agent(task("WORKING"), task("WORKING"), task("COMPLETED"))
    async with talk(agent) as (remote, server):
        assert (await remote.wait("t-1", poll=0.01)).state is TaskState.COMPLETED
        assert server.calls == ["GetTask"] * 3
        agent.answers = [task("UNSPECIFIED")]
        with pytest.raises(Timeout, match=r"task t-1 did not end within 0\.1 s") as caught:
            await remote.wait("t-1", poll=0.01, timeout=0.1)
        assert caught.value.task_id == "t-1"


async def test_an_agent_that_does_not_stream_is_asked_again_and_again() -> None:
    def at(state: str, *texts: str) -> dict[str, Any]:
        parts = [{"text": text} for text in texts]
        artifacts = [{"artifactId": "a", "parts": parts}] if texts else []
        return task(state, artifacts=artifacts)

    agent = Agent(
        {"task": at("SUBMITTED")},
        at("WORKING", "one "),
        at("WORKING", "one "),
        at("WORKING", "one ", "two "),
        at("COMPLETED", "one ", "two ", "three"),
        capabilities={},
    )
    async with talk(agent) as (remote, server):
        events = [event async for event in remote.stream("go")]
        assert [type(event).__name__.removesuffix("UpdateEvent") for event in events] == [
            "Task",
            "TaskArtifact",
            "TaskStatus",
            "TaskArtifact",
            "TaskArtifact",
            "TaskStatus",
        ]
        texts = [e.artifact.text for e in events if isinstance(e, TaskArtifactUpdateEvent)]
        assert texts == ["one ", "two ", "three"]
        assert server.calls == ["SendMessage", *["GetTask"] * 4]
        agent.answers = [at("INPUT_REQUIRED", "one "), {"task": at("COMPLETED", "one ", "more")}]
        events = [event async for event in remote.stream("go on", task_id="t-1")]
        assert [e.artifact.text for e in events if isinstance(e, TaskArtifactUpdateEvent)] == [
            "more"
        ]
        assert events[-1].status.state is TaskState.COMPLETED
        assert "configuration" not in server.exchanges[-1].params
        with pytest.raises(UnsupportedOperationError, match=r"capabilities\.streaming"):
            await anext(remote.subscribe("t-1"))


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_message_is_sent_though_the_look_at_its_task_gets_no_answer(
    streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.client.calls.stream_reader.SNAPSHOT_TIMEOUT", 0.1)
    agent = Agent(never, {"task": task("COMPLETED")}, capabilities={"streaming": streaming})
    async with talk(agent) as (remote, server), asyncio.timeout(10):
        answer = await remote.send("go on", task_id="t-1")
        assert answer.state is TaskState.COMPLETED
        assert server.calls == ["GetTask", "SendMessage"]
    agent = Agent(never, {"task": task("COMPLETED")})
    async with talk(agent) as (remote, server), asyncio.timeout(10):
        events = [event async for event in remote.stream("go on", task_id="t-1")]
        assert events[-1].status.state is TaskState.COMPLETED
        assert server.calls[0] == "GetTask"
        assert server.calls[1].startswith("Send")


async def test_the_look_at_a_task_leaves_the_message_most_of_its_time() -> None:
    agent = Agent(never, {"task": task("COMPLETED")})
    async with talk(agent) as (remote, server):
        answer = await remote.send("go on", task_id="t-1", timeout=4)
        assert answer.state is TaskState.COMPLETED
        assert server.calls == ["GetTask", "SendMessage"]
