"""The administration of a store (``parley store``): status, migration, owners, export, import.

It opens its own connections to the store's address, whether replicas use the store or not. It does
not run on an event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from heapq import nlargest
from typing import Any, Literal, TypeVar

import msgspec

from parley.database.sql import Migration, filled
from parley.model.operations import TaskPushNotificationConfig, server_of
from parley.model.service import caller_of, owned_by
from parley.model.struct import decode
from parley.model.tasks import TaskState
from parley.security.api_keys import ApiKeyRecord, checked
from parley.security.limits.usage import UsageQuery, UsageRow
from parley.store.admin.transfer import ExportSource, Rows
from parley.store.audit.reading import AuditReading
from parley.store.audit.trail import AuditEntry, AuditLine, AuditPrune
from parley.store.events import TurnStarted
from parley.store.protocols.claims import Replica
from parley.store.protocols.tables import HISTORY_KEPT, NEVER
from parley.store.protocols.webhooks import (
    DeliveryAttempt,
    PushState,
    SuspendedWebhook,
    WebhookFilter,
)
from parley.store.sql import queries
from parley.store.sql.rows import append_audit, prune_audit
from parley.store.sql.store import SqlTaskStore
from parley.store.tables import TableRows, add_api_key, api_keys, end_api_key, find_usage, secret
from parley.store.webhooks import last_attempts, suspended_of

T = TypeVar("T")

_SQL = queries("shared", "owners.sql")
_NAMES = ("agent", "tenant", "prefix", "key", "to", "shift", "at")

Values = Sequence[Any] | Mapping[str, Any]

Execute = Callable[[str, dict[str, Any]], Sequence[Any]]
"""Executes a statement about owners; returns the rows of its result, none for a change."""


class SchemaStatus(msgspec.Struct, frozen=True):
    """The version of a store's schema (0: the store does not exist yet), and missing migrations."""

    version: int
    missing: Sequence[Migration]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The number of an agent's tasks with work left, and the time (ms) of the oldest."""

    agent: str
    is_held: bool
    tasks: int
    since: int


class Asleep(msgspec.Struct, frozen=True, kw_only=True):
    """The number of an agent's sleeping tasks, and the time (ms) at which the next wakes up.

    ``wakes_at`` is ``NEVER`` if all of them wait for events only.
    """

    agent: str
    tasks: int
    wakes_at: int


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a store. ``now`` and other times are in ms, ``size`` in bytes.

    ``tasks`` counts tasks by agent and state, ``work`` awake tasks with work left.
    ``replicas`` is ``None`` where only one process can use the store.
    """

    now: int
    size: int
    replicas: Sequence[Replica] | None
    tasks: Sequence[tuple[str, TaskState, int]]
    work: Sequence[Work]
    asleep: Sequence[Asleep]
    webhooks: Sequence[tuple[PushState, int]]
    contexts: int
    receipts: int
    events: int


class Prunable(msgspec.Struct, frozen=True):
    """The amount of an agent's data that a prune would remove: ended tasks, events, receipts."""

    tasks: int
    events: int
    receipts: int


class OwnerAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """An issuer, and the owners to assign to it: of one agent, of one tenant, or all."""

    issuer: str
    agent: str = ""
    tenant: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of the statements."""
        return {"agent": self.agent, "tenant": self.tenant, "prefix": owned_by(self.issuer)}


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of data of owners without an issuer, or assigned to one."""

    tasks: int
    contexts: int
    receipts: int


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for tasks of all callers, the last changed first; empty fields select all.

    ``caller`` is a caller's id, ``ANONYMOUS_ID`` for callers without one. ``before`` is the last
    task of the previous page: its time (ms), and its id.
    """

    state: TaskState = TaskState.UNSPECIFIED
    context_id: str = ""
    caller: str = ""
    before: tuple[int, str] = (NEVER, "")


class FoundTask(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task as an operator sees it. Times are in ms.

    ``key`` is the task's in the store, ``seq`` the number of its last event, ``lease_owner`` the
    replica that runs it, ``wakes_at`` is set while it sleeps, ``changed`` is the time of its last
    status. ``skill`` is empty for an agent with only one, ``attempt`` is the last at its last turn.
    """

    key: int
    task_id: str
    agent: str
    tenant: str
    owner: str
    context_id: str
    state: TaskState
    seq: int
    lease_owner: str
    wakes_at: int | None
    changed: int
    skill: str
    turn: int
    attempt: int

    @property
    def caller(self) -> str:
        """The id of the caller."""
        return caller_name(self.owner)


class TaskWebhook(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A webhook of a task, without its secrets: only the server of its URL.

    ``delivered`` is the number of the last delivered event, ``recent`` has the last attempts, the
    newest first.
    """

    id: str
    server: str
    delivered: int
    state: PushState
    note: str
    attempts: int
    recent: Sequence[DeliveryAttempt]


class StoreAdmin(ABC):
    """The administration of one store. All methods raise ``StoreUnavailable``."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The store's address, without password."""

    @abstractmethod
    def schema(self) -> SchemaStatus:
        """Return the version of the schema. Changes nothing."""

    @abstractmethod
    def migrate(self) -> Sequence[Migration]:
        """Create or migrate the schema; return the executed migrations."""

    def unassigned(self, owners: OwnerAssignment) -> Owned:
        """Return the amount of data of owners without an issuer. The schema must be current."""
        with self._owners() as execute:
            return unassigned(execute, owners)

    @abstractmethod
    def assign(self, owners: OwnerAssignment) -> Owned:
        """Assign these to an issuer, atomically; return the amount. No replica may run."""

    @abstractmethod
    def survey(self) -> Survey:
        """Return the store's status at one moment. The schema must be current."""

    def agents(self) -> Sequence[str]:
        """Return the keys of the agents that have anything in the store."""
        return [agent for (agent,) in self._rows("agents")]

    def prunable(self, agent: str, before: int) -> Prunable:
        """Return the amount of an agent's data that is older than a time (ms) and may be
        removed."""
        [(tasks, events)] = self._rows("old_tasks", (agent, before))
        [(receipts,)] = self._rows("old_receipts", (agent, before))
        return Prunable(tasks, events, receipts)

    @abstractmethod
    def now(self) -> int:
        """Return the time by the store's clock, in ms."""

    def suspended(
        self, which: WebhookFilter, query: Literal["suspended", "waiting"] = "suspended"
    ) -> Sequence[SuspendedWebhook]:
        """Return suspended webhooks, or active ones that wait for their receivers, with reasons.

        They are ordered by the age of their tasks, the oldest first.
        """
        pages = suspended_of(partial(self._rows, query), which)
        return [each for page in pages for each in page]

    def tasks(self, which: TaskFilter, limit: int) -> Sequence[FoundTask]:
        """Return tasks of all callers, the last changed first. The schema must be current.

        Reads as many tasks as it returns, for each agent, or for each state of a given caller, and
        those under way.
        """
        state = "" if which.state is TaskState.UNSPECIFIED else which.state.value
        last, chosen = (*which.before,), (state, state)
        rows: list[Sequence[Any]] = []
        groups = self._rows("task_groups")
        if which.caller:
            context = (which.context_id, which.context_id)
            for *owner, found in groups:
                if state in ("", found) and caller_name(owner[2]) == which.caller:
                    values = (*owner, found, *last, *context, limit, limit)
                    rows += self._rows("tasks_of_owner", values)
        elif which.context_id:
            rows += self._rows("tasks_of_context", (which.context_id, *last, *chosen, limit, limit))
        else:
            for agent in {agent for agent, *_ in groups}:
                branch = (agent, *last, *chosen, limit)
                rows += self._rows("tasks_of_agent", (*branch, *branch, *branch, limit))
        found_tasks = [_found(row) for row in rows]
        return nlargest(limit, found_tasks, key=lambda task: (task.changed, task.task_id))

    def tasks_named(self, prefix: str) -> Sequence[FoundTask]:
        """Return the first ``MOST_NAMED`` tasks whose ids begin with ``prefix``."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return [_found(row) for row in self._rows("tasks_by_id", (prefix, end, MOST_NAMED))]

    def webhooks_of(self, task: FoundTask) -> Sequence[TaskWebhook]:
        """Return the webhooks of a task, with their last attempts."""
        bodies: dict[str, list[bytes]] = {}
        for id, body in self._rows("task_attempts", (task.key,)):
            bodies.setdefault(id, []).append(bytes(body))
        return [
            TaskWebhook(
                id=id,
                server=server_of(decode(bytes(config), TaskPushNotificationConfig).url),
                delivered=cursor,
                state=PushState(state),
                note=note,
                attempts=attempts,
                recent=last_attempts(bodies.get(id, ())),
            )
            for id, config, cursor, state, note, attempts in self._rows(
                "task_webhooks", (task.key,)
            )
        ]

    @abstractmethod
    def resume(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Resume suspended webhooks after the last delivered event; return these.

        The server that uses the store continues them within about a second.
        """

    @abstractmethod
    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; return ``False`` if it was complete before (see ``TaskStore``).

        The servers that use the store wake the waiting tasks. The schema must be current. Raises
        ``EventCompleted``, ``ValueError``.
        """

    def secret(self, name: str) -> bytes:
        """Return the secret with this name, created by the first call. The schema must be
        current."""
        return self._change_rows(secret, name)

    def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store an API key; the servers that use the store accept it from then on.

        The schema must be current. Raises ``TooManyApiKeys``, ``DuplicateApiKey``, ``ValueError``.
        """
        self._change_rows(add_api_key, checked(record))

    def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all API keys, or the keys of an owner, the oldest first."""
        return self._read_rows(lambda rows: api_keys(rows, owner))

    def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """End an API key at a time (ms), unless it ends earlier; return the resulting record.

        Returns ``None`` for an unknown key.
        """
        return self._change_rows(end_api_key, id, expires_at, revoked_at)

    def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return the usage, the latest days first. The schema must be current."""
        return self._read_rows(lambda rows: find_usage(rows, query))

    def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries to the audit; durable when it returns. The schema must be current."""
        return self._change_rows(append_audit, entries)

    def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old entries of the audit, and append a checkpoint.

        Returns the number of removed entries, at most ``LINES_PER_PRUNE``.
        """
        return self._change_rows(prune_audit, prune)

    @abstractmethod
    def audit(self) -> AbstractContextManager[AuditReading]:
        """Open the audit for reading, at the present moment. The schema must be current."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[ExportSource]:
        """Open the store for reading, at the present moment. The schema must be current."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SqlTaskStore[Any]]:
        """Use the store as an additional replica, after migrating its schema."""
        store = self._store()
        await store.open(lambda records: None)
        try:
            yield store
        finally:
            await store.close()

    @abstractmethod
    def _store(self) -> Any:
        """Return the store itself."""

    @abstractmethod
    def _change_rows(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call ``work`` in a transaction, with its rows; return the result once it is durable."""

    @abstractmethod
    def _read_rows(self, work: Callable[[TableRows], T]) -> T:
        """Call ``work``, which reads small tables, and return its result."""

    @abstractmethod
    def _rows(self, name: str, values: Values = ()) -> Sequence[Sequence[Any]]:
        """Return the rows of a query, at one moment."""

    @abstractmethod
    def _owners(self) -> AbstractContextManager[Execute]:
        """Run statements about owners, at one moment. They change nothing."""


ANONYMOUS_ID = "anonymous"

MOST_NAMED = 10


def caller_name(owner: str) -> str:
    """Return the id of the caller with an owner key, for people."""
    return caller_of(owner).id or ANONYMOUS_ID


def _found(row: Sequence[Any]) -> FoundTask:
    key, task_id, agent, tenant, owner, context, state, seq, holder, wakes, changed, *turns = row
    first, last = [
        TurnStarted(turn=1) if turn is None else decode(bytes(turn), TurnStarted) for turn in turns
    ]
    return FoundTask(
        key=key,
        task_id=task_id,
        agent=agent,
        tenant=tenant,
        owner=owner,
        context_id=context,
        state=TaskState(state),
        seq=seq,
        lease_owner="" if wakes is not None else holder,
        wakes_at=wakes,
        changed=changed,
        skill=first.skill,
        turn=last.turn,
        attempt=last.attempt,
    )


def survey_of(rows: Rows, *, now: int, size: int, replicas: Sequence[Replica] | None) -> Survey:
    """Return the status of a store from its tables."""
    [[contexts]], [[receipts]] = rows("count_contexts"), rows("count_receipts")
    [[events]] = rows("count_events")
    return Survey(
        now=now,
        size=size,
        replicas=replicas,
        tasks=[(agent, TaskState(state), n) for agent, state, n in rows("count_by_state")],
        work=[
            Work(agent=agent, is_held=bool(is_held), tasks=n, since=since)
            for agent, is_held, n, since in rows("under_way")
        ],
        asleep=[Asleep(agent=agent, tasks=n, wakes_at=at) for agent, n, at in rows("asleep")],
        webhooks=[(PushState(state), n) for state, n in rows("count_pushes")],
        contexts=contexts,
        receipts=receipts,
        events=events,
    )


def owner_statements(parameter: str, **words: str) -> dict[str, str]:
    """Return the statements about owners in a database's dialect.

    ``parameter`` is a parameter of its statements, with ``{}`` for the name.
    """
    names = {name: parameter.format(name) for name in _NAMES}
    return filled(_SQL, {"kept": HISTORY_KEPT, **words, **names})


def unassigned(execute: Execute, owners: OwnerAssignment) -> Owned:
    """Return the amount that an assignment would change. Changes nothing."""
    found = {
        name: execute(f"plain_{name}", owners.values)[0][0]
        for name in ("tasks", "contexts", "receipts")
    }
    return Owned(**found)


def assign(execute: Execute, owners: OwnerAssignment) -> Owned:
    """Assign an issuer to the owners without one, in the open transaction.

    If the owner already has rows under the issuer, they are merged: the older messages of a context
    come first, its newer values win, and of two receipts of one message the one under the issuer
    stays. The caller keeps others from writing. Idempotent.
    """
    values = owners.values
    found = unassigned(execute, owners)
    execute("assign_tasks", values)
    execute("assign_counts", values)
    execute("remove_counts", values)
    execute("remove_receipts", values)
    execute("assign_receipts", values)
    for key, to, before, after, shift in execute("twin_contexts", values):
        pair = {"key": key, "to": to, "shift": shift, "at": max(before, after)}
        for step in (
            *("join_history", "trim_history", "join_values", "remove_values"),
            *("touch_context", "remove_context"),
        ):
            execute(step, pair)
    execute("assign_contexts", values)
    return found
