"""Checkpoints in the context, the position of a task in its thread, merges of concurrent tasks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import operator
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.types import RESUME
from langgraph.graph import END
from langgraph.types import Interrupt, Overwrite, StateUpdate

from parley.agent.turn import Turn
from parley.integrations.conversations import TaskValue, merged_value, thread_id
from parley.llm.current_turn import current_turn
from parley.llm.model import Json

R = TypeVar("R")

TASK = "parley_task"
"""The metadata of checkpoints that names the task that made them."""

KEPT_TASKS = 20
"""The number of tasks of a thread that keep their newest checkpoint; the oldest are
dropped first.
"""

LARGEST = 32 * 1024 * 1024
"""The size limit of a stored checkpoint, in characters."""

LARGEST_TOGETHER = 2 * LARGEST
"""The size limit of all checkpoints of ended tasks, in characters; the oldest are dropped first."""

Place = tuple[str, str]
"""The namespace and the id of a checkpoint."""

EMPTY: Json = {"index": {}, "keys": []}

Index = dict[str, dict[str, Json]]
"""Facts about checkpoints, by namespace and id: their parent, size, and task."""


def _in_thread(name: str) -> Callable[..., Any]:
    """Return a method that runs an asynchronous method in a thread."""

    def method(self: Any, *given: Any, **options: Any) -> Any:
        return self._wait(getattr(self, name)(*given, **options))

    return method


class ContextCheckpoints(BaseCheckpointSaver[int]):  # type: ignore[misc]
    """Keeps the checkpoints of a graph in the context of the turn that runs it.

    It keeps the newest checkpoint of a task, and of the last ``KEPT_TASKS`` completed tasks, and no
    history: for time travel give the graph another checkpointer. A task sees its own checkpoints
    and the checkpoints of completed tasks; checkpoints of tasks that ended otherwise are removed.
    It raises ``RuntimeError`` outside of a turn, and ``ValueError`` for a state that is too large.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Record the running event loop, on which nodes in threads store their checkpoints."""
        self._loop = asyncio.get_running_loop()

    # -- reading -------------------------------------------------------------------------------

    async def aget_tuple(self, config: Mapping[str, Any]) -> CheckpointTuple | None:
        """Return the checkpoint in ``config``, else the newest of its thread."""
        space = {"checkpoint_ns": _names(config)[1]}
        where = {"configurable": {**config["configurable"], **space}}
        found = [each async for each in self.alist(where, limit=1)]
        return found[0] if found else None

    async def alist(
        self,
        config: Mapping[str, Any] | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints of a thread that have the metadata ``filter``, the newest first."""
        if config is None:
            return
        thread, space = _names(config)
        index = await self._index(thread)
        places = _places(index)
        if "checkpoint_ns" in config["configurable"]:
            places = [each for each in places if each[0] == space]
        wanted, end = get_checkpoint_id(config), before and get_checkpoint_id(before)
        count = 0
        for name, checkpoint_id in sorted(places, reverse=True, key=lambda each: each[1]):
            if wanted not in (None, checkpoint_id) or (end and checkpoint_id >= end):
                continue
            if limit is not None and count >= limit:
                return
            each = await self._tuple(thread, name, checkpoint_id, index[name][checkpoint_id])
            metadata = each.metadata if each is not None else {}
            if each is not None and all(metadata.get(k) == v for k, v in (filter or {}).items()):
                count += 1
                yield each

    async def _tuple(
        self, thread: str, space: str, checkpoint_id: str, known: Mapping[str, Any]
    ) -> CheckpointTuple | None:
        turn = _turn()
        key = _key(thread, space, checkpoint_id)
        saved = await turn.recall(key)
        if saved is None:
            return None
        writes = await turn.recall(f"{key}:writes", [])
        writes.sort(key=lambda each: writes_sort_key(each["path"], each["task"], each["index"]))
        return CheckpointTuple(
            config=_config(thread, space, checkpoint_id),
            checkpoint=self.read(saved["checkpoint"]),
            metadata=self.read(saved["metadata"]),
            parent_config=_config(thread, space, known["parent"]) if known["parent"] else None,
            pending_writes=[
                (each["task"], each["channel"], self.read(each["value"])) for each in writes
            ],
        )

    # -- writing -------------------------------------------------------------------------------

    async def aput(
        self,
        config: Mapping[str, Any],
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: object,
    ) -> Json:
        """Store a checkpoint, and remove the checkpoints that it supersedes."""
        turn = _turn()
        thread, space = _names(config)
        checkpoint_id: str = checkpoint["id"]
        whole = get_serializable_checkpoint_metadata(config, metadata)
        value = {"checkpoint": self.written(checkpoint), "metadata": self.written(whole)}
        if (size := len(value["checkpoint"][1])) > LARGEST:
            raise ValueError(
                f"the state of the graph has grown to {size:,} characters, and a context keeps at "
                "most "
                f"{LARGEST:,}: trim its messages, or compile it with a checkpointer"
            )
        parent = get_checkpoint_id(config)
        known = {
            "parent": parent,
            "task": whole.get(TASK, ""),
            # A channel that stores differences needs the checkpoints before.
            "differs": bool(metadata.get("counters_since_delta_snapshot")),
            "size": size,
        }
        forgotten: list[Place] = []

        def add(own: Json) -> Json:
            # Until the value of this checkpoint is written, the previous checkpoint is the newest.
            index: Index = own["index"]
            forgotten[:] = [each for each in _superfluous(index, space) if each != (space, parent)]
            if not space and metadata.get("source", "") in ("input", "loop"):
                forgotten.extend(_runs(index, before=parent or ""))
            index = _without(index, forgotten)
            index.setdefault(space, {})[checkpoint_id] = known
            return {"index": index, "keys": _keys_of(thread, [*_places(index), *forgotten])}

        await _own(thread).update(add, EMPTY)
        await turn.remember(_key(thread, space, checkpoint_id), value)
        await self._forget(thread, forgotten)
        return _config(thread, space, checkpoint_id)

    async def newest(self, thread: str) -> str:
        """Return the id of the newest checkpoint of ended tasks, or an empty string."""
        return _newest(await _turn().recall(_key(thread), {}))

    async def settle(self, thread: str, newest: str) -> bool:
        """Make the end of this turn's task the start for other tasks.

        Does nothing and returns false if ``newest`` is not the newest checkpoint of ended tasks.
        """
        own: Index = (await _own(thread).read() or EMPTY)["index"]
        is_settled = False

        def together(index: Index) -> tuple[Index, Sequence[Place]]:
            for space, ids in own.items():
                index.setdefault(space, {}).update(ids)
            old = [place for space in index for place in _superfluous(index, space)]
            return index, [*old, *_runs(index)]

        def add(index: Index) -> Index:
            nonlocal is_settled
            is_settled = _newest(index) == newest
            return _without(*together(index)) if is_settled else index

        # The index names them until they are removed; missing values are not read.
        _, superfluous = together(await _turn().recall(_key(thread), {}))
        await self._forget(thread, superfluous)
        await _turn().update(_key(thread), add, {})
        if is_settled:
            await _own(thread).write(EMPTY)
        return is_settled

    async def _forget(self, thread: str, places: Sequence[Place]) -> None:
        turn = _turn()
        for space, checkpoint_id in places:
            for key in _keys(thread, space, checkpoint_id):
                await turn.remember(key, None)

    async def aput_writes(
        self,
        config: Mapping[str, Any],
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a node until its step has a checkpoint."""
        thread, space = _names(config)
        added = [
            {
                "task": task_id,
                "path": task_path,
                "index": WRITES_IDX_MAP.get(channel, number),
                "channel": channel,
                "value": self.written(value),
            }
            for number, (channel, value) in enumerate(writes)
        ]

        def add(kept: list[Json]) -> list[Json]:
            found = {(each["task"], each["index"]): each for each in kept}
            for each in added:
                place = (each["task"], each["index"])
                if place[1] < 0 or place not in found:  # a result is written once
                    found[place] = each
            return list(found.values())

        def name(own: Json) -> Json:
            return {**own, "keys": [*own["keys"], key]}

        turn, checkpoint_id = _turn(), config["configurable"]["checkpoint_id"]
        key = f"{_key(thread, space, checkpoint_id)}:writes"
        own = await _own(thread).read() or EMPTY
        if checkpoint_id not in own["index"].get(space, {}):  # the checkpoint is being written
            await _own(thread).update(name, EMPTY)
        await turn.update(key, add, [])
        ids = (await self._index(thread)).get(space, {})
        if checkpoint_id not in ids and max(ids, default="") > checkpoint_id:
            await turn.remember(key, None)  # the step has ended meanwhile

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove all checkpoints of a thread."""
        index = await self._index(thread_id)
        await self._forget(thread_id, _places(index))
        await _turn().remember(_key(thread_id), None)
        await _own(thread_id).write(EMPTY)

    async def _index(self, thread: str) -> Index:
        found: Index = await _turn().recall(_key(thread), {})
        own: Index = (await _own(thread).read() or EMPTY)["index"]
        for space, ids in own.items():
            found.setdefault(space, {}).update(ids)
        return found

    def written(self, value: object) -> list[str]:
        """Return a value in its stored JSON form."""
        kind, data = self.serde.dumps_typed(value)
        return [kind, base64.b64encode(data).decode()]

    def read(self, value: Sequence[str]) -> Any:
        """Return a value from the JSON of ``written``."""
        return self.serde.loads_typed((value[0], base64.b64decode(value[1])))

    # -- for nodes in threads ------------------------------------------------------------------

    get_tuple = _in_thread("aget_tuple")
    put = _in_thread("aput")
    put_writes = _in_thread("aput_writes")
    delete_thread = _in_thread("adelete_thread")

    def list(self, config: Mapping[str, Any] | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Do the same as ``alist``, in a thread."""

        async def every() -> Sequence[CheckpointTuple]:
            return [each async for each in self.alist(config, **options)]

        yield from self._wait(every())

    def _wait(self, what: Coroutine[Any, Any, R]) -> R:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if self._loop is None or here is self._loop:
            what.close()
            raise RuntimeError(
                "these checkpoints need the event loop: in an async function call "
                "ainvoke and astream, not invoke and stream"
            )
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()


def _turn() -> Turn:
    turn = current_turn()
    if turn is None:
        raise RuntimeError(
            "the checkpoints of this graph are kept in the contexts of its tasks; to run it "
            "outside of a turn, compile it with a checkpointer"
        )
    return turn


def _own(thread: str) -> TaskValue:
    """Return the index of the checkpoints that belong to the task of the turn."""
    return TaskValue(_turn(), _key(thread), lists=True)


def _newest(index: Index) -> str:
    return max(index.get("", {}), default="")


def _places(index: Index) -> Sequence[Place]:
    return [(space, each) for space, ids in index.items() for each in ids]


def _keys_of(thread: str, places: Sequence[Place]) -> Sequence[str]:
    return [key for place in places for key in _keys(thread, *place)]


def _runs(index: Index, before: str | None = None) -> Sequence[Place]:
    """Return the checkpoints of subgraphs that ran in a step; the name of such a run contains ":".

    ``before`` is the checkpoint at the start of the newest step, which may not have ended.
    """
    found = [place for place in _places(index) if ":" in place[0]]
    return [place for place in found if before is None or place[1] < before]


def _without(index: Index, places: Sequence[Place]) -> Index:
    left = {
        space: {each: known for each, known in ids.items() if (space, each) not in places}
        for space, ids in index.items()
    }
    return {space: ids for space, ids in left.items() if ids}


def _superfluous(index: Index, space: str) -> list[Place]:
    """Return the checkpoints of a namespace from which no run continues."""
    kept: set[str] = set()
    tasks: set[str] = set()
    size = 0
    for each in sorted(index.get(space, {}), reverse=True):
        known = index[space][each]
        if known["task"] in tasks or len(tasks) >= KEPT_TASKS:
            continue
        size += known["size"]
        if tasks and size > LARGEST_TOGETHER:
            break
        tasks.add(known["task"])
        behind: str | None = each
        while behind in index[space] and behind not in kept:
            kept.add(behind)
            known = index[space][behind]
            behind = known["parent"] if known["differs"] else None
    return [(space, each) for each in index.get(space, {}) if each not in kept]


def _names(config: Mapping[str, Any]) -> tuple[str, str]:
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns", "")


def _config(thread: str, space: str, checkpoint_id: str) -> Json:
    named = {"thread_id": thread, "checkpoint_ns": space, "checkpoint_id": checkpoint_id}
    return {"configurable": named}


def _key(thread: str, space: str | None = None, checkpoint_id: str = "") -> str:
    """Return the name under which a context keeps the index of a thread, or a checkpoint."""
    digest = hashlib.sha256(thread.encode()).hexdigest()[:24]
    if space is None:
        return f"langgraph:{digest}"
    within = hashlib.sha256(space.encode()).hexdigest()[:16] if space else "root"
    return f"langgraph:{digest}:{within}:{checkpoint_id}"


def _keys(thread: str, space: str, checkpoint_id: str) -> tuple[str, str]:
    """Return the keys of a checkpoint, and of the writes of nodes after it."""
    key = _key(thread, space, checkpoint_id)
    return f"{key}:writes", key


BLOCKING = ("SqliteSaver",)
"""The classes of LangGraph whose async methods only raise."""


def blocks(saver: object) -> bool:
    """Return whether an object is a checkpointer without async methods."""
    if not isinstance(saver, BaseCheckpointSaver):
        return False
    kind = type(saver)
    return kind.aget_tuple is BaseCheckpointSaver.aget_tuple or kind.__name__ in BLOCKING


class SaverInThreads(BaseCheckpointSaver[Any]):  # type: ignore[misc]
    """Runs the methods of a blocking checkpointer in threads."""

    def __init__(self, saver: Any) -> None:
        super().__init__(serde=saver.serde)
        for name in ("get_tuple", "put", "put_writes", "delete_thread"):
            does = getattr(saver, name)
            setattr(self, name, does)
            setattr(self, f"a{name}", partial(asyncio.to_thread, does))
        self.list = saver.list
        self.get_next_version = saver.get_next_version

    async def alist(
        self, config: Mapping[str, Any] | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Do the same as ``list``."""
        for each in await asyncio.to_thread(lambda: tuple(self.list(config, **options))):
            yield each


# -- threads ----------------------------------------------------------------------------------


BASE = "parley_base"
"""The metadata of checkpoints that names the newest included checkpoint of other tasks."""

NOTHING = "00000000-0000-0000-0000-000000000000"
"""The id of a checkpoint that does not exist: a task that begins there has an empty state."""

LISTED = 32
"""The most checkpoints of a thread that are read at a time."""

Snapshot = Any
"""LangGraph's ``StateSnapshot``."""


class GraphThread:
    """The thread of a turn's context, and the position of the turn's task in it.

    The thread is named after the context, separately for each owner. Checkpoints name their task,
    so each task continues from its own newest checkpoint, even if another task of the context has
    continued in the thread meanwhile. A task begins from the newest checkpoint of an ended task, so
    it includes nothing of waiting or canceled tasks; when it has ended, its changes are applied to
    the states in which other tasks have ended meanwhile.
    """

    def __init__(self, graph: Any, turn: Turn, config: Mapping[str, Any]) -> None:
        self.graph = graph
        self.name = thread_id(turn)
        self._task_id = turn.task_id
        self._config = dict(config)
        self._base = ""
        self._beginning = TaskValue(turn, "langgraph:beginning")

    def config(self, at: Snapshot | None = None, **metadata: Any) -> Json:
        """Return the configuration of a run: of the thread, or from a checkpoint of the thread."""
        return self._config_at("" if at is None else _id_of(at), **metadata)

    def _config_at(self, checkpoint_id: str, **metadata: Any) -> Json:
        configurable = {**self._config.get("configurable", {}), "thread_id": self.name}
        if checkpoint_id:
            configurable["checkpoint_ns"] = ""
            configurable["checkpoint_id"] = checkpoint_id
        known = {TASK: self._task_id, BASE: self._base, **metadata}
        metadata = {**self._config.get("metadata", {}), **known}
        return {**self._config, "configurable": configurable, "metadata": metadata}

    async def beginning(self) -> Json:
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

        Savers hold their lock while they list, so no other call is made meanwhile.
        """
        tasks = {self._task_id}
        where = {"configurable": {**self._where["configurable"], "checkpoint_ns": ""}}
        saver, before, limit = self.graph.checkpointer, None, 2  # each entry has the whole state
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
        """Apply the changes of the task to the states of other tasks that have ended since."""
        if getattr(self.graph, "builder", None) is None:
            return
        other = await self._ended()
        if other is not None and _id_of(other) > self._base:
            before = await self._values_before()
            update = last_update(self.graph, other.values, before, state.values)
            self._base = _id_of(other)  # it includes this one
            await self.graph.abulk_update_state(self.config(other), update)

    async def wait(self) -> None:
        """Keep the state from which the task began: tasks that end meanwhile could displace it."""
        saver = self.graph.checkpointer
        if not isinstance(saver, ContextCheckpoints) or self._base in ("", NOTHING):
            return
        if await self._beginning.read() is None:
            values = saver.written(await self._values_before())
            await self._beginning.write({"base": self._base, "values": values})

    async def _values_before(self) -> Json:
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
        """Remove the answers with which nodes have failed: the nodes receive new answers."""
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

    async def failed(self, state: Snapshot) -> list[tuple[Any, Json]]:
        """Return the failed nodes, in subgraphs too, with the places of their checkpoints."""
        if not any(each.error for each in state.tasks):
            return []
        return _failed(await self.graph.aget_state(state.config, subgraphs=True))

    @property
    def _where(self) -> Json:
        return {"configurable": self.config()["configurable"]}

    async def place(self) -> tuple[Snapshot | None, bool]:
        """Return the newest state of this task, and whether it is the thread's newest state too.

        There is no state before the graph has the task's message, and after checkpoints were lost.
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


def _failed(state: Snapshot) -> list[tuple[Any, Json]]:
    found = []
    for each in state.tasks:
        within = _failed(each.state) if hasattr(each.state, "tasks") else []
        found += within or ([(each, state.config)] if each.error else [])
    return found


def _id_of(state: Snapshot) -> str:
    return str(state.config["configurable"]["checkpoint_id"])


def is_at_breakpoint(graph: Any, state: Snapshot) -> list[str]:
    """Return the nodes of the breakpoint at which a graph waits, its subgraphs' first."""
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
    """Return the updates that apply the changes of a task to the state of the thread.

    ``now`` is the state of the thread, ``before`` and ``after`` are the states of the task. No node
    may be due to run after the updates.
    """
    values: Json = {}
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
    """Return messages with the changes, the additions and the removals of the task."""
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
    except (ValueError, TypeError, RuntimeError):  # arrays compare element by element
        return one is other


def _quiet_node(graph: Any) -> str:
    """Return a node without conditional edges after it, if there is one."""
    names = list(graph.builder.nodes)
    quiet = [each for each in names if not graph.builder.branches.get(each)]
    return str((quiet or names)[0])
