"""The tasks that were read last, as they were read: who polls a task asks for the same again."""

from __future__ import annotations

from parley.store.head import Head
from parley.store.memory.log import MemoryLog
from parley.store.snapshot import StoredTask

_MAX_TASKS = 64
_MAX_SIZE = 32 * 1024


class WholeTasks:
    """A few tasks with all of their history and artifacts.

    A task is read anew once its head is another: each append, claim and wake gives it a new one.
    So what is returned is what would be read. At most 64 tasks are kept, each of at most 32 KiB, to
    which its joined JSON may come (``StoredTask.json``).
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Head, StoredTask]] = {}

    def __len__(self) -> int:
        """Return how many tasks are kept."""
        return len(self._kept)

    def read(self, log: MemoryLog) -> StoredTask:
        """Return a task, whole."""
        head = log.head
        kept = self._kept.get(head.task_id)
        if kept is not None and kept[0] is head:
            return kept[1]
        stored = log.stored(None, artifacts=True)
        if _size(stored) <= _MAX_SIZE:
            if kept is None and len(self._kept) >= _MAX_TASKS:
                del self._kept[next(iter(self._kept))]
            self._kept[head.task_id] = (head, stored)
        else:
            self.forget(head.task_id)
        return stored

    def forget(self, task_id: str) -> None:
        """Keep a task no longer."""
        self._kept.pop(task_id, None)


def _size(stored: StoredTask) -> int:
    """Return the approximate size of a task in bytes."""
    size = len(stored.history) + len(stored.status_message) + len(stored.metadata)
    for _, head, parts in stored.artifacts:
        size += len(head) + len(parts)
    for update in stored.tail:
        size += len(update)
    return size
