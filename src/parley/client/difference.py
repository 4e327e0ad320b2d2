"""What happened to a task between two looks at it, told as events.

For agents that cannot replay a stream: what a reader missed is worked out from the task itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from parley.model.parts import Artifact, Part, Role
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)


def difference(before: Task | None, now: Task) -> list[Event]:
    """Return events that turn ``before`` into ``now``; the task itself when nothing was known.

    Status messages that came and went meanwhile are found in the history and are told as WORKING
    updates without a time, which the history does not keep. Then come artifacts, new or grown or
    replaced, and at last the status.
    """
    if before is None or before.id != now.id:
        return [now]
    ids: dict[str, Any] = {"task_id": now.id, "context_id": now.context_id}
    events: list[Event] = []
    known = {message.message_id for message in before.history}
    if before.status.message is not None:
        known.add(before.status.message.message_id)
    for message in now.history:
        if message.role is Role.AGENT and message.message_id not in known:
            passed = TaskStatus(state=TaskState.WORKING, message=message)
            events.append(TaskStatusUpdateEvent(**ids, status=passed))
    had = {artifact.artifact_id: artifact for artifact in before.artifacts}
    ended = now.state.is_terminal
    for artifact in now.artifacts:
        old = had.get(artifact.artifact_id)
        if old == artifact:
            continue
        added = _added(old, artifact) if old is not None else None
        if added is None:
            events.append(TaskArtifactUpdateEvent(**ids, artifact=artifact, last_chunk=ended))
        else:
            piece = msgspec.structs.replace(artifact, parts=added)
            events.append(
                TaskArtifactUpdateEvent(**ids, artifact=piece, append=True, last_chunk=ended)
            )
    if now.status != before.status or any(isinstance(e, TaskStatusUpdateEvent) for e in events):
        events.append(TaskStatusUpdateEvent(**ids, status=now.status))
    return events


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
