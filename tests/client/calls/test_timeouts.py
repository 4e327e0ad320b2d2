"""Retries and timeouts: which calls repeat, and how long the client waits."""

from __future__ import annotations

from typing import Any

import pytest

from parley.client.errors import Disconnected, UnexpectedStatus
from parley.model.errors import UnsupportedOperationError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState
from tests.kit.scripted_server import HI, Agent, hang_up, reset, status, talk, task

pytestmark = pytest.mark.anyio


async def test_a_wish_to_be_left_alone_for_long_is_told_and_not_waited_for() -> None:
    async with talk(Agent(status(503, retry_after="3600"))) as (remote, server):
        with pytest.raises(UnexpectedStatus) as caught:
            await remote.get("t-1")
        assert caught.value.retry_after == 3600
        assert server.calls == ["GetTask"]


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
