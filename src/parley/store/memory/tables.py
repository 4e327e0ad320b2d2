"""The small tables of a memory store: contexts, the audit, webhooks."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from parley.model.parts import Message
from parley.model.struct import decode, encode
from parley.store.audit.trail import PAGE, AuditEntry, AuditFilter, AuditLine, AuditPrune
from parley.store.events import Scope
from parley.store.head import unknown
from parley.store.memory.index import TaskIndex
from parley.store.memory.log import MemoryLog
from parley.store.memory.logs import MemoryLogs
from parley.store.protocols.errors import DuplicateReceipt
from parley.store.protocols.tables import Receipt
from parley.store.protocols.webhooks import (
    ATTEMPTS_KEPT,
    ActivePushes,
    DeliveryAttempt,
    PushRecord,
    PushState,
)
from parley.store.tables import TableRows
from parley.store.task_store import TaskStore
from parley.store.webhooks import active_of, merge_pushes

T = TypeVar("T")


class MemoryTables(TaskStore):
    """The small tables of a memory store."""

    _shared: MemoryLogs
    _index: TaskIndex
    _replica: str

    @abstractmethod
    def _opened(self) -> MemoryLogs:
        """Return the data. Raises ``StoreUnavailable`` unless the store is open."""

    async def change_rows(self, work: Callable[[TableRows], T]) -> T:
        """Call ``work`` atomically, and return its result."""
        return work(self._opened().rows.begin())

    read_rows = change_rows

    # -- contexts ------------------------------------------------------------------------------

    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return the receipt of a message."""
        self._opened()
        return self._shared.receipts.get((scope, message_id))

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Store the receipt and the exchange of a direct reply, both or neither."""
        self._opened()
        messages = [encode(message) for message in exchange]
        self._keep(scope, context_id, (receipt,) if receipt else (), messages, self._shared.clock())

    def _keep(
        self,
        scope: Scope,
        context_id: str,
        receipts: Sequence[Receipt],
        exchange: Sequence[bytes],
        at: int,
    ) -> None:
        names = [receipt.message_id for receipt in receipts]
        for i, name in enumerate(names):
            if (scope, name) in self._shared.receipts or name in names[:i]:
                raise DuplicateReceipt(name)
        for receipt in receipts:
            self._shared.add_receipt(scope, receipt, at)
        if exchange:
            self._shared.touch_context(scope, context_id, at).history.extend(exchange)

    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first."""
        self._opened()
        context = self._shared.contexts.get((scope, context_id))
        kept = tuple(context.history) if context else ()
        return [decode(message, Message) for message in kept[max(0, len(kept) - limit) :]]

    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent keeps for a context."""
        self._opened()
        context = self._shared.contexts.get((scope, context_id))
        return context.values.get(key) if context else None

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Store a value for a context; ``None`` removes it."""
        self._opened()
        context = self._shared.touch_context(scope, context_id, self._shared.clock())
        if value is None:
            context.values.pop(key, None)
        else:
            context.values[key] = value

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Store a value for a context if the current one is ``expected``."""
        # The two calls are atomic, since neither yields to the event loop.
        if await self.get_value(scope, context_id, key) != expected:
            return False
        await self.set_value(scope, context_id, key, value)
        return True

    # -- the audit -----------------------------------------------------------------------------

    @property
    def migrated(self) -> Sequence[str]:
        """None: memory has no schema."""
        return ()

    async def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries to the audit."""
        return self._opened().audit.append(entries)

    async def read_audit(
        self, which: AuditFilter, *, after: int = 0, limit: int = PAGE, newest: bool = False
    ) -> Sequence[AuditLine]:
        """Return lines of the audit after one, in order."""
        return self._opened().audit.read(which, after, limit, newest)

    async def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines of the audit, and append a checkpoint."""
        return self._opened().audit.prune(prune)

    # -- webhooks ------------------------------------------------------------------------------

    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        """Store a push notification configuration of a task; return it as stored."""
        self._opened()
        log = self._shared.logs.get(task_id)
        if log is None:
            raise unknown(task_id)
        after = log.head.seq
        pushes = merge_pushes((push,), log.pushes, log.head, after=after, replica=self._replica)
        self._index.set_pushes(log, pushes)
        return next(reversed(pushes.values()))

    async def pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, by id."""
        self._opened()
        log = self._shared.logs.get(task_id)
        return sorted(log.pushes.values(), key=lambda push: push.id) if log else ()

    async def save_delivery(
        self, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None = None
    ) -> bool:
        """Save a webhook's delivery state and an attempt, if this replica still has it claimed."""
        self._opened()
        log = self._shared.logs.get(task_id)
        kept = log.pushes.get(push.id) if log else None
        if log is None or kept is None:
            return False
        if (kept.revision, kept.lease_owner) != (push.revision, self._replica):
            return False
        saved = replace(push, lease_owner=self._replica)
        self._index.set_pushes(log, {**log.pushes, push.id: saved})
        if attempt is not None:
            if push.id not in log.attempts:
                log.attempts = {**log.attempts, push.id: deque(maxlen=ATTEMPTS_KEPT)}
            log.attempts[push.id].appendleft(attempt)
        return True

    async def push_attempts(self, task_id: str, push_id: str) -> Sequence[DeliveryAttempt]:
        """Return the last attempts of a webhook, the newest first."""
        self._opened()
        log = self._shared.logs.get(task_id)
        return tuple(log.attempts.get(push_id, ())) if log else ()

    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it exists."""
        self._opened()
        log = self._shared.logs.get(task_id)
        if log is not None:
            self._index.set_pushes(log, _without(log.pushes, push_id))
            log.attempts = _without(log.attempts, push_id)

    async def claim_pushes(self, agent: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Claim active webhooks without a lease owner."""
        self._opened()
        found: list[tuple[str, bool]] = []
        for _, task_id in [*islice(self._index.free_pushes(agent).rising(), limit)]:
            log = self._shared.logs[task_id]
            free = [push for push in _active_in(log) if not push.lease_owner]
            claimed = {push.id: replace(push, lease_owner=self._replica) for push in free}
            self._index.set_pushes(log, {**log.pushes, **claimed})
            found.append((task_id, any([push.cursor < log.head.seq for push in free])))
        return found

    async def active_pushes(self, agents: Sequence[str], after: int, limit: int) -> ActivePushes:
        """Return whether an active webhook is unclaimed, and a page of this replica's."""
        self._opened()
        index = self._index
        held = (
            (number, task_id, push.revision)
            for number, task_id in index.held_pushes(self._replica).rising((after + 1,))
            for push in _active_in(self._shared.logs[task_id])
            if push.lease_owner == self._replica
        )
        found = [*islice(held, limit)]
        has_unclaimed = any([index.free_pushes(agent) for agent in agents])
        return active_of(has_unclaimed, found, limit)

    def _expire_pushes(self, owner: str) -> None:
        """Expire an owner's leases of active webhooks."""
        for _, task_id in [*self._index.held_pushes(owner).rising()]:
            log = self._shared.logs[task_id]
            held = [push for push in _active_in(log) if push.lease_owner == owner]
            expired = {push.id: replace(push, lease_owner="") for push in held}
            self._index.set_pushes(log, {**log.pushes, **expired})


def _active_in(log: MemoryLog) -> list[PushRecord]:
    """Return the active webhooks of a task."""
    return [push for push in log.pushes.values() if push.state is PushState.ACTIVE]


def _without(values: Mapping[str, T], name: str) -> Mapping[str, T]:
    return {each: value for each, value in values.items() if each != name}
