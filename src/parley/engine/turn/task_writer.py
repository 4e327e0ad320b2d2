"""The writer of one task's log while a runner has the task. Filters each event once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from parley.engine.content import fitted, writable
from parley.extensions.profile import InThread, Profile, Profiles
from parley.model.extensions import Extension
from parley.model.parts import Message, Part
from parley.model.service import NO_TRACE
from parley.model.struct import Timestamp, encode
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.observe import tracing
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import PUBLIC_TYPES, PrivateEvent, Scope, StepResult, TaskEvent
from parley.store.fold import Fold
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import Append
from parley.store.protocols.webhooks import PushRecord
from parley.store.task_store import TaskStore

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = logging.getLogger("parley.engine")

Update = TypeVar("Update", TaskStatusUpdateEvent, TaskArtifactUpdateEvent)

MAX_IN_FLIGHT = 192
"""The number of events in progress to the store from which ``drain`` waits.

This many tokens fit into one write of a stream (``Settings.send_buffer``).
"""

HAND_OVER_PASSES = 4
"""The maximum number of event loop iterations from a commit to the connection: the stream's reader
receives the event, its response sends it, and the event loop writes it.
"""

SAVE_BYTES = 64 * 1024
"""The growth of artifacts in bytes after which it is added to the task's stored snapshot."""


class TaskWriter:
    """Writes one task's log, in order, with several appends in progress.

    ``write`` never waits: it folds events at once, batches the events of one iteration of the event
    loop, and appends each batch. ``drain`` waits while too many events are in progress, ``flush``
    until all are durable; both raise the ``StoreError`` that stopped the log. After such an error
    the writer writes nothing more, because later events cannot skip a missing one. An append that
    the store completes synchronously is complete here too, without another iteration of the loop.

    The first write of a turn is shown at once: if a stream reads the task in this process, the
    first ``drain`` waits until that write is durable and passed to the connection. ``is_first``:
    nothing was drained in the turn yet. Unwritable output is rejected before it becomes part of the
    log (``UnwritableOutput``). ``is_held``: events wait for ``flush`` or a waiting ``drain``,
    because no client knows the task yet.

    ``epoch`` is the fencing token of the claim: the store rejects an append with an earlier one.
    ``output_filter`` filters statuses and artifacts, and may reject them. ``hints`` knows the
    readers of the task. ``since`` is the start of a new task (ms). ``on_created`` is called after
    the first commit, ``on_error`` when ``error`` is set. ``measure`` is called before an event is
    written, and may reject it. ``trace`` is the position in the trace for the spans of appends.
    """

    error: StoreError | None = None
    output_filter: OutputFilter | None = None
    is_first = True
    trace = NO_TRACE
    _has_warned = False
    _batching = False
    _in_flight = 0
    _unsaved_bytes = 0
    _save = False

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
        hints: LocalHints,
        epoch: int = 1,
        since: int = 0,
        is_held: bool = False,
        on_created: Callable[[], None] | None = None,
        on_error: Callable[[], None] | None = None,
        measure: Callable[[TaskEvent | PrivateEvent], None] | None = None,
    ) -> None:
        self.task_id = task_id
        self.context_id = context_id
        self.scope = scope
        self.fold = fold
        self.seq = seq
        self.turn = turn
        self.epoch = epoch
        self._store = store
        self._hints = hints
        self._is_held = is_held
        self._on_created = on_created
        self._on_error = on_error
        self._measure = measure
        self._loop = asyncio.get_running_loop()
        self._pending: list[TaskEvent | PrivateEvent] = []
        self._payloads: list[bytes] = []
        self._options: dict[str, Any] = {}
        self._waiters: list[asyncio.Future[None]] = []
        stamp = fold.status.timestamp
        self._last_status = stamp.milliseconds if stamp is not None else since

    def write(self, *events: TaskEvent | PrivateEvent) -> None:
        """Add events to the log.

        Raises ``IllegalEvent`` for an event that must not follow, and ``UnwritableOutput``.
        """
        for event in events:  # results are found again by their keys, so keys are not repaired
            event, payload = writable(event, repairs=type(event) is not StepResult)
            self._write(event, payload)

    def _write(self, event: TaskEvent | PrivateEvent, payload: bytes) -> None:
        if self._measure is not None:
            self._measure(event)
        if self.error is not None:
            raise self.error
        self.fold.apply(event)
        self._pending.append(event)
        self._payloads.append(payload)
        if type(event) is TaskArtifactUpdateEvent:
            self._unsaved_bytes += len(payload)
        if not (self._batching or self._is_held):
            self._batching = True
            self._loop.call_soon(self._append_pending)

    def status(
        self,
        state: TaskState,
        message: Message | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Message | None:
        """Write a status update, and return its message in the sent form.

        Its timestamp is the store's time, and never before the previous status. Raises ``A2AError``
        for a status that must not be sent.
        """
        self._last_status = max(self._last_status, self._store.now())
        update = TaskStatusUpdateEvent(
            task_id=self.task_id,
            context_id=self.context_id,
            status=TaskStatus(state=state, message=message, timestamp=timestamp(self._last_status)),
            metadata=metadata,
        )
        return self.say(update).status.message

    def say(self, update: Update) -> Update:
        """Write an update with valid text, and return it in the sent form.

        Raises ``A2AError`` for an update that must not be sent.
        """
        try:
            valid, payload = update, encode(update)
        except (TypeError, ValueError, RecursionError):
            valid, payload = writable(update)
        if valid is not update and not self._has_warned:
            self._has_warned = True
            log.warning(
                "task %s: text with half of a surrogate pair, which no peer could read, is written "
                "with U+FFFD instead",
                self.task_id,
            )
        sent = valid if self.output_filter is None else self.output_filter.send(valid)
        if sent is not valid:
            sent, payload = writable(sent)
        self._write(sent, payload)
        return sent

    def close_turn(self, *, exchange: Sequence[Message] = ()) -> None:
        """End the turn with the batch so far, and save its artifacts."""
        self._options["turn_open"] = False
        self._save = True
        self._option("exchange", exchange)

    def open_turn(
        self,
        *,
        taken: int = 0,
        base_url: str = "",
        receipts: Sequence[Receipt] = (),
        pushes: Sequence[PushRecord] = (),
    ) -> None:
        """Open a turn with this batch; it receives ``taken`` waiting messages.

        ``base_url`` is given with a task's first turn only.
        """
        self.is_first = True
        self._has_warned = False
        options = self._options
        options["turn_open"] = True
        if base_url:
            options["base_url"] = base_url
        if taken:
            options["taken"] = options.get("taken", 0) + taken
        if receipts or pushes:
            self._option("receipts", receipts)
            self._option("pushes", pushes)

    def release(self) -> None:
        """Release the lease with the batch so far: then any replica may claim the task."""
        self._options["release"] = True

    def sleep(self, wakes_at: int, events: Sequence[str]) -> None:
        """Release the lease with the batch so far, and save its artifacts: the turn sleeps."""
        self._options |= {"release": True, "wakes_at": wakes_at, "waits_for": tuple(events)}
        self._save = True

    def stop(self, error: StoreError) -> None:
        """Write nothing more, because another executor has the task."""
        if self.error is None:
            self._fail(error)

    def detach(self) -> None:
        """Drop the callbacks, so that the writer does not keep the ended runner alive."""
        self._on_error = self._measure = None
        if self.error is not None:
            self._on_created = None

    def _fail(self, error: StoreError) -> None:
        self.error = error
        if self._on_error is not None:
            self._on_error()
        self._wake()

    def _option(self, name: str, values: Sequence[Any]) -> None:
        if values:
            self._options[name] = (*self._options.get(name, ()), *values)

    @property
    def is_full(self) -> bool:
        """Whether a producer should ``drain``."""
        return self.is_first or self._in_flight + len(self._pending) >= MAX_IN_FLIGHT

    async def drain(self) -> None:
        """Wait while ``MAX_IN_FLIGHT`` events or more are in progress.

        After the first write of a turn, wait until the streams of the task have it.
        """
        if self.is_first:
            self.is_first = False
            if self._hints.is_read(self.task_id):
                await self.flush()
                await handed_over()
        while self.is_full and self.error is None:
            await self._wait()
        if self.error is not None:
            raise self.error

    async def flush(self) -> None:
        """Wait until everything written is durable."""
        self.append()
        while (self._in_flight or self._pending) and self.error is None:
            await self._wait()
        if self.error is not None:
            raise self.error

    def append(self) -> None:
        """Pass all written events to the store, and hold none back from now on."""
        self._is_held = False
        if self._pending:
            self._append_batch()

    def show(self) -> None:
        """Hold nothing back from the next iteration of the event loop on. Thread-safe."""
        if self._is_held:
            self._loop.call_soon_threadsafe(self.append)

    async def _wait(self) -> None:
        self.append()
        if not self._in_flight:  # done synchronously; readers keep up with heavy writers
            await asyncio.sleep(0)
            return
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _append_pending(self) -> None:
        """Append the batch of an event loop iteration, unless that was done within it."""
        self._batching = False
        if self._pending and not self._is_held:
            self._append_batch()

    def _append_batch(self) -> None:
        events, self._pending = self._pending, []
        payloads, self._payloads = self._payloads, []
        if self.error is not None:
            return
        options, self._options = self._options, {}
        if self._save or self._unsaved_bytes > SAVE_BYTES:
            options["artifacts"] = self.fold.take_unsaved()
            self._save, self._unsaved_bytes = False, 0
        creates = self.seq == 0
        append = Append(
            task_id=self.task_id,
            events=events,
            payloads=payloads,
            expected_seq=self.seq,
            turn=self.turn,
            epoch=self.epoch,
            scope=self.scope if creates else None,
            context_id=self.context_id if creates else "",
            **options,
        )
        self.seq += sum([type(event) in PUBLIC_TYPES for event in events])
        self._in_flight += len(events)
        span = None
        if tracing.tracer is not None and self.trace.traceparent:
            span = tracing.begin("append", "client", self.trace, span_attributes(append))
        try:
            future = asyncio.ensure_future(self._store.append(append))
        except (StoreError, TypeError, ValueError, RecursionError) as error:
            self._fail(error if isinstance(error, StoreError) else StoreError(str(error)))
            if span is not None:
                tracing.end(span, error)
            return
        count = len(events)
        if future.done():
            self._appended(future, count, span)
        else:
            future.add_done_callback(lambda done: self._appended(done, count, span))

    def _appended(self, done: asyncio.Future[int], count: int, span: Span | None) -> None:
        self._in_flight -= count
        error = StoreError("the append was cancelled") if done.cancelled() else done.exception()
        if span is not None:
            tracing.end(span, error)
        if error is not None and self.error is None:
            self._fail(error if isinstance(error, StoreError) else StoreError(str(error)))
        if self._on_created is not None and error is None:
            self._on_created()
            self._on_created = None
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def span_attributes(append: Append) -> dict[str, Any]:
    """Return the attributes of an append's span."""
    found = {"db.operation.name": "append", "parley.records": len(append.events)}
    return found | ({"a2a.task.id": append.task_id} if append.task_id else {})


async def handed_over() -> None:
    """Wait until committed events are passed to the waiting connections."""
    for _ in range(HAND_OVER_PASSES):
        await asyncio.sleep(0)


def timestamp(milliseconds: int) -> Timestamp:
    """Return a timestamp. Consecutive calls with the same argument share one value."""
    global _last
    known = _last  # a local copy, as servers may run in several threads
    if milliseconds != known[0]:
        known = _last = (milliseconds, Timestamp.from_milliseconds(milliseconds))
    return known[1]


_last = (0, Timestamp.from_milliseconds(0))


E = TypeVar("E", Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)


class OutputFilter:
    """Filters all output of one turn, before it is stored.

    Parts get a form that the caller accepts, if they have one; other parts are sent unchanged, with
    a warning in the server's log, because ``acceptedOutputModes`` is only a preference (§3.2.2).
    Then the active extensions process the event.
    """

    def __init__(self, profile: Profile | None, modes: tuple[str, ...]) -> None:
        self._profile = profile
        self._modes = modes
        self._warned = False

    def send(self, event: E) -> E:
        """Return the event to store. Raises ``A2AError`` for an event that must not be sent."""
        if self._modes:
            event = self._fit(event)
        return event if self._profile is None else self._profile.send(event)

    def _fit(self, event: Any) -> Any:
        if isinstance(event, TaskArtifactUpdateEvent):
            parts = self._parts(event.artifact.parts)
            if parts is event.artifact.parts:
                return event
            return replace(event, artifact=replace(event.artifact, parts=parts))
        if isinstance(event, Message):
            parts = self._parts(event.parts)
            return event if parts is event.parts else replace(event, parts=parts)
        message = event.status.message
        if message is None:
            return event
        parts, _ = fitted(message.parts, self._modes)
        if parts is message.parts:
            return event
        return replace(event, status=replace(event.status, message=replace(message, parts=parts)))

    def _parts(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        parts, unwanted = fitted(parts, self._modes)
        if unwanted and not self._warned:
            self._warned = True
            accepted = ", ".join(self._modes)[:200]
            log.warning("the caller accepts %r, and gets %s", accepted, unwanted)
        return parts


class OutputFilters:
    """Makes the output filters for an agent's turns."""

    def __init__(self, extensions: Iterable[Extension], in_thread: InThread) -> None:
        self.profiles = Profiles(extensions, in_thread)

    def of(self, extensions: frozenset[str], modes: tuple[str, ...]) -> OutputFilter | None:
        """Return the filter of a turn, ``None`` if there is nothing to filter."""
        profile = self.profiles.of(extensions)
        return OutputFilter(profile, modes) if profile is not None or modes else None


def active(metadata: Mapping[str, Any] | None, extensions: frozenset[str]) -> dict[str, Any]:
    """Return the members of ``metadata`` that belong to active extensions."""
    return {
        key: value
        for key, value in (metadata or {}).items()
        if any(key == uri or key.startswith(f"{uri}/") for uri in extensions)
    }
