"""The extension for the creation times of messages and artifacts."""

from __future__ import annotations

from typing import Any

import pytest

from parley import Agent, CallContext, Message, Turn
from parley.extensions.message_timestamps import MESSAGE_TIMESTAMPS, MessageTimestamps
from parley.extensions.resumable_streams import number_of, numbered
from parley.model.errors import InvalidParamsError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.parts import Part, Role
from parley.model.service import StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from tests.engine.in_process import new_store, talk

__all__ = ["new_store", "talk"]

pytestmark = pytest.mark.anyio

NOON = Timestamp.parse("2026-01-31T12:00:00.000Z")
DAWN = Timestamp.parse("2026-01-31T06:00:00.000Z")
IN_FORCE = CallContext(extensions=frozenset({MESSAGE_TIMESTAMPS}))


def stamped() -> Agent:
    agent = Agent("Stamped", extensions=[MessageTimestamps(clock=lambda: NOON)])

    @agent.skill
    async def say(turn: Turn) -> str:
        return "hello"

    @agent.skill(replies="task")
    async def make(turn: Turn) -> str:
        await turn.working("making")
        return "made"

    return agent


@pytest.mark.parametrize("said", ["yesterday", {}, {"timestamp": 7}, {"timestamp": "12:00"}])
async def test_a_moment_that_is_none_is_refused_with_its_place(talk: Any, said: Any) -> None:
    async with talk(stamped()) as caller:
        with pytest.raises(InvalidParamsError) as raised:
            await caller.send("Hi", metadata={MESSAGE_TIMESTAMPS: said}, context=IN_FORCE)
        (violation,) = raised.value.violations
        assert violation.field == f"metadata.{MESSAGE_TIMESTAMPS}.timestamp"


async def test_a_message_that_is_sent_again_has_the_same_moment(serve: Any) -> None:
    """With another time, the repeat would be a different message with the same id."""
    moments = iter([DAWN])
    client = MessageTimestamps(clock=lambda: next(moments))
    async with serve(stamped(), extensions=[client]) as remote:
        async for event in remote.stream("Hi"):
            assert isinstance(event, Message)


def event() -> TaskStatusUpdateEvent:
    status = TaskStatus(state=TaskState.WORKING, timestamp=NOON)
    return TaskStatusUpdateEvent(task_id="t", context_id="c", status=status, metadata={"own": 1})


def test_the_number_of_an_event_travels_in_its_metadata() -> None:
    sent = numbered(StreamItem(event(), 7))
    assert sent.metadata == {"own": 1, RESUMABLE_STREAMS: {"generation": 7}}
    assert number_of(sent) == 7
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))
    assert number_of(numbered(StreamItem(task, 1))) == 1


def test_what_has_no_number_is_sent_as_it_is() -> None:
    plain = event()
    assert numbered(StreamItem(plain, None)) is plain
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="x"),))
    assert numbered(StreamItem(message, 3)) is message
