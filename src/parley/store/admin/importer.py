"""Imports a file (see ``export_format``) into a store, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from parley.model.operations import TaskPushNotificationConfig
from parley.model.struct import decode
from parley.store.admin.export_format import (
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
    ImportTarget,
)
from parley.store.admin.import_check import TaskEnd, checked
from parley.store.snapshot import StoredForm

BATCH_LINES = 2000
BATCH_BYTES = 4 << 20
"""An import writes about as much at once; a transaction ends at the end of a task."""


class Imported(msgspec.Struct, kw_only=True):
    """The counts of what an import added, and of what the store had already."""

    added: Counts = msgspec.field(default_factory=Counts)
    skipped: Counts = msgspec.field(default_factory=Counts)


def import_into(
    target: ImportTarget,
    lines: Iterable[bytes],
    progress: Callable[[Imported], object] | None = None,
) -> Imported:
    """Add to a store what it does not have, in transactions of bounded size.

    What the store has already stays as it is: a context, a receipt or a task is added whole or not
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
        self._write_receipts()
        self._write_events()
        self._write_tasks()
        self._size = self._count = 0
        if self._unit is not None:
            return False
        self._target.commit()
        return True

    def _write_contexts(
        self, contexts: list[tuple[ExportedContext, list[ContextMessage], list[ContextValue]]]
    ) -> None:
        there = self._target.contexts_there([c for c, _, _ in contexts]) if contexts else set()
        new = [each for each in contexts if each[0].name not in there]
        if new:
            self._target.add_contexts(
                [c for c, _, _ in new], [m for _, m, _ in new], [v for _, _, v in new]
            )
        for each in contexts:
            counts = self.done.skipped if each[0].name in there else self.done.added
            for line in (each[0], *each[1], *each[2]):
                counts.add(line)

    def _write_receipts(self) -> None:
        receipts, self._receipts = self._receipts, []
        there = self._target.receipts_there(receipts) if receipts else set()
        if new := [line for line in receipts if line.name not in there]:
            self._target.add_receipts(new)
        self.done.added.receipts += len(new)
        self.done.skipped.receipts += len(receipts) - len(new)

    def _write_events(self) -> None:
        events, self._events = self._events, []
        there = self._target.events_there(events) if events else set()
        if new := [line for line in events if line.name not in there]:
            self._target.add_events(new)
        self.done.added.events += len(new)
        self.done.skipped.events += len(events) - len(new)

    def _write_tasks(self) -> None:
        tasks, records, pushes = self._tasks, self._records, self._pushes
        forms = self._forms
        self._tasks, self._records, self._pushes, self._forms = [], [], [], []
        there = self._target.tasks_there(tasks) if tasks else set()
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
