"""The checkpoints of a workflow, kept until its task ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException
from agent_framework._workflows._checkpoint_encoding import (
    decode_checkpoint_value,
    encode_checkpoint_value,
)

from parley.agent.turn import Turn
from parley.integrations.task_values import TaskValue


class TaskCheckpoints:
    """Keeps the newest checkpoint of one task: a ``CheckpointStorage`` of the framework.

    ``types`` are the author's types in checkpoints, as ``module:name``; the framework reads no
    others but its own.
    """

    def __init__(self, turn: Turn, types: Iterable[str] = ()) -> None:
        self._kept = TaskValue(turn, "agent_framework.checkpoint")
        self._types = frozenset(types)

    async def newest(self) -> Any | None:
        """Return the newest checkpoint, ``None`` if there is none."""
        kept = await self._kept.read()
        if kept is None:
            return None
        decoded = decode_checkpoint_value(kept, allowed_types=self._types)
        return WorkflowCheckpoint.from_dict(decoded)

    async def forget(self) -> None:
        """Delete the checkpoint."""
        await self._kept.remove()

    async def save(self, checkpoint: Any) -> str:
        """Keep a checkpoint in place of the one before."""
        await self._kept.write(encode_checkpoint_value(checkpoint.to_dict()))
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> Any:
        """Return the checkpoint with an id. Raises ``WorkflowCheckpointException``."""
        newest = await self.newest()
        if newest is None or newest.checkpoint_id != checkpoint_id:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return newest

    async def list_checkpoints(self, *, workflow_name: str) -> list[Any]:
        """Return the newest checkpoint, if it is of this workflow."""
        newest = await self.get_latest(workflow_name=workflow_name)
        return [] if newest is None else [newest]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the id of the newest checkpoint, if it is of this workflow."""
        found = await self.list_checkpoints(workflow_name=workflow_name)
        return [each.checkpoint_id for each in found]

    async def get_latest(self, *, workflow_name: str) -> Any | None:
        """Return the newest checkpoint, if it is of this workflow."""
        newest = await self.newest()
        return newest if newest is not None and newest.workflow_name == workflow_name else None

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint, and return whether there was one."""
        newest = await self.newest()
        if newest is None or newest.checkpoint_id != checkpoint_id:
            return False
        await self.forget()
        return True
