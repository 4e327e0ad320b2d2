"""The orders in which a memory store finds tasks: by status, queue, lease, events, webhooks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from heapq import merge
from operator import itemgetter
from typing import Any

from parley.model.tasks import TaskState
from parley.store.events import Scope
from parley.store.head import Head
from parley.store.memory.log import NONE, MemoryLog
from parley.store.protocols.task_log import TaskQuery
from parley.store.protocols.webhooks import PushRecord, PushState

BLOCK = 1000
"""The maximum number of values in a block."""

FEW = 64
"""Up to this number of tasks, a query scans all of them without an order."""

MAX_MOVED = 256
"""The maximum number of unfiled tasks, which bounds the work that appends leave to a query."""

_first = itemgetter(0)


class SortedBlocks:
    """A sorted collection of distinct tuples, in blocks.

    A block is a sorted list, and blocks are in order too, so that no list is long. A *bound* is a
    tuple that may be shorter: ``(7,)`` is below ``(7, "a")``. Most values are added near the end,
    because times grow; then adding is an append to the last block.
    """

    __slots__ = ("_blocks", "_size")

    def __init__(self) -> None:
        self._blocks: list[list[Any]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, value: Any) -> None:
        """Add a new value."""
        blocks = self._blocks
        self._size += 1
        if not blocks:
            blocks.append([value])
            return
        at = self._block_of(value)
        block = blocks[at]
        if block[-1] < value:
            block.append(value)
        else:
            insort(block, value)
        if len(block) > BLOCK:
            # A block that grows at its end stays full; a block that grows inside is halved.
            keep = BLOCK if block[-1] is value else BLOCK // 2
            blocks.insert(at + 1, block[keep:])
            del block[keep:]

    def remove(self, value: Any) -> None:
        """Remove a value. Raises ``KeyError`` for a missing one."""
        at = self._block_of(value)
        block = self._blocks[at] if self._blocks else []
        n = bisect_left(block, value)
        if n == len(block) or block[n] != value:
            raise KeyError(value)
        del block[n]
        self._size -= 1
        if not block:
            del self._blocks[at]

    def below(self, bound: Any) -> int:
        """Return the number of values below a bound. Costs a step for each block below it."""
        at = bisect_left(self._blocks, bound, key=_first) - 1
        if at < 0:
            return 0
        return sum(map(len, self._blocks[:at])) + bisect_left(self._blocks[at], bound)

    def rising(self, bound: Any = ()) -> Iterator[Any]:
        """Yield the values from a bound on, the lowest first."""
        at = self._block_of(bound)
        for n in range(at, len(self._blocks)):
            block = self._blocks[n]
            for m in range(bisect_left(block, bound) if n == at else 0, len(block)):
                yield block[m]

    def falling(self, bound: Any | None = None) -> Iterator[Any]:
        """Yield the values below a bound, or all, the highest first."""
        at = len(self._blocks) - 1 if bound is None else self._block_of(bound)
        for n in range(min(at, len(self._blocks) - 1), -1, -1):
            block = self._blocks[n]
            end = len(block) if bound is None or n < at else bisect_left(block, bound)
            for m in range(end - 1, -1, -1):
                yield block[m]

    def _block_of(self, value: Any) -> int:
        """Return the number of the block for a value."""
        blocks = self._blocks
        if blocks and blocks[-1][0] <= value:
            return len(blocks) - 1
        return max(0, bisect_right(blocks, value, key=_first) - 1)


class Listed:
    """Tasks in one list, by their filed heads (``MemoryLog.filed``).

    Up to ``FEW`` are unordered, because most contexts have one task that moves often. More are in
    ``SortedBlocks``, one for each state, by status time and id, so a page costs its own size, and a
    total is counted in the orders without looking at a task.
    """

    __slots__ = ("_few", "_orders")

    def __init__(self) -> None:
        self._few: list[MemoryLog] = []
        self._orders: dict[TaskState, SortedBlocks] | None = None

    def __bool__(self) -> bool:
        return bool(self._few) if self._orders is None else any(self._orders.values())

    def add(self, log: MemoryLog) -> None:
        """Add a task."""
        if self._orders is not None:
            self._insert(self._orders, log.filed)
            return
        self._few.append(log)
        if len(self._few) > FEW:
            self._orders = {}
            for each in self._few:
                self._insert(self._orders, each.filed)
            self._few = []

    def remove(self, log: MemoryLog) -> None:
        """Remove a task."""
        if self._orders is None:
            self._few.remove(log)
        else:
            self._orders[log.filed.state].remove((log.filed.status_at, log.filed.task_id))

    def move(self, before: Head, after: Head) -> None:
        """Move a task to the position of its new status."""
        if self._orders is not None:
            self._orders[before.state].remove((before.status_at, before.task_id))
            self._insert(self._orders, after)

    def find(
        self, query: TaskQuery, logs: Mapping[str, MemoryLog]
    ) -> tuple[int, Iterator[MemoryLog]]:
        """Return the number of matching tasks, and those after ``query.before``, in list order."""
        if self._orders is None:
            found = [log for log in self._few if _matches(log.filed, query)]
            found.sort(key=_place, reverse=True)
            before = query.before
            return len(found), (log for log in found if before is None or _place(log) < before)
        if query.state is TaskState.UNSPECIFIED:
            orders = list(self._orders.values())
        else:
            orders = [self._orders[query.state]] if query.state in self._orders else []
        low, high = _bounds(query)
        total = sum([max(0, order.below(high) - order.below(low)) for order in orders])
        start = high if query.before is None else min(high, query.before)
        places = merge(*[order.falling(start) for order in orders], reverse=True)
        return total, _until(low, places, logs)

    def _insert(self, orders: dict[TaskState, SortedBlocks], head: Head) -> None:
        order = orders.get(head.state)
        if order is None:
            order = orders[head.state] = SortedBlocks()
        order.add((head.status_at, head.task_id))


class ScopeTasks:
    """The tasks of a scope, all of them and by context."""

    __slots__ = ("_all", "_contexts")

    def __init__(self) -> None:
        self._all = Listed()
        self._contexts: dict[str, Listed] = {}

    def __bool__(self) -> bool:
        return bool(self._contexts)

    def has_context(self, context_id: str) -> bool:
        """Return whether a context has tasks."""
        return context_id in self._contexts

    def add(self, log: MemoryLog) -> None:
        """Add a task."""
        self._all.add(log)
        context = self._contexts.get(log.filed.context_id)
        if context is None:
            context = self._contexts[log.filed.context_id] = Listed()
        context.add(log)

    def remove(self, log: MemoryLog) -> None:
        """Remove a task."""
        self._all.remove(log)
        context = self._contexts[log.filed.context_id]
        context.remove(log)
        if not context:
            del self._contexts[log.filed.context_id]

    def move(self, before: Head, after: Head) -> None:
        """Move a task to the position of its new status."""
        self._all.move(before, after)
        self._contexts[after.context_id].move(before, after)

    def find(
        self, query: TaskQuery, logs: Mapping[str, MemoryLog]
    ) -> tuple[int, Iterator[MemoryLog]]:
        """Return the number of matching tasks, and those after ``query.before``, in list order."""
        listed = self._contexts.get(query.context_id) if query.context_id else self._all
        return (0, iter(())) if listed is None else listed.find(query, logs)


def _until(
    low: tuple[float, str], places: Iterator[tuple[int, str]], logs: Mapping[str, MemoryLog]
) -> Iterator[MemoryLog]:
    for place in places:
        if place < low:
            return
        yield logs[place[1]]


def _bounds(query: TaskQuery) -> tuple[tuple[float, str], tuple[float, str]]:
    """Return the bounds of all places that match: the lowest, and the end."""
    low = float("-inf") if query.status_after is None else query.status_after
    high = float("inf") if query.not_after is None else query.not_after + 1
    return (low, ""), (high, "")


def _place(log: MemoryLog) -> tuple[int, str]:
    return log.filed.status_at, log.filed.task_id


def _matches(head: Head, query: TaskQuery) -> bool:
    return (
        query.state in (TaskState.UNSPECIFIED, head.state)
        and (query.status_after is None or head.status_at >= query.status_after)
        and (query.not_after is None or head.status_at <= query.not_after)
    )


class TaskStanding(Enum):
    """The event that a task needs next. The value names the order of the tasks waiting for it."""

    UNCLAIMED = "queue key"
    ASLEEP = "time to wake up"
    AWAITING_INPUT = "time of the status"
    ENDED = "time of the end"
    UNDER_WAY = "nothing"

    __hash__ = object.__hash__  # faster than the hash of Enum


class TaskIndex:
    """The orders in which a store finds its tasks.

    An append only records that a task moved. The next query files the moved tasks, by their current
    heads; so a task that was created, worked and ended in between is filed once. The results are
    those of a scan of all heads, because every query files first.

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
        if len(self._moved) > MAX_MOVED:
            self._file()

    def find(self, query: TaskQuery) -> tuple[int, Iterator[MemoryLog]]:
        """Return the number of matching tasks, and those after ``query.before``, in list order."""
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
        """Return the tasks that an owner has leased."""
        self._file()
        return self._leased.get(owner, {}).keys()

    def waiting_for(self, agent: str, key: str) -> Collection[MemoryLog]:
        """Return the tasks that waited for an event when they last fell asleep."""
        return self._waiting.get((agent, key), {}).keys()

    def wait_for(self, log: MemoryLog, keys: Sequence[str]) -> None:
        """Set the events for which a task waits, replacing earlier ones."""
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
        """Set the webhooks of a task, and file it by the lease owners of the active ones."""
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
    """Return the event that a task waits for, and its order among tasks waiting for the same."""
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
