"""A checkpointer whose checkpoints are kept with the context, in the store of the tasks.

Graphs without a checkpointer of their own get it. The store has the contexts already: they survive
a restart, every replica reads them, and only their owner sees them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
    writes_sort_key,
)

from parley.agent.turn import Turn
from parley.integrations.conversations import TaskValue
from parley.llm.current_turn import current_turn

R = TypeVar("R")

TASK = "parley_task"
"""The metadata of checkpoints that says which task made them."""

KEPT_TASKS = 20
"""How many tasks of a thread keep their newest checkpoint; the oldest go first."""

LARGEST = 32 * 1024 * 1024
"""How many characters a checkpoint has at most, as it is kept."""

LARGEST_TOGETHER = 2 * LARGEST
"""How many characters the checkpoints of tasks that have ended have together; oldest go first."""

Place = tuple[str, str]
"""The namespace and the id of a checkpoint."""

EMPTY: dict[str, Any] = {"index": {}, "keys": []}

Index = dict[str, dict[str, dict[str, Any]]]
"""Facts about checkpoints, by namespace and id: their parent, size, and task."""


class ContextCheckpoints(BaseCheckpointSaver[int]):  # type: ignore[misc]
    """Keeps the checkpoints of a graph in the context of the turn that runs it.

    It keeps the newest checkpoint of a task, and of the last ``KEPT_TASKS`` that have completed,
    and no history: give the graph another checkpointer to travel in time. A task sees its own
    checkpoints and the checkpoints of completed tasks; checkpoints of tasks that ended otherwise
    are removed. It raises ``RuntimeError`` outside of a turn, and ``ValueError`` for a state that
    is too large.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Note the running event loop, where nodes in threads have their checkpoints kept."""
        self._loop = asyncio.get_running_loop()

    # -- reading -------------------------------------------------------------------------------

    async def aget_tuple(self, config: Mapping[str, Any]) -> CheckpointTuple | None:
        """Return the checkpoint that ``config`` names, else the newest of its thread."""
        thread, space = _names(config)
        index = await self._index(thread)
        ids = index.get(space, {})
        wanted = get_checkpoint_id(config)
        for checkpoint_id in sorted(ids, reverse=True) if wanted is None else [wanted]:
            if checkpoint_id in ids:
                found = await self._tuple(thread, space, checkpoint_id, ids[checkpoint_id])
                if found is not None:
                    return found
        return None

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
        spaces = [space] if "checkpoint_ns" in config["configurable"] else list(index)
        wanted, end = get_checkpoint_id(config), before and get_checkpoint_id(before)
        found = [
            (checkpoint_id, name, known)
            for name in spaces
            for checkpoint_id, known in index.get(name, {}).items()
            if (wanted is None or checkpoint_id == wanted) and (not end or checkpoint_id < end)
        ]
        count = 0
        for checkpoint_id, name, known in sorted(found, reverse=True, key=lambda each: each[0]):
            if limit is not None and count >= limit:
                return
            each = await self._tuple(thread, name, checkpoint_id, known)
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
    ) -> dict[str, Any]:
        """Keep a checkpoint, and forget the checkpoints that it makes superfluous."""
        turn = _turn()
        thread, space = _names(config)
        checkpoint_id: str = checkpoint["id"]
        whole = get_serializable_checkpoint_metadata(config, metadata)
        value = {"checkpoint": self.written(checkpoint), "metadata": self.written(whole)}
        if (size := len(value["checkpoint"][1])) > LARGEST:
            raise ValueError(
                f"the state of the graph has grown to {size:,} characters, and a context keeps "
                f"{LARGEST:,}: trim its messages, or compile it with a checkpointer"
            )
        parent = get_checkpoint_id(config)
        known = {
            "parent": parent,
            "task": whole.get(TASK, ""),
            # A channel that keeps differences is read by way of the checkpoints before.
            "differs": bool(metadata.get("counters_since_delta_snapshot")),
            "size": size,
        }
        forgotten: list[Place] = []

        def add(own: dict[str, Any]) -> dict[str, Any]:
            # Until the value of this one is written, the one before it is the newest.
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
        """Return the id of the newest checkpoint of tasks that have ended, empty without one."""
        return _newest(await _turn().recall(_key(thread), {}))

    async def settle(self, thread: str, newest: str) -> bool:
        """Let other tasks begin from where the task of this turn has ended.

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

        # The index names them until they are gone; what it names and is gone, is not read.
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
        """Keep what a node wrote, until the step that it belongs to has a checkpoint."""
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

        def add(kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
            found = {(each["task"], each["index"]): each for each in kept}
            for each in added:
                place = (each["task"], each["index"])
                if place[1] < 0 or place not in found:  # a result is written once
                    found[place] = each
            return list(found.values())

        def name(own: dict[str, Any]) -> dict[str, Any]:
            return {**own, "keys": [*own["keys"], key]}

        turn, checkpoint_id = _turn(), config["configurable"]["checkpoint_id"]
        key = f"{_key(thread, space, checkpoint_id)}:writes"
        own = await _own(thread).read() or EMPTY
        if checkpoint_id not in own["index"].get(space, {}):  # it is being written
            await _own(thread).update(name, EMPTY)
        await turn.update(key, add, [])
        ids = (await self._index(thread)).get(space, {})
        if checkpoint_id not in ids and max(ids, default="") > checkpoint_id:
            await turn.remember(key, None)  # the step has ended meanwhile

    async def adelete_thread(self, thread_id: str) -> None:
        """Forget all checkpoints of a thread."""
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
        """Return a value as the JSON that is kept of it."""
        kind, data = self.serde.dumps_typed(value)
        return [kind, base64.b64encode(data).decode()]

    def read(self, value: Sequence[str]) -> Any:
        """Return a value of which ``written`` made JSON."""
        return self.serde.loads_typed((value[0], base64.b64decode(value[1])))

    # -- for nodes in threads ------------------------------------------------------------------

    def get_tuple(self, config: Mapping[str, Any]) -> CheckpointTuple | None:
        """Do what ``aget_tuple`` does, in a thread."""
        return self._wait(self.aget_tuple(config))

    def list(self, config: Mapping[str, Any] | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Do what ``alist`` does, in a thread."""

        async def every() -> Sequence[CheckpointTuple]:
            return [each async for each in self.alist(config, **options)]

        yield from self._wait(every())

    def put(self, *arguments: Any) -> dict[str, Any]:
        """Do what ``aput`` does, in a thread."""
        return self._wait(self.aput(*arguments))

    def put_writes(self, *arguments: Any, **options: Any) -> None:
        """Do what ``aput_writes`` does, in a thread."""
        self._wait(self.aput_writes(*arguments, **options))

    def delete_thread(self, thread_id: str) -> None:
        """Do what ``adelete_thread`` does, in a thread."""
        self._wait(self.adelete_thread(thread_id))

    def _wait(self, what: Coroutine[Any, Any, R]) -> R:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if self._loop is None or here is self._loop:
            what.close()
            raise RuntimeError(
                "these checkpoints are kept by the event loop: in an async function call "
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
    """Return the index of the checkpoints that go with the task of the turn."""
    return TaskValue(_turn(), _key(thread), lists=True)


def _newest(index: Index) -> str:
    return max(index.get("", {}), default="")


def _places(index: Index) -> Sequence[Place]:
    return [(space, each) for space, ids in index.items() for each in ids]


def _keys_of(thread: str, places: Sequence[Place]) -> Sequence[str]:
    return [key for place in places for key in _keys(thread, *place)]


def _runs(index: Index, before: str | None = None) -> Sequence[Place]:
    """Return the checkpoints of subgraphs that ran in a step: a ":" names such a run.

    ``before`` is the checkpoint with which the newest step began that may not have ended.
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
    """Return the checkpoints of a namespace that nothing continues from."""
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


def _config(thread: str, space: str, checkpoint_id: str) -> dict[str, Any]:
    return {
        "configurable": {
            "thread_id": thread,
            "checkpoint_ns": space,
            "checkpoint_id": checkpoint_id,
        }
    }


def _key(thread: str, space: str | None = None, checkpoint_id: str = "") -> str:
    """Return the name under which a context keeps the index of a thread, or a checkpoint."""
    digest = hashlib.sha256(thread.encode()).hexdigest()[:24]
    if space is None:
        return f"langgraph:{digest}"
    within = hashlib.sha256(space.encode()).hexdigest()[:16] if space else "root"
    return f"langgraph:{digest}:{within}:{checkpoint_id}"


def _keys(thread: str, space: str, checkpoint_id: str) -> tuple[str, str]:
    """Return the keys of a checkpoint, and of what nodes wrote after it."""
    key = _key(thread, space, checkpoint_id)
    return f"{key}:writes", key


BLOCKING = ("SqliteSaver",)
"""The classes of LangGraph whose async methods only raise."""


def blocks(saver: object) -> bool:
    """Return whether something is a checkpointer that has no async methods."""
    if not isinstance(saver, BaseCheckpointSaver):
        return False
    kind = type(saver)
    return kind.aget_tuple is BaseCheckpointSaver.aget_tuple or kind.__name__ in BLOCKING


class SaverInThreads(BaseCheckpointSaver[Any]):  # type: ignore[misc]
    """A checkpointer that blocks: its methods run in threads."""

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
        """Do what ``list`` does."""
        for each in await asyncio.to_thread(lambda: tuple(self.list(config, **options))):
            yield each
