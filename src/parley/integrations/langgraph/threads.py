"""Where a task stands in the thread of its context."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from parley.agent.turn import Turn
from parley.integrations.langgraph.checkpoints import TASK
from parley.integrations.threads import thread_id

Snapshot = Any
"""LangGraph's ``StateSnapshot``."""


class ThreadLocks:
    """Lets the turns of one thread run one after another in this process."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, name: str) -> asyncio.Lock:
        """Return the lock of a thread."""
        return self._locks.setdefault(name, asyncio.Lock())


class GraphThread:
    """The thread of a turn's context, and the place of the turn's task in it.

    The thread is named like the context, for its owner alone. Checkpoints say which task made them,
    so each task goes on from its own newest one, also when another task of the same context has
    gone on in the thread meanwhile.
    """

    def __init__(self, graph: Any, turn: Turn, config: Mapping[str, Any]) -> None:
        self.graph = graph
        self.name = thread_id(turn)
        self._task_id = turn.task_id
        self._config = dict(config)

    def config(self, at: Snapshot | None = None) -> dict[str, Any]:
        """Return the configuration of a run: of the thread, or from one of its checkpoints."""
        configurable = {**self._config.get("configurable", {}), "thread_id": self.name}
        if at is not None:
            configurable["checkpoint_ns"] = ""
            configurable["checkpoint_id"] = at.config["configurable"]["checkpoint_id"]
        metadata = {**self._config.get("metadata", {}), TASK: self._task_id}
        return {**self._config, "configurable": configurable, "metadata": metadata}

    async def place(self) -> tuple[Snapshot | None, bool]:
        """Return the newest state of this task, and whether it is that of the thread too.

        There is none before the task's message was given to the graph, and after checkpoints were
        lost.
        """
        where = {"configurable": self.config()["configurable"]}
        head = await self.graph.aget_state(where, subgraphs=True)
        if (head.metadata or {}).get(TASK) == self._task_id:
            return head, True
        if head.metadata is None:
            return None, True
        async for found in self.graph.aget_state_history(
            where, filter={TASK: self._task_id}, limit=1
        ):
            return found, False
        return None, True


def is_at_breakpoint(graph: Any, state: Snapshot) -> list[str]:
    """Return the nodes before which a graph waits at a breakpoint, its subgraphs' first."""
    names: list[str] = []
    for task in state.tasks:
        if hasattr(task.state, "tasks"):
            names += is_at_breakpoint(_subgraph(graph, task.name), task.state)
    if names or not state.next:
        return names
    before = getattr(graph, "interrupt_before_nodes", ())
    after = getattr(graph, "interrupt_after_nodes", ())
    waits = before == "*" or after or any(name in before for name in state.next)
    return list(state.next) if waits else []


def _subgraph(graph: Any, name: str) -> Any:
    return next((each for at, each in graph.get_subgraphs() if at == name), None)
