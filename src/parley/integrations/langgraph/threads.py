"""The place of a task in its context's thread, and the merge of tasks that ran side by side."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import RESUME
from langgraph.graph import END
from langgraph.types import Interrupt, Overwrite, StateUpdate

from parley.agent.turn import Turn
from parley.integrations.conversations import TaskValue, merged_value, thread_id
from parley.integrations.langgraph.checkpoints import TASK, ContextCheckpoints

BASE = "parley_base"
"""The metadata of checkpoints that names the newest checkpoint of other tasks they include."""

NOTHING = "00000000-0000-0000-0000-000000000000"
"""The id of a checkpoint that there is not: from there a task begins with an empty state."""

LISTED = 32
"""The most checkpoints of a thread that are read at a time."""

Snapshot = Any
"""LangGraph's ``StateSnapshot``."""


class GraphThread:
    """The thread of a turn's context, and the place of the turn's task in it.

    The thread is named like the context, for its owner alone. Checkpoints say which task made them,
    so each task continues from its own newest checkpoint, also when another task of the same
    context has continued in the thread meanwhile. A task begins from the newest checkpoint of a
    task that has ended, so it has nothing of others that wait or were canceled; when it has ended,
    its changes are put on top of the states in which other tasks have ended meanwhile.
    """

    def __init__(self, graph: Any, turn: Turn, config: Mapping[str, Any]) -> None:
        self.graph = graph
        self.name = thread_id(turn)
        self._task_id = turn.task_id
        self._config = dict(config)
        self._base = ""
        self._beginning = TaskValue(turn, "langgraph:beginning")

    def config(self, at: Snapshot | None = None, **metadata: Any) -> dict[str, Any]:
        """Return the configuration of a run: of the thread, or from a checkpoint of the thread."""
        return self._config_at("" if at is None else _id_of(at), **metadata)

    def _config_at(self, checkpoint_id: str, **metadata: Any) -> dict[str, Any]:
        configurable = {**self._config.get("configurable", {}), "thread_id": self.name}
        if checkpoint_id:
            configurable["checkpoint_ns"] = ""
            configurable["checkpoint_id"] = checkpoint_id
        known = {TASK: self._task_id, BASE: self._base, **metadata}
        metadata = {**self._config.get("metadata", {}), **known}
        return {**self._config, "configurable": configurable, "metadata": metadata}

    async def beginning(self) -> dict[str, Any]:
        """Return the configuration of the first run of a task."""
        head = await self.graph.aget_state(self._where)
        if head.metadata is None or not head.next:
            self._base = NOTHING if head.metadata is None else _id_of(head)
            return self.config()
        found = await self._ended()
        self._base = NOTHING if found is None else _id_of(found)
        return self._config_at(self._base)

    async def _ended(self) -> Snapshot | None:
        """Return the newest state with which another task of the thread has ended.

        Savers keep their lock while they list, so nothing else is asked of them meanwhile.
        """
        tasks = {self._task_id}
        where = {"configurable": {**self._where["configurable"], "checkpoint_ns": ""}}
        saver, before, limit = self.graph.checkpointer, None, 2  # each has the whole state
        while page := [each async for each in saver.alist(where, before=before, limit=limit)]:
            for saved in page:
                task = saved.metadata.get(TASK, "")
                if task not in tasks:
                    tasks.add(task)
                    state = await self.graph.aget_state(saved.config)
                    if not state.next:
                        return state
            before, limit = page[-1].config, min(2 * limit, LISTED)
        return None

    async def end(self, state: Snapshot) -> None:
        """Put the changes of the task on top of the states of other tasks that ended since."""
        if getattr(self.graph, "builder", None) is None:
            return
        other = await self._ended()
        if other is not None and _id_of(other) > self._base:
            before = await self._values_before()
            update = last_update(self.graph, other.values, before, state.values)
            self._base = _id_of(other)  # it has what this one has, and more
            await self.graph.abulk_update_state(self.config(other), update)

    async def wait(self) -> None:
        """Keep the state from which the task began: others may end meanwhile, and push it out."""
        saver = self.graph.checkpointer
        if not isinstance(saver, ContextCheckpoints) or self._base in ("", NOTHING):
            return
        if await self._beginning.read() is None:
            values = saver.written(await self._values_before())
            await self._beginning.write({"base": self._base, "values": values})

    async def _values_before(self) -> dict[str, Any]:
        """Return the state from which the task began."""
        saver = self.graph.checkpointer
        if self._base in ("", NOTHING):
            return {}
        if isinstance(saver, ContextCheckpoints):
            kept = await self._beginning.read()
            if kept is not None and kept["base"] == self._base:
                return dict(saver.read(kept["values"]))
        found = await self.graph.aget_state(self._config_at(self._base))
        return dict(found.values or {})

    async def take_back_answers(self, state: Snapshot) -> None:
        """Forget the answers with which nodes have failed: the nodes are given them again."""
        saver = self.graph.checkpointer
        for node, config in await self.failed(state):
            saved = await saver.aget_tuple(config)
            space = config["configurable"]["checkpoint_ns"]
            name = f"{space}|{node.name}:{node.id}" if space else f"{node.name}:{node.id}"
            for task, channel, answers in () if saved is None else saved.pending_writes:
                if task == node.id and channel == RESUME:
                    names = [name, *(f"{name}|{n}" for n in range(1, len(answers)))]
                    ids = [Interrupt.from_ns(None, each).id for each in names]
                    asked = [ids.index(each.id) for each in node.interrupts if each.id in ids]
                    if asked:
                        writes = [(RESUME, answers[: min(asked)])]
                        await saver.aput_writes(config, writes, node.id)

    async def failed(self, state: Snapshot) -> list[tuple[Any, dict[str, Any]]]:
        """Return the nodes that have failed, in subgraphs too, and where their checkpoints are."""
        if not any(each.error for each in state.tasks):
            return []
        return _failed(await self.graph.aget_state(state.config, subgraphs=True))

    @property
    def _where(self) -> dict[str, Any]:
        return {"configurable": self.config()["configurable"]}

    async def place(self) -> tuple[Snapshot | None, bool]:
        """Return the newest state of this task, and whether it is the thread's newest state too.

        There is none before the task's message was given to the graph, and after checkpoints were
        lost.
        """
        head = await self.graph.aget_state(self._where, subgraphs=True)
        if (head.metadata or {}).get(TASK) == self._task_id:
            self._base = head.metadata.get(BASE, "")
            return head, True
        if head.metadata is None:
            return None, True
        history = self.graph.aget_state_history(self._where, filter={TASK: self._task_id}, limit=1)
        found = [each async for each in history]
        if not found:
            return None, True
        self._base = found[0].metadata.get(BASE, "")
        return found[0], False


def _failed(state: Snapshot) -> list[tuple[Any, dict[str, Any]]]:
    found = []
    for each in state.tasks:
        within = _failed(each.state) if hasattr(each.state, "tasks") else []
        found += within or ([(each, state.config)] if each.error else [])
    return found


def _id_of(state: Snapshot) -> str:
    return str(state.config["configurable"]["checkpoint_id"])


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


def last_update(
    graph: Any, now: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[list[StateUpdate]]:
    """Return the updates that make of a thread's state what it is with the changes of a task.

    ``now`` is the state of the thread, ``before`` and ``after`` that of the task. After it nothing
    of the graph is to run.
    """
    values: dict[str, Any] = {}
    for name, value in after.items():
        if name in before and _same(value, before[name]):
            continue
        channel = graph.channels.get(name)
        if name in now:
            value = _merged(channel, now[name], before.get(name), value)
        reduces = hasattr(channel, "operator") or type(channel).__name__ == "DeltaChannel"
        values[name] = Overwrite(value) if reduces else value
    return [[StateUpdate(values, _quiet_node(graph))], [StateUpdate(None, END)]]


def _merged(channel: Any, now: Any, before: Any, after: Any) -> Any:
    if _are_messages(now) and _are_messages(after):
        return _merged_messages(now, before or [], after)
    sums = getattr(channel, "operator", None) is operator.add
    if sums and isinstance(after, int | float) and isinstance(now, int | float):
        return now + after - (before or 0)
    return merged_value(now, before, after)


def _merged_messages(now: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    """Return messages without those that the task removed, with those that it changed or added."""
    then, newest = ({each.id: each for each in some} for some in (before, after))
    known = {each.id for each in now}
    changed = {id: each for id, each in newest.items() if each != then.get(id)}
    kept = [changed.get(each.id, each) for each in now if each.id not in then or each.id in newest]
    return [*kept, *(each for each in after if each.id in changed and each.id not in known)]


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (ValueError, TypeError, RuntimeError):  # arrays compare their members
        return one is other


def _quiet_node(graph: Any) -> str:
    """Return a node after which nothing is decided, if there is one."""
    names = list(graph.builder.nodes)
    quiet = [each for each in names if not graph.builder.branches.get(each)]
    return str((quiet or names)[0])
