"""The errors of a task store.

StoreError
├── UnknownTask, TaskEnded          the log does not exist, or is closed
├── Conflict, Fenced, LeaseHeld     another writer was first
├── DuplicateReceipt, TooManyPushes, TooManyWaiting
├── TooManyApiKeys, DuplicateApiKey (tables.py)
├── EventCompleted (tables.py)      the event has another value
├── PrunedElsewhere
└── StoreUnavailable                the store cannot work now
"""

from __future__ import annotations

from parley.database.errors import StoreError, StoreUnavailable

__all__ = [
    "Conflict",
    "DuplicateReceipt",
    "Fenced",
    "LeaseHeld",
    "PrunedElsewhere",
    "StoreError",
    "StoreUnavailable",
    "TaskEnded",
    "TooManyPushes",
    "TooManyWaiting",
    "UnknownTask",
]


class Conflict(StoreError):
    """The log's head is not the one that the append expected.

    ``head`` is the actual head; ``None`` when an earlier append by the same writer failed.
    """

    def __init__(self, task_id: str, expected: int, head: int | None) -> None:
        self.head = head
        super().__init__(
            f"task {task_id}: expected head {expected}, "
            + ("but an append before this one failed" if head is None else f"found {head}")
        )


class Fenced(StoreError):
    """The writer's epoch (its fencing token) is old: a later claim has taken the task over."""


class LeaseHeld(StoreError):
    """Another live replica holds the task's lease."""


class TaskEnded(StoreError):
    """The task is in a terminal state; nothing follows it."""


class UnknownTask(StoreError):
    """The store has no such task."""


class DuplicateReceipt(StoreError):
    """The message has a receipt already: the same message was sent before."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(f"message {message_id} has a receipt already")


class TooManyPushes(StoreError):
    """The task has the maximum number of push notification configurations."""

    def __init__(self, task_id: str, limit: int) -> None:
        super().__init__(f"task {task_id} has {limit} push notification configurations")


class PushReplaced(StoreError):
    """The push notification configuration is not the expected one."""


class TooManyWaiting(StoreError):
    """As many messages wait on the task as may."""

    def __init__(self, task_id: str, limit: int) -> None:
        self.limit = limit
        super().__init__(f"{limit} messages wait on task {task_id} already")


class PrunedElsewhere(StoreError):
    """Another replica prunes the store now."""

    def __init__(self) -> None:
        super().__init__("another replica removes old tasks just now; try again later")
