"""What a task's log remembers for the turns to come."""

from __future__ import annotations

from parley.store.events import Kind, LoggedEvent
from parley.store.task_store import TaskStore

_KINDS = (Kind.TURN, Kind.REMEMBERED)


class PrivateRecords:
    """The private records of a task that its turns need: which turns there were, and what they
    remembered. What was read once is not read again.
    """

    __slots__ = ("_after", "remembered", "turns")

    def __init__(self) -> None:
        self.turns: list[LoggedEvent] = []
        self.remembered: list[LoggedEvent] = []
        self._after = (0, 0)

    async def read_on(self, store: TaskStore, task_id: str) -> None:
        """Add what the log has by now. Raises ``StoreError``."""
        for record in await store.private_records(task_id, _KINDS, after=self._after):
            (self.turns if record.kind is Kind.TURN else self.remembered).append(record)
            self._after = (record.seq, record.sub)
