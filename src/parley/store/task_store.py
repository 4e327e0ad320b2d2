"""What every store of task logs does. Implementations: ``memory``, ``sqlite``, ``postgres``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from parley.model.parts import Message
from parley.model.push import TaskPushNotificationConfig
from parley.model.tasks import Task, TaskState
from parley.store.artifact_fold import ArtifactPiece
from parley.store.events import Kind, LoggedEvent, PrivateEvent, TaskEvent

PAGE_BYTES = 256 * 1024
"""``events`` adds no further event to a page that holds as many bytes of payload.

Every reader that is behind holds a page, which takes three to four times that in memory.
"""

LIST_BYTES = 1024 * 1024
"""``list`` adds no further task to a page whose tasks take as many bytes of JSON."""

HISTORY_KEPT = 1000
"""How many messages of a context's history are kept; the oldest go first."""

COUNTED = 100_000
"""``unclaimed`` counts no further."""

MAX_PUSHES = 20
"""How many push notification configurations a task may have."""


class StoreError(Exception):
    """The store did not do what was asked; nothing of it was done, unless the message says that it
    is not known (``StoreUnavailable`` of a database that did not answer in time).
    """


class Conflict(StoreError):
    """The log's head is not where the append expected it.

    ``head`` is where it is; ``None`` when an append before this one, by the same writer, failed.
    """

    def __init__(self, task_id: str, expected: int, head: int | None) -> None:
        self.head = head
        super().__init__(
            f"task {task_id}: expected head {expected}, "
            + ("but an append before this one failed" if head is None else f"found {head}")
        )


class Fenced(StoreError):
    """A later executor has taken the task over; the append came from an earlier one."""


class LeaseHeld(StoreError):
    """Another replica, which is alive, has the task."""


class TaskEnded(StoreError):
    """The task is in a terminal state; nothing follows it."""


class UnknownTask(StoreError):
    """There is no such task in the store."""


class DuplicateReceipt(StoreError):
    """There is a receipt for this message already: another send of it came first."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(f"message {message_id} has a receipt already")


class TooManyPushes(StoreError):
    """The task has as many push notification configurations as it may."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id} has {MAX_PUSHES} push notification configurations")


class TooManyWaiting(StoreError):
    """As many messages wait on the task as may."""

    def __init__(self, task_id: str, limit: int) -> None:
        self.limit = limit
        super().__init__(f"{limit} messages wait on task {task_id} already")


class StoreUnavailable(StoreError):
    """The store cannot work now (disk full, locked, damaged, closed). The message says why."""


class PrunedElsewhere(StoreError):
    """Another replica removes what is old just now."""

    def __init__(self) -> None:
        super().__init__("another replica removes old tasks just now; try again later")


class Scope(msgspec.Struct, frozen=True):
    """Whose task it is. Nothing is ever found outside the scope that it was stored under."""

    agent: str
    tenant: str = ""
    owner: str = ""


class Receipt(msgspec.Struct, frozen=True):
    """The answer to a message that its sender may repeat (idempotent sends).

    ``digest`` is a hash of the request; the answer is a task and a turn of it, or ``reply``: the
    JSON of a direct message.
    """

    message_id: str
    digest: bytes
    task_id: str = ""
    turn: int = 0
    reply: bytes = b""


class PushState(Enum):
    """Whether a webhook is to be told anything. The values are what stores keep."""

    ACTIVE = "active"
    PARKED = "parked"
    DONE = "done"


class PushRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A push notification configuration: what its creator said, and how far its webhook was told.

    ``config`` says neither task nor tenant, which the store knows. ``version`` is the version of
    the protocol in which it was made. ``cursor`` is the number of the last event that was
    delivered. ``revision`` names this making of it: a configuration that is made anew has another.
    A parked one is told nothing more until it is made anew; ``note`` says why. ``lease_owner`` is
    the
    replica that tells the webhook, as the store has it; what else is said of it is not looked at.
    """

    config: TaskPushNotificationConfig
    version: str
    revision: str
    cursor: int = 0
    state: PushState = PushState.ACTIVE
    note: str = ""
    lease_owner: str = ""

    @property
    def id(self) -> str:
        """The configuration's id, which is unique within its task."""
        return self.config.id


class Undelivered(msgspec.Struct, frozen=True):
    """Who tells webhooks, as the store has it: what a replica must know to leave none untold.

    ``free`` is whether there are some that nobody tells; ``held`` has some of those that the
    replica tells, each by its task's id and its revision. ``next`` is where those go on, 0 when
    there are no more.
    """

    free: bool
    held: tuple[tuple[str, str], ...]
    next: int = 0


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Records to be added to one task's log, all or none.

    ``expected_seq`` is the head that the writer knows (0 creates the task, and ``scope`` and
    ``context_id`` are then needed). ``None`` is for private records from outside a turn: any head
    will do, and ``epoch`` is not looked at. ``epoch`` is that of the writer's claim.
    ``artifacts`` are what the stored form of the task's artifacts lacks after the append, given
    when it is worth storing (``Fold.take_unsaved``); what is not given is read from the log.
    ``turn_open`` says whether a turn is under way after the append, ``None`` leaves it as it is.
    ``taken`` is how many waiting messages the append's turn takes. ``max_waiting`` is how many
    may wait after the append.
    ``release`` lets the task go with it: what is then left to do is for whoever adopts it, and
    ``place`` says in which order (see ``TaskStore.claim_batch``). Without it the replica that
    appends holds a task while a turn of it is open.
    ``exchange`` joins the context's history with it. ``receipts`` are kept with it, and ``pushes``,
    which begin with the first event when the append creates the task, else after the last.
    """

    task_id: str
    events: Sequence[TaskEvent | PrivateEvent]
    expected_seq: int | None
    turn: int
    epoch: int = 1
    scope: Scope | None = None
    context_id: str = ""
    artifacts: Sequence[ArtifactPiece] | None = None
    turn_open: bool | None = None
    taken: int = 0
    max_waiting: int | None = None
    release: bool = False
    place: int = 0
    exchange: Sequence[Message] = ()
    receipts: Sequence[Receipt] = ()
    pushes: Sequence[PushRecord] = ()


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the store knows it. ``task`` is the fold of its log up to ``seq``, with as much of
    its history and artifacts as was asked for.

    ``lease_owner`` is the replica that may write to it, empty when it is nobody's. ``unsaved``
    names the artifacts whose stored form lacks what is in the log (see ``Fold``).
    """

    scope: Scope
    task: Task
    seq: int
    turn: int
    turn_open: bool
    waiting: int
    epoch: int
    cancel_requested: bool
    lease_owner: str = ""
    unsaved: frozenset[str] = frozenset()


class LogPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a task's log stands: what must be known to tell whether there is news.

    (``seq``, ``sub``) is the place of the last record, public or private.
    """

    task_id: str
    seq: int
    sub: int
    epoch: int
    lease_owner: str
    waiting: int
    cancel_requested: bool
    ended: bool


class Claimed(msgspec.Struct, frozen=True):
    """A task that was taken over, the epoch to write in, and where it stood in line."""

    task_id: str
    epoch: int
    place: int = 0


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a store: when it was last heard of (ms, by the store's clock), whether
    it counts as alive, and how many tasks it holds.
    """

    id: str
    seen_at: int
    alive: bool
    holds: int


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks to list, the last updated first: by status timestamp, then id, both falling.

    ``before`` is the place of the last task of the page before: (status time in ms, task id).
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


class TaskPage(msgspec.Struct, frozen=True):
    """Tasks in order, how many match in all (before paging), and whether there are more."""

    tasks: tuple[Task, ...]
    total: int
    more: bool


Committed = Callable[[Sequence[LoggedEvent]], None]
"""Told of every commit, in order, on the event loop: the records of one append."""


class TaskStore(Protocol):
    """Keeps task logs. All methods raise ``StoreUnavailable`` when the store cannot work.

    Guarantees L1-L7 of the architecture. ``append`` starts at once and in the order of its calls;
    what it returns may be awaited later, so a writer can have several appends under way. When one
    fails, those that follow it on the same task and epoch fail too (``Conflict``), as what they
    build on is missing, until the failure was told.

    From ``open`` to ``close`` a store says that its replica is alive, and frees what dead replicas
    held. An embedded store has one user at a time, so whoever held a task before it is dead.
    """

    @property
    def replica(self) -> str:
        """What this user of the store is called; another at each ``open``."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other replicas may use what the store keeps at the same time."""
        ...

    @property
    def has_operators(self) -> bool:
        """Whether ``parley store`` can change what it keeps while it is open."""
        ...

    @property
    def unavailable_reason(self) -> str:
        """Why the store cannot be reached just now, empty while it can be.

        It is known without asking, and says nothing that is not for everybody.
        """
        ...

    def now(self) -> int:
        """Return the present moment by the store's clock, in ms since 1970."""
        ...

    async def open(self, committed: Committed) -> None:
        """Make the store ready: lock it, bring its schema up to date, check that it is sound.

        ``committed`` is called for every append once it is durable, private records included.
        """
        ...

    async def close(self) -> None:
        """Finish what is under way and let go. Idempotent."""
        ...

    def append(self, append: Append) -> Awaitable[int]:
        """Add records; the result is the log's new head. Nobody's giving up the wait undoes it.

        The awaitable raises, checked in this order: ``UnknownTask``, ``Conflict`` for the creation
        of a task that is there, ``TaskEnded``, ``Fenced``, ``Conflict`` for another head,
        ``IllegalEvent`` (see ``fold``; also for a status that does not say since when it is),
        ``TooManyWaiting``, ``TooManyPushes``, ``DuplicateReceipt``. The call itself
        raises ``TypeError`` or ``ValueError`` for what cannot be written as JSON or makes no sense.
        """
        ...

    async def load(
        self,
        task_id: str,
        *,
        scope: Scope | None = None,
        history: int | None = None,
        artifacts: bool = True,
    ) -> TaskRecord | None:
        """Return the task, at no more cost than the size of what is asked for.

        With a ``scope`` a task of another is not there, and nothing of it is read. ``history`` is
        how many of the last messages are wanted, ``None`` for all. The status comes with its
        message always.
        """
        ...

    async def scope_of(self, task_id: str) -> Scope | None:
        """Return whose task it is, at the cost of a look-up."""
        ...

    async def private_records(
        self,
        task_id: str,
        kinds: Sequence[Kind],
        *,
        after: tuple[int, int] = (0, 0),
        limit: int | None = None,
    ) -> Sequence[LoggedEvent]:
        """Return the task's private records of some kinds behind a place (``seq``, ``sub``), in the
        order of the log.
        """
        ...

    async def waiting_messages(
        self, task_id: str, *, skip: int = 0, limit: int = 1
    ) -> Sequence[LoggedEvent]:
        """Return the ``Received`` records that no turn has taken, the oldest first.

        It costs what it returns, and ``skip``, however many messages came before.
        """
        ...

    async def events(self, task_id: str, after: int, limit: int) -> Sequence[LoggedEvent]:
        """Return up to ``limit`` public events with a number above ``after``, in order.

        Fewer, though at least one, when they reach ``PAGE_BYTES``; so a page that is short of
        both ends where the log ended.
        """
        ...

    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""
        ...

    async def claim(self, task_id: str) -> int:
        """Take the task for a new executor and return the new epoch; earlier ones are fenced.

        Raises ``UnknownTask``, ``TaskEnded``, and ``LeaseHeld`` when it is another living
        replica's.
        """
        ...

    async def claim_batch(self, agent: str, limit: int) -> Sequence[Claimed]:
        """Claim up to ``limit`` of the agent's tasks that nobody holds and that have work left.

        They have a turn under way, messages waiting, or a cancellation that was not finished.
        Those with the lowest ``place`` come first, among equals the oldest. No two replicas adopt
        the same task.
        """
        ...

    async def unclaimed(self) -> Mapping[str, int]:
        """Return how many tasks there are to adopt, by agent; at most ``COUNTED`` are counted."""
        ...

    async def first_queued(self, agent: str) -> int:
        """Return the lowest ``place`` above 0 among the agent's tasks to adopt, 0 without any.

        It costs the same however many there are.
        """
        ...

    async def held_tasks(self) -> Sequence[str]:
        """Return the ids of the tasks with work left that this replica holds."""
        ...

    async def positions(self, task_ids: Sequence[str]) -> Sequence[LogPosition]:
        """Return where the logs of tasks stand; nothing for those that are not there."""
        ...

    async def replicas(self) -> Sequence[Replica]:
        """Return the replicas that the store knows, this one among them."""
        ...

    async def parked(self, agent: str, since: int, limit: int) -> Sequence[str]:
        """Return the ids of up to ``limit`` tasks that wait for their callers since before a moment
        (ms), the longest first.
        """
        ...

    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return what was kept for a message."""
        ...

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Keep what a direct reply leaves behind: a receipt, an exchange, or both, or none of it.

        Raises ``DuplicateReceipt``.
        """
        ...

    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first.

        A context keeps its last ``HISTORY_KEPT``.
        """
        ...

    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent keeps for a context."""
        ...

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Keep a value for a context; ``None`` removes it."""
        ...

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Keep a value for a context if it still has the ``expected`` one; return whether it was.

        ``None`` is no value. Of any number of calls at once that expect the same, on all replicas,
        one succeeds (unless they set what they expect). A call that is repeated because its answer
        was lost counts once.
        """
        ...

    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        """Keep a push notification configuration of a task; return it as it is kept.

        It replaces the one that has its id (see ``pushes.placed``); a new one begins after the
        task's last event. This replica holds it from now on, unless nothing was changed.

        Raises ``UnknownTask``, ``TooManyPushes``.
        """
        ...

    async def pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, by id."""
        ...

    async def move_push(self, task_id: str, push: PushRecord) -> bool:
        """Note how far a webhook was told, and its state.

        Nothing is noted, and ``False`` returned, of one that was removed or made anew since, or
        that another replica holds by now.
        """
        ...

    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it is there."""
        ...

    async def claim_pushes(self, agent: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Take over the active push notification configurations of up to ``limit`` of the agent's
        tasks that nobody holds; return the tasks' ids, the oldest first.

        Each with whether there are events that one of them has not delivered.
        """
        ...

    async def undelivered(self, agents: Sequence[str], after: int, limit: int) -> Undelivered:
        """Return whether nobody tells some active webhook of the agents' tasks, and up to about
        ``limit`` (more than ``MAX_PUSHES``) that this replica tells of any, from a place on.

        It costs the same however many there are.
        """
        ...

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a moment (ms), with all that is theirs.

        Contexts without tasks and receipts that were last touched before it go too. Returns how
        many tasks went. It is done in pieces, and holds up nobody who writes. One replica at a
        time does it: raises ``PrunedElsewhere`` when it is another, and nothing went.
        """
        ...
