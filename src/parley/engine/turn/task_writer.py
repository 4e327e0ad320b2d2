"""The one who writes to a task's log while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from parley.engine.turn.output_filter import OutputFilter
from parley.model.encoding import encode
from parley.model.parts import Artifact, Message
from parley.model.struct import Timestamp
from parley.model.tasks import (
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.store.events import PUBLIC_TYPES, PrivateEvent, TaskEvent
from parley.store.fold import Fold
from parley.store.task_store import Append, PushRecord, Receipt, Scope, StoreError, TaskStore

WINDOW = 256
"""How many events may be under way before a writer waits for the store."""

SAVE_BYTES = 64 * 1024
"""By how much artifacts grow before what is new of them joins the stored form of the task."""


class TaskWriter:
    """Writes one task's log, in order, several appends at a time.

    ``write`` never waits: events are folded at once, gathered for one pass of the event loop, and
    appended together. ``room`` waits while too much is under way, ``flush`` until all of it is
    durable; both raise the ``StoreError`` that stopped the log. After such an error nothing more
    is written, because what the store lacks cannot be skipped.

    ``outgoing`` is what statuses and artifacts pass on their way; it may refuse them. ``since`` is
    the moment (ms) of a task that begins.
    """

    def __init__(
        self,
        store: TaskStore,
        *,
        task_id: str,
        context_id: str,
        scope: Scope,
        fold: Fold,
        seq: int,
        turn: int,
        epoch: int = 1,
        since: int = 0,
        begun: Callable[[], None] | None = None,
        failed: Callable[[StoreError], None] | None = None,
    ) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.scope = scope
        self.fold = fold
        self.seq = seq
        self.turn = turn
        self.epoch = epoch
        self.error: StoreError | None = None
        self.outgoing: OutputFilter | None = None
        self._store = store
        self._begun = begun
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._pending: list[TaskEvent | PrivateEvent] = []
        self._options: dict[str, Any] = {}
        self._gathering = False
        self._under_way = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._grown = 0
        self._saves = False
        stamp = fold.status.timestamp
        self._stamped = stamp.milliseconds if stamp is not None else since

    def write(self, *events: TaskEvent | PrivateEvent) -> None:
        """Add events to the log. Raises ``IllegalEvent`` for what may not follow."""
        if self.error is not None:
            raise self.error
        for event in events:
            self.fold.apply(event)
            self._pending.append(event)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._gathered)

    def status(
        self,
        state: TaskState,
        message: Message | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Message | None:
        """Write a status update and return what it says.

        It is stamped with the present moment by the store's clock, and never before the one before.
        Raises ``A2AError`` for what may not go out.
        """
        self._stamped = max(self._stamped, self._store.now())
        update = TaskStatusUpdateEvent(
            task_id=self.task_id,
            context_id=self.context_id,
            status=TaskStatus(state=state, message=message, timestamp=timestamp(self._stamped)),
            metadata=metadata,
        )
        if self.outgoing is not None:
            update = self.outgoing.send(update)
        self.write(update)
        return update.status.message

    def artifact(self, update: TaskArtifactUpdateEvent) -> None:
        """Write an artifact update. Raises ``A2AError`` for what may not go out."""
        if self.outgoing is not None:
            update = self.outgoing.send(update)
        self._grown += _size_of(update.artifact)
        self.write(update)

    def close_turn(self, *, exchange: Sequence[Message] = ()) -> None:
        """Say that what was written so far ends the turn; the artifacts are stored with it."""
        self._options["turn_open"] = False
        self._saves = True
        self._option("exchange", exchange)

    def open_turn(
        self,
        *,
        taken: int = 0,
        receipts: Sequence[Receipt] = (),
        pushes: Sequence[PushRecord] = (),
    ) -> None:
        """Say that what is written now belongs to an open turn, which took waiting messages."""
        self._options["turn_open"] = True
        self._options["taken"] = self._options.get("taken", 0) + taken
        self._option("receipts", receipts)
        self._option("pushes", pushes)

    def let_go(self) -> None:
        """Say that whoever adopts the task goes on with it, after what was written so far."""
        self._options["release"] = True

    def stop(self, error: StoreError) -> None:
        """Write nothing more: another has the task."""
        if self.error is None:
            self._stopped(error)

    def left(self) -> None:
        """Tell whoever wrote nothing more: it has ended, and this must not keep it."""
        self._failed = None
        if self.error is not None:
            self._begun = None

    def _stopped(self, error: StoreError) -> None:
        self.error = error
        if self._failed is not None:
            self._failed(error)
        self._wake()

    def _option(self, name: str, values: Sequence[Any]) -> None:
        if values:
            self._options[name] = (*self._options.get(name, ()), *values)

    @property
    def is_full(self) -> bool:
        """Whether a writer should wait for ``room``."""
        return self._under_way + len(self._pending) >= WINDOW

    async def room(self) -> None:
        """Wait until less than a window of events is under way."""
        while self.is_full and self.error is None:
            await self._wait()
        if self.error is not None:
            raise self.error

    async def flush(self) -> None:
        """Wait until everything written is durable."""
        while (self._under_way or self._pending) and self.error is None:
            await self._wait()
        if self.error is not None:
            raise self.error

    async def _wait(self) -> None:
        if self._gathering:
            self._gathered()
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _gathered(self) -> None:
        if not self._gathering:
            return
        self._gathering = False
        events, self._pending = self._pending, []
        if not events or self.error is not None:
            return
        options, self._options = self._options, {}
        if self._saves or self._grown > SAVE_BYTES:
            options["artifacts"] = self.fold.take_unsaved()
            self._saves, self._grown = False, 0
        creates = self.seq == 0
        append = Append(
            task_id=self.task_id,
            events=events,
            expected_seq=self.seq,
            turn=self.turn,
            epoch=self.epoch,
            scope=self.scope if creates else None,
            context_id=self.context_id if creates else "",
            **options,
        )
        self.seq += sum([type(event) in PUBLIC_TYPES for event in events])
        self._under_way += len(events)
        try:
            future = asyncio.ensure_future(self._store.append(append))
        except (StoreError, TypeError, ValueError) as error:
            self._stopped(error if isinstance(error, StoreError) else StoreError(str(error)))
            return
        count = len(events)
        future.add_done_callback(lambda done: self._appended(done, count))

    def _appended(self, done: asyncio.Future[int], count: int) -> None:
        self._under_way -= count
        error = StoreError("the append was given up") if done.cancelled() else done.exception()
        if error is not None and self.error is None:
            self._stopped(error if isinstance(error, StoreError) else StoreError(str(error)))
        if self._begun is not None and error is None:
            self._begun()
            self._begun = None
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def timestamp(milliseconds: int) -> Timestamp:
    """Return a moment; the same value for all who ask for it in a row."""
    global _last
    if milliseconds != _last[0]:
        _last = (milliseconds, Timestamp.from_milliseconds(milliseconds))
    return _last[1]


_last = (0, Timestamp.from_milliseconds(0))


def _size_of(artifact: Artifact) -> int:
    """Return about how many bytes an update with ``artifact`` takes in the log."""
    size = 100 + _json_size(artifact.metadata)
    for part in artifact.parts:
        size += 20 + _json_size(part.metadata)
        if part.text is not None:
            size += len(part.text)
        elif part.raw is not None:
            size += len(part.raw) * 4 // 3
        elif part.url is not None:
            size += len(part.url)
        else:
            size += _json_size(part.data)
    return size


def _json_size(value: Any) -> int:
    return 0 if value is None else len(encode(value))
