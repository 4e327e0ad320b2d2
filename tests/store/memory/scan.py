"""Results of a memory store, computed slowly from all tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from parley.model.tasks import TaskState
from parley.store.head import Head
from parley.store.memory import MemoryLogs
from parley.store.memory.log import MemoryLog
from parley.store.protocols.task_log import TaskQuery
from parley.store.protocols.webhooks import PushState


class Scan:
    """Scans all data, tasks in the order of their creation."""

    def __init__(self, kept: MemoryLogs) -> None:
        self._kept = kept

    def logs(self, agent: str) -> list[MemoryLog]:
        return [log for log in self._kept.logs.values() if log.head.scope.agent == agent]

    def heads(self, agent: str) -> list[Head]:
        return [log.head for log in self.logs(agent)]

    def list(self, query: TaskQuery) -> tuple[Sequence[str], int, bool]:
        found = [
            (head.status_at, head.task_id)
            for head in self.heads(query.scope.agent)
            if head.scope == query.scope
            and query.context_id in ("", head.context_id)
            and query.state in (TaskState.UNSPECIFIED, head.state)
            and (query.status_after is None or head.status_at >= query.status_after)
            and (query.not_after is None or head.status_at <= query.not_after)
        ]
        rest = [each for each in found if query.before is None or each < query.before]
        page = [task_id for _, task_id in sorted(rest, reverse=True)[: query.limit]]
        return page, len(found), len(rest) > len(page)

    def line(self, agent: str) -> Sequence[tuple[str, int]]:
        """The unclaimed tasks, with their queue keys, the first in the queue first."""
        found = [(h.task_id, h.queue_key) for h in self.heads(agent) if h.is_unclaimed]
        return sorted(found, key=lambda each: each[1])

    def unclaimed(self) -> dict[str, int]:
        heads = [log.head for log in self._kept.logs.values()]
        return dict(Counter([head.scope.agent for head in heads if head.is_unclaimed]))

    def first_queued(self, agent: str) -> int:
        return min([key for _, key in self.line(agent) if key], default=0)

    def held(self, replica: str) -> Sequence[str]:
        heads = [log.head for log in self._kept.logs.values()]
        return [h.task_id for h in heads if h.lease_owner == replica and h.is_unfinished]

    def holds(self, replica: str) -> int:
        return sum([log.head.lease_owner == replica for log in self._kept.logs.values()])

    def asleep(self, agent: str) -> Sequence[tuple[str, int]]:
        """The sleeping tasks, with the times to wake them up, the earliest first."""
        heads = self.heads(agent)
        found = [(head.task_id, head.wakes_at) for head in heads if head.wakes_at is not None]
        return sorted(found, key=lambda each: each[1])

    def awaiting_input(self, agent: str, since: int) -> Sequence[str]:
        heads = [h for h in self.heads(agent) if h.ended_at is None and not h.is_unfinished]
        heads.sort(key=lambda head: head.status_at)
        return [head.task_id for head in heads if head.status_at < since]

    def free_pushes(self, agent: str) -> Sequence[tuple[str, bool]]:
        """The tasks with active webhooks without a lease, and whether notifications are due."""
        found = []
        for log in self.logs(agent):
            free = [
                push
                for push in log.pushes.values()
                if push.state is PushState.ACTIVE and not push.lease_owner
            ]
            if free:
                news = any([push.cursor < log.head.seq for push in free])
                found.append((log.head.task_id, news))
        return found

    def held_pushes(self, replica: str) -> Sequence[tuple[str, str]]:
        return [
            (task_id, push.revision)
            for task_id, log in self._kept.logs.items()
            for push in log.pushes.values()
            if push.state is PushState.ACTIVE and push.lease_owner == replica
        ]

    def pruned(self, agent: str, before: int, limit: int) -> tuple[set[str], set[object]]:
        """The tasks that a prune removes, and the rest: receipts, events and contexts."""
        ended = [h for h in self.heads(agent) if h.ended_at is not None and h.ended_at < before]
        ended.sort(key=lambda head: head.ended_at or 0)
        gone = {head.task_id for head in ended[:limit]}
        left = [log for log in self._kept.logs.values() if log.head.task_id not in gone]
        used = {(log.head.scope, log.head.context_id) for log in left}
        waited = {(log.head.scope.agent, key) for log in left for key in log.waits_for}
        kept: set[object] = {
            ("context", *name)
            for name, context in self._kept.contexts.items()
            if name[0].agent != agent or context.touched_at >= before or name in used
        }
        kept |= {
            ("event", *name)
            for name, event in self._kept.events.items()
            if name[0] != agent or event.at >= before or name in waited
        }
        return gone, kept
