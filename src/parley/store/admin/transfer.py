"""The export format of a store, lines of JSON: for backups, and for moving to another store.

A file begins with a header and ends with a trailer, which has the number of lines between them and
their hash, so that a truncated or changed file is rejected. The lines between are, in this order:
contexts, each followed by its messages and values; receipts; events; tasks, the oldest first, each
followed by its whole log and its webhooks. The stored form of tasks is not exported: an import
builds it from the log. Leases, delivery histories and secrets are not exported either: another
store has its own. Sleeping tasks stay asleep in the new store.

An import is a replica that appends: each log is rebuilt by the rules of all appends
(``head.advance``, ``fold.check``).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import IO, Any, cast

import msgspec
from msgspec.structs import astuple, fields, replace

from parley.model.ids import may_be_id
from parley.model.operations import PushOptions, TaskPushNotificationConfig
from parley.model.parts import Message
from parley.model.struct import decode
from parley.model.tasks import TaskState
from parley.store.events import LoggedEvent, RecordKind, Scope, logged
from parley.store.fold import Fold
from parley.store.head import Head, Payload, advance
from parley.store.protocols.errors import Conflict, StoreError
from parley.store.protocols.tables import HISTORY_KEPT, MAX_WAITS, checked_event
from parley.store.protocols.task_log import Append
from parley.store.protocols.webhooks import MAX_PUSHES, PushRecord, PushState
from parley.store.snapshot import StoredForm
from parley.store.sql.batch import WholeTask, options_in
from parley.store.sql.rows import SqlRows
from parley.store.sql.store import SqlTaskStore

FORMAT = 1

BATCH_LINES = 2000
BATCH_BYTES = 4 << 20
"""The approximate number of bytes that an import writes at once."""

LONGEST_HEADER, LONGEST_LINE = 1 << 16, 1 << 30
"""The maximum lengths; a longer line is not from an export."""

Rows = Callable[[str], Iterable[Sequence[Any]]]
"""Returns the rows of a query of ``sql/shared/admin.sql``, a piece at a time."""


class TransferError(StoreError):
    """A file cannot be imported, and nothing was. The message has the position of the error."""


class ExportLine(msgspec.Struct, frozen=True, tag_field="is"):
    """A line of the file."""


class Header(ExportLine, frozen=True, tag="parley-store"):
    """The first line."""

    format: int
    by: str


class ExportedContext(ExportLine, frozen=True, tag="context"):
    """A context, with the number of its messages; its messages and values follow."""

    agent: str
    tenant: str
    owner: str
    context_id: str
    messages: int = msgspec.field(name="said")
    touched_at: int


class ContextMessage(ExportLine, frozen=True, tag="said"):
    """A message of the context before it."""

    message: msgspec.Raw


class ContextValue(ExportLine, frozen=True, tag="value"):
    """A value of the context before it."""

    key: str
    value: bytes


class ExportedReceipt(ExportLine, frozen=True, tag="receipt"):
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


class ExportedEvent(ExportLine, frozen=True, tag="event"):
    """A complete event of an agent (see ``TaskStore``)."""

    agent: str
    key: str
    at: int
    value: msgspec.Raw


class ExportedTask(ExportLine, frozen=True, tag="task", omit_defaults=True):
    """A task's head, as in ``head.Head``; its log and its webhooks follow.

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


class ExportedRecord(ExportLine, frozen=True, tag="record"):
    """A record of the log of the task before it."""

    seq: int
    sub: int
    turn: int
    kind: RecordKind
    at: int
    payload: msgspec.Raw


class ExportedPush(ExportLine, frozen=True, tag="webhook", omit_defaults=True):
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


class Trailer(ExportLine, frozen=True, tag="end"):
    """The last line. ``sha256`` is the hash of all lines before it."""

    counts: Counts
    sha256: str


_COUNTED: dict[type, str] = dict(
    zip(
        (
            *(ExportedContext, ContextMessage, ContextValue, ExportedReceipt, ExportedEvent),
            *(ExportedTask, ExportedRecord, ExportedPush),
        ),
        Counts.__struct_fields__,
        strict=True,
    )
)
_NAMES: dict[type, int] = {
    ExportedContext: 4,
    ExportedReceipt: 4,
    ExportedEvent: 2,
    ExportedTask: 1,
}
"""The independent lines, in the order of a file, with the number of fields in their names."""

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


# -- export -----------------------------------------------------------------------------------

_FROM_COLUMN: dict[Any, Callable[[Any], Any]] = {
    **{kind: kind for kind in (bool, bytes, msgspec.Raw, TaskState, RecordKind, PushState)},
    PushOptions | None: lambda column: options_in(column) if column else None,
}
"""Convert columns of a row, by the types of the fields of a line."""


class ExportSource:
    """A store to export, at one moment. ``rows`` runs queries of ``sql/shared/admin.sql``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def lines(self) -> Iterator[ExportLine]:
        """Yield all lines in the order of the file, without header and trailer.

        Memory is bounded. Raises ``StoreUnavailable``.
        """
        rows = self._rows
        messages, values = _Groups(rows("messages")), _Groups(rows("context_values"))
        for key, *context in rows("contexts"):
            yield from _lines(ExportedContext, [context])
            yield from _lines(ContextMessage, messages.of(key))
            yield from _lines(ContextValue, values.of(key))
        yield from _lines(ExportedReceipt, rows("receipts"))
        yield from _lines(ExportedEvent, rows("events"))
        records, pushes = _Groups(rows("records")), _Groups(rows("pushes"))
        waits = _Groups(rows("event_waits"))
        for key, *head in rows("tasks"):
            yield from _lines(ExportedTask, [(*head, tuple([name for (name,) in waits.of(key)]))])
            yield from _lines(ExportedRecord, records.of(key))
            yield from _lines(ExportedPush, pushes.of(key))


def _lines(kind: type[ExportLine], rows: Iterable[Sequence[Any]]) -> Iterator[ExportLine]:
    """Yield rows with the columns of a kind of line as lines."""
    made = _made(kind)
    for row in rows:
        yield kind(*[make(column) for make, column in zip(made, row, strict=True)])


@cache
def _made(kind: type[ExportLine]) -> list[Callable[[Any], Any]]:
    return [_FROM_COLUMN.get(field.type, lambda column: column) for field in fields(kind)]


class _Groups:
    """Rows in the order of their group key, read one key at a time."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self._rows = iter(rows)
        self._next = next(self._rows, None)

    def of(self, key: int) -> Iterator[Sequence[Any]]:
        """Yield the rows of ``key``. Keys must rise from call to call."""
        while self._next is not None and self._next[0] <= key:
            if self._next[0] == key:
                yield self._next[1:]
            self._next = next(self._rows, None)


def export_to(
    source: ExportSource,
    write: Callable[[bytes], object],
    *,
    by: str,
    agent: str = "",
    tenant: str = "",
) -> Counts:
    """Export a store, or the part of one agent, of one tenant, or of both.

    Memory is bounded by the longest records. ``by`` is the version of Parley that writes the file;
    errors of older versions show it.
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
        elif isinstance(line, ExportedEvent):  # it belongs to the agent, not to a tenant
            is_wanted = line.agent == (agent or line.agent) and not tenant
        if is_wanted:  # the following lines belong to it
            yield line


# -- check ------------------------------------------------------------------------------------


class Unit:
    """An independent line, and the lines that belong to it. Raises ``ValueError``."""

    def __init__(self, line: Any) -> None:
        self.line = line
        self.parts: list[ExportLine] = []
        self.size = 0

    @property
    def name(self) -> tuple[str, ...]:
        """The identity among all units of its kind."""
        return astuple(self.line)[: _NAMES[type(self.line)]]

    def add(self, part: Any) -> None:
        """Add a line that belongs to it."""
        is_of_task = isinstance(part, ExportedRecord | ExportedPush)
        raise ValueError(
            f"a {'record' if is_of_task else 'value'} belongs to a "
            f"{'task' if is_of_task else 'context'}, and there is none before it"
        )

    def close(self) -> None:
        """Check that it is complete."""
        if isinstance(self.line, ExportedEvent):
            checked_event(self.line.key, bytes(self.line.value))


class _Context(Unit):
    """A context with its messages and values."""

    def __init__(self, line: ExportedContext) -> None:
        super().__init__(line)
        if not 0 <= line.messages <= HISTORY_KEPT:
            raise ValueError(f"a context has up to {HISTORY_KEPT} messages, not {line.messages}")
        self.messages: list[bytes] = []
        self.values: dict[str, bytes] = {}

    def add(self, part: Any) -> None:
        if isinstance(part, ContextMessage):
            if len(self.messages) == self.line.messages:
                raise ValueError("a message belongs to the context before it, and is one too many")
            decode(part.message, Message)
            self.messages.append(bytes(part.message))
        elif isinstance(part, ContextValue):
            if part.key in self.values:
                raise ValueError(f"the context before this line has two values {part.key!r}")
            self.values[part.key] = part.value
        else:
            super().add(part)
        self.parts.append(part)

    def close(self) -> None:
        if missing := self.line.messages - len(self.messages):
            raise ValueError(f"{missing} messages of the context before this line are missing")


class _Task(Unit):
    """A task whose log is rebuilt, one record at a time, as by appends.

    ``whole`` is set when it is closed.
    """

    whole: WholeTask

    def __init__(self, line: ExportedTask) -> None:
        super().__init__(line)
        self._scope = Scope(line.agent, line.tenant, line.owner)
        self._head: Head | None = None
        self._fold = Fold()
        self._records: list[LoggedEvent] = []
        self._pushes: dict[str, PushRecord] = {}

    def add(self, part: Any) -> None:
        if isinstance(part, ExportedRecord):
            self._append(part)
        elif isinstance(part, ExportedPush):
            self._put(part)
        else:
            super().add(part)
        self.parts.append(part)

    def _append(self, line: ExportedRecord) -> None:
        task_id, head = self.line.task_id, self._head
        if self._pushes:
            raise ValueError(f"task {task_id}: its log comes before its webhooks")
        row = (line.seq, line.sub, line.turn, line.kind, line.at, bytes(line.payload))
        try:
            record = logged(task_id, *row)
        except msgspec.DecodeError as error:
            raise ValueError(
                f"task {task_id}: record {row[:2]} is no {line.kind.value}: {error}"
            ) from None
        append = Append(
            task_id=task_id,
            events=(record.event,),
            expected_seq=head.seq if head else 0,
            turn=line.turn,
            scope=self._scope,
            context_id=self.line.context_id,
            base_url=self.line.base_url,
        )
        after, _ = advance(head, append, Payload((record.payload,), (), (), ()), line.at, "")
        if (after.seq, after.sub) != row[:2]:
            before = (head.seq, head.sub) if head else (0, 0)
            raise ValueError(
                f"task {task_id}: the record after {before} is {(after.seq, after.sub)}, "
                f"not {row[:2]}"
            )
        self._head = after
        self._fold.apply(record.event)
        self._records.append(record)

    def _put(self, line: ExportedPush) -> None:
        task = self.line
        config = decode(line.config, TaskPushNotificationConfig)
        if not config.id or config.id in self._pushes:
            raise ValueError(f"task {task.task_id}: each webhook has an id of its own")
        if len(self._pushes) >= MAX_PUSHES:
            raise ValueError(f"task {task.task_id}: a task has up to {MAX_PUSHES} webhooks")
        if not 0 <= line.cursor <= task.seq:
            raise ValueError(
                f"task {task.task_id}: a webhook was notified up to event {line.cursor}, and there "
                f"are {task.seq}"
            )
        self._pushes[config.id] = PushRecord(
            config=config,
            version=line.version,
            revision=line.revision,
            cursor=line.cursor,
            state=line.state,
            note=line.note,
            options=line.options or PushOptions(),
            confirmed=line.confirmed,
        )

    def close(self) -> None:
        line, task, head = self.line, self._fold.task, cast("Head", self._head)
        is_over = task.state.is_terminal
        checks = {
            "its last record is another": (head.seq, head.sub) == (line.seq, line.sub),
            "its log leaves it in another state": task.state is line.state,
            "it ended, or did not": is_over == (line.ended_at is not None),
            "it ended, and work is left": not is_over or not (line.turn_open or line.waiting),
            "more messages wait than came": 0 <= line.waiting <= head.waiting,
            "it was canceled, or not": head.cancel_requested == line.cancel_requested,
            "it sleeps, and no turn is open": line.wakes_at is None
            or (line.turn_open and not (is_over or line.cancel_requested)),
            "it waits for events, and is awake": line.wakes_at is not None or not line.waits_for,
            "it waits for events that cannot be": len(line.waits_for) <= MAX_WAITS
            and all([key and may_be_id(key) for key in line.waits_for])
            and len(set(line.waits_for)) == len(line.waits_for),
            "its base_url has the character U+0000": "\0" not in line.base_url,
            "its context is another": task.context_id == line.context_id,
            "its numbers are from 1": line.epoch >= 1 and line.turn >= 1 and line.queue_key >= 0,
        }
        for wrong, is_right in checks.items():
            if not is_right:
                raise ValueError(f"task {line.task_id} before this line is not whole: {wrong}")
        form = StoredForm.of(task)
        head = replace(
            head,
            turn=line.turn,
            turn_open=line.turn_open,
            waiting=line.waiting,
            epoch=line.epoch,
            ended_at=line.ended_at,
            queue_key=line.queue_key,
            wakes_at=line.wakes_at,
            messages=len(form.messages),
            has_status_message=form.has_status_message,
            folded=head.seq,
        )
        payload = Payload((), form.messages, form.artifacts, (), form.metadata)
        pushes = tuple(self._pushes.values())
        self.whole = WholeTask(head, self._records, payload, pushes, line.waits_for)


_UNITS: dict[type, type[Unit]] = {ExportedContext: _Context, ExportedTask: _Task}


def lines_in(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file. A too long line is split into pieces, which are invalid lines."""
    yield file.readline(LONGEST_HEADER)
    while line := file.readline(LONGEST_LINE):
        yield line


def checked(lines: Iterable[bytes]) -> Iterator[Unit]:
    """Yield the units between header and trailer, each after its check.

    A task's log obeys the rules of every log, its numbers have no gap, and its head agrees with it.
    Only the end of the file shows that it is complete. Memory is bounded by the largest unit.

    Raises ``TransferError``.
    """
    counts, digest = Counts(), hashlib.sha256()
    named: set[int] = set()  # hashes, as there may be millions of names
    unit: Unit | None = None
    number, is_over = 0, False
    for number, text in enumerate(lines, 1):
        try:
            line = _read(text, number)
            if number == 1:
                _check_header(line)
            elif is_over:
                raise ValueError("there is more after the line that ends the export")
            elif isinstance(line, Header):
                raise ValueError("there is a second header")
            elif type(line) in _NAMES or isinstance(line, Trailer):
                if unit is not None:
                    unit.close()
                    yield unit
                if is_over := isinstance(line, Trailer):
                    if line.counts != counts or line.sha256 != digest.hexdigest():
                        raise ValueError(
                            "the counts of the last line differ from the lines before it: the file "
                            "was changed after it was exported"
                        )
                else:
                    unit = _next(line, unit, named)
                    counts.add(line)
            else:
                (unit or Unit(line)).add(line)
                counts.add(line)
        except (ValueError, StoreError) as error:
            raise TransferError(f"line {number}: {error}") from None
        digest.update(text)
        if unit is not None:
            unit.size += len(text)
    if not is_over:
        raise TransferError(
            f"the file ends after line {number}, without the line that ends an export: it was cut; "
            "export again, or take a whole copy of it"
        )


def _read(text: bytes, number: int) -> Any:
    """Decode a line. Raises ``ValueError``."""
    try:
        if text.endswith(b"\n"):
            return decode_line(text)
    except msgspec.DecodeError as error:
        if number > 1:
            raise ValueError(f"this is no line of an export: {error}") from None
    except UnicodeDecodeError:
        pass
    if number == 1:
        raise ValueError("this is no export of a store: parley store export makes one")
    raise ValueError("the file ends within this line: it was cut; take a whole copy of it")


def _check_header(header: Any) -> None:
    if not isinstance(header, Header):
        raise ValueError("an export begins with its header: the file's beginning is missing")
    if header.format != FORMAT:
        raise ValueError(
            f"the file has format {header.format}, written by Parley {header.by}, and this "
            f"version knows format {FORMAT}: take the one that wrote it"
        )


def _next(line: Any, before: Unit | None, named: set[int]) -> Unit:
    """Return the unit that a line begins, after the unit before. Raises ``ValueError``."""
    unit = _UNITS.get(type(line), Unit)(line)
    stages = [*_NAMES]
    if before is not None and stages.index(type(line)) < stages.index(type(before.line)):
        raise ValueError("contexts come before receipts, then events, then tasks")
    if type(line) in _UNITS:
        what, number = f"{line.__struct_config__.tag} {unit.name[-1]}", hash(unit.name)
        if number in named:
            raise ValueError(f"{what} is in the file twice")
        named.add(number)
    elif before is not None and type(before.line) is type(line) and unit.name <= before.name:
        kinds = "receipt" if isinstance(line, ExportedReceipt) else "event"
        what = f"receipt for message {unit.name[-1]}" if kinds == "receipt" else f"event {line.key}"
        raise ValueError(f"the {what} is there twice, or is not in the order of {kinds}s")
    return unit


# -- import -----------------------------------------------------------------------------------


class Imported(msgspec.Struct, kw_only=True):
    """The numbers of lines that an import added, and of lines that the store had already."""

    added: Counts = msgspec.field(default_factory=Counts)
    skipped: Counts = msgspec.field(default_factory=Counts)


async def import_into(
    store: SqlTaskStore[Any],
    lines: Iterable[bytes],
    progress: Callable[[Imported], object] | None = None,
) -> Imported:
    """Add missing units to an open store, in transactions of bounded size.

    Existing rows are unchanged: a context, a receipt or a task is added completely or not at all.
    So an interrupted import continues when it is repeated. Calls ``progress`` after every group.
    Pass ``lines`` through ``checked`` before: this function finds errors too, but only after the
    lines before them have been imported.

    Raises ``TransferError``, ``StoreUnavailable``.
    """
    done = Imported()
    for group in _groups(checked(lines)):
        tasks = [unit for unit in group if isinstance(unit, _Task)]
        others = [unit for unit in group if not isinstance(unit, _Task)]
        new = await store.change_rows(partial(_add_units, units=others)) if others else set()
        new |= await _add_tasks(store, tasks)
        for unit in group:
            counts = done.added if unit in new else done.skipped
            for line in (unit.line, *unit.parts):
                counts.add(line)
        if progress is not None:
            progress(done)
    return done


def _groups(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    group: list[Unit] = []
    count = size = 0
    for unit in units:
        group.append(unit)
        count += 1 + len(unit.parts)
        size += unit.size
        if count >= BATCH_LINES or size >= BATCH_BYTES:
            yield group
            group, count, size = [], 0, 0
    if group:
        yield group


async def _add_tasks(store: SqlTaskStore[Any], tasks: Sequence[_Task]) -> set[Unit]:
    """Add the missing tasks; return these."""
    there = {each.task_id for each in await store.positions([each.name[0] for each in tasks])}
    absent = [each for each in tasks if each.name[0] not in there]
    results = await asyncio.gather(
        *[store.adopt(each.whole) for each in absent], return_exceptions=True
    )
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Conflict):
            raise result
    return {each for each, result in zip(absent, results, strict=True) if isinstance(result, int)}


def _add_units(table: SqlRows, units: Sequence[Unit]) -> set[Unit]:
    """Add the missing contexts, receipts and events; return these."""
    new: set[Unit] = set()
    messages: list[Sequence[Any]] = []
    values: list[Sequence[Any]] = []
    for kind, name in (
        (ExportedContext, "import_contexts"),
        (ExportedReceipt, "import_receipts"),
        (ExportedEvent, "import_events"),
    ):
        found = {unit.name: unit for unit in units if type(unit.line) is kind}
        for key, *row in table.insert(name, [_columns(unit.line) for unit in found.values()]):
            unit = found[tuple(row)]
            new.add(unit)
            if isinstance(unit, _Context):
                messages += [(key, n, message) for n, message in enumerate(unit.messages, 1)]
                values += [(key, *each) for each in unit.values.items()]
    table.insert("import_messages", messages)
    table.insert("import_values", values)
    return new


def _columns(line: ExportLine) -> list[Any]:
    return [bytes(each) if isinstance(each, msgspec.Raw) else each for each in astuple(line)]
