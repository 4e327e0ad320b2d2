"""The data of memory stores, and its expiry."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count, islice, takewhile
from typing import Generic, TypeVar

import msgspec

from parley.store.audit.trail import (
    AuditEntry,
    AuditFilter,
    AuditLine,
    AuditPrune,
    checkpoint,
    lines_after,
    prune_values,
)
from parley.store.events import Scope, now_ms
from parley.store.memory.index import SortedBlocks, TaskIndex, TaskStanding
from parley.store.memory.log import MemoryLog, WholeTasks
from parley.store.protocols.tables import HISTORY_KEPT, Receipt
from parley.store.tables import PAGE, Row, TableRows

MAX_LINES = 10_000
"""The number of audit lines in memory: older ones are removed, with a checkpoint."""

K = TypeVar("K")


class Aging(Generic[K]):
    """Keys of each agent by a time in ms. A key is checked once, when its time has come."""

    def __init__(self) -> None:
        self._keys: dict[str, list[tuple[int, int, K]]] = {}
        self._numbers = count()

    def add(self, agent: str, at: int, key: K) -> None:
        """Add a new key."""
        heappush(self._keys.setdefault(agent, []), (at, next(self._numbers), key))

    def take(self, agent: str, before: int) -> Iterator[K]:
        """Remove and yield the keys with a time before ``before``, the oldest first."""
        keys = self._keys.get(agent, [])
        while keys and keys[0][0] < before:
            yield heappop(keys)[2]


class MemoryRows(TableRows):
    """The rows of small tables. ``clock`` returns ms. A transaction never yields to other tasks."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.now = 0
        self._clock = clock
        self._rows: dict[tuple[str, str], Row] = {}
        self._keys = SortedBlocks()
        self._expiry: list[tuple[int, str, str]] = []

    def begin(self) -> MemoryRows:
        """Begin a transaction: read the clock, and drop expired rows."""
        self.now = self._clock()
        while self._expiry and self._expiry[0][0] <= self.now:
            expires_at, table, key = heappop(self._expiry)
            row = self._rows.get((table, key))
            if row is not None and row[1] == expires_at:
                self.remove(table, (key,))
        return self

    def lock(self, table: str, keys: Iterable[str]) -> None:
        """Do nothing, since transactions are not concurrent."""

    def get(self, table: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the existing rows."""
        return {key: self._rows[table, key][0] for key in keys if (table, key) in self._rows}

    def scan(
        self, table: str, first: str = "", *, after: str = "", limit: int = PAGE
    ) -> Sequence[tuple[str, bytes]]:
        """Return rows from a key on, and after a key."""
        rising = self._keys.rising((table, max(first, after)))
        found = takewhile(lambda name: name[0] == table, rising)
        keys = islice((key for _, key in found if key > after), limit)
        return [(key, self._rows[table, key][0]) for key in keys]

    def put(self, table: str, rows: Mapping[str, Row]) -> None:
        """Store rows."""
        for key, row in rows.items():
            if (table, key) not in self._rows:
                self._keys.add((table, key))
            self._rows[table, key] = row
            if row[1] is not None:
                heappush(self._expiry, (row[1], table, key))

    def remove(self, table: str, keys: Iterable[str]) -> None:
        """Remove rows, if they exist."""
        for key in keys:
            if self._rows.pop((table, key), None) is not None:
                self._keys.remove((table, key))


class MemoryAudit:
    """A chain of lines. ``clock`` returns ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.lines: list[AuditLine] = []
        self._clock = clock

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
        """Return lines after a number, in order."""
        found = [line for line in self.lines if line.seq > after and which.selects(line)]
        return found[max(0, len(found) - limit) :] if newest else found[:limit]

    def prune(self, prune: AuditPrune) -> int:
        """Remove old lines; return their number."""
        count, (_, most) = 0, prune_values(prune)
        for line in self.lines:
            if line.at >= prune.before or count == most:
                break
            count += 1
        return self._remove(prune, count) if count else 0

    @property
    def _head(self) -> tuple[int, str] | None:
        return (self.lines[-1].seq, self.lines[-1].hash) if self.lines else None

    def _remove(self, prune: AuditPrune, count: int) -> int:
        entry = checkpoint(prune, self.lines[count - 1], count)
        self.lines += lines_after(self._head, [entry], self._clock())
        del self.lines[:count]
        return count


class MemoryContext(msgspec.Struct):
    """The history and values of a context, and whether it expires."""

    touched_at: int
    history: deque[bytes] = msgspec.field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    values: dict[str, bytes] = msgspec.field(default_factory=dict)
    ages: bool = False


class CompletedEvent(msgspec.Struct):
    """The value of an event, its completion time, and whether it expires."""

    value: bytes
    at: int
    ages: bool = False


class MemoryLogs:
    """The data of memory stores, and the time of each replica's last heartbeat.

    ``clock`` returns milliseconds. Receipts, events and contexts expire from the time of their
    creation. A context with tasks, or an event that a task waits for, does not expire when its time
    comes, but again after the last of these tasks is removed. So a check of old entries costs no
    more than the entries that it finds.
    """

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self.clock = clock
        self.logs: dict[str, MemoryLog] = {}
        self.index = TaskIndex(self.logs)
        self.whole = WholeTasks()
        self.receipts: dict[tuple[Scope, str], Receipt] = {}
        self.contexts: dict[tuple[Scope, str], MemoryContext] = {}
        self.events: dict[tuple[str, str], CompletedEvent] = {}
        self.rows = MemoryRows(clock)
        self.audit = MemoryAudit(clock)
        self.heartbeats: dict[str, int] = {}
        self._old_receipts: Aging[tuple[Scope, str]] = Aging()
        self._old_contexts: Aging[tuple[Scope, str]] = Aging()
        self._old_events: Aging[str] = Aging()

    def add_receipt(self, scope: Scope, receipt: Receipt, at: int) -> None:
        """Keep a receipt from a time on."""
        self.receipts[scope, receipt.message_id] = receipt
        self._old_receipts.add(scope.agent, at, (scope, receipt.message_id))

    def touch_context(self, scope: Scope, context_id: str, at: int) -> MemoryContext:
        """Return a context, new or not, and mark it as used now."""
        name = (scope, context_id)
        context = self.contexts.get(name)
        if context is None:
            context = self.contexts[name] = MemoryContext(at)
            self._age_context(name)
        context.touched_at = at
        return context

    def complete_event(self, agent: str, key: str, value: bytes) -> None:
        """Keep the value of an event."""
        self.events[agent, key] = CompletedEvent(value, self.clock())
        self._age_event(agent, key)

    def prune(self, agent: str, before: int, limit: int) -> int:
        """Remove the entries older than a time (ms); see ``TaskStore.prune``."""
        ended = self.index.places_of(agent, TaskStanding.ENDED)
        old = islice(takewhile(lambda place: place[0] < before, ended.rising()), limit)
        gone = [task_id for _, _, task_id in old]
        for task_id in gone:
            self._remove(self.logs.pop(task_id))
        for name in self._old_receipts.take(agent, before):
            del self.receipts[name]
        self._prune_events(agent, before)
        self._prune_contexts(agent, before)
        return len(gone)

    def _remove(self, log: MemoryLog) -> None:
        """Remove a task; objects that only it used begin to expire."""
        head, keys = log.head, log.waits_for
        self.index.remove(log)
        self.whole.forget(head.task_id)
        if not self.index.has_tasks(head.scope, head.context_id):
            self._age_context((head.scope, head.context_id))
        for key in keys:
            self._age_event(head.scope.agent, key)

    def wait_for(self, log: MemoryLog, keys: Sequence[str]) -> None:
        """Let a task wait for events, replacing earlier ones."""
        before = log.waits_for
        self.index.wait_for(log, keys)
        for key in before:
            self._age_event(log.head.scope.agent, key)

    def _age_context(self, name: tuple[Scope, str]) -> None:
        context = self.contexts.get(name)
        if context is not None and not context.ages:
            context.ages = True
            self._old_contexts.add(name[0].agent, context.touched_at, name)

    def _prune_contexts(self, agent: str, before: int) -> None:
        for name in self._old_contexts.take(agent, before):
            context = self.contexts[name]
            context.ages = False
            if self.index.has_tasks(*name):
                continue
            if context.touched_at < before:
                del self.contexts[name]
            else:
                self._age_context(name)

    def _age_event(self, agent: str, key: str) -> None:
        event = self.events.get((agent, key))
        if event is not None and not event.ages:
            event.ages = True
            self._old_events.add(agent, event.at, key)

    def _prune_events(self, agent: str, before: int) -> None:
        for key in self._old_events.take(agent, before):
            event = self.events[agent, key]
            event.ages = False
            if not self.index.waiting_for(agent, key):
                del self.events[agent, key]
