"""What an agent remembers of a context, for one caller (specification §3.4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from parley.agent.kept import kept, read
from parley.log.store import Scope, TaskQuery, TaskStore
from parley.model.ids import RIGHT_ID, may_be_id
from parley.model.parts import Message
from parley.model.tasks import Task


class AgentContext:
    """State and history of one context. Another caller's context of the same id is another one."""

    def __init__(
        self, store: TaskStore, scope: Scope, context_id: str, *, keeps_history: bool
    ) -> None:
        self._store = store
        self._scope = scope
        self._context_id = context_id
        self._keeps_history = keeps_history

    async def history(self, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages, the oldest first."""
        if not self._keeps_history:
            raise RuntimeError(
                "this agent keeps no history of its contexts; make it with "
                "Agent(..., keeps_history=True)"
            )
        return await self._store.history(self._scope, self._context_id, limit)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value kept under ``key``."""
        _check_key(key)
        value = await self._store.get_value(self._scope, self._context_id, key)
        return default if value is None else read(value)

    async def set(self, key: str, value: Any) -> None:
        """Keep ``value`` under ``key``; ``None`` removes it."""
        _check_key(key)
        data = None if value is None else kept(value, what=f"what is remembered as {key!r}")
        await self._store.set_value(self._scope, self._context_id, key, data)

    async def tasks(self, task_ids: Sequence[str]) -> tuple[Task, ...]:
        """Return those of the tasks that the caller owns."""
        ids = [task_id for task_id in task_ids if may_be_id(task_id)]
        records = [await self._store.load(task_id, scope=self._scope) for task_id in ids]
        return tuple(record.task for record in records if record is not None)

    async def others(self, task_id: str, limit: int) -> tuple[Task, ...]:
        """Return the context's tasks but one, the last updated first."""
        found: list[Task] = []
        query = TaskQuery(
            scope=self._scope, context_id=self._context_id, limit=limit + 1, artifacts=True
        )
        while len(found) < limit:
            page = await self._store.list(query)
            found += [task for task in page.tasks if task.id != task_id]
            if not page.more:
                break
            last = page.tasks[-1]
            assert last.status.timestamp is not None
            query = replace(query, before=(last.status.timestamp.milliseconds, last.id))
        return tuple(found[:limit])


def _check_key(key: str) -> None:
    if not may_be_id(key):
        raise ValueError(f"a key under which a context keeps something has {RIGHT_ID}")
