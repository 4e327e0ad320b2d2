"""The difference between two snapshots of a task, as events or as a task with the new output.

For agents that cannot replay a stream: the client works out from the task what a reader missed.
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


def diff(
    before: Task | None, now: Task, *, after: str = "", known_ids: Set[str] = frozenset()
) -> list[Event]:
    """Return events that turn ``before`` into ``now``; ``now`` itself without a ``before``.

    Status messages that came and went in between are in the history. They become WORKING updates
    without a timestamp, which the history does not keep. Where the history has the message with the
    id ``after``, only messages behind it are new, and none with an id in ``known_ids``. Artifacts
    that are new, grown or replaced follow, and the status comes last.
    """
    if before is None or before.id != now.id:
        return [now]
    ids: dict[str, Any] = {"task_id": now.id, "context_id": now.context_id}
    events: list[Event] = []
    known = _message_ids(before) | known_ids
    if now.status.message is not None:  # some agents have it in the history too
        known |= {now.status.message.message_id}
    for message in _messages_after(now.history, after):
        if message.role is Role.AGENT and message.message_id not in known:
            earlier = TaskStatus(state=TaskState.WORKING, message=message)
            events.append(TaskStatusUpdateEvent(**ids, status=earlier))
    ended = now.state.is_terminal
    for artifact, append in _new_artifacts(before, now):
        events.append(
            TaskArtifactUpdateEvent(**ids, artifact=artifact, append=append, last_chunk=ended)
        )
    if now.status != before.status or any(isinstance(e, TaskStatusUpdateEvent) for e in events):
        events.append(TaskStatusUpdateEvent(**ids, status=now.status))
    return events


def new_output(before: Task, now: Task) -> Task:
    """Return ``now`` with only those artifacts and messages that ``before`` did not have.

    An artifact that grew has only its new parts; a replaced one is complete. If ``before`` is the
    task as a message found it, the ``text`` of the result is the output of that message's turn.
    """
    if before.id != now.id:
        return now
    known = _message_ids(before)
    return msgspec.structs.replace(
        now,
        artifacts=tuple(artifact for artifact, _ in _new_artifacts(before, now)),
        history=tuple(message for message in now.history if message.message_id not in known),
    )


def _message_ids(before: Task) -> set[str]:
    """Return the ids of all messages; an answered question moves from the status to the history."""
    known = {message.message_id for message in before.history}
    if before.status.message is not None:
        known.add(before.status.message.message_id)
    return known


def _new_artifacts(before: Task, now: Task) -> Iterator[tuple[Artifact, bool]]:
    """Yield what is new in the artifacts, and whether it is appended to an earlier artifact."""
    earlier = {artifact.artifact_id: artifact for artifact in before.artifacts}
    for artifact in now.artifacts:
        old = earlier.get(artifact.artifact_id)
        if old == artifact:
            continue
        added = _added_parts(old, artifact) if old is not None else None
        if added is None:
            yield artifact, False
        else:
            yield msgspec.structs.replace(artifact, parts=added), True


def _messages_after(history: Sequence[Message], message_id: str) -> Sequence[Message]:
    for index, message in enumerate(history):
        if message_id and message.message_id == message_id:
            return history[index + 1 :]
    return history


def _added_parts(old: Artifact, new: Artifact) -> tuple[Part, ...] | None:
    """Return the parts by which ``new`` is longer than ``old``; ``None`` if it did not grow."""
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
