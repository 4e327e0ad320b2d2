"""Lists of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import msgspec

from parley.model.tasks import Task, TaskState
from parley.store.protocols.scope import Scope
from parley.store.snapshot import StoredTask

LIST_BYTES = 1024 * 1024
"""``list`` adds no further task to a page whose tasks take as many bytes of JSON."""


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks to list, the last updated first: by status timestamp, then id, both falling.

    ``before`` names the last task of the page before: (status time in ms, task id).
    ``not_after`` bounds a paged walk to what existed when it began, in ms.
    ``status_after`` is inclusive, in ms. ``history`` is how many of its last messages come with a
    task, ``None`` for all; ``artifacts`` says whether its artifacts do. What is not asked for is
    not read. A page ends before ``limit`` when its tasks take ``max_bytes``.
    """

    scope: Scope
    context_id: str = ""
    state: TaskState = TaskState.UNSPECIFIED
    status_after: int | None = None
    before: tuple[int, str] | None = None
    not_after: int | None = None
    limit: int = 50
    history: int | None = None
    artifacts: bool = False
    max_bytes: int = LIST_BYTES


class TaskPage(msgspec.Struct, frozen=True, dict=True):
    """Tasks in order, how many match in all (before paging), and whether there are more."""

    stored: tuple[StoredTask, ...]
    total: int
    more: bool

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, read from their stored form when they are first asked for."""
        return tuple([stored.task() for stored in self.stored])


class TaskLists(Protocol):
    """Queries over the tasks of a scope or an agent.

    A page is read as of one moment, and agrees with the logs. Memory is bounded by the page.
    """

    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""
        ...

    async def awaiting_input(self, agent: str, since: int, limit: int) -> Sequence[str]:
        """Return the ids of up to ``limit`` tasks that have waited for their callers since before
        ``since`` (ms), the longest first.
        """
        ...
