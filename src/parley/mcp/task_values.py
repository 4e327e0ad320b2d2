"""What the tasks extension of MCP says of a task."""

from __future__ import annotations

import datetime
from typing import Any
from uuid import UUID

from parley.model.tasks import Task, TaskState

POLL_MS = 1000
"""How often a host should ask for a task, in ms."""


def created(handle: str, task: Task) -> dict[str, Any]:
    """Return the result of a call that goes on as a task."""
    found = described(handle, task)
    return {**found, "resultType": "task", "status": "working"}


def described(handle: str, task: Task) -> dict[str, Any]:
    """Return what the extension says of every task."""
    updated = task.status.timestamp
    said = "" if task.status.message is None else task.status.message.text
    at = _text(updated) if updated is not None else _created_at(task.id)
    return {
        "taskId": handle,
        "status": _STATUS.get(task.state, "working"),
        **({"statusMessage": said[:2000]} if said else {}),
        "createdAt": _created_at(task.id) or at,
        "lastUpdatedAt": at or _now(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _created_at(task_id: str) -> str:
    """Return when a task was created, if its id says so (UUID version 7)."""
    try:
        found = UUID(task_id)
    except ValueError:
        return ""
    if found.version != 7:
        return ""
    return _text(datetime.datetime.fromtimestamp((found.int >> 80) / 1000, datetime.UTC))


def _now() -> str:
    return _text(datetime.datetime.now(datetime.UTC))


def _text(at: datetime.datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_STATUS = {
    TaskState.INPUT_REQUIRED: "input_required",
    TaskState.AUTH_REQUIRED: "input_required",
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "completed",  # the result says that it is an error
    TaskState.REJECTED: "completed",
    TaskState.CANCELED: "cancelled",
}
