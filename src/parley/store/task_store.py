"""The interface of a task store. Implementations: ``memory``, ``sqlite``, ``postgres``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence

from parley.model.parts import Message
from parley.store.audit.trail import PAGE, AuditEntry, AuditFilter, AuditLine, AuditPrune
from parley.store.events import LoggedEvent, RecordKind, Scope
from parley.store.protocols.claims import Claimed, Replica
from parley.store.protocols.tables import DueTask, Receipt, TimersChanged
from parley.store.protocols.task_log import (
    Append,
    Committed,
    LogPosition,
    TaskPage,
    TaskQuery,
    TaskRecord,
)
from parley.store.protocols.webhooks import ActivePushes, DeliveryAttempt, PushRecord
from parley.store.tables import SmallTables


class TaskStore(SmallTables):
    """Stores task logs. All methods raise ``StoreUnavailable`` when the store cannot work.

    The log has the guarantees L1-L4, L6 and L7 of the architecture:

    - Atomic: an append adds all its records and changes, or none.
    - Ordered: appends take effect in the order of the calls. A writer may have several in progress;
      when one fails, later ones on the same task and epoch raise ``Conflict``, until the failure
      was raised.
    - Durable: a record is readable, and passed to ``Committed``, only once it is durable.
    - Fenced: an append with an epoch older than the last claim raises ``Fenced``.
    - Closed: nothing follows a terminal state.
    - Reads see every append that was acknowledged before, and never wait for a writer.

    Lists are read at one moment, and agree with the logs. Memory is bounded by the page.

    Each process that uses the store is a replica, and sends heartbeats from ``open`` to ``close``.
    The leases of a replica without a heartbeat expire, at the latest after ``Lease.seconds``. An
    embedded store has one user at a time, so the leases of all earlier ones expire when it opens.
    Leases on tasks are

    - Exclusive: a task has at most one lease owner; of claims at once, one succeeds.
    - Fenced: each claim, and each lease that expires, raises the task's epoch. The epoch is the
      *fencing token*: appends with an older one raise ``Fenced``, however late they arrive.
    - Ordered: ``claim_batch`` takes the lowest ``queue_key`` first, among equals the oldest task.
      A task whose lease expired has key 0.

    ``Append.wakes_at`` makes a task sleep:

    - Exact: a task sleeps until its time has come, until an event that it waits for is complete,
      or until its cancellation is requested, and is claimable from then on.
    - Atomic: a task that begins to wait for an event and the completion of that event cannot miss
      each other, on all replicas.
    - Once: an event is completed once; the first value counts. It may be complete before a task
      waits for it. It is kept as long as a task waits for it, and for the retention of its agent.
    - Indexed: a call costs what it returns or changes, however many tasks sleep.

    An event belongs to an agent. All its tasks, of all callers and tenants, share the keys.

    A context belongs to a scope: another scope's context of the same id is another context. Each
    call for one is durable when it returns.

    Webhooks are push notification configurations with a durable cursor each:

    - At least once: the cursor moves only with ``save_delivery``, so a replica that takes over
      repeats at most the unsaved deliveries of the previous replica.
    - Exclusive: a webhook has at most one lease owner. A save by another replica, or of an older
      revision, changes nothing.
    - Atomic: each call applies all of its changes, or nothing.

    The audit is one chain over all replicas. The order is decided in the transaction that appends.
    Lines never change, and only ``prune_audit`` removes some. Exports leave it out: a chain belongs
    to its store.
    """

    @property
    @abstractmethod
    def reads_at_once(self) -> bool:
        """True if reading a task needs no waiting."""

    @property
    @abstractmethod
    def has_operators(self) -> bool:
        """True if ``parley store`` can change the store while it is open."""

    @property
    @abstractmethod
    def migrated(self) -> Sequence[str]:
        """The migrations that ``open`` ran."""

    @property
    @abstractmethod
    def unavailable_reason(self) -> str:
        """The reason why the store cannot be reached now, empty while it can be.

        Costs no query, and contains nothing confidential.
        """

    @abstractmethod
    async def open(self, committed: Committed) -> None:
        """Prepare the store: lock it, migrate its schema, check its integrity.

        Calls ``committed`` for every append once it is durable, private records included.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish the work in progress and disconnect. Idempotent."""

    @abstractmethod
    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a time (ms), with all their rows.

        Contexts without tasks and receipts that were last used before it are removed too, and
        events that were completed before it and that no task waits for. Returns the number of
        removed tasks. Works in batches, and never blocks writers. One replica prunes at a time:
        raises ``PrunedElsewhere`` when another does, and then removes nothing.
        """

    # -- the log -----------------------------------------------------------------------------------

    @abstractmethod
    def append(self, append: Append) -> Awaitable[int]:
        """Add records; the result is the log's new head. Cancelling the wait does not undo it.

        The awaitable raises, checked in this order: ``UnknownTask``, ``Conflict`` for the creation
        of a task that exists, ``TaskEnded``, ``Fenced``, ``Conflict`` for another head,
        ``IllegalEvent`` (see ``fold``; also for a status without a timestamp), ``TooManyWaiting``,
        ``TooManyPushes``, ``DuplicateReceipt``. The call itself raises ``TypeError`` or
        ``ValueError`` for an append that is contradictory or cannot be written as JSON.
        """

    @abstractmethod
    async def load(
        self,
        task_id: str,
        *,
        scope: Scope | None = None,
        history: int | None = None,
        artifacts: bool = True,
    ) -> TaskRecord | None:
        """Return the task, at the cost of the requested parts.

        With a ``scope``, a task of another scope is not found, and no part of it is read.
        ``history`` is the number of last messages to read, ``None`` for all. The status always has
        its message.
        """

    @abstractmethod
    async def scope_of(self, task_id: str) -> Scope | None:
        """Return the task's scope, at the cost of a look-up."""

    @abstractmethod
    async def events(self, task_id: str, after: int, limit: int) -> Sequence[LoggedEvent]:
        """Return up to ``limit`` public events with a number above ``after``, in order.

        A page ends early, after at least one event, when it reaches ``PAGE_BYTES``; so a page below
        both limits ended at the end of the log.
        """

    @abstractmethod
    async def private_records(
        self,
        task_id: str,
        kinds: Sequence[RecordKind],
        *,
        after: tuple[int, int] = (0, 0),
        limit: int | None = None,
    ) -> Sequence[LoggedEvent]:
        """Return the task's private records of some kinds after a position (``seq``, ``sub``), in
        the order of the log.
        """

    @abstractmethod
    async def waiting_messages(
        self, task_id: str, *, skip: int = 0, limit: int = 1
    ) -> Sequence[LoggedEvent]:
        """Return the ``MessageReceived`` records that no turn has received, the oldest first.

        It costs the records that it returns and skips, however many messages came before.
        """

    @abstractmethod
    async def positions(self, task_ids: Sequence[str]) -> Sequence[LogPosition]:
        """Return the ends of tasks' logs, without tasks that the store lacks."""

    @abstractmethod
    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""

    @abstractmethod
    async def awaiting_input(self, agent: str, since: int, limit: int) -> Sequence[str]:
        """Return up to ``limit`` tasks that have waited for their callers since before ``since``
        (ms).

        Returns their ids, the longest wait first.
        """

    # -- replicas and their leases -----------------------------------------------------------------

    @property
    @abstractmethod
    def replica(self) -> str:
        """The id of this user of the store, another at each ``open``: the owner of its leases."""

    @property
    @abstractmethod
    def is_shared(self) -> bool:
        """True if other replicas may use the store at the same time."""

    @abstractmethod
    async def replicas(self) -> Sequence[Replica]:
        """Return the known replicas, including this one."""

    @abstractmethod
    async def claim(self, task_id: str) -> int:
        """Acquire the task's lease for a new executor; return the new epoch. Fences earlier ones.

        Raises ``UnknownTask``, ``TaskEnded``, and ``LeaseHeld`` when another live replica has it.
        """

    @abstractmethod
    async def claim_batch(self, agent: str, limit: int) -> Sequence[Claimed]:
        """Claim up to ``limit`` of the agent's tasks that have work left and no lease owner.

        Work left is an open turn, waiting messages, or an unfinished cancellation.
        """

    @abstractmethod
    async def unclaimed(self) -> Mapping[str, int]:
        """Return the number of claimable tasks, by agent; counts at most ``MAX_COUNTED``."""

    @abstractmethod
    async def first_queued(self, agent: str) -> int:
        """Return the lowest ``queue_key`` above 0 among the agent's claimable tasks, or 0.

        The cost does not depend on their number.
        """

    @abstractmethod
    async def queued_since(self, agent: str) -> int:
        """Return the time (ms) since which the agent's next claimable task waits; 0 without any.

        The cost does not depend on their number.
        """

    @abstractmethod
    async def held_tasks(self) -> Sequence[str]:
        """Return the ids of the tasks with work left whose lease this replica holds."""

    # -- sleeping tasks, and events ----------------------------------------------------------------

    @abstractmethod
    def listen_timers(self, changed: TimersChanged) -> None:
        """Call ``changed`` whenever this process makes a task sleep, or completes an event.

        Changes by other processes must be polled (``next_wake``).
        """

    @abstractmethod
    async def next_wake(self, agents: Sequence[str]) -> int | None:
        """Return the earliest time (ms) at which a task of these agents is due.

        ``None`` if none sleeps; ``NEVER`` if all of them wait for events only.
        """

    @abstractmethod
    async def due_tasks(self, agent: str, now: int, limit: int) -> Sequence[DueTask]:
        """Return up to ``limit`` of the agent's sleeping tasks that are due, the earliest first."""

    @abstractmethod
    async def wake(self, tasks: Mapping[str, int], now: int) -> int:
        """Make due sleeping tasks claimable, each with its queue key.

        Returns their number; tasks that are already awake do not count.
        """

    @abstractmethod
    async def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; the waiting tasks become due at once.

        ``value`` is JSON; equal values may be written differently. Returns whether this call
        completed it: ``False`` if it was complete with the same value. A call that is repeated
        because its answer was lost counts once. Durable when it returns.

        Raises ``EventCompleted`` if it has another value, ``ValueError`` for a key or a value that
        cannot be stored.
        """

    @abstractmethod
    async def event(self, agent: str, key: str) -> bytes | None:
        """Return the value of an event, ``None`` until it is complete."""

    # -- contexts ----------------------------------------------------------------------------------

    @abstractmethod
    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return the receipt of a message."""

    @abstractmethod
    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Store the receipt and the exchange of a direct reply, both or neither.

        Raises ``DuplicateReceipt``.
        """

    @abstractmethod
    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first.

        A context keeps its last ``HISTORY_KEPT``.
        """

    @abstractmethod
    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent keeps for a context."""

    @abstractmethod
    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Store a value for a context; ``None`` removes it."""

    @abstractmethod
    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Store a value for a context if the current one is ``expected``; return whether it was.

        ``None`` is no value. If any number of calls expect the same at once, on all replicas, one
        succeeds (unless they set the value that they expect). A call that is repeated because its
        answer was lost counts once.
        """

    # -- webhooks ----------------------------------------------------------------------------------

    @abstractmethod
    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        """Store a push notification configuration of a task; return it as stored.

        It replaces a configuration with the same id (see ``merge_pushes``); a new configuration
        begins after the task's last event. This replica claims it, unless nothing changed.

        Raises ``UnknownTask``, ``TooManyPushes``, and ``PushReplaced`` if it ``replaces`` another
        revision than the stored one.
        """

    @abstractmethod
    async def pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, by id."""

    @abstractmethod
    async def save_delivery(
        self, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None = None
    ) -> bool:
        """Save a webhook's cursor, state and note, and an attempt for its history, in one write.

        Saves nothing and returns ``False`` when the configuration was removed or created again
        since, or when another replica has claimed it.
        """

    @abstractmethod
    async def push_attempts(self, task_id: str, push_id: str) -> Sequence[DeliveryAttempt]:
        """Return the last ``ATTEMPTS_KEPT`` attempts of a webhook, the newest first."""

    @abstractmethod
    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it exists."""

    @abstractmethod
    async def claim_pushes(self, agent: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Claim the active webhooks without a lease owner of up to ``limit`` of the agent's tasks.

        Returns the tasks' ids, the oldest first, each with whether a claimed webhook has
        undelivered events.
        """

    @abstractmethod
    async def active_pushes(self, agents: Sequence[str], after: int, limit: int) -> ActivePushes:
        """Return whether active webhooks of the agents' tasks are unclaimed, and a page of this
        replica's.

        The page has up to about ``limit`` (more than ``MAX_PUSHES``) claimed webhooks of any agent.
        The cost does not depend on their number.
        """

    # -- the audit ---------------------------------------------------------------------------------

    @abstractmethod
    async def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries in order, all or none; durable when it returns."""

    @abstractmethod
    async def read_audit(
        self, which: AuditFilter, *, after: int = 0, limit: int = PAGE, newest: bool = False
    ) -> Sequence[AuditLine]:
        """Return lines with a number above ``after``, in order; optionally the ``newest`` ones."""

    @abstractmethod
    async def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines, and append a checkpoint with the hash of the last of them.

        Returns their number, at most ``LINES_PER_PRUNE``: then call it again. If there are none,
        nothing is appended.
        """
