"""What an adapter keeps of a run until its task ends: checkpoints, for a crash or an answer."""

from __future__ import annotations

from typing import Any

from parley.agent.turn import Turn


class TaskValue:
    """A JSON value that the context keeps for one task.

    It is removed when the task ends: completed, failed, canceled or rejected, also while it waits
    and after a crash. Other tasks of the context have values of their own under the same name.
    """

    def __init__(self, turn: Turn, name: str) -> None:
        self._turn = turn
        self._key = f"{name}:{turn.task_id}"

    async def read(self) -> Any:
        """Return the newest value, ``None`` without one."""
        return await self._turn.recall(self._key)

    async def write(self, value: Any) -> None:
        """Replace the value; it is durable before this returns.

        Raises ``TypeError`` for what is no JSON, and ``TurnOver`` after the turn's end.
        """
        await self._turn._attempt.own_value(self._key)
        await self._turn.remember(self._key, value)

    async def remove(self) -> None:
        """Remove the value before the task ends."""
        await self._turn.remember(self._key, None)
