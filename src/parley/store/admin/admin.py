"""What is done to a store beside serving from it: look at it, bring it up to date, export, import.

It goes by the store's address, with connections of its own, while replicas use it or not. Nothing
here runs on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from parley.model.encoding import decode
from parley.model.push import TaskPushNotificationConfig, server_of
from parley.model.tasks import TaskState
from parley.store.admin.export_format import (
    Context,
    ExportLine,
    ExportSource,
    ImportTarget,
    KeptReceipt,
    KeptTask,
    Push,
    Record,
    Said,
    Value,
)
from parley.store.admin.owners import Owned, Owners
from parley.store.events import Kind
from parley.store.sql import Migration
from parley.store.task_store import PushState, Replica

PAGE = 500
"""How many webhooks are looked for, or resumed, at once."""

Rows = Callable[[str], Iterable[Sequence[Any]]]
"""Returns what a query of ``sql/shared/upkeep.sql`` finds, a piece at a time."""


class Schema(msgspec.Struct, frozen=True):
    """Which version of the schema a store has (0: there is no store yet), and what it lacks."""

    version: int
    missing: Sequence[Migration]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of an agent that have work left: how many, and since when (ms) the oldest."""

    agent: str
    is_held: bool
    tasks: int
    since: int


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """How a store stands. ``now`` and other moments are in ms, ``size`` in bytes.

    ``tasks`` are how many of an agent are in a state. ``replicas`` is ``None`` where only one
    process can use the store.
    """

    now: int
    size: int
    replicas: Sequence[Replica] | None
    tasks: Sequence[tuple[str, TaskState, int]]
    work: Sequence[Work]
    webhooks: Sequence[tuple[PushState, int]]
    contexts: int
    receipts: int


class Old(msgspec.Struct, frozen=True):
    """What of an agent would go: tasks that ended, their events, receipts."""

    tasks: int
    events: int
    receipts: int


class Which(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which webhooks: of an agent, a tenant, a task, and of an id; of any where that is empty."""

    agent: str = ""
    tenant: str = ""
    task_id: str = ""
    id: str = ""


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook that is told nothing any more, and why. Holds no secrets: of its URL the server.

    ``behind`` is how many events of its task it was not told. ``key`` is the task's in the store.
    """

    key: int
    agent: str
    tenant: str
    owner: str
    task_id: str
    id: str
    server: str
    behind: int
    note: str


class StoreAdmin(Protocol):
    """The upkeep of one store. Everything raises ``StoreUnavailable``."""

    @property
    def name(self) -> str:
        """What people are told of where it is: no password."""
        ...

    def schema(self) -> Schema:
        """Return which version of the schema it has. Changes nothing."""
        ...

    def migrate(self) -> Sequence[Migration]:
        """Bring its schema up to date, or make it; return what was done."""
        ...

    def unassigned(self, owners: Owners) -> Owned:
        """Return how much belongs to callers without an issuer. It must be there and up to date."""
        ...

    def assign(self, owners: Owners) -> Owned:
        """Give that to an issuer, all of it at once; return how much it was. Nobody may use it."""
        ...

    def survey(self) -> Survey:
        """Return how it stands, as of one moment. It must be there and up to date."""
        ...

    def agents(self) -> Sequence[str]:
        """Return the keys of the agents of which it keeps anything."""
        ...

    def old(self, agent: str, before: int) -> Old:
        """Return what of an agent is older than a moment (ms) and may go."""
        ...

    def now(self) -> int:
        """Return the present moment by the store's clock, in ms."""
        ...

    def suspended(self, which: Which) -> Sequence[Suspended]:
        """Return the webhooks that are suspended, those of the oldest tasks first."""
        ...

    def resume(self, which: Which) -> Sequence[Suspended]:
        """Have webhooks told again, after the last event that they took; return which.

        The server that uses the store goes on with them within a second or so.
        """
        ...

    def reading(self) -> AbstractContextManager[ExportSource]:
        """Read it, as of the moment when this begins. It must be there and up to date."""
        ...

    def writing(self) -> AbstractContextManager[ImportTarget]:
        """Write to it; its schema is brought up to date before."""
        ...


class _Piles:
    """Rows in the order of what they belong to, taken a pile at a time."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self._rows = iter(rows)
        self._next = next(self._rows, None)

    def of(self, key: int) -> Iterator[Sequence[Any]]:
        """Return the rows that belong to ``key``. Keys are asked for in rising order."""
        while self._next is not None and self._next[0] <= key:
            if self._next[0] == key:
                yield self._next[1:]
            self._next = next(self._rows, None)


def lines_of(rows: Rows) -> Iterator[ExportLine]:
    """Return all that a store keeps, for a file."""
    messages, values = _Piles(rows("messages")), _Piles(rows("context_values"))
    for key, agent, tenant, owner, context_id, touched_at, said in rows("contexts"):
        scope = {"agent": agent, "tenant": tenant, "owner": owner}
        yield Context(context_id=context_id, said=said, touched_at=touched_at, **scope)
        for (message,) in messages.of(key):
            yield Said(message=msgspec.Raw(message))
        for name, value in values.of(key):
            yield Value(key=name, value=bytes(value))
    for agent, tenant, owner, message_id, digest, task_id, turn, reply, at in rows("receipts"):
        yield KeptReceipt(
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
    records, pushes = _Piles(rows("records")), _Piles(rows("pushes"))
    for key, *head in rows("tasks"):
        yield _task(head)
        for seq, sub, turn, kind, at, payload in records.of(key):
            raw = msgspec.Raw(payload)
            yield Record(seq=seq, sub=sub, turn=turn, kind=Kind(kind), at=at, payload=raw)
        for config, version, revision, cursor, state, note in pushes.of(key):
            yield Push(
                config=msgspec.Raw(config),
                version=version,
                revision=revision,
                cursor=cursor,
                state=PushState(state),
                note=note,
            )


def _task(row: Sequence[Any]) -> KeptTask:
    task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, *rest = row
    turn_open, waiting, cancel_requested, epoch, ended_at, place = rest
    return KeptTask(
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
        place=place,
    )


def survey_of(rows: Rows, *, now: int, size: int, replicas: Sequence[Replica] | None) -> Survey:
    """Return how a store stands, as its tables say."""
    [[contexts]], [[receipts]] = rows("count_contexts"), rows("count_receipts")
    return Survey(
        now=now,
        size=size,
        replicas=replicas,
        tasks=[(agent, TaskState(state), n) for agent, state, n in rows("count_by_state")],
        work=[
            Work(agent=agent, is_held=bool(is_held), tasks=n, since=since)
            for agent, is_held, n, since in rows("under_way")
        ],
        webhooks=[(PushState(state), n) for state, n in rows("count_pushes")],
        contexts=contexts,
        receipts=receipts,
    )


def suspended_of(
    find: Callable[[Sequence[Any]], Iterable[Sequence[Any]]], which: Which
) -> Iterator[list[Suspended]]:
    """Return the webhooks that are suspended, some at a time, as the query of this name finds them.

    ``find`` returns what it finds for its values.
    """
    wanted = (which.agent, which.tenant, which.task_id, which.id)
    place = (-1, "")
    while True:
        values = (place[0], *place, *[value for each in wanted for value in (each, each)], PAGE)
        page = [
            Suspended(
                key=key,
                agent=agent,
                tenant=tenant,
                owner=owner,
                task_id=task_id,
                id=id,
                server=server_of(decode(config, TaskPushNotificationConfig).url),
                behind=max(0, seq - cursor),
                note=note,
            )
            for key, id, agent, tenant, owner, task_id, config, cursor, seq, note in find(values)
        ]
        if page:
            yield page
        if len(page) < PAGE:
            return
        place = (page[-1].key, page[-1].id)


def head_row(key: int, task: KeptTask) -> tuple[Any, ...]:
    """Return a task as the row of its head, from the key to the place in line."""
    return (
        *(key, task.task_id, task.agent, task.tenant, task.owner, task.context_id),
        *(task.state.value, task.status_at, task.seq, task.sub, task.turn, task.turn_open),
        *(task.waiting, task.cancel_requested, task.epoch, task.ended_at, task.place),
    )


def record_row(key: int, record: Record) -> tuple[Any, ...]:
    """Return a record as its row."""
    payload = bytes(record.payload)
    return key, record.seq, record.sub, record.turn, record.kind.value, record.at, payload


def push_row(key: int, agent: str, push_id: str, push: Push) -> tuple[Any, ...]:
    """Return a configuration as its row."""
    told = (push.version, push.revision, push.cursor, push.state.value, push.note)
    return key, push_id, agent, bytes(push.config), *told


def receipt_row(receipt: KeptReceipt) -> tuple[Any, ...]:
    """Return a receipt as its row."""
    answer = (receipt.digest, receipt.task_id, receipt.turn, receipt.reply, receipt.at)
    return *receipt.name, *answer
