"""How a message refers to tasks, and its parts to artifacts (specification §3.4.3)."""

from __future__ import annotations

import msgspec

from parley.model.parts import Message, Part

TASK_KEY = "taskId"
ARTIFACT_KEY = "artifactId"
"""The members of a part's metadata that name an artifact, and the task that made it."""


class ArtifactReference(msgspec.Struct, frozen=True):
    """An artifact that a part refers to. Without ``task_id`` it is one of the tasks around."""

    artifact_id: str
    task_id: str = ""


def artifacts_named(message: Message) -> tuple[ArtifactReference, ...]:
    """Return the artifacts that the parts of a message refer to, in order, each once."""
    found = {
        ArtifactReference(artifact, _string(part, TASK_KEY)): None
        for part in message.parts
        if (artifact := _string(part, ARTIFACT_KEY))
    }
    return tuple(found)


def tasks_named(message: Message) -> tuple[str, ...]:
    """Return the ids of the tasks that a message, or a part of it, refers to, each once."""
    ids = [*message.reference_task_ids, *(_string(part, TASK_KEY) for part in message.parts)]
    return tuple(dict.fromkeys(filter(None, ids)))


def _string(part: Part, key: str) -> str:
    value = (part.metadata or {}).get(key)
    return value if isinstance(value, str) else ""
