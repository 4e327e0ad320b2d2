"""The audit of stores in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from parley.store.audit.chain import checkpoint, lines_after, prune_values
from parley.store.audit.reading import matches
from parley.store.protocols.audit import PAGE, AuditEntry, AuditFilter, AuditLine, AuditPrune

MAX_LINES = 10_000
"""How many lines memory has: older ones go, with a checkpoint, because no disk has them."""


class MemoryAudit:
    """A chain of lines, and the cursors of destinations. ``clock`` returns ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.lines: list[AuditLine] = []
        self._clock = clock
        self._cursors: dict[str, tuple[int, str, int]] = {}

    def append(self, entries: Sequence[AuditEntry]) -> list[AuditLine]:
        """Append entries; return their lines."""
        ids = {entry.id for entry in entries}
        known = {line.id for line in self.lines if line.id in ids}
        lines = lines_after(self._head, [e for e in entries if e.id not in known], self._clock())
        self.lines += lines
        if len(self.lines) > MAX_LINES:
            by = AuditEntry(kind="", issuer="parley", actor="server")
            half = self.lines[-MAX_LINES // 2]
            self._remove(AuditPrune(before=half.at, by=by), MAX_LINES // 2)
        return lines

    def read(self, which: AuditFilter, after: int, limit: int, newest: bool) -> list[AuditLine]:
        """Return lines after one, in order."""
        found = [line for line in self.lines if line.seq > after and matches(line, which)]
        return found[max(0, len(found) - limit) :] if newest else found[:limit]

    def prune(self, prune: AuditPrune) -> int:
        """Remove old lines; return how many."""
        count, most = 0, prune_values(prune)["most"]
        for line in self.lines:
            is_sent = prune.keep_after is None or line.seq <= prune.keep_after
            if line.at >= prune.before or not is_sent or count == most:
                break
            count += 1
        return self._remove(prune, count) if count else 0

    def claim(self, destination: str, holder: str, until: int) -> int | None:
        """Claim a cursor; return where it stands."""
        seq, held_by, held_until = self._cursors.get(destination, (0, "", 0))
        if held_by != holder and held_until > self._clock():
            return None
        self._cursors[destination] = (seq, holder, until)
        return seq

    def save(self, destination: str, holder: str, seq: int, until: int) -> bool:
        """Move a cursor that is still claimed; return whether it was."""
        if destination not in self._cursors or self._cursors[destination][1] != holder:
            return False
        self._cursors[destination] = (seq, holder, until)
        return True

    @property
    def _head(self) -> tuple[int, str] | None:
        return (self.lines[-1].seq, self.lines[-1].hash) if self.lines else None

    def _remove(self, prune: AuditPrune, count: int) -> int:
        entry = checkpoint(prune, self.lines[count - 1], count)
        self.lines += lines_after(self._head, [entry], self._clock())
        del self.lines[:count]
        return count


class MemoryAuditTrail(ABC):
    """The part of a store in memory that is its audit (see ``AuditTrail``)."""

    @abstractmethod
    def _audit(self) -> MemoryAudit:
        """Return the audit. Raises ``StoreUnavailable`` while the store is closed."""

    @property
    def migrated(self) -> Sequence[str]:
        """None: memory has no schema."""
        return ()

    async def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries to the audit."""
        return self._audit().append(entries)

    async def read_audit(
        self, which: AuditFilter, *, after: int = 0, limit: int = PAGE, newest: bool = False
    ) -> Sequence[AuditLine]:
        """Return lines of the audit after one, in order."""
        return self._audit().read(which, after, limit, newest)

    async def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines of the audit, and append a checkpoint."""
        return self._audit().prune(prune)

    async def claim_audit_cursor(self, destination: str, holder: str, until: int) -> int | None:
        """Claim the cursor of a destination until a time (ms)."""
        return self._audit().claim(destination, holder, until)

    async def save_audit_cursor(self, destination: str, holder: str, seq: int, until: int) -> bool:
        """Move a cursor that is still claimed."""
        return self._audit().save(destination, holder, seq, until)
