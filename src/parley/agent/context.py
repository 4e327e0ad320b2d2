"""The state and the history of a context, for one caller (specification §3.4.1)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from parley.engine.serialization import kept, read
from parley.engine.turn.attempt import AttemptRunner
from parley.model.ids import RIGHT_ID, may_be_id
from parley.model.parts import Message
from parley.model.tasks import Task
from parley.store.events import Scope
from parley.store.protocols.task_log import TaskQuery

R = TypeVar("R")

ValueName = tuple[Scope, str, str]
"""The scope, the context and the key of a value."""

Apply = Callable[[Callable[[Any], Any], Any], Awaitable[Any]]
"""Calls a function with a value, in the author's thread."""


class AgentContexts:
    """The contexts of one agent. Its turns in this process update a value one after another."""

    def __init__(self, *, keep_history: bool) -> None:
        self.keeps_history = keep_history
        self._locks: WeakValueDictionary[ValueName, asyncio.Lock] = WeakValueDictionary()

    def of(self, runner: AttemptRunner) -> AgentContext:
        """Return the context of the runner's task."""
        return AgentContext(runner, keep_history=self.keeps_history, updating=self._locks)


class AgentContext:
    """The state and history of one context. Callers with the same context id share nothing."""

    def __init__(
        self,
        runner: AttemptRunner,
        *,
        keep_history: bool,
        updating: MutableMapping[ValueName, asyncio.Lock],
    ) -> None:
        self._store = runner.store
        self._scope = runner.scope
        self._context_id = runner.context_id
        self._keep_history = keep_history
        self._updating = updating

    async def history(self, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages, the oldest first."""
        if not self._keep_history:
            raise RuntimeError(
                "this agent keeps no history of its contexts; make it with "
                "Agent(..., keep_history=True)"
            )
        return await self._store.history(self._scope, self._context_id, limit)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``."""
        _check_key(key)
        value = await self._store.get_value(self._scope, self._context_id, key)
        return default if value is None else read(value)

    async def set(self, key: str, value: Any) -> None:
        """Set the value of ``key``; ``None`` removes it."""
        _check_key(key)
        data = None if value is None else kept(value, what=f"what is remembered as {key!r}")
        await self._store.set_value(self._scope, self._context_id, key, data)

    async def update(
        self,
        key: str,
        function: Callable[[Any], R],
        default: Any = None,
        *,
        apply: Apply | None = None,
    ) -> R:
        """Set the value of ``key`` to the result of ``function``, atomically, and return it.

        ``apply`` calls the function, if it may not run on the event loop.
        """
        _check_key(key)
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{_plain(key)}, not a coroutine function")
        first = None if default is None else kept(default, what=f"the default of {key!r}")
        lock = self._updating.setdefault((self._scope, self._context_id, key), asyncio.Lock())
        # A lock orders the turns of this process; other replicas are met optimistically.
        async with lock:
            while True:
                found = await self._store.get_value(self._scope, self._context_id, key)
                known = first if found is None else found
                value = None if known is None else read(known)
                result: R = function(value) if apply is None else await apply(function, value)
                if inspect.isawaitable(result):
                    if inspect.iscoroutine(result):
                        result.close()
                    raise TypeError(f"{_plain(key)}: it returned something to be awaited")
                if result is None and known is not None and value != read(known):
                    raise TypeError(
                        f"the function that updates {key!r} changed the value in place and "
                        "returned None, which would remove it; return the value"
                    )
                what = f"what is remembered as {key!r}"
                data = None if result is None else kept(result, what=what)
                if await self._store.compare_and_set(
                    self._scope, self._context_id, key, found, data
                ):
                    return result

    async def tasks(self, task_ids: Sequence[str]) -> tuple[Task, ...]:
        """Return the tasks among these that the caller owns."""
        ids = [task_id for task_id in task_ids if may_be_id(task_id)]
        records = [await self._store.load(task_id, scope=self._scope) for task_id in ids]
        return tuple(record.task for record in records if record is not None)

    async def others(self, task_id: str, limit: int) -> tuple[Task, ...]:
        """Return the context's tasks except one, the last updated first."""
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


def _plain(key: str) -> str:
    return f"what updates {key!r} is a plain function of the value that returns the new one"


def _check_key(key: str) -> None:
    if not may_be_id(key):
        raise ValueError(f"a key under which a context keeps something has {RIGHT_ID}")
