"""The private records of a task that its later turns need."""

from __future__ import annotations

from parley.store.events import LoggedEvent, RecordKind
from parley.store.protocols.task_log import TaskLog

_KINDS = (RecordKind.TURN, RecordKind.REMEMBERED)


class PrivateRecords:
    """Caches the turns of a task and what they remembered; reads each record once."""

    __slots__ = ("_after", "remembered", "turns")

    def __init__(self) -> None:
        self.turns: list[LoggedEvent] = []
        self.remembered: list[LoggedEvent] = []
        self._after = (0, 0)

    async def update(self, store: TaskLog, task_id: str) -> None:
        """Add the records that were logged since the last call. Raises ``StoreError``."""
        for record in await store.private_records(task_id, _KINDS, after=self._after):
            (self.turns if record.kind is RecordKind.TURN else self.remembered).append(record)
            self._after = (record.seq, record.sub)
