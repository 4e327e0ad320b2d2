"""The administration of a store (``parley store``): status, migration, export, import.

It opens connections of its own to the store's address, whether replicas use the store or not.
Nothing here runs on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from parley.model.operations import PushOptions
from parley.model.tasks import TaskState
from parley.security.api_keys import ApiKeyRecord
from parley.store.admin.export_format import (
    ContextMessage,
    ContextValue,
    ExportedContext,
    ExportedEvent,
    ExportedPush,
    ExportedReceipt,
    ExportedRecord,
    ExportedTask,
    ExportLine,
    ExportSource,
    ImportTarget,
)
from parley.store.admin.owners import Owned, OwnerAssignment
from parley.store.audit.reading import AuditReading
from parley.store.events import RecordKind
from parley.store.protocols.audit import AuditEntry, AuditLine, AuditPrune
from parley.store.protocols.claims import Replica
from parley.store.protocols.usage import UsageQuery, UsageRow
from parley.store.protocols.webhooks import PushState, SuspendedWebhook, WebhookFilter
from parley.store.sql import Migration
from parley.store.sql_engine.batch import ASLEEP, options_column, options_in

Rows = Callable[[str], Iterable[Sequence[Any]]]
"""Returns the rows of a query of ``sql/shared/admin.sql``, a piece at a time."""


class SchemaStatus(msgspec.Struct, frozen=True):
    """The version of a store's schema (0: there is no store yet), and the missing migrations."""

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

    ``wakes_at`` is ``timers.NEVER`` if all of them wait for events only.
    """

    agent: str
    tasks: int
    wakes_at: int


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a store. ``now`` and other times are in ms, ``size`` in bytes.

    ``tasks`` counts tasks by agent and state, ``work`` those with work left that are awake.
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
    """How much of an agent a prune would remove: ended tasks, their events, receipts."""

    tasks: int
    events: int
    receipts: int


class StoreAdmin(Protocol):
    """The administration of one store. All methods raise ``StoreUnavailable``."""

    @property
    def name(self) -> str:
        """The store's address, without password."""
        ...

    def schema(self) -> SchemaStatus:
        """Return the version of the schema. Changes nothing."""
        ...

    def migrate(self) -> Sequence[Migration]:
        """Create the schema, or bring it up to date; return the migrations done."""
        ...

    def unassigned(self, owners: OwnerAssignment) -> Owned:
        """Return how much belongs to owners without an issuer. The schema must be current."""
        ...

    def assign(self, owners: OwnerAssignment) -> Owned:
        """Assign that to an issuer, all at once; return how much it was. No replica may run."""
        ...

    def survey(self) -> Survey:
        """Return the store's status, as of one moment. The schema must be current."""
        ...

    def agents(self) -> Sequence[str]:
        """Return the keys of the agents that have anything in the store."""
        ...

    def prunable(self, agent: str, before: int) -> Prunable:
        """Return how much of an agent is older than a time (ms) and may be removed."""
        ...

    def now(self) -> int:
        """Return the time by the store's clock, in ms."""
        ...

    def suspended(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Return the suspended webhooks, those of the oldest tasks first."""
        ...

    def waiting(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Return the active webhooks that wait for their receivers, and why."""
        ...

    def resume(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Resume suspended webhooks after the last delivered event; return which.

        The server that uses the store continues with them within a second or so.
        """
        ...

    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; return whether it was not complete before (see ``timers``).

        The servers that use the store wake the tasks that wait for it. The schema must be current.
        Raises ``EventCompleted``, ``ValueError``.
        """
        ...

    def secret(self, name: str) -> bytes:
        """Return the secret of a name; the first call makes it. The schema must be current."""
        ...

    def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store an API key; the servers that use the store accept it from then on.

        The schema must be current. Raises ``TooManyApiKeys``, ``DuplicateApiKey``, ``ValueError``.
        """
        ...

    def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all API keys, or those of an owner, the oldest first."""
        ...

    def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """Have an API key end at a time (ms), unless it ends earlier; return it as it is then.

        Returns ``None`` if there is no such key.
        """
        ...

    def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return what was used, the latest days first. The schema must be current."""

    def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries to the audit; durable when it returns. The schema must be current."""
        ...

    def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines of the audit, and append a checkpoint.

        Returns how many went, ``PRUNED_AT_ONCE`` at most.
        """
        ...

    def audit(self) -> AbstractContextManager[AuditReading]:
        """Read who did what as of the moment when this begins. The schema must be current."""
        ...

    def reading(self) -> AbstractContextManager[ExportSource]:
        """Read the store as of the moment when this begins. The schema must be current."""
        ...

    def writing(self) -> AbstractContextManager[ImportTarget]:
        """Write to the store, after bringing its schema up to date."""
        ...


class _Groups:
    """Rows in the order of the key that they belong to, read one key at a time."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self._rows = iter(rows)
        self._next = next(self._rows, None)

    def of(self, key: int) -> Iterator[Sequence[Any]]:
        """Yield the rows of ``key``. Call it with rising keys."""
        while self._next is not None and self._next[0] <= key:
            if self._next[0] == key:
                yield self._next[1:]
            self._next = next(self._rows, None)


def lines_of(rows: Rows) -> Iterator[ExportLine]:
    """Yield all lines of an export."""
    messages, values = _Groups(rows("messages")), _Groups(rows("context_values"))
    for key, agent, tenant, owner, context_id, touched_at, count in rows("contexts"):
        scope = {"agent": agent, "tenant": tenant, "owner": owner}
        yield ExportedContext(context_id=context_id, messages=count, touched_at=touched_at, **scope)
        for (message,) in messages.of(key):
            yield ContextMessage(message=msgspec.Raw(message))
        for name, value in values.of(key):
            yield ContextValue(key=name, value=bytes(value))
    for agent, tenant, owner, message_id, digest, task_id, turn, reply, at in rows("receipts"):
        yield ExportedReceipt(
            agent=agent,
            tenant=tenant,
            owner=owner,
            message_id=message_id,
            digest=bytes(digest),
            task_id=task_id,
            turn=turn,
            reply=bytes(reply),
            at=at,
        )
    for agent, name, at, value in rows("events"):
        yield ExportedEvent(agent=agent, key=name, at=at, value=msgspec.Raw(value))
    records, pushes = _Groups(rows("records")), _Groups(rows("pushes"))
    waits = _Groups(rows("event_waits"))
    for key, *head in rows("tasks"):
        yield _task(head, tuple([name for (name,) in waits.of(key)]))
        for seq, sub, turn, kind, at, payload in records.of(key):
            raw = msgspec.Raw(payload)
            yield ExportedRecord(
                seq=seq, sub=sub, turn=turn, kind=RecordKind(kind), at=at, payload=raw
            )
        for config, version, revision, cursor, state, note, options, confirmed in pushes.of(key):
            yield ExportedPush(
                config=msgspec.Raw(config),
                version=version,
                revision=revision,
                cursor=cursor,
                state=PushState(state),
                note=note,
                options=options_in(options) if options else None,
                confirmed=bool(confirmed),
            )


def _task(row: Sequence[Any], waits_for: tuple[str, ...]) -> ExportedTask:
    task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, *rest = row
    turn_open, waiting, cancel_requested, epoch, ended_at, queue_key, wakes_at, base_url = rest
    return ExportedTask(
        task_id=task_id,
        agent=agent,
        tenant=tenant,
        owner=owner,
        context_id=context_id,
        state=TaskState(state),
        status_at=status_at,
        seq=seq,
        sub=sub,
        turn=turn,
        turn_open=bool(turn_open),
        waiting=waiting,
        cancel_requested=bool(cancel_requested),
        epoch=epoch,
        ended_at=ended_at,
        queue_key=queue_key,
        wakes_at=wakes_at,
        base_url=base_url,
        waits_for=waits_for,
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


def head_row(key: int, task: ExportedTask) -> tuple[Any, ...]:
    """Return the row of a task's head, from ``key`` to the lease owner's column."""
    return (
        *(key, task.task_id, task.agent, task.tenant, task.owner, task.context_id),
        *(task.state.value, task.status_at, task.seq, task.sub, task.turn, task.turn_open),
        *(task.waiting, task.cancel_requested, task.epoch, task.ended_at, task.queue_key),
        *(task.wakes_at, task.base_url, "" if task.wakes_at is None else ASLEEP),
    )


def wait_rows(keys: Mapping[str, int], tasks: Sequence[ExportedTask]) -> list[tuple[Any, ...]]:
    """Return the rows of the events that tasks wait for."""
    return [(keys[task.task_id], task.agent, name) for task in tasks for name in task.waits_for]


def event_row(event: ExportedEvent) -> tuple[Any, ...]:
    """Return the row of an event."""
    return event.agent, event.key, event.at, bytes(event.value)


def context_rows(
    keys: Iterable[int],
    contexts: Sequence[ExportedContext],
    messages: Sequence[Sequence[ContextMessage]],
    values: Sequence[Sequence[ContextValue]],
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the rows of contexts, of their messages and of their values."""
    keyed = [*zip(keys, contexts, messages, values, strict=True)]
    return (
        [(key, *each.name, each.messages, each.touched_at) for key, each, _, _ in keyed],
        [(k, n, bytes(each.message)) for k, _, said, _ in keyed for n, each in enumerate(said, 1)],
        [(key, each.key, each.value) for key, _, _, kept in keyed for each in kept],
    )


def record_row(key: int, record: ExportedRecord) -> tuple[Any, ...]:
    """Return the row of a record."""
    payload = bytes(record.payload)
    return key, record.seq, record.sub, record.turn, record.kind.value, record.at, payload


def push_row(key: int, agent: str, push_id: str, push: ExportedPush) -> tuple[Any, ...]:
    """Return the row of a configuration."""
    delivery = (push.version, push.revision, push.cursor, push.state.value, push.note)
    options = (options_column(push.options or PushOptions()), push.confirmed)
    return key, push_id, agent, bytes(push.config), *delivery, *options


def receipt_row(receipt: ExportedReceipt) -> tuple[Any, ...]:
    """Return the row of a receipt."""
    answer = (receipt.digest, receipt.task_id, receipt.turn, receipt.reply, receipt.at)
    return *receipt.name, *answer
