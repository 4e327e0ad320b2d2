"""Adding to a store what a file of lines holds (see ``transfer``), a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from parley.model.encoding import decode
from parley.model.push import TaskPushNotificationConfig
from parley.store.admin.export_format import (
    Context,
    Counts,
    ExportLine,
    ImportTarget,
    KeptReceipt,
    KeptTask,
    Push,
    Record,
    Said,
    Value,
)
from parley.store.admin.import_check import Made, checked
from parley.store.snapshot import StoredForm

BATCH_LINES = 2000
BATCH_BYTES = 4 << 20
"""An import writes about as much at once; a transaction ends where a task does."""


class Imported(msgspec.Struct, kw_only=True):
    """What an import added, and what was there already."""

    added: Counts = msgspec.field(default_factory=Counts)
    skipped: Counts = msgspec.field(default_factory=Counts)


def import_into(
    target: ImportTarget, lines: Iterable[bytes], told: Callable[[Imported], object] | None = None
) -> Imported:
    """Add to a store what it does not have, in transactions of bounded size.

    What is there already stays as it is: a context, a receipt or a task is added whole or not at
    all. So an import that was broken off goes on when it is done again. ``told`` is told after
    every transaction. ``lines`` are to have been ``checked`` before: what is wrong is noticed here
    again, but what came before it is there then.

    Raises ``TransferError``, ``StoreUnavailable``.
    """
    writing = _Writing(target)
    for line in checked(lines):
        writing.add(line)
        if writing.is_full and writing.write() and told is not None:
            told(writing.done)
    writing.write(is_last=True)
    if told is not None:
        told(writing.done)
    return writing.done


class _Writing:
    """Lines that are yet to be written."""

    def __init__(self, target: ImportTarget) -> None:
        self.done = Imported()
        self._target = target
        self._size = self._count = 0
        self._unit: ExportLine | None = None
        self._is_there = False
        self._contexts: list[tuple[Context, list[Said], list[Value]]] = []
        self._receipts: list[KeptReceipt] = []
        self._tasks: list[KeptTask] = []
        self._records: list[tuple[str, Record]] = []
        self._pushes: list[tuple[str, str, Push]] = []
        self._forms: list[tuple[str, int, StoredForm]] = []
        self._skipping = ""

    @property
    def is_full(self) -> bool:
        """Whether enough has gathered to be written."""
        return self._count >= BATCH_LINES or self._size >= BATCH_BYTES

    def add(self, line: ExportLine | Made) -> None:
        """Take a line."""
        self._count += 1
        match line:
            case Context():
                self._contexts.append((line, [], []))
            case Said():
                self._contexts[-1][1].append(line)
                self._size += len(bytes(line.message))
            case Value():
                self._contexts[-1][2].append(line)
                self._size += len(line.value)
            case KeptReceipt():
                self._receipts.append(line)
                self._size += len(line.reply)
            case KeptTask():
                self._tasks.append(line)
                self._unit = line
            case Record() if isinstance(self._unit, KeptTask):
                self._records.append((self._unit.task_id, line))
                self._size += len(bytes(line.payload))
            case Push() if isinstance(self._unit, KeptTask):
                config = decode(line.config, TaskPushNotificationConfig)
                self._pushes.append((self._unit.task_id, config.id, line))
            case Made(task, form):
                self._forms.append((task.task_id, task.seq, form))
                self._size += form.size
                self._unit = None

    def write(self, *, is_last: bool = False) -> bool:
        """Write what has gathered; return whether a transaction ended with it.

        The last context stays until it is known to be whole. A task's log may be written in
        several pieces, but they are of one transaction.
        """
        last = [] if is_last or self._receipts or self._tasks else self._contexts[-1:]
        self._write_contexts(self._contexts[: len(self._contexts) - len(last)])
        self._contexts = last
        self._write_receipts()
        self._write_tasks()
        self._size = self._count = 0
        if self._unit is not None:
            return False
        self._target.commit()
        return True

    def _write_contexts(self, contexts: list[tuple[Context, list[Said], list[Value]]]) -> None:
        there = self._target.contexts_there([c for c, _, _ in contexts]) if contexts else set()
        new = [each for each in contexts if each[0].name not in there]
        if new:
            self._target.add_contexts(
                [c for c, _, _ in new], [said for _, said, _ in new], [v for _, _, v in new]
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
        unit = self._unit.task_id if isinstance(self._unit, KeptTask) else ""
        self._skipping = unit if unit in there else ""
