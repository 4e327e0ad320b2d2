"""The data of memory stores, and how it grows old."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, islice, takewhile
from typing import Generic, TypeVar

import msgspec

from parley.security.api_keys import ApiKeyRecord
from parley.security.limits.usage import UsageKey, UsageRow
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
from parley.store.memory.index import TaskIndex, TaskStanding
from parley.store.memory.log import MemoryLog, WholeTasks
from parley.store.protocols.tables import HISTORY_KEPT, Receipt

MAX_LINES = 10_000
"""How many lines memory has: older ones go, with a checkpoint, because no disk has them."""

K = TypeVar("K")


class Aging(Generic[K]):
    """Keys of each agent by a time in ms. A key is looked at once, when its time has come."""

    def __init__(self) -> None:
        self._keys: dict[str, list[tuple[int, int, K]]] = {}
        self._numbers = count()

    def add(self, agent: str, at: int, key: K) -> None:
        """Add a key, which must not be there already."""
        heappush(self._keys.setdefault(agent, []), (at, next(self._numbers), key))

    def take(self, agent: str, before: int) -> Iterator[K]:
        """Remove and yield the keys with a time before ``before``, the oldest first."""
        keys = self._keys.get(agent, [])
        while keys and keys[0][0] < before:
            yield heappop(keys)[2]


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
        """Return lines after one, in order."""
        found = [line for line in self.lines if line.seq > after and which.selects(line)]
        return found[max(0, len(found) - limit) :] if newest else found[:limit]

    def prune(self, prune: AuditPrune) -> int:
        """Remove old lines; return how many."""
        count, most = 0, prune_values(prune)["most"]
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
    """The history and values of a context, and whether it ages."""

    touched_at: int
    history: deque[bytes] = msgspec.field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    values: dict[str, bytes] = msgspec.field(default_factory=dict)
    ages: bool = False


class CompletedEvent(msgspec.Struct):
    """The value of an event, when it was completed, and whether it ages."""

    value: bytes
    at: int
    ages: bool = False


class MemoryLogs:
    """The data of memory stores, and the time of each replica's last heartbeat. ``clock`` returns
    milliseconds.

    Receipts, events and contexts age from the time they are added. A context with tasks, or an
    event that a task waits for, ages no more once its time has come, and again after the last of
    these tasks went. So a look at old entries costs no more than the entries that it finds.
    """

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self.clock = clock
        self.logs: dict[str, MemoryLog] = {}
        self.index = TaskIndex(self.logs)
        self.whole = WholeTasks()
        self.receipts: dict[tuple[Scope, str], Receipt] = {}
        self.contexts: dict[tuple[Scope, str], MemoryContext] = {}
        self.events: dict[tuple[str, str], CompletedEvent] = {}
        self.secrets: dict[str, bytes] = {}
        self.api_keys: dict[str, ApiKeyRecord] = {}
        self.usage: dict[UsageKey, UsageRow] = {}
        self.quotas: dict[str, tuple[dict[int, int], int]] = {}
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
        """Return a context, new or not, which is used now."""
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
        """Forget a task; what only it used ages."""
        head, keys = log.head, log.waits_for
        self.index.remove(log)
        self.whole.forget(head.task_id)
        if not self.index.has_tasks(head.scope, head.context_id):
            self._age_context((head.scope, head.context_id))
        for key in keys:
            self._age_event(head.scope.agent, key)

    def wait_for(self, log: MemoryLog, keys: Sequence[str]) -> None:
        """Have a task wait for events, and for those before no more."""
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
