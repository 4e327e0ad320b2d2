"""Webhooks in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from parley.store.head import unknown
from parley.store.memory.log import MemoryLog
from parley.store.memory.logs import MemoryLogs
from parley.store.protocols.webhooks import (
    ATTEMPTS_KEPT,
    ActivePushes,
    DeliveryAttempt,
    PushRecord,
    PushState,
)
from parley.store.pushes import active_of, merge

T = TypeVar("T")


class MemoryWebhooks(ABC):
    """The part of a memory store that keeps push notification configurations."""

    _shared: MemoryLogs
    _replica: str

    @abstractmethod
    def _opened(self) -> object:
        """Raise ``StoreUnavailable`` unless the store is open."""

    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        """Store a push notification configuration of a task; return it as stored."""
        self._opened()
        log = self._shared.logs.get(task_id)
        if log is None:
            raise unknown(task_id)
        after = log.head.seq
        pushes = merge((push,), log.pushes, log.head, after=after, replica=self._replica)
        self._shared.index.set_pushes(log, pushes)
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
        self._shared.index.set_pushes(log, {**log.pushes, push.id: saved})
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
            self._shared.index.set_pushes(log, _without(log.pushes, push_id))
            log.attempts = _without(log.attempts, push_id)

    async def claim_pushes(self, agent: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Claim active webhooks without a lease owner."""
        self._opened()
        found: list[tuple[str, bool]] = []
        for _, task_id in [*islice(self._shared.index.free_pushes(agent).rising(), limit)]:
            log = self._shared.logs[task_id]
            free = [push for push in active_in(log) if not push.lease_owner]
            claimed = {push.id: replace(push, lease_owner=self._replica) for push in free}
            self._shared.index.set_pushes(log, {**log.pushes, **claimed})
            found.append((task_id, any([push.cursor < log.head.seq for push in free])))
        return found

    async def active_pushes(self, agents: Sequence[str], after: int, limit: int) -> ActivePushes:
        """Return whether some active webhook is unclaimed, and a page of this replica's."""
        self._opened()
        index = self._shared.index
        held = (
            (number, task_id, push.revision)
            for number, task_id in index.held_pushes(self._replica).rising((after + 1,))
            for push in active_in(self._shared.logs[task_id])
            if push.lease_owner == self._replica
        )
        found = [*islice(held, limit)]
        has_unclaimed = any([index.free_pushes(agent) for agent in agents])
        return active_of(has_unclaimed, found, limit)

    def _expire_pushes(self, owner: str) -> None:
        """Expire an owner's leases of active webhooks."""
        for _, task_id in [*self._shared.index.held_pushes(owner).rising()]:
            log = self._shared.logs[task_id]
            held = [push for push in active_in(log) if push.lease_owner == owner]
            expired = {push.id: replace(push, lease_owner="") for push in held}
            self._shared.index.set_pushes(log, {**log.pushes, **expired})


def active_in(log: MemoryLog) -> list[PushRecord]:
    """Return the active webhooks of a task."""
    return [push for push in log.pushes.values() if push.state is PushState.ACTIVE]


def _without(values: Mapping[str, T], name: str) -> Mapping[str, T]:
    return {each: value for each, value in values.items() if each != name}
