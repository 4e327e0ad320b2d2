"""The export format of a store, lines of JSON: for backups, and for moving to another store.

A file begins with a header and ends with a trailer, which counts the lines between them and has
their hash, so that a truncated or changed file is refused. Between them are, in this order:
contexts, each followed by its messages and values; receipts; events; tasks, the oldest first, each
followed by its whole log and its webhooks. The stored form of tasks is not exported: an import
builds it from the log. Leases and delivery histories are not exported either, nor are secrets:
another store has its own. Sleeping tasks sleep on where they are imported.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from parley.model.operations import PushOptions
from parley.model.tasks import TaskState
from parley.store.events import RecordKind
from parley.store.protocols.errors import StoreError
from parley.store.protocols.webhooks import PushState
from parley.store.snapshot import StoredForm
from parley.store.sql.batch import ASLEEP, options_column, options_in

FORMAT = 1

Rows = Callable[[str], Iterable[Sequence[Any]]]
"""Returns the rows of a query of ``sql/shared/admin.sql``, a piece at a time."""


class TransferError(StoreError):
    """A file cannot be imported; nothing of it was. The message says where the error is."""


class ExportLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="is"):
    """A line of the file."""


class Header(ExportLine, frozen=True, kw_only=True, tag="parley-store"):
    """The first line."""

    format: int
    by: str


class ExportedContext(ExportLine, frozen=True, kw_only=True, tag="context"):
    """A context; its messages, counted here, and its values follow it."""

    agent: str
    tenant: str
    owner: str
    context_id: str
    messages: int = msgspec.field(name="said")
    touched_at: int

    @property
    def name(self) -> tuple[str, str, str, str]:
        """The key of the context."""
        return self.agent, self.tenant, self.owner, self.context_id


class ContextMessage(ExportLine, frozen=True, kw_only=True, tag="said"):
    """A message of the context before it."""

    message: msgspec.Raw


class ContextValue(ExportLine, frozen=True, kw_only=True, tag="value"):
    """A value of the context before it."""

    key: str
    value: bytes


class ExportedReceipt(ExportLine, frozen=True, kw_only=True, tag="receipt"):
    """The receipt of a message (see ``Receipt``)."""

    agent: str
    tenant: str
    owner: str
    message_id: str
    digest: bytes
    task_id: str
    turn: int
    reply: bytes
    at: int

    @property
    def name(self) -> tuple[str, str, str, str]:
        """The key of the receipt."""
        return self.agent, self.tenant, self.owner, self.message_id

    @property
    def row(self) -> tuple[Any, ...]:
        """The row of the receipt."""
        return *self.name, self.digest, self.task_id, self.turn, self.reply, self.at


class ExportedEvent(ExportLine, frozen=True, kw_only=True, tag="event"):
    """A complete event of an agent (see ``Timers``)."""

    agent: str
    key: str
    at: int
    value: msgspec.Raw

    @property
    def name(self) -> tuple[str, str]:
        """The key of the event among the events of all agents."""
        return self.agent, self.key

    @property
    def row(self) -> tuple[Any, ...]:
        """The row of the event."""
        return *self.name, self.at, bytes(self.value)


class ExportedTask(ExportLine, frozen=True, kw_only=True, tag="task", omit_defaults=True):
    """A task's head, as in ``head.Head``; its log and its webhooks follow it.

    ``waits_for`` are the events that wake it while it sleeps.
    """

    task_id: str
    agent: str
    tenant: str
    owner: str
    context_id: str
    state: TaskState
    status_at: int
    seq: int
    sub: int
    turn: int
    turn_open: bool
    waiting: int
    cancel_requested: bool
    epoch: int
    ended_at: int | None
    queue_key: int = msgspec.field(name="place")
    wakes_at: int | None = None
    base_url: str = ""
    waits_for: tuple[str, ...] = ()


class ExportedRecord(ExportLine, frozen=True, kw_only=True, tag="record"):
    """A record of the log of the task before it."""

    seq: int
    sub: int
    turn: int
    kind: RecordKind
    at: int
    payload: msgspec.Raw


class ExportedPush(ExportLine, frozen=True, kw_only=True, tag="webhook", omit_defaults=True):
    """A push notification configuration of the task before it, and its delivery state.

    Its delivery history is not exported.
    """

    config: msgspec.Raw
    version: str
    revision: str
    cursor: int
    state: PushState
    note: str
    options: PushOptions | None = None
    confirmed: bool = False


class Counts(msgspec.Struct, kw_only=True):
    """The number of each kind of line."""

    contexts: int = 0
    messages: int = 0
    values: int = 0
    receipts: int = 0
    events: int = 0
    tasks: int = 0
    records: int = 0
    webhooks: int = 0

    def add(self, line: ExportLine) -> None:
        """Count a line."""
        name = _COUNTED[type(line)]
        setattr(self, name, getattr(self, name) + 1)


class Trailer(ExportLine, frozen=True, kw_only=True, tag="end"):
    """The last line. ``sha256`` is the hash of all lines before it."""

    counts: Counts
    sha256: str


_COUNTED: dict[type, str] = {
    ExportedContext: "contexts",
    ContextMessage: "messages",
    ContextValue: "values",
    ExportedReceipt: "receipts",
    ExportedEvent: "events",
    ExportedTask: "tasks",
    ExportedRecord: "records",
    ExportedPush: "webhooks",
}
_Any = (
    Header
    | ExportedContext
    | ContextMessage
    | ContextValue
    | ExportedReceipt
    | ExportedEvent
    | ExportedTask
    | ExportedRecord
    | ExportedPush
    | Trailer
)
encode_line = msgspec.json.Encoder().encode
decode_line = msgspec.json.Decoder(_Any).decode


class ExportSource:
    """A store to export, as of one moment. ``rows`` runs queries of ``sql/shared/admin.sql``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def lines(self) -> Iterator[ExportLine]:
        """Yield all lines in the order of the file, without header and trailer.

        Memory is bounded. Raises ``StoreUnavailable``.
        """
        rows = self._rows
        messages, values = _Groups(rows("messages")), _Groups(rows("context_values"))
        for key, agent, tenant, owner, context_id, touched_at, count in rows("contexts"):
            scope = {"agent": agent, "tenant": tenant, "owner": owner}
            yield ExportedContext(
                context_id=context_id, messages=count, touched_at=touched_at, **scope
            )
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
            for config, version, revision, cursor, state, note, options, confirmed in pushes.of(
                key
            ):
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


class ImportTarget(ABC):
    """A store to import into. Additions are durable after ``commit``.

    Raises ``StoreUnavailable``; uncommitted additions are then discarded. ``task_columns`` are
    further columns of the row of a new task, after the columns of every store.
    """

    task_columns: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}
        self._agents: dict[str, str] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()

    @abstractmethod
    def there(self, table: str, names: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """Return the keys, out of some, that the rows of a table have."""

    @abstractmethod
    def add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add new rows to a table."""

    @abstractmethod
    def _context_keys(self, count: int) -> Iterable[int]:
        """Return keys for new contexts."""

    @abstractmethod
    def _task_key(self) -> int:
        """Return the key of the next task."""

    @abstractmethod
    def _add_waits(self, waits: Sequence[tuple[int, str, str]]) -> None:
        """Add events for which tasks wait: a task's key, its agent, and the event.

        A task is due at once if an event of its is complete in the store.
        """

    @abstractmethod
    def _set_stored(self, rows: Sequence[tuple[int, bool, int, int]]) -> None:
        """Set how many messages a stored form has, whether the last is the status's, the number of
        the task's last event; the last column is the task's key.
        """

    @abstractmethod
    def _commit(self, counts: Sequence[tuple[Any, ...]]) -> None:
        """Add to the counts of tasks, and make the additions durable."""

    def add_contexts(
        self,
        contexts: Sequence[
            tuple[ExportedContext, Sequence[ContextMessage], Sequence[ContextValue]]
        ],
    ) -> None:
        """Add new contexts, with the messages and the values of each."""
        rows: list[tuple[Any, ...]] = []
        message_rows: list[tuple[Any, ...]] = []
        value_rows: list[tuple[Any, ...]] = []
        keys = self._context_keys(len(contexts))
        for key, (context, messages, values) in zip(keys, contexts, strict=True):
            rows.append((key, *context.name, context.messages, context.touched_at))
            message_rows += [(key, n, bytes(each.message)) for n, each in enumerate(messages, 1)]
            value_rows += [(key, each.key, each.value) for each in values]
        self.add("contexts", rows)
        self.add("messages", message_rows)
        self.add("values", value_rows)

    def add_tasks(self, tasks: Sequence[ExportedTask]) -> None:
        """Add new tasks, in this order, without lease owners."""
        rows: list[tuple[Any, ...]] = []
        waits = []
        for task in tasks:
            key = self._keys[task.task_id] = self._task_key()
            self._agents[task.task_id] = task.agent
            self._counts[task.agent, task.tenant, task.owner, task.state.value] += 1
            waits += [(key, task.agent, name) for name in task.waits_for]
            rows.append(
                (
                    *(key, task.task_id, task.agent, task.tenant, task.owner, task.context_id),
                    *(task.state.value, task.status_at, task.seq, task.sub, task.turn),
                    *(task.turn_open, task.waiting, task.cancel_requested, task.epoch),
                    *(task.ended_at, task.queue_key, task.wakes_at, task.base_url),
                    *("" if task.wakes_at is None else ASLEEP, *self.task_columns),
                )
            )
        self.add("tasks", rows)
        if waits:
            self._add_waits(waits)

    def add_records(self, records: Sequence[tuple[str, ExportedRecord]]) -> None:
        """Add records to the logs of added tasks, each with its task's id."""
        rows = [
            (self._keys[id], r.seq, r.sub, r.turn, r.kind.value, r.at, bytes(r.payload))
            for id, r in records
        ]
        self.add("records", rows)

    def add_pushes(self, pushes: Sequence[tuple[str, str, ExportedPush]]) -> None:
        """Add configurations to added tasks, each with its task's id and its own."""
        rows = [
            (
                *(self._keys[id], push_id, self._agents[id], bytes(push.config), push.version),
                *(push.revision, push.cursor, push.state.value, push.note),
                *(options_column(push.options or PushOptions()), push.confirmed, ""),
            )
            for id, push_id, push in pushes
        ]
        self.add("pushes", rows)

    def add_stored(self, forms: Sequence[tuple[str, int, StoredForm]]) -> None:
        """Store the stored form of added tasks, each with the number of its last event."""
        keyed = [(self._keys[task_id], seq, form) for task_id, seq, form in forms]
        messages = [row for key, _, form in keyed for row in form.message_rows(key)]
        artifacts = [row for key, seq, form in keyed for row in form.artifact_rows(key, seq)]
        self.add("task_messages", messages)
        self.add("task_artifacts", artifacts)
        self._set_stored(
            [(len(form.messages), form.has_status_message, seq, key) for key, seq, form in keyed]
        )

    def commit(self) -> None:
        """Make the additions durable."""
        self._commit([(*name, n) for name, n in sorted(self._counts.items())])
        self._keys.clear()
        self._agents.clear()
        self._counts.clear()


def export_to(
    source: ExportSource,
    write: Callable[[bytes], object],
    *,
    by: str,
    agent: str = "",
    tenant: str = "",
) -> Counts:
    """Export a store, or the part of one agent, of one tenant, or of both.

    Memory is bounded by the longest records.
    ``by`` is the version of Parley that writes the file; errors of older versions name it.
    """
    counts, digest = Counts(), hashlib.sha256()

    def put(line: ExportLine) -> None:
        text = encode_line(line) + b"\n"
        digest.update(text)
        write(text)

    put(Header(format=FORMAT, by=by))
    for line in only(source.lines(), agent=agent, tenant=tenant):
        counts.add(line)
        put(line)
    write(encode_line(Trailer(counts=counts, sha256=digest.hexdigest())) + b"\n")
    return counts


def only(lines: Iterable[ExportLine], *, agent: str = "", tenant: str = "") -> Iterator[ExportLine]:
    """Yield the lines of one agent, of one tenant, or of both."""
    is_wanted = False
    for line in lines:
        if isinstance(line, ExportedContext | ExportedReceipt | ExportedTask):
            is_wanted = line.agent == (agent or line.agent) and line.tenant == (
                tenant or line.tenant
            )
        elif isinstance(line, ExportedEvent):  # it is the agent's, and no tenant's
            is_wanted = line.agent == (agent or line.agent) and not tenant
        if is_wanted:  # the lines after it belong to it
            yield line
