"""The client's view of a task: built from events, from two reads of the task, and at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from parley.client import connect
from parley.client.bindings import http
from parley.client.calls.stream_reader import FoldedTask, diff, with_final_text
from parley.model.errors import InvalidParamsError
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import CallContext, StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.store.fold import Fold
from tests.client.calls.test_resume import boundaries, text_of
from tests.client.log_agent import IDS, REPORT, LogAgent, chunk, fold_of, says, task
from tests.kit.scripted import Scripted, app_of
from tests.kit.scripted_server import AT_ONCE, Agent, Exchange, scripted, talk
from tests.kit.scripted_server import task as plain
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio


LIMIT = 10_000


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE", LIMIT)


def test_a_task_is_whole_until_no_answer_could_hold_it_and_then_an_outline(small) -> None:
    told = FoldedTask(task(TaskState.WORKING))
    told.add(chunk("x" * 100, append=False))
    assert told.is_whole
    assert told.task.text == "x" * 100
    for n in range(200):
        told.add(chunk("y" * 100))
        told.add(says(TaskState.WORKING, f"step {n}"))
    assert not told.is_whole
    assert (told.task.artifacts, told.task.history) == ((), ())
    told.add(says(TaskState.COMPLETED, "done"))
    assert (told.task.id, told.task.context_id) == ("t-1", "c-1")
    assert (told.task.state, told.task.text) == (TaskState.COMPLETED, "done")


def test_a_task_that_is_too_large_to_begin_with_is_an_outline(small) -> None:
    large = fold_of([task(TaskState.WORKING), chunk("x" * 2 * LIMIT, append=False)])
    assert not FoldedTask(large).is_whole
    assert FoldedTask(large).task.id == "t-1"


@pytest.mark.parametrize("large", [False, True])
async def test_a_cut_stream_of_a_large_task_goes_on_with_the_task_as_it_stands(
    small, large
) -> None:
    text = "x" * (LIMIT // 4 if not large else LIMIT)
    log = [
        task(TaskState.WORKING),
        chunk(text, append=False),
        chunk(text),
        says(TaskState.COMPLETED, "done"),
    ]
    agent = LogAgent(log, [], numbered=False)
    agent.cuts = [boundaries_of(log)[3]]
    async with scripted(agent) as server, connect(server.url, retries=AT_ONCE) as remote:
        events = [event async for event in remote.stream("go")]
    tasks = [event for event in events if isinstance(event, Task)]
    assert text_of(events) == 2 * text
    assert len(tasks) == (2 if large else 1)  # a task that is too large to keep is sent again
    last = fold_of(events[events.index(tasks[-1]) :])
    assert (last.state, last.artifacts[0].text) == (TaskState.COMPLETED, 2 * text)


def boundaries_of(log) -> list[int]:
    return boundaries(LogAgent(log, [], numbered=False))


# -- changes between two reads of a task, reported as events ---------------------------------------


def test_text_that_an_agent_joins_into_one_part_is_told_by_what_it_grew() -> None:
    before = fold_of(REPORT[:4])
    joined = Artifact(artifact_id="a-1", name="report", parts=(Part(text="one two three "),))
    now = Task(id="t-1", context_id="c-1", status=before.status, artifacts=(joined,))
    assert diff(before, now) == [chunk("three ")]


texts = some.text(some.characters(codec="ascii", categories=["L"]), min_size=1, max_size=3)


@some.composite
def logs(draw) -> list[Event]:
    events: list[Event] = [task()]
    for n in range(draw(some.integers(0, 12))):
        if draw(some.booleans()):
            events.append(
                says(TaskState.WORKING, draw(texts) if draw(some.booleans()) else "", f"m{n}")
            )
            continue
        parts = draw(
            some.lists(
                some.one_of(texts.map(_text), some.integers().map(_data)), min_size=1, max_size=3
            )
        )
        artifact = Artifact(artifact_id=draw(some.sampled_from("ab")), parts=tuple(parts))
        events.append(
            TaskArtifactUpdateEvent(**IDS, artifact=artifact, append=draw(some.booleans()))
        )
    if draw(some.booleans()):
        events.append(
            says(draw(some.sampled_from([TaskState.COMPLETED, TaskState.INPUT_REQUIRED])))
        )
    return events


def _text(text: str) -> Part:
    return Part(text=text)


def _data(value: int) -> Part:
    return Part(data=value)


@pytest.mark.slow
@given(logs(), some.data())
def test_the_events_told_turn_the_earlier_task_into_the_later(log: list[Event], data) -> None:
    end = data.draw(some.integers(1, len(log)))
    before, now = fold_of(log[:end]), fold_of(log)
    fold = Fold(before)
    told = diff(before, now)
    for event in told:
        fold.apply(event)
    assert fold.task.status == now.status
    assert [a.artifact_id for a in fold.task.artifacts] == [a.artifact_id for a in now.artifacts]
    assert [a.text for a in fold.task.artifacts] == [a.text for a in now.artifacts]
    assert {m.message_id for m in fold.task.history} == {m.message_id for m in now.history}
    assert sum(isinstance(event, TaskStatusUpdateEvent) for event in told) <= len(log) - end


# -- the last text of a turn that ends without one: from this turn only ----------------------------


QUESTION = Message(message_id="q", role=Role.AGENT, parts=(Part(text="which?"),))
SAID = Message(message_id="s", role=Role.AGENT, parts=(Part(text="this one"),))
DRAFT = Artifact(artifact_id="a", parts=(Part(text="draft"),))
BEFORE = Task(
    id="t",
    context_id="c",
    status=TaskStatus(state=TaskState.INPUT_REQUIRED, message=QUESTION),
    artifacts=(DRAFT,),
)
ENDED = replace(BEFORE, status=TaskStatus(state=TaskState.COMPLETED))


def test_what_was_asked_before_is_not_what_the_turn_said() -> None:
    assert with_final_text(ENDED, QUESTION, BEFORE) == ENDED
    bare = replace(ENDED, artifacts=())
    assert with_final_text(bare, QUESTION, replace(BEFORE, artifacts=())) == bare


def test_a_turn_that_has_text_is_left_as_it_is() -> None:
    more = replace(ENDED, artifacts=(DRAFT, replace(DRAFT, artifact_id="b")))
    assert with_final_text(more, SAID, BEFORE) == more


# -- a stream breaks, its task ends: the end is reported once, whatever else fails -----------------


async def refused(request: Any, context: CallContext) -> AsyncIterator[StreamItem]:
    raise InvalidParamsError("Task t-1 is in terminal state: completed")
    yield


def states(events: list[Event]) -> list[str]:
    seen = [event for event in events if isinstance(event, Task | TaskStatusUpdateEvent)]
    return [event.status.state.name for event in seen]


async def cut_off(exchange: Exchange) -> None:
    """Answer with a stream that breaks off, as official Python servers do for an ended task."""
    await exchange.open_stream()
    exchange.hang_up()


def status(code: int) -> Callable[[Exchange], Any]:
    async def answer(exchange: Exchange) -> None:
        await exchange.body_of(b"<html>", code, content_type="text/html")

    return answer


async def test_a_task_whose_subscription_never_works_is_polled_to_its_end() -> None:
    async def subscribe(exchange: Exchange) -> None:
        call = exchange.call["method"]
        if call == "GetTask":
            looks.append(plain("WORKING", history=[said(f"step {len(looks)}")]))
            await exchange.result(looks[-1] if len(looks) < 30 else plain("COMPLETED"))
        elif call == "SendStreamingMessage":
            await exchange.stream(exchange.frame({"task": plain("WORKING")}))
        else:
            await cut_off(exchange)

    looks: list[Any] = []
    async with talk(Agent(subscribe)) as (remote, server), asyncio.timeout(10):
        assert states([event async for event in remote.stream("go")])[-1] == "COMPLETED"
        assert server.calls.count("SubscribeToTask") == 1


def said(text: str) -> dict[str, Any]:
    return {"messageId": text, "role": "ROLE_AGENT", "parts": [{"text": text}]}


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
async def test_an_unknown_state_is_told_and_not_polled_for_ever(
    way: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def get(request: Any, context: CallContext) -> Task:
        looks.append(request)
        # Some agents put the current time into each answer.
        now = Timestamp.parse(f"2026-01-31T12:00:{len(looks)}Z")
        status = TaskStatus(state=TaskState.UNSPECIFIED, timestamp=now)
        return Task(id="t-1", context_id="c-1", status=status)

    looks: list[Any] = [None] * 10
    binding, version = way
    service = Scripted(subscribe_to_task=refused, get_task=get)
    options = {"binding": binding, "version": version, "retries": AT_ONCE}
    async with (
        serving(app_of(service), grpc=GrpcOptions(port=0)) as url,
        connect(url, **options) as remote,
        asyncio.timeout(10),
    ):
        assert (await remote.wait("t-1", poll=0.01)).state is TaskState.UNSPECIFIED
    assert len(looks) == 10 + 13
    assert "'t-1' is in an unknown state" in caplog.text
