"""A message to a waiting task: the client reports its turn once, in order and to the end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from parley.client import connect
from parley.client.retry import Retry
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import StreamResponse
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.store.fold import fold
from tests.client.log_agent import IDS, plain, says
from tests.kit.scripted_server import Exchange, card, scripted

AT_ONCE = Retry(calls=2, streams=20, first=0.0, limit=0.0)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
ASKED = replace(says(TaskState.INPUT_REQUIRED, "where to?").status, timestamp=NOON)


def chunk(id: str, text: str, *, append: bool) -> TaskArtifactUpdateEvent:
    artifact = Artifact(artifact_id=id, parts=(Part(text=text),))
    return TaskArtifactUpdateEvent(**IDS, artifact=artifact, append=append)


def said(text: str, role: Role = Role.AGENT) -> Message:
    return Message(message_id=text, role=role, parts=(Part(text=text),))


BEFORE = Task(
    id="t-1",
    context_id="c-1",
    status=ASKED,
    artifacts=(chunk("draft", "of before. ", append=False).artifact,),
    history=(said("go", Role.USER), said("said before")),
)


class Plan(NamedTuple):
    """The agent's turn after a message, and the behaviour of its streams."""

    turn: list[Event]
    opening: str = "none"
    keeps: bool = False  # the agent stores the task that opens the stream
    cuts: tuple[int, ...] = ()
    clean: bool = False
    resumption: str = "task"
    meanwhile: int = 0
    numbered: bool = False
    moves: bool = False  # the question moves into the history as soon as the answer arrives
    streaming: bool = True
    late: int = 0  # number of reads of the task before the turn begins


class Asker:
    """An agent whose task has asked a question. After the answer it acts as planned."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cuts = list(plan.cuts)
        self.at = 0  # number of the turn's events that have happened
        self.late = plan.late
        self.task = BEFORE
        self.calls: list[str] = []

    def now(self) -> Task:
        return fold(self.plan.turn[: self.at], self.task)

    def opened(self) -> list[Task]:
        match self.plan.opening:
            case "as it was":
                return [self.task]
            case "restated":
                return [replace(self.task, status=TaskStatus(state=TaskState.INPUT_REQUIRED))]
            case "working":
                return [replace(self.task, status=TaskStatus(state=TaskState.WORKING))]
        return []

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "GET":
            extensions = [RESUMABLE_STREAMS] * self.plan.numbered
            url = f"http://{exchange.headers['host']}"
            await exchange.json(card(url, *extensions, streaming=self.plan.streaming))
            return
        method = exchange.call["method"]
        self.calls.append(method)
        match method:
            case "SendStreamingMessage":
                self.receive(exchange)
                opened = self.opened()
                if opened and (self.plan.keeps or self.plan.opening == "working"):
                    self.task = opened[0]
                await self.stream(exchange, [*opened, *self.plan.turn], 0)
            case "SendMessage":
                self.receive(exchange)
                if not self.late:
                    self.at = len(self.plan.turn)
                await exchange.result({"task": plain(self.now())})
            case "SubscribeToTask":
                await self.subscribe(exchange)
            case "GetTask":
                if exchange.params["id"] != "t-1":
                    await exchange.error(-32001, "no such task")
                    return
                await exchange.result(plain(self.now()))
                if len(self.task.history) > len(BEFORE.history):
                    self.late -= 1
                    if self.late < 0 or not self.plan.late:
                        self.at = min(self.at + 2, len(self.plan.turn))
            case other:
                raise AssertionError(f"nobody was to call {other}")

    def receive(self, exchange: Exchange) -> None:
        message = said(exchange.params["message"]["messageId"], Role.USER)
        self.task = replace(BEFORE, history=(*BEFORE.history, message))
        if self.plan.moves:
            status = replace(ASKED, message=None)
            history = (*BEFORE.history, ASKED.message, message)
            self.task = replace(BEFORE, status=status, history=history)

    async def subscribe(self, exchange: Exchange) -> None:
        self.at = min(self.at + self.plan.meanwhile, len(self.plan.turn))
        if self.plan.numbered:
            after = int(exchange.headers["last-event-id"])
            everything = [*self.opened(), *self.plan.turn]
            await self.stream(exchange, everything[after:], after)
        elif self.plan.resumption == "refused" or self.now().state.is_terminal:
            await exchange.error(-32004, "not here")
        else:
            opened = [self.now()] if self.plan.resumption == "task" else []
            await self.stream(exchange, [*opened, *self.plan.turn[self.at :]], None)

    async def stream(self, exchange: Exchange, events: list[Event], after: int | None) -> None:
        """Stream events up to a cut; the rest of the turn happens without the client."""
        count = min(self.cuts.pop(0), len(events)) if self.cuts else len(events)
        await exchange.open_stream()
        for place, event in enumerate(events[:count]):
            if not isinstance(event, Task):
                self.at = self.plan.turn.index(event) + 1
            seq = place + 1 + (after or 0) if self.plan.numbered else None
            await exchange.chunk(exchange.frame(plain(StreamResponse.of(event)), seq))
        if count < len(events) and not self.plan.clean:
            exchange.hang_up()
        else:
            await exchange.end_stream()


async def read(plan: Plan) -> tuple[list[Event], TaskState | None, bool]:
    running = scripted(Asker(plan))
    async with asyncio.timeout(10), running as server, connect(server.url, retries=AT_ONCE) as it:
        stream = it.stream("Rome", task_id="t-1")
        events = [event async for event in stream]
        return events, stream.state, stream.is_settled


def check(plan: Plan, events: list[Event], state: TaskState | None, settled: bool) -> None:
    updates = [event for event in events if not isinstance(event, Task)]
    final = fold(plan.turn, BEFORE)
    told = fold([e for e in updates if isinstance(e, TaskArtifactUpdateEvent)], BEFORE)
    assert told.artifacts == final.artifacts or text_of(told) == text_of(final)
    statuses = [e.status for e in updates if isinstance(e, TaskStatusUpdateEvent)]
    ours = [e.status for e in plan.turn if isinstance(e, TaskStatusUpdateEvent)]
    assert [s.message for s in statuses if s.message] == [s.message for s in ours if s.message]
    assert statuses[-1].state is final.state is state
    assert isinstance(events[-1], TaskStatusUpdateEvent)
    assert settled
    # A task event comes at most once, as the opening of the stream.
    tasks = [event for event in events if isinstance(event, Task)]
    assert len(tasks) <= (plan.opening != "none")
    assert events[: len(tasks)] == tasks


def text_of(task: Task) -> dict[str, str]:
    return {a.artifact_id: "".join(p.text or "" for p in a.parts) for a in task.artifacts}


@st.composite
def turns(draw: st.DrawFn) -> list[Event]:
    """Events that an agent may send after its question was answered."""
    events: list[Event] = []
    begun = {"draft"}
    for number in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            text = f"thought {number}" if draw(st.booleans()) else ""
            events.append(says(TaskState.WORKING, text))
        else:
            id = draw(st.sampled_from(["draft", "report", "map"]))
            append = id in begun and draw(st.booleans())
            begun.add(id)
            events.append(chunk(id, f"piece {number}. ", append=append))
    end = draw(st.sampled_from(["COMPLETED", "FAILED", "CANCELED", "INPUT_REQUIRED"]))
    text = "the end" if end == "INPUT_REQUIRED" or draw(st.booleans()) else ""
    return [*distinct(events), says(TaskState[end], text)]


def distinct(events: list[Event]) -> list[Event]:
    """Remove events that equal an earlier event."""
    kept: list[Event] = []
    for event in events:
        if event not in kept:
            kept.append(event)
    return kept


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    turn = draw(turns())
    numbered = draw(st.booleans())
    openings = (
        ["as it was", "working"] if numbered else ["none", "as it was", "restated", "working"]
    )
    first = draw(st.integers(int(numbered), len(turn) + 1))
    later = draw(st.lists(st.integers(0, 3), max_size=3))
    return Plan(
        turn,
        opening=draw(st.sampled_from(openings)),
        keeps=draw(st.booleans()),
        moves=draw(st.booleans()),
        cuts=(first, *later) if draw(st.booleans()) else (),
        clean=draw(st.booleans()),
        resumption=draw(st.sampled_from(["task", "updates", "refused"])),
        meanwhile=draw(st.integers(0, 3)),
        numbered=numbered,
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(plans())
def test_a_turns_events_come_once_in_order_and_to_the_end_whatever_opens_its_stream(
    plan: Plan,
) -> None:
    events, state, settled = asyncio.run(read(plan))
    check(plan, events, state, settled)
    if not plan.cuts:
        opened = Asker(plan).opened()
        assert [e for e in events if not isinstance(e, Task)] == plan.turn
        assert len(events) == len(opened) + len(plan.turn)


ENDINGS = [says(TaskState.COMPLETED), says(TaskState.INPUT_REQUIRED, "and when?")]
TURN = [says(TaskState.WORKING, "thinking"), chunk("report", "piece. ", append=False)]


@pytest.mark.anyio
async def test_a_message_that_the_task_shows_is_received_though_no_event_of_it_came() -> None:
    plan = Plan([*TURN, ENDINGS[0]], cuts=(0,))
    agent = Asker(plan)
    async with scripted(agent) as server, connect(server.url, retries=AT_ONCE) as remote:
        stream = remote.stream("Rome", task_id="t-1")
        check(plan, [event async for event in stream], stream.state, stream.is_settled)
    assert agent.calls.count("SendStreamingMessage") == 1


@pytest.mark.anyio
async def test_a_stream_that_is_only_the_next_question_ends_with_it():
    """A message is repeated after its turn has asked: the stream contains the current task only."""
    plan = Plan(turn=[], opening="as it was", keeps=True, numbered=True)
    events, state, settled = await read(plan)
    assert [type(event) for event in events] == [Task]
    assert state is TaskState.INPUT_REQUIRED
    assert settled
