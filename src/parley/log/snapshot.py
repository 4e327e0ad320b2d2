"""A task as bytes: what a store keeps so that it need not fold a whole log again."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from parley.model.encoding import encode, from_wire
from parley.model.parts import Artifact
from parley.model.tasks import Task

_task = msgspec.json.Decoder(Task, dec_hook=from_wire)
_artifacts = msgspec.json.Decoder(tuple[Artifact, ...], dec_hook=from_wire)


class Snapshot(NamedTuple):
    """A task without its artifacts, and its artifacts: most lists of tasks are shown without."""

    task: bytes
    artifacts: bytes

    @classmethod
    def of(cls, task: Task) -> Snapshot:
        """Return ``task`` as bytes."""
        return cls(encode(replace(task, artifacts=())), encode(task.artifacts))

    def read(self) -> Task:
        """Return the task; without artifacts where there are no bytes of them."""
        task = _task.decode(self.task)
        if not self.artifacts:
            return task
        return replace(task, artifacts=_artifacts.decode(self.artifacts))
