"""Imports a file (see ``export_format``) into a store, a batch of checked lines at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import msgspec

from parley.model.ids import may_be_id
from parley.model.operations import TaskPushNotificationConfig
from parley.model.parts import Message
from parley.model.struct import decode
from parley.store.admin.export_format import (
    FORMAT,
    ContextMessage,
    ContextValue,
    Counts,
    ExportedContext,
    ExportedEvent,
    ExportedPush,
    ExportedReceipt,
    ExportedRecord,
    ExportedTask,
    ExportLine,
    Header,
    ImportTarget,
    Trailer,
    TransferError,
    decode_line,
)
from parley.store.events import MessageReceived, RecordKind, logged
from parley.store.fold import Fold, IllegalEvent
from parley.store.protocols.tables import HISTORY_KEPT, MAX_WAITS, checked_event
from parley.store.protocols.webhooks import MAX_PUSHES
from parley.store.snapshot import StoredForm

BATCH_LINES = 2000
BATCH_BYTES = 4 << 20
"""An import writes about as much at once; a transaction ends at the end of a task."""

LONGEST_HEADER, LONGEST_LINE = 1 << 16, 1 << 30
"""A longer line is not from an export."""


class Imported(msgspec.Struct, kw_only=True):
    """The counts of lines that an import added, and of lines that the store had already."""

    added: Counts = msgspec.field(default_factory=Counts)
    skipped: Counts = msgspec.field(default_factory=Counts)


def import_into(
    target: ImportTarget,
    lines: Iterable[bytes],
    progress: Callable[[Imported], object] | None = None,
) -> Imported:
    """Add to a store the lines that it lacks, in transactions of bounded size.

    Existing rows stay as they are: a context, a receipt or a task is added whole or not
    at all. So an interrupted import continues when it is repeated. Calls ``progress`` after every
    transaction. Pass ``lines`` through ``checked`` before: an error is found here again, but the
    lines before it are imported by then.

    Raises ``TransferError``, ``StoreUnavailable``.
    """
    writing = _Writing(target)
    for line in checked(lines):
        writing.add(line)
        if writing.is_full and writing.write() and progress is not None:
            progress(writing.done)
    writing.write(is_last=True)
    if progress is not None:
        progress(writing.done)
    return writing.done


class _Writing:
    """Collects lines, and writes them."""

    def __init__(self, target: ImportTarget) -> None:
        self.done = Imported()
        self._target = target
        self._size = self._count = 0
        self._unit: ExportLine | None = None
        self._is_there = False
        self._contexts: list[tuple[ExportedContext, list[ContextMessage], list[ContextValue]]] = []
        self._receipts: list[ExportedReceipt] = []
        self._events: list[ExportedEvent] = []
        self._tasks: list[ExportedTask] = []
        self._records: list[tuple[str, ExportedRecord]] = []
        self._pushes: list[tuple[str, str, ExportedPush]] = []
        self._forms: list[tuple[str, int, StoredForm]] = []
        self._skipping = ""

    @property
    def is_full(self) -> bool:
        """Whether there is enough to write."""
        return self._count >= BATCH_LINES or self._size >= BATCH_BYTES

    def add(self, line: ExportLine | TaskEnd) -> None:
        """Collect a line."""
        self._count += 1
        match line:
            case ExportedContext():
                self._contexts.append((line, [], []))
            case ContextMessage():
                self._contexts[-1][1].append(line)
                self._size += len(bytes(line.message))
            case ContextValue():
                self._contexts[-1][2].append(line)
                self._size += len(line.value)
            case ExportedReceipt():
                self._receipts.append(line)
                self._size += len(line.reply)
            case ExportedEvent():
                self._events.append(line)
                self._size += len(bytes(line.value))
            case ExportedTask():
                self._tasks.append(line)
                self._unit = line
            case ExportedRecord() if isinstance(self._unit, ExportedTask):
                self._records.append((self._unit.task_id, line))
                self._size += len(bytes(line.payload))
            case ExportedPush() if isinstance(self._unit, ExportedTask):
                config = decode(line.config, TaskPushNotificationConfig)
                self._pushes.append((self._unit.task_id, config.id, line))
            case TaskEnd(task, form):
                self._forms.append((task.task_id, task.seq, form))
                self._size += form.size
                self._unit = None

    def write(self, *, is_last: bool = False) -> bool:
        """Write the lines so far; return whether this ended a transaction.

        The last context stays until it is complete. A task's log may be written in several pieces,
        within one transaction.
        """
        is_past = is_last or self._receipts or self._events or self._tasks
        last = [] if is_past else self._contexts[-1:]
        self._write_contexts(self._contexts[: len(self._contexts) - len(last)])
        self._contexts = last
        self._write_rows("receipts", self._receipts)
        self._write_rows("events", self._events)
        self._receipts, self._events = [], []
        self._write_tasks()
        self._size = self._count = 0
        if self._unit is not None:
            return False
        self._target.commit()
        return True

    def _write_contexts(
        self, contexts: list[tuple[ExportedContext, list[ContextMessage], list[ContextValue]]]
    ) -> None:
        there = self._there("contexts", [context.name for context, _, _ in contexts])
        if new := [each for each in contexts if each[0].name not in there]:
            self._target.add_contexts(new)
        for each in contexts:
            counts = self.done.skipped if each[0].name in there else self.done.added
            for line in (each[0], *each[1], *each[2]):
                counts.add(line)

    def _write_rows(
        self, table: str, lines: Sequence[ExportedReceipt] | Sequence[ExportedEvent]
    ) -> None:
        there = self._there(table, [line.name for line in lines])
        if new := [line.row for line in lines if line.name not in there]:
            self._target.add(table, new)
        for line in lines:
            (self.done.skipped if line.name in there else self.done.added).add(line)

    def _there(self, table: str, names: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
        return self._target.there(table, names) if names else set()

    def _write_tasks(self) -> None:
        tasks, records, pushes = self._tasks, self._records, self._pushes
        forms = self._forms
        self._tasks, self._records, self._pushes, self._forms = [], [], [], []
        there = {id for (id,) in self._there("tasks", [(line.task_id,) for line in tasks])}
        if self._skipping:
            there.add(self._skipping)
        if new := [line for line in tasks if line.task_id not in there]:
            self._target.add_tasks(new)
        if new_records := [each for each in records if each[0] not in there]:
            self._target.add_records(new_records)
        if new_pushes := [each for each in pushes if each[0] not in there]:
            self._target.add_pushes(new_pushes)
        if new_forms := [each for each in forms if each[0] not in there]:
            self._target.add_stored(new_forms)
        added, skipped = self.done.added, self.done.skipped
        added.tasks += len(new)
        added.records += len(new_records)
        added.webhooks += len(new_pushes)
        skipped.tasks += len(tasks) - len(new)
        skipped.records += len(records) - len(new_records)
        skipped.webhooks += len(pushes) - len(new_pushes)
        unit = self._unit.task_id if isinstance(self._unit, ExportedTask) else ""
        self._skipping = unit if unit in there else ""


def lines_in(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file. A line that is too long comes in pieces, which are no lines."""
    yield file.readline(LONGEST_HEADER)
    while line := file.readline(LONGEST_LINE):
        yield line


class TaskEnd(msgspec.Struct, frozen=True):
    """Follows a task's last line, with the stored form that its log makes."""

    task: ExportedTask
    form: StoredForm


def checked(lines: Iterable[bytes]) -> Iterator[ExportLine | TaskEnd]:
    """Yield the lines between header and trailer, each after its check.

    A task's log obeys the rules of every log: it can be folded (see ``fold``), its numbers have no
    gap, and its head agrees with it. ``TaskEnd`` comes after each task's last line. Only the end of
    the file shows that it is complete.

    Raises ``TransferError``.
    """
    counts, digest = Counts(), hashlib.sha256()
    check: _FileCheck | None = None
    number = 0
    for number, text in enumerate(lines, 1):
        try:
            line = _read(text, number)
            if check is None:
                check = _FileCheck(line)
            elif isinstance(line, Trailer):
                yield from check.end(line)
                if line.counts != counts or line.sha256 != digest.hexdigest():
                    raise ValueError(
                        "the last line counts other things than there are before it: the file was "
                        "changed after it was exported"
                    )
            else:
                yield from check.next(line)
                counts.add(line)
                yield line
        except (ValueError, IllegalEvent) as error:
            raise TransferError(f"line {number}: {error}") from None
        digest.update(text)
    if check is None or not check.is_over:
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


_STAGES = (ExportedContext, ExportedReceipt, ExportedEvent, ExportedTask)


class _FileCheck:
    """Checks each line against those before it."""

    def __init__(self, header: Any) -> None:
        if not isinstance(header, Header):
            raise ValueError("an export begins with its header: the file's beginning is missing")
        if header.format != FORMAT:
            raise ValueError(
                f"the file has format {header.format}, written by Parley {header.by}, and this "
                f"version knows format {FORMAT}: take the one that wrote it"
            )
        self.is_over = False
        self._stage = 0
        self._context: ExportedContext | None = None
        self._left = 0
        self._keys: set[str] = set()
        self._receipt: ExportedReceipt | None = None
        self._event: ExportedEvent | None = None
        self._task: _TaskCheck | None = None
        # Hashes, as there may be millions of names.
        self._named: set[int] = set()

    def next(self, line: Any) -> Iterator[TaskEnd]:
        """Check a line; yield the task that ends before it.

        Raises ``ValueError``, ``IllegalEvent``.
        """
        if self.is_over:
            raise ValueError("there is more after the line that ends the export")
        if isinstance(line, Header):
            raise ValueError("there is a second header")
        if isinstance(line, ContextMessage):
            if self._context is None or self._left == 0:
                raise ValueError("a message belongs to the context before it, and is one too many")
            decode(line.message, Message)
            self._left -= 1
            return
        if isinstance(line, ContextValue):
            if self._context is None:
                raise ValueError("a value belongs to a context, and there is none before it")
            if line.key in self._keys:
                raise ValueError(f"the context before this line has two values {line.key!r}")
            self._keys.add(line.key)
            return
        if isinstance(line, ExportedRecord | ExportedPush):
            if self._task is None:
                raise ValueError("a record belongs to a task, and there is none before it")
            self._task.add(line)
            return
        yield from self._close()
        stage = _STAGES.index(type(line))
        if stage < self._stage:
            raise ValueError("contexts come before receipts, then events, then tasks")
        self._stage = stage
        if isinstance(line, ExportedContext):
            if not 0 <= line.messages <= HISTORY_KEPT:
                raise ValueError(
                    f"a context has up to {HISTORY_KEPT} messages, not {line.messages}"
                )
            self._once(line.name, f"context {line.context_id}")
            self._context, self._left, self._keys = line, line.messages, set()
        elif isinstance(line, ExportedReceipt):
            if self._receipt is not None and line.name <= self._receipt.name:
                raise ValueError(
                    f"the receipt for message {line.message_id} is there twice, or is not in the "
                    "order of receipts"
                )
            self._receipt = line
        elif isinstance(line, ExportedEvent):
            checked_event(line.key, bytes(line.value))
            if self._event is not None and line.name <= self._event.name:
                raise ValueError(
                    f"the event {line.key} is there twice, or is not in the order of events"
                )
            self._event = line
        elif isinstance(line, ExportedTask):
            self._once((line.task_id,), f"task {line.task_id}")
            self._task = _TaskCheck(line)

    def _once(self, name: tuple[str, ...], what: str) -> None:
        """Check that the name is new. Raises ``ValueError``."""
        number = hash(name)
        if number in self._named:
            raise ValueError(f"{what} is in the file twice")
        self._named.add(number)

    def end(self, trailer: Trailer) -> Iterator[TaskEnd]:
        """Check the last line."""
        if self.is_over:
            raise ValueError("there is more after the line that ends the export")
        yield from self._close()
        self.is_over = True

    def _close(self) -> Iterator[TaskEnd]:
        if self._left:
            raise ValueError(f"{self._left} messages of the context before this line are missing")
        self._context = None
        if self._task is not None:
            yield self._task.made()
            self._task = None


class _TaskCheck:
    """Checks the lines of one task."""

    def __init__(self, head: ExportedTask) -> None:
        self._head = head
        self._fold = Fold()
        self._position = (0, 0)
        self._received = 0
        self._canceled = False
        self._pushes: set[str] = set()

    def add(self, line: ExportedRecord | ExportedPush) -> None:
        """Check a record, or a configuration. Raises ``ValueError``, ``IllegalEvent``."""
        head = self._head
        if isinstance(line, ExportedPush):
            config = decode(line.config, TaskPushNotificationConfig)
            if not config.id or config.id in self._pushes:
                raise ValueError(f"task {head.task_id}: each webhook has an id of its own")
            self._pushes.add(config.id)
            if len(self._pushes) > MAX_PUSHES:
                raise ValueError(f"task {head.task_id}: a task has up to {MAX_PUSHES} webhooks")
            if not 0 <= line.cursor <= head.seq:
                raise ValueError(
                    f"task {head.task_id}: a webhook was told up to event {line.cursor}, and there "
                    f"are {head.seq}"
                )
            return
        if self._pushes:
            raise ValueError(f"task {head.task_id}: its log comes before its webhooks")
        seq, sub = self._position
        follows = (seq + 1, 0) if line.kind.is_public else (seq, sub + 1)
        if (line.seq, line.sub) != follows:
            raise ValueError(
                f"task {head.task_id}: the record after ({seq}, {sub}) is {follows}, "
                f"not ({line.seq}, {line.sub})"
            )
        row = (line.seq, line.sub, line.turn, line.kind, line.at)
        try:
            record = logged(head.task_id, *row, bytes(line.payload))
        except msgspec.DecodeError as error:
            raise ValueError(
                f"task {head.task_id}: record {follows} is no {line.kind.value}: {error}"
            ) from None
        self._fold.apply(record.event)
        if line.seq == 1 and self._fold.task.id != head.task_id:
            raise ValueError(f"task {head.task_id}: its log is that of {self._fold.task.id}")
        self._received += isinstance(record.event, MessageReceived)
        self._canceled = self._canceled or line.kind is RecordKind.CANCEL
        self._position = follows

    def made(self) -> TaskEnd:
        """Return the result of the log. Raises ``ValueError`` when the head disagrees."""
        head, task = self._head, self._fold.task
        is_over = task.state.is_terminal
        checks = {
            "its last record is another": self._position == (head.seq, head.sub),
            "its log leaves it in another state": task.state is head.state,
            "it ended, or did not": is_over == (head.ended_at is not None),
            "it ended, and work is left": not is_over or not (head.turn_open or head.waiting),
            "more messages wait than came": 0 <= head.waiting <= self._received,
            "it was canceled, or not": self._canceled == head.cancel_requested,
            "it sleeps, and no turn is open": head.wakes_at is None
            or (head.turn_open and not (is_over or head.cancel_requested)),
            "it waits for events, and is awake": head.wakes_at is not None or not head.waits_for,
            "it waits for events that cannot be": len(head.waits_for) <= MAX_WAITS
            and all([key and may_be_id(key) for key in head.waits_for])
            and len(set(head.waits_for)) == len(head.waits_for),
            "its base_url has the character U+0000": "\0" not in head.base_url,
            "its context is another": task.context_id == head.context_id,
            "its numbers are from 1": head.epoch >= 1 and head.turn >= 1 and head.queue_key >= 0,
        }
        for wrong, is_right in checks.items():
            if not is_right:
                raise ValueError(f"task {head.task_id} before this line is not whole: {wrong}")
        return TaskEnd(head, StoredForm.of(task))
