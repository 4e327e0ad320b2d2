"""Events and appends for the tests of this room."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from parley.model.parts import Artifact, Message, Part, Role
from parley.model.struct import Timestamp
from parley.model.tasks import (
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.store.events import (
    LoggedEvent,
    MessageReceived,
    RecordKind,
    Scope,
    StoredCaller,
    TurnStarted,
)
from parley.store.fold import ArtifactPiece, Fold
from parley.store.protocols.task_log import Append
from parley.store.task_store import TaskStore

SCOPE = Scope("agent", "tenant", "owner")
AT = 1_000_000
"""The timestamp of statuses in ms: the start of a test's clock."""

_numbers = itertools.count(1)


def message(text: str, message_id: str = "", role: Role = Role.AGENT) -> Message:
    return Message(message_id=message_id or f"message-{text}", role=role, parts=(Part(text=text),))


def status(task_id: str, state: TaskState, said: str = "", at: int = AT) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(
        task_id=task_id, context_id=f"context-{task_id}", status=status_of(state, said, at)
    )


def status_of(state: TaskState, said: str = "", at: int = AT) -> TaskStatus:
    return TaskStatus(
        state=state,
        message=message(said) if said else None,
        timestamp=Timestamp.from_milliseconds(at),
    )


def chunk(
    task_id: str,
    text: str,
    *,
    append: bool = True,
    last: bool = False,
    artifact_id: str = "artifact",
    **fields: Any,
) -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(
        task_id=task_id,
        context_id=f"context-{task_id}",
        artifact=Artifact(artifact_id=artifact_id, parts=(Part(text=text),), **fields),
        append=append,
        last_chunk=last,
    )


def task(
    task_id: str, state: TaskState = TaskState.SUBMITTED, *, context_id: str = "", at: int = AT
) -> Task:
    return Task(
        id=task_id,
        context_id=context_id or f"context-{task_id}",
        status=status_of(state, at=at),
        history=(message("hello", role=Role.USER),),
    )


def received(text: str, caller: StoredCaller | None = None, **more: Any) -> MessageReceived:
    said = message(text, role=Role.USER)
    return MessageReceived(entry=f"entry-{next(_numbers)}", message=said, caller=caller, **more)


def turn_started(turn: int, *texts: str, **more: Any) -> TurnStarted:
    said = tuple(message(text, role=Role.USER) for text in texts)
    return TurnStarted(turn=turn, messages=said, **more)


def creation(task_id: str, *more: Any, scope: Scope = SCOPE, **options: Any) -> Append:
    """Return an append that creates a task, with further events."""
    first = options.pop("first", None) or task(
        task_id, at=options.pop("at", AT), context_id=options.get("context_id", "")
    )
    options.setdefault("context_id", first.context_id)
    options.setdefault("turn_open", True)
    return Append(
        task_id=task_id, events=(first, *more), expected_seq=0, turn=1, scope=scope, **options
    )


def addition(task_id: str, expected: int | None, *events: Any, **options: Any) -> Append:
    """Return an append to an existing task."""
    options.setdefault("turn", 1)
    return Append(task_id=task_id, events=events, expected_seq=expected, **options)


async def all_events(store: TaskStore, task_id: str) -> list[LoggedEvent]:
    """Return every public event of a task, read page by page."""
    found: list[LoggedEvent] = []
    while page := await store.events(task_id, len(found), 100):
        found += page
    return found


def numbers(events: Sequence[LoggedEvent]) -> list[int]:
    return [event.seq for event in events]


async def left(store: TaskStore, agent: str = SCOPE.agent) -> tuple[list[str], int]:
    """Return the open work: this replica's tasks, and the number of unclaimed tasks."""
    return list(await store.held_tasks()), (await store.unclaimed()).get(agent, 0)


async def private_records(store: TaskStore, task_id: str) -> list[LoggedEvent]:
    """Return every private record of a task."""
    kinds = [kind for kind in RecordKind if not kind.is_public]
    return list(await store.private_records(task_id, kinds))


def pieces(*events: Any) -> list[ArtifactPiece]:
    """Return the stored form of the artifacts in events."""
    folding = Fold()
    for event in events:
        folding.apply(event)
    return folding.take_unsaved()
