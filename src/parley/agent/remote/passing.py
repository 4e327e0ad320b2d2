"""Passes the progress and the artifacts of a remote task on to the turn's own task.

With ``asker`` messages say who says them.
"""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from parley.agent.remote.speaker import said_by
from parley.engine.turn.attempt import Attempt
from parley.model.parts import Artifact, Message
from parley.model.tasks import Event, Task, TaskArtifactUpdateEvent, TaskState
from parley.store.fold import CONTINUES


class Passing:
    """Passes on the events of one call. Artifacts get ids of this task: a re-run replaces them."""

    def __init__(
        self, attempt: Attempt, name: str, *, progress: bool, artifacts: bool, asker: str = ""
    ) -> None:
        self._asker = asker
        self._attempt = attempt
        self._name = name
        self._progress = progress
        self._artifacts = artifacts

    async def pass_on(self, event: Event) -> None:
        """Write an event to the turn's own task, if it is one to be passed on."""
        if isinstance(event, Message):
            return
        if isinstance(event, TaskArtifactUpdateEvent):
            if self._artifacts:
                continues = event.append and CONTINUES in (event.metadata or {})
                await self._write(
                    event.artifact, append=event.append, last=event.last_chunk, continues=continues
                )
            return
        if isinstance(event, Task) and self._artifacts:
            for artifact in event.artifacts:
                await self._write(artifact, append=False, last=event.state.is_terminal)
        message = event.status.message
        if self._progress and message is not None and event.status.state is TaskState.WORKING:
            writer = self._attempt.writer()
            said = self._attempt.message(list(message.parts))
            writer.status(TaskState.WORKING, said_by(self._asker, said, message.metadata))
            await writer.drain()

    async def _write(
        self, artifact: Artifact, *, append: bool, last: bool, continues: bool = False
    ) -> None:
        digest = hashlib.sha256(f"{self._name}\n{artifact.artifact_id}".encode()).hexdigest()
        own_id = f"{self._attempt.runner.task_id[-12:]}-{digest[:12]}"
        artifact = replace(artifact, artifact_id=own_id, extensions=())
        writer = self._attempt.write_artifact(
            artifact, append=append, last=last, continues=continues
        )
        await writer.drain()
