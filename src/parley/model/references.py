"""References of a message to tasks, and of its parts to artifacts (specification §3.4.3)."""

from __future__ import annotations

import msgspec

from parley.model.parts import Message, Part

TASK_KEY = "taskId"
ARTIFACT_KEY = "artifactId"
"""The members of a part's metadata that name an artifact and its task."""


class ArtifactReference(msgspec.Struct, frozen=True):
    """A reference to an artifact; without ``task_id`` to one of a referenced or current task."""

    artifact_id: str
    task_id: str = ""


def artifacts_named(message: Message) -> tuple[ArtifactReference, ...]:
    """Return the distinct artifacts that the parts of a message refer to, in order."""
    found = {
        ArtifactReference(artifact, _string(part, TASK_KEY)): None
        for part in message.parts
        if (artifact := _string(part, ARTIFACT_KEY))
    }
    return tuple(found)


def tasks_named(message: Message) -> tuple[str, ...]:
    """Return the distinct ids of the tasks that a message or its parts refer to."""
    ids = [*message.reference_task_ids, *(_string(part, TASK_KEY) for part in message.parts)]
    return tuple(dict.fromkeys(filter(None, ids)))


def _string(part: Part, key: str) -> str:
    value = (part.metadata or {}).get(key)
    return value if isinstance(value, str) else ""
