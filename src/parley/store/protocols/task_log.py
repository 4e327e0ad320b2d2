"""The log of a task: its records, the task built from them, and lists of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec

from parley.model.parts import Message
from parley.model.tasks import Task, TaskState
from parley.store.events import LoggedEvent, PrivateEvent, Scope, TaskEvent
from parley.store.fold import ArtifactPiece
from parley.store.protocols.tables import Receipt
from parley.store.protocols.webhooks import PushRecord
from parley.store.snapshot import StoredTask

PAGE_BYTES = 256 * 1024
"""The number of payload bytes after which ``events`` ends a page.

Every reader that is behind holds a page, which takes three to four times that in memory.
"""

Committed = Callable[[Sequence[LoggedEvent]], None]
"""Receives the records of one append, on the event loop, in the order of the commits."""


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Records for one task's log, added atomically.

    ``payloads`` are the JSON of ``events``, if known. ``expected_seq`` is the head that the writer
    knows. 0 creates the task and needs ``scope`` and ``context_id``. ``None`` is for private
    records from outside a turn: any head is accepted, and ``epoch`` is ignored. ``epoch`` is the
    fencing token of the writer's claim. ``base_url`` is the agent's address as the sender of the
    task's first message sees it; only the append that creates the task has one, and it never
    changes. ``artifacts`` are the pieces missing from the stored form of the task's artifacts after
    the append, given when they are worth storing (``Fold.take_unsaved``); the store reads the rest
    from the log. ``turn_open``: a turn is in progress after the append; ``None`` leaves this
    unchanged. ``taken`` is the number of waiting messages that the append's turn receives.
    ``max_waiting`` is the limit of waiting messages after the append. ``release`` gives up the
    lease: a later claim finishes the work, in the order of ``queue_key`` (see
    ``TaskStore.claim_batch``). Without it the appending replica holds the lease while a turn is
    open. ``wakes_at`` makes the task sleep until that time (ms; ``timers.NEVER``: for ever), with
    its turn open: it needs ``release``. ``waits_for`` are the keys of the events that wake it
    earlier. A task whose cancellation was requested stays awake, and a task with a complete event
    is due at once. ``exchange`` is added to the context's history, ``receipts`` are stored.
    ``pushes`` are stored too; their webhooks begin with the first event when the append creates the
    task, else after the last.
    """

    task_id: str
    events: Sequence[TaskEvent | PrivateEvent]
    payloads: Sequence[bytes] = ()
    expected_seq: int | None
    turn: int
    epoch: int = 1
    scope: Scope | None = None
    context_id: str = ""
    base_url: str = ""
    artifacts: Sequence[ArtifactPiece] | None = None
    turn_open: bool | None = None
    taken: int = 0
    max_waiting: int | None = None
    release: bool = False
    queue_key: int = 0
    wakes_at: int | None = None
    waits_for: Sequence[str] = ()
    exchange: Sequence[Message] = ()
    receipts: Sequence[Receipt] = ()
    pushes: Sequence[PushRecord] = ()


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A task in the store: the fold of its log up to ``seq``, with the requested history and
    artifacts.

    ``stored`` are the pieces that were read. ``lease_owner`` is the replica that may write to the
    task, empty for none. ``wakes_at`` is set while it sleeps. ``base_url`` is the agent's address
    at the start of the task (see ``Append``).
    """

    scope: Scope
    stored: StoredTask
    seq: int
    turn: int
    turn_open: bool
    waiting: int
    epoch: int
    cancel_requested: bool
    lease_owner: str = ""
    wakes_at: int | None = None
    base_url: str = ""

    @cached_property
    def task(self) -> Task:
        """The task, decoded from its stored form on first use."""
        return self.stored.task()

    @property
    def state(self) -> TaskState:
        """The state that the task is in."""
        return self.stored.state

    @property
    def unsaved(self) -> frozenset[str]:
        """The ids of the artifacts whose stored form is incomplete (see ``Fold``)."""
        return self.stored.unsaved


class LogPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a task's log, which shows whether the log has grown.

    (``seq``, ``sub``) is the position of the last record, public or private.
    """

    task_id: str
    seq: int
    sub: int
    epoch: int
    lease_owner: str
    waiting: int
    cancel_requested: bool
    ended: bool


LIST_BYTES = 1024 * 1024
"""The number of JSON bytes after which ``list`` ends a page."""


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for tasks, the last updated first: by status timestamp, then id, both descending.

    ``before`` is the last task of the previous page: (status time in ms, task id). ``not_after``
    bounds a paged walk to the tasks that existed when it began, in ms. ``status_after`` is
    inclusive, in ms. ``history`` is the number of last messages to read, ``None`` for all;
    ``artifacts``: read them too. Parts that are not requested are not read. A page ends before
    ``limit`` when its tasks take ``max_bytes``.
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
    """Tasks in order, the number of all matches (before paging), and whether there are more."""

    stored: tuple[StoredTask, ...]
    total: int
    more: bool

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, decoded from their stored form on first use."""
        return tuple([stored.task() for stored in self.stored])
