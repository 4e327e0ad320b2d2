"""A scripted agent with one task and a fixed log; the connection breaks where a test wants."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model.extensions import IDEMPOTENT_SEND, RESUMABLE_STREAMS
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
from parley.store.fold import Fold
from parley.wire.json import protojson
from tests.kit.scripted_server import Exchange, card

IDS = {"task_id": "t-1", "context_id": "c-1"}


def task(state: TaskState = TaskState.SUBMITTED) -> Task:
    return Task(id="t-1", context_id="c-1", status=TaskStatus(state=state))


def says(state: TaskState, text: str = "", id: str = "") -> TaskStatusUpdateEvent:
    message = None
    if text:
        message = Message(message_id=id or text, role=Role.AGENT, parts=(Part(text=text),))
    return TaskStatusUpdateEvent(**IDS, status=TaskStatus(state=state, message=message))


def chunk(text: str, *, append: bool = True, last: bool = False) -> TaskArtifactUpdateEvent:
    artifact = Artifact(artifact_id="a-1", name="report", parts=(Part(text=text),))
    return TaskArtifactUpdateEvent(**IDS, artifact=artifact, append=append, last_chunk=last)


REPORT: list[Event] = [
    task(),
    says(TaskState.WORKING, "thinking"),
    chunk("one ", append=False),
    chunk("two "),
    chunk("three ", last=True),
    says(TaskState.COMPLETED, "done"),
]


def fold_of(events: list[Event]) -> Task:
    fold = Fold()
    for event in events:
        fold.apply(event)
    return fold.task


def plain(value: Any) -> Any:
    return msgspec.json.decode(protojson.encode(value))


class LogAgent:
    """Streams ``log``; ``cuts`` gives the number of bytes after which each stream breaks.

    ``numbered``: the agent has resumable streams. Otherwise a later stream starts with the current
    task, after ``meanwhile`` more events.
    """

    def __init__(
        self,
        log: list[Event],
        cuts: list[int | None],
        *,
        numbered: bool,
        meanwhile: int = 0,
        idempotent: bool = True,
        clean: bool = False,
    ) -> None:
        self.log = log
        self.cuts = cuts
        self.numbered = numbered
        self.meanwhile = meanwhile
        self.clean = clean
        self.at = 0  # the number of events that certainly happened
        self.extensions = [RESUMABLE_STREAMS] * numbered + [IDEMPOTENT_SEND] * idempotent
        self.last_event_ids: list[str | None] = []

    def frames(self, exchange: Exchange, events: list[Event], after: int) -> list[bytes]:
        return [
            exchange.frame(
                plain(StreamResponse.of(event)), after + n + 1 if self.numbered else None
            )
            for n, event in enumerate(events)
        ]

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(card(self.url(exchange), *self.extensions))
            return
        match exchange.call["method"]:
            case "SendStreamingMessage":
                await self.stream(exchange, self.log, 0)
            case "SubscribeToTask":
                self.last_event_ids.append(exchange.headers.get("last-event-id"))
                await self.subscribe(exchange)
            case "GetTask":
                happened = len(self.log) if self.numbered else self.at or len(self.log)
                await exchange.result(plain(fold_of(self.log[:happened])))
            case other:
                raise AssertionError(f"nobody was to call {other}")

    def url(self, exchange: Exchange) -> str:
        return f"http://{exchange.headers['host']}"

    async def subscribe(self, exchange: Exchange) -> None:
        if self.numbered:
            after = int(exchange.headers["last-event-id"])
            await self.stream(exchange, self.log[after:], after)
            return
        self.at = min(len(self.log), self.at + self.meanwhile)
        snapshot = fold_of(self.log[: max(1, self.at)])
        if snapshot.state.is_terminal:
            await exchange.error(-32004, "the task has ended")
        else:
            await self.stream(exchange, [snapshot, *self.log[max(1, self.at) :]], self.at - 1)

    async def stream(self, exchange: Exchange, events: list[Event], after: int) -> None:
        frames = self.frames(exchange, events, after)
        cut = self.cuts.pop(0) if self.cuts else None
        if cut is None:
            self.at = len(self.log)
        else:
            whole = sum(sum(len(f) for f in frames[: n + 1]) <= cut for n in range(len(frames)))
            self.at = max(self.at, after + whole)
        body = b"".join(frames)
        if cut is not None and self.clean:
            await exchange.stream(body[:cut])
        else:
            await exchange.stream(body, cut)
