"""The checkpoints of a workflow, kept until its task ends."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, get_args, get_type_hints

from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException, WorkflowExecutor
from agent_framework._workflows._checkpoint_encoding import (
    decode_checkpoint_value,
    encode_checkpoint_value,
)

from parley.agent.turn import Turn
from parley.integrations.serving import fail_with
from parley.integrations.task_values import TaskValue

TYPES = "agent(build_workflow, checkpoint_types={})"

UNREADABLE = (WorkflowCheckpointException, pickle.PicklingError, AttributeError, TypeError)
"""Errors of values that cannot be written to a checkpoint, or read from it."""


class TaskCheckpoints:
    """Keeps the newest checkpoint of one task.

    It has what runs of the framework use of its ``CheckpointStorage``: ``save`` and ``load``.
    ``types`` are the author's types in checkpoints, as ``module:name``; the framework reads no
    others but its own.
    """

    def __init__(self, turn: Turn, types: Iterable[str] = ()) -> None:
        self._turn = turn
        self._kept = TaskValue(turn, "agent_framework.checkpoint")
        self._types = frozenset(types)

    async def newest(self) -> Any | None:
        """Return the newest checkpoint, ``None`` if there is none."""
        kept = await self._kept.read()
        if kept is None:
            return None
        decoded = decode_checkpoint_value(kept, allowed_types=self._types)
        return WorkflowCheckpoint.from_dict(decoded)

    async def save(self, checkpoint: Any) -> str:
        """Keep a checkpoint in place of the one before. One that cannot be read ends the task."""
        try:
            written = encode_checkpoint_value(checkpoint.to_dict())
            decode_checkpoint_value(written, allowed_types=self._types)
        except UNREADABLE as error:
            named = re.search(r"type '(\w[\w.]*:[^']+)'", str(error))
            known = sorted({*self._types, named[1]}) if named else []
            why = ValueError(f"{error}; give {TYPES.format(known)}") if known else error
            fail_with(self._turn, "A checkpoint of the workflow cannot be kept.", why)
        await self._kept.write(written)
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> Any:
        """Return the checkpoint with an id. Raises ``WorkflowCheckpointException``."""
        newest = await self.newest()
        if newest is None or newest.checkpoint_id != checkpoint_id:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return newest


def check_types(workflow: Any, types: Iterable[str]) -> None:
    """Raise ``ValueError`` if checkpoints may have types that cannot be read from them.

    These are types of messages, requests and responses of executors, and of their fields. What an
    executor keeps by itself is known when it is kept.
    """
    known, lacking = frozenset(types), set()
    for kind in _types_of(workflow):
        try:
            decode_checkpoint_value(encode_checkpoint_value(kind), allowed_types=known)
        except UNREADABLE:
            lacking.add(f"{kind.__module__}:{kind.__qualname__}")
    if lacking:
        raise ValueError(
            f"checkpoints of the workflow {workflow.name!r} may have {', '.join(sorted(lacking))}, "
            f"which the framework does not read: give {TYPES.format(sorted(known | lacking))}"
        )


def is_of_framework(kind: Any) -> bool:
    """Return whether a type is one of the framework."""
    return str(getattr(kind, "__module__", "")).startswith("agent_framework")


def _types_of(workflow: Any) -> set[Any]:
    """Return the author's types that executors of a workflow pass, and those of their fields."""
    found: set[Any] = set()
    pending: list[Any] = []
    for each in workflow.get_executors_list():
        pending += [*each.input_types, *each.output_types]
        pending += [kind for pair in getattr(each, "_response_handlers", ()) for kind in pair]
        if isinstance(each, WorkflowExecutor):
            found |= _types_of(each.workflow)
    while pending:
        kind = pending.pop()
        pending += get_args(kind)
        is_known = not isinstance(kind, type) or is_of_framework(kind) or kind in found
        if is_known or kind.__module__.partition(".")[0] in sys.stdlib_module_names:
            continue
        if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
            continue
        found.add(kind)
        with suppress(NameError, TypeError):  # of annotations that cannot be resolved
            pending += get_type_hints(kind).values()
    return found
