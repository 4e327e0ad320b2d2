"""Where the tasks of a memory store are found: by status, queue, lease, or what they wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from parley.store.head import Head
from parley.store.memory.listed import ScopeTasks
from parley.store.memory.log import NONE, MemoryLog
from parley.store.memory.order import SortedBlocks
from parley.store.protocols.scope import Scope
from parley.store.protocols.task_lists import TaskQuery
from parley.store.protocols.webhooks import PushRecord, PushState

MOVED_AT_MOST = 256
"""So many tasks may wait to be filed. It bounds what a query does for the appends before it."""


class TaskStanding(Enum):
    """What a task waits for. The value says by what those that wait are ordered."""

    UNCLAIMED = "queue key"
    ASLEEP = "time to wake up"
    AWAITING_INPUT = "time of the status"
    ENDED = "time of the end"
    UNDER_WAY = "nothing"

    __hash__ = object.__hash__  # an enum's own is slow


class TaskIndex:
    """The orders in which a store finds its tasks.

    An append only notes that a task moved. Whoever asks first files the tasks that did, by what
    their heads say then; so one that came, worked and ended in between is filed once. The answers
    are those of a scan of all heads, because nothing is answered before all is filed.

    A *place* is a tuple that ends with the task's number and id.
    """

    def __init__(self, logs: Mapping[str, MemoryLog]) -> None:
        self._logs = logs
        self._number = 0
        self._moved: dict[MemoryLog, None] = {}
        self._scopes: dict[Scope, ScopeTasks] = {}
        self._places: dict[TaskStanding, dict[str, SortedBlocks]] = {
            standing: {} for standing in TaskStanding
        }
        self._leased: dict[str, dict[MemoryLog, None]] = {}
        self._waiting: dict[tuple[str, str], dict[MemoryLog, None]] = {}
        self._held_pushes: dict[str, SortedBlocks] = {}
        self._free_pushes: dict[str, SortedBlocks] = {}

    def moved(self, log: MemoryLog) -> None:
        """Note that a task is new, or has another head."""
        self._moved[log] = None
        if len(self._moved) > MOVED_AT_MOST:
            self._file()

    def find(self, query: TaskQuery) -> tuple[int, Iterator[MemoryLog]]:
        """Return how many tasks match, and those after ``query.before``, in the order of lists."""
        self._file()
        tasks = self._scopes.get(query.scope)
        return (0, iter(())) if tasks is None else tasks.find(query, self._logs)

    def has_tasks(self, scope: Scope, context_id: str) -> bool:
        """Return whether a context has tasks."""
        self._file()
        tasks = self._scopes.get(scope)
        return tasks is not None and tasks.has_context(context_id)

    def places(self, standing: TaskStanding) -> Mapping[str, SortedBlocks]:
        """Return the places of the tasks that wait for something, by agent."""
        self._file()
        return self._places[standing]

    def places_of(self, agent: str, standing: TaskStanding) -> SortedBlocks:
        """Return the places of an agent's tasks that wait for something."""
        return self.places(standing).get(agent) or SortedBlocks()

    def lease_owners(self) -> Sequence[str]:
        """Return the owners of the leases of tasks."""
        self._file()
        return [*self._leased]

    def leased_by(self, owner: str) -> Collection[MemoryLog]:
        """Return the tasks whose lease an owner has."""
        self._file()
        return self._leased.get(owner, {}).keys()

    def waiting_for(self, agent: str, key: str) -> Collection[MemoryLog]:
        """Return the tasks that waited for an event when they last fell asleep."""
        return self._waiting.get((agent, key), {}).keys()

    def wait_for(self, log: MemoryLog, keys: Sequence[str]) -> None:
        """Note for which events a task waits, instead of those before."""
        agent = log.head.scope.agent
        for key in log.waits_for:
            waiting = self._waiting[agent, key]
            del waiting[log]
            if not waiting:
                del self._waiting[agent, key]
        log.waits_for = tuple(dict.fromkeys(keys))
        for key in log.waits_for:
            self._waiting.setdefault((agent, key), {})[log] = None

    def push_owners(self) -> Sequence[str]:
        """Return the lease owners of active webhooks."""
        return [*self._held_pushes]

    def held_pushes(self, owner: str) -> SortedBlocks:
        """Return the places of the tasks with active webhooks of a lease owner."""
        return self._held_pushes.get(owner) or SortedBlocks()

    def free_pushes(self, agent: str) -> SortedBlocks:
        """Return the places of an agent's tasks with active webhooks without a lease owner."""
        return self._free_pushes.get(agent) or SortedBlocks()

    def set_pushes(self, log: MemoryLog, pushes: Mapping[str, PushRecord]) -> None:
        """Give a task other webhooks, and file it by the lease owners of those that are active."""
        self._file()  # so that the task has its number
        log.pushes = pushes
        active = [push for push in pushes.values() if push.state is PushState.ACTIVE]
        owners = frozenset([push.lease_owner for push in active])
        place = (log.number, log.head.task_id)
        for owner in log.push_owners ^ owners:
            orders = self._held_pushes if owner else self._free_pushes
            name = owner or log.head.scope.agent
            if owner in owners:
                _add(orders, name, place)
            else:
                _remove(orders, name, place)
        log.push_owners = owners

    def remove(self, log: MemoryLog) -> None:
        """Forget a task."""
        self.set_pushes(log, NONE)
        self.wait_for(log, ())
        self._leave_lists(log)
        self._leave_place(log, log.filed)
        self._leave_lease(log, log.filed.lease_owner)

    def _file(self) -> None:
        """File the tasks that moved."""
        if not self._moved:
            return
        moved, self._moved = self._moved, {}
        for log in moved:
            before, after = log.filed, log.head
            log.filed = after
            if not log.number:
                self._number += 1
                log.number = self._number
                self._enter_lists(log)
                self._enter_place(log, after)
                self._enter_lease(log, after.lease_owner)
            elif before is not after:
                if before.status_at != after.status_at or before.state is not after.state:
                    self._scopes[after.scope].move(before, after)
                if _standing(before) != _standing(after):
                    self._leave_place(log, before)
                    self._enter_place(log, after)
                if before.lease_owner != after.lease_owner:
                    self._leave_lease(log, before.lease_owner)
                    self._enter_lease(log, after.lease_owner)

    def _enter_lists(self, log: MemoryLog) -> None:
        tasks = self._scopes.get(log.filed.scope)
        if tasks is None:
            tasks = self._scopes[log.filed.scope] = ScopeTasks()
        tasks.add(log)

    def _leave_lists(self, log: MemoryLog) -> None:
        tasks = self._scopes[log.filed.scope]
        tasks.remove(log)
        if not tasks:
            del self._scopes[log.filed.scope]

    def _enter_place(self, log: MemoryLog, head: Head) -> None:
        standing, by = _standing(head)
        if standing is not TaskStanding.UNDER_WAY:
            _add(self._places[standing], head.scope.agent, (by, log.number, head.task_id))

    def _leave_place(self, log: MemoryLog, head: Head) -> None:
        standing, by = _standing(head)
        if standing is not TaskStanding.UNDER_WAY:
            _remove(self._places[standing], head.scope.agent, (by, log.number, head.task_id))

    def _enter_lease(self, log: MemoryLog, owner: str) -> None:
        if owner:
            self._leased.setdefault(owner, {})[log] = None

    def _leave_lease(self, log: MemoryLog, owner: str) -> None:
        if owner:
            del self._leased[owner][log]
            if not self._leased[owner]:
                del self._leased[owner]


def _standing(head: Head) -> tuple[TaskStanding, int]:
    """Return what a task waits for, and what orders it among those that wait for the same."""
    if head.ended_at is not None:
        return TaskStanding.ENDED, head.ended_at
    if head.wakes_at is not None:
        return TaskStanding.ASLEEP, head.wakes_at
    if not head.is_unfinished:
        return TaskStanding.AWAITING_INPUT, head.status_at
    if head.lease_owner:
        return TaskStanding.UNDER_WAY, 0
    return TaskStanding.UNCLAIMED, head.queue_key


def _add(orders: dict[str, SortedBlocks], name: str, place: Any) -> None:
    order = orders.get(name)
    if order is None:
        order = orders[name] = SortedBlocks()
    order.add(place)


def _remove(orders: dict[str, SortedBlocks], name: str, place: Any) -> None:
    orders[name].remove(place)
    if not orders[name]:
        del orders[name]
