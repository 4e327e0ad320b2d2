"""What an adapter keeps of a run until its task ends: checkpoints, for a crash or an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parley.agent.turn import Turn

CHECKPOINT_BYTES = 500_000
"""How many bytes of JSON a run's state may have to be kept where nothing is asked.

A larger one is kept only at a question; a crash then repeats more.
"""


class TaskValue:
    """A JSON value that the context keeps for one task.

    It is removed when the task ends: completed, failed, canceled or rejected, also while it waits
    and after a crash. Other tasks of the context have values of their own under the same name.
    If it ``lists`` others, it is an object with their ``keys``, and they are removed with it.
    """

    def __init__(self, turn: Turn, name: str, *, lists: bool = False) -> None:
        self._turn = turn
        self._lists = lists
        self._key = f"{name}:{turn.task_id}"

    async def read(self) -> Any:
        """Return the newest value, ``None`` without one."""
        return await self._turn.recall(self._key)

    async def write(self, value: Any) -> None:
        """Replace the value; it is durable before this returns.

        Raises ``TypeError`` for what is no JSON, and ``TurnOver`` after the turn's end.
        """
        await self._turn._attempt.own_value(self._key, lists=self._lists)
        await self._turn.remember(self._key, value)

    async def update(self, function: Callable[[Any], Any], default: Any = None) -> None:
        """Change the value as ``Turn.update`` does. Raises what that and ``write`` raise."""
        await self._turn._attempt.own_value(self._key, lists=self._lists)
        await self._turn.update(self._key, function, default)

    async def remove(self) -> None:
        """Remove the value before the task ends."""
        await self._turn.remember(self._key, None)
