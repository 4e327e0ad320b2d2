"""What happened to a task between two looks at it, told as events.

For agents that cannot replay a stream: what a reader missed is worked out from the task itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import msgspec

from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)


def difference(
    before: Task | None, now: Task, *, after: str = "", told: Set[str] = frozenset()
) -> list[Event]:
    """Return events that turn ``before`` into ``now``; the task itself when nothing was known.

    Status messages that came and went meanwhile are found in the history and are told as WORKING
    updates without a time, which the history does not keep. Where the history has the message with
    the id ``after``, only those that follow it are new, and none with an id in ``told``. Then come
    artifacts, new or grown or replaced, and at last the status.
    """
    if before is None or before.id != now.id:
        return [now]
    ids: dict[str, Any] = {"task_id": now.id, "context_id": now.context_id}
    events: list[Event] = []
    known = _known(before) | told
    for message in _after(now.history, after):
        if message.role is Role.AGENT and message.message_id not in known:
            passed = TaskStatus(state=TaskState.WORKING, message=message)
            events.append(TaskStatusUpdateEvent(**ids, status=passed))
    ended = now.state.is_terminal
    for piece, append in _pieces(before, now):
        events.append(
            TaskArtifactUpdateEvent(**ids, artifact=piece, append=append, last_chunk=ended)
        )
    if now.status != before.status or any(isinstance(e, TaskStatusUpdateEvent) for e in events):
        events.append(TaskStatusUpdateEvent(**ids, status=now.status))
    return events


def news(before: Task, now: Task) -> Task:
    """Return ``now`` with those artifacts and messages only that ``before`` did not have.

    Of an artifact that grew there are the parts by which it did; one that was replaced is there
    whole. What a turn has to say is the ``text`` of this, where ``before`` is the task as its
    message found it.
    """
    if before.id != now.id:
        return now
    known = _known(before)
    return msgspec.structs.replace(
        now,
        artifacts=tuple(piece for piece, _ in _pieces(before, now)),
        history=tuple(message for message in now.history if message.message_id not in known),
    )


def _known(before: Task) -> set[str]:
    """Return the ids of all that was said by then: a question joins the history when answered."""
    known = {message.message_id for message in before.history}
    if before.status.message is not None:
        known.add(before.status.message.message_id)
    return known


def _pieces(before: Task, now: Task) -> Iterator[tuple[Artifact, bool]]:
    """Give what is new in the artifacts, and whether it is added to what was there."""
    had = {artifact.artifact_id: artifact for artifact in before.artifacts}
    for artifact in now.artifacts:
        old = had.get(artifact.artifact_id)
        if old == artifact:
            continue
        added = _added(old, artifact) if old is not None else None
        if added is None:
            yield artifact, False
        else:
            yield msgspec.structs.replace(artifact, parts=added), True


def _after(history: Sequence[Message], message_id: str) -> Sequence[Message]:
    for place, message in enumerate(history):
        if message_id and message.message_id == message_id:
            return history[place + 1 :]
    return history


def _added(old: Artifact, new: Artifact) -> tuple[Part, ...] | None:
    """Return the parts by which ``new`` is longer than ``old``; ``None`` when it did not grow."""
    count = len(old.parts)
    if len(new.parts) > count and new.parts[:count] == old.parts:
        return new.parts[count:]
    # Some agents join the text of all chunks into one part.
    before, after = _plain_text(old.parts), _plain_text(new.parts)
    if before is None or after is None or not after.startswith(before) or after == before:
        return None
    return (msgspec.structs.replace(new.parts[-1], text=after[len(before) :]),)


def _plain_text(parts: Sequence[Part]) -> str | None:
    texts = [part.text for part in parts]
    return None if None in texts else "".join(text for text in texts if text is not None)
