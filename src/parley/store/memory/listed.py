"""The tasks of a scope or a context, in the order in which they are listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge

from parley.model.tasks import TaskState
from parley.store.head import Head
from parley.store.memory.log import MemoryLog
from parley.store.memory.order import SortedBlocks
from parley.store.protocols.task_lists import TaskQuery

FEW = 64
"""So many tasks need no order: a query looks at all of them."""


class Listed:
    """Tasks that are listed together, as their logs are filed (``MemoryLog.filed``).

    Up to ``FEW`` are kept as they come, because most contexts have one task and it moves often.
    More are kept in ``SortedBlocks``, one for each state, by status time and id, so a page costs
    its own size, and a total is counted in the orders without looking at a task.
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
        """Put a task where its new status belongs."""
        if self._orders is not None:
            self._orders[before.state].remove((before.status_at, before.task_id))
            self._insert(self._orders, after)

    def find(
        self, query: TaskQuery, logs: Mapping[str, MemoryLog]
    ) -> tuple[int, Iterator[MemoryLog]]:
        """Return how many tasks match, and those after ``query.before``, in the order of lists."""
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
        total = sum([order.below(high) - order.below(low) for order in orders])
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
        """Put a task where its new status belongs."""
        self._all.move(before, after)
        self._contexts[after.context_id].move(before, after)

    def find(
        self, query: TaskQuery, logs: Mapping[str, MemoryLog]
    ) -> tuple[int, Iterator[MemoryLog]]:
        """Return how many tasks match, and those after ``query.before``, in the order of lists."""
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
    """Return what all places that match are not below, and what they are below."""
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
