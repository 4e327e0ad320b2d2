"""A checkpointer whose checkpoints are kept with the context, in the store of the tasks.

It is what a graph without a checkpointer of its own gets. The store has the contexts already: they
survive a restart, every replica reads them, and nobody but their owner does.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
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
from parley.llm.current_turn import current_turn

R = TypeVar("R")

TASK = "parley_task"
"""The metadata of checkpoints that says which task made them."""

KEPT_TASKS = 20
"""How many tasks of a thread keep their newest checkpoint; the oldest go first."""

LARGEST = 32 * 1024 * 1024
"""How many characters a checkpoint has at most, as it is kept."""

Index = dict[str, dict[str, dict[str, Any]]]
"""What is known of checkpoints, by namespace and id: their parent, and the task that made them."""


class ContextCheckpoints(BaseCheckpointSaver[int]):  # type: ignore[misc]
    """Keeps the checkpoints of a graph in the context of the turn that runs it.

    It keeps the newest checkpoint of each of the last ``KEPT_TASKS`` tasks, and no history: give
    the graph another checkpointer to travel in time. It raises ``RuntimeError`` outside of a turn,
    and ``ValueError`` for a state that is too large.
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
        checkpoint_id = get_checkpoint_id(config) or max(ids, default=None)
        if checkpoint_id is None or checkpoint_id not in ids:
            return None
        return await self._tuple(thread, space, checkpoint_id, ids[checkpoint_id])

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
            checkpoint=self._read(saved["checkpoint"]),
            metadata=self._read(saved["metadata"]),
            parent_config=_config(thread, space, known["parent"]) if known["parent"] else None,
            pending_writes=[
                (each["task"], each["channel"], self._read(each["value"])) for each in writes
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
        """Keep a checkpoint, and forget those that it makes superfluous."""
        turn = _turn()
        thread, space = _names(config)
        checkpoint_id: str = checkpoint["id"]
        whole = get_serializable_checkpoint_metadata(config, metadata)
        value = {"checkpoint": self._written(checkpoint), "metadata": self._written(whole)}
        if (size := len(value["checkpoint"][1])) > LARGEST:
            raise ValueError(
                f"the state of the graph has grown to {size:,} characters, and a context keeps "
                f"{LARGEST:,}: trim its messages, or compile it with a checkpointer"
            )
        await turn.remember(_key(thread, space, checkpoint_id), value)
        known = {
            "parent": get_checkpoint_id(config),
            "task": whole.get(TASK, ""),
            # A channel that keeps differences is read by way of the checkpoints before.
            "differs": bool(metadata.get("counters_since_delta_snapshot")),
        }
        forgotten: list[tuple[str, str]] = []

        def add(index: Index) -> Index:
            index.setdefault(space, {})[checkpoint_id] = known
            forgotten[:] = _superfluous(index, space, checkpoint_id, metadata.get("source", ""))
            for name, each in forgotten:
                del index[name][each]
                if not index[name]:
                    del index[name]
            return index

        await turn.update(_key(thread), add, {})
        for name, each in forgotten:
            await turn.remember(f"{_key(thread, name, each)}:writes", None)
            await turn.remember(_key(thread, name, each), None)
        return _config(thread, space, checkpoint_id)

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
                "value": self._written(value),
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

        turn, checkpoint_id = _turn(), config["configurable"]["checkpoint_id"]
        key = f"{_key(thread, space, checkpoint_id)}:writes"
        await turn.update(key, add, [])
        ids = (await self._index(thread)).get(space, {})
        if checkpoint_id not in ids and max(ids, default="") > checkpoint_id:
            await turn.remember(key, None)  # the step has ended meanwhile

    async def adelete_thread(self, thread_id: str) -> None:
        """Forget all checkpoints of a thread."""
        turn = _turn()
        for space, ids in (await self._index(thread_id)).items():
            for checkpoint_id in ids:
                key = _key(thread_id, space, checkpoint_id)
                await turn.remember(f"{key}:writes", None)
                await turn.remember(key, None)
        await turn.remember(_key(thread_id), None)

    async def _index(self, thread: str) -> Index:
        found: Index = await _turn().recall(_key(thread), {})
        return found

    def _written(self, value: object) -> list[str]:
        kind, data = self.serde.dumps_typed(value)
        return [kind, base64.b64encode(data).decode()]

    def _read(self, value: Sequence[str]) -> Any:
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


def _superfluous(index: Index, space: str, newest: str, source: str) -> list[tuple[str, str]]:
    """Return the checkpoints that nothing goes on from, after the newest one was added."""
    task = index[space][newest]["task"]
    found: list[tuple[str, str]] = []
    if not space and source in ("input", "loop"):
        # The step has ended, and with it the subgraphs that ran in it. A ":" names such a run.
        found += [
            (name, each)
            for name, ids in index.items()
            if ":" in name
            for each, known in ids.items()
            if known["task"] == task
        ]
    kept: set[str] = set()
    tasks: set[str] = set()
    for each in sorted(index[space], reverse=True):
        if index[space][each]["task"] not in tasks and len(tasks) < KEPT_TASKS:
            tasks.add(index[space][each]["task"])
            behind: str | None = each
            while behind in index[space] and behind not in kept:
                kept.add(behind)
                known = index[space][behind]
                behind = known["parent"] if known["differs"] else None
    return found + [(space, each) for each in index[space] if each not in kept]


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
