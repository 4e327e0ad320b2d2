"""Runs the turns of one task sequentially, while the task is active in this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from parley.engine.authorizations import forget
from parley.engine.replies import SharedTimer, Waiters
from parley.engine.turn import turn_log
from parley.engine.turn.attempt import (
    Attempt,
    Failed,
    PrivateRecords,
    Rejected,
    Request,
    UserAnswer,
    agent_message,
    calls_to_cancel,
    forget_values,
)
from parley.engine.turn.outcome import (
    FunctionCall,
    TaskOutcome,
    exchange_of,
    outcome_of,
    store_failure,
)
from parley.engine.turn.replay import (
    Deadline,
    attempts_of,
    earliest,
    first_events,
    first_turn_receipts,
    latest_message,
    of_chain,
    pending_question,
    receipt_of,
    request_of,
    results_in,
    turn_taking,
)
from parley.engine.turn.task_writer import OutputFilter, TaskWriter, handed_over
from parley.engine.turn.usage import TaskMeter
from parley.model.errors import A2AError, InternalError, shutting_down
from parley.model.ids import log_incident, new_id
from parley.model.parts import Message
from parley.model.service import caller_of
from parley.model.tasks import TERMINAL_STATES, TaskState
from parley.store.events import CancelRequested, LoggedEvent, MessageReceived, Scope, TurnStarted
from parley.store.fold import Fold
from parley.store.protocols.errors import Fenced, StoreError
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import Append, LogPosition, TaskRecord
from parley.store.protocols.webhooks import PushRecord

if TYPE_CHECKING:
    from parley.engine.executor import AgentExecutor

log = logging.getLogger("parley.engine")

UNKNOWN_SCOPE = Scope(agent="")
"""The scope of a task that is not loaded yet."""

ATTEMPT_KEY = "urn:parley:attempt"
"""The metadata key of a status update with the number of the attempt."""


class TaskRunner:
    """Runs one task. There is at most one live runner for a task, so turns never overlap (E1).

    A runner starts with a new message, whose task need not be in the log yet, or with a logged task
    that has work: a waiting message, an open turn without a runner, a cancellation. It runs turns
    until there is no work; the idle task is then only a row in the store. It also ends when another
    replica has claimed the task; its waiters then find their replies in the log.
    """

    # Class attributes as defaults, since most runners never change them: keeps direct replies
    # cheap.
    writer: TaskWriter | None = None
    predecessor: TaskWriter | None = None
    attempt: Attempt | None = None
    epoch = 0  # the fencing token of the claim; 0 before the claim
    successor_epoch = 0
    woken = False
    cancel_requested = False
    releasing = False
    abandoned = False
    asleep = False
    holds = False  # the caller waits for the reply, and only it knows the task
    timeout_reason = ""
    deadline: Deadline | None = None
    receipts: Sequence[Receipt] = ()
    push: PushRecord | None = None
    _records: PrivateRecords | None = None
    _message_arrived: asyncio.Future[None] | None = None
    _main: asyncio.Task[None] | None = None
    _direct_reply_timer: SharedTimer[TaskRunner] | None = None
    _listening: AbstractContextManager[None] | None = None

    def __init__(
        self,
        executor: AgentExecutor,
        *,
        context_id: str = "",
        scope: Scope = UNKNOWN_SCOPE,
        task_id: str = "",
    ) -> None:
        self.executor = executor
        self.store = executor.store
        self.hints = executor.hints
        self.in_thread = executor.in_thread
        self._task_id = task_id
        self.context_id = context_id
        self.scope = scope
        self.waiters = Waiters(executor.arriving)
        self._function = FunctionCall()

    @property
    def task_id(self) -> str:
        """The task's id; for a message without a task, the id that a task would get."""
        if not self._task_id:
            self._task_id = new_id(self.store.now())
        return self._task_id

    @property
    def deadline_at(self) -> int | None:
        """The time of the turn's timeout, in ms by the store's clock."""
        return None if self.deadline is None else self.deadline.at

    @property
    def has_id(self) -> bool:
        """True if the task's id has been used."""
        return bool(self._task_id)

    @property
    def _has_ended(self) -> bool:
        """True if this runner has written the task's end."""
        return self.writer is not None and self.writer.fold.status.state in TERMINAL_STATES

    # -- start, claim, turns, end --------------------------------------------------------------

    def start(
        self, attempt: Attempt | None = None, timer: SharedTimer[TaskRunner] | None = None
    ) -> None:
        """Run ``attempt``, the first of a new message, and then the turns in the task's log.

        ``timer`` calls ``promote`` if the function takes too long to reply without a task; ``None``
        sets no limit.
        """
        loop = asyncio.get_running_loop()
        if timer is not None and self.writer is None:
            self._direct_reply_timer = timer
            timer.add(self, loop)
        self._main = loop.create_task(self._run(attempt))

    async def _run(self, attempt: Attempt | None) -> None:
        try:
            if attempt is not None:
                if self.executor.deadlines.are_set or attempt.request.chain is not None:
                    self.deadline = self.executor.deadlines.for_new_task(attempt.request.chain)
                if self.writer is not None:
                    await self.writer.flush()
                    if any([handle.awaits_task for handle in self.waiters.current]):
                        await handed_over()  # before the function, which may keep the loop busy
                await self._run_turn(attempt)
            if attempt is None or not (self.writer is None or self._has_ended or self.abandoned):
                await self._run_logged_turns()
        except StoreError as error:
            self.waiters.store_failed(error, self.task_id, self.executor.unavailable)
        except asyncio.CancelledError:
            if not self.abandoned:
                raise
        except Exception:
            reference = log_incident(
                log, f"task {self.task_id}", task_id=self.task_id, context_id=self.context_id
            )
            self.executor.may_have_orphans = True
            self.waiters.refuse(
                InternalError(f"the server failed; its log says why under {reference}")
            )
        finally:
            if self._listening is not None:
                self._stop_listening()
            self.executor.remove(self)
            if self.writer is not None:
                self.writer.detach()
            if self.waiters.are_left:
                self.waiters.delegate(self.executor.remote_replies)

    async def _run_logged_turns(self) -> None:
        """Claim the task, and run its turns until there is no work; then release it."""
        self._listen()
        if self.predecessor is not None:  # an append of the predecessor may create the task
            with contextlib.suppress(StoreError):
                await self.predecessor.flush()
                for handle in self.waiters.current:
                    handle.mark_logged()
        if not self.epoch:
            self.epoch = await self.store.claim(self.task_id)
        while not self.abandoned:
            if self.asleep:
                if self.releasing or not self.cancel_requested:
                    return
                await self._claim_again()
            if self._has_ended:
                return
            self.woken = False
            if self.writer is None:
                record = await self.store.load(self.task_id)
            else:  # the writer has the task's content
                record = await self.store.load(self.task_id, history=0, artifacts=False)
            if record is None or record.state.is_terminal:
                return
            if record.epoch != self.epoch:
                raise Fenced(f"task {self.task_id} was claimed by another executor")
            self.context_id, self.scope = record.stored.context_id, record.scope
            attempt = None if self.releasing else await self._next_attempt(record)
            if attempt is not None:
                await self._run_turn(attempt)
            elif self.releasing or not self.woken:
                if record.lease_owner == self.store.replica:
                    await self._release_idle(record)
                if self.releasing or not self.woken:
                    return

    async def _claim_again(self) -> None:
        """Claim the task of a sleeping turn that a cancellation woke while it was falling
        asleep."""
        if self.writer is not None:
            self.writer.detach()
        self.asleep, self.writer = False, None
        self.epoch = await self.store.claim(self.task_id)

    # -- the next attempt ----------------------------------------------------------------------

    async def _next_attempt(self, record: TaskRecord) -> Attempt | None:
        """Return the next attempt of a logged task, once its start is durable."""
        deadlines, store = self.executor.deadlines, self.store
        has_work = record.cancel_requested or record.turn_open or record.waiting > 0
        if not (has_work or deadlines.are_set):
            return None
        if self.writer is None:
            fold = Fold(record.task, strict=True, unsaved=record.unsaved)
            self.writer = self._open_writer(fold, record.seq, record.turn)
        if record.cancel_requested or self.cancel_requested:
            await self._cancel_at_rest(record)
            return None
        if self._records is None:
            self._records = PrivateRecords()
        await self._records.update(store, self.task_id)
        self.deadline = None
        if deadlines.are_set:
            turn = record.turn if record.turn_open else record.turn + 1 if record.waiting else 0
            self.deadline = await deadlines.for_turn(record, self._records, turn)
            if self.deadline is not None and self.deadline.at <= store.now():
                await self._end_task(TaskState.FAILED, self.deadline.reason)
                return None
        if not self.executor.runs_turns:
            return None
        prepare = self._retry if record.turn_open else self._new_turn
        attempt = await prepare(record, self._records, self.writer)
        if attempt is not None:
            if (given := of_chain(attempt.request.chain)) is not None:
                self.deadline = earliest(self.deadline, given)
                if given.at <= store.now():
                    await self._end_task(TaskState.FAILED, given.reason)
                    return None
            # Durable before the function runs: the attempt counts even if it crashes the process.
            await self.writer.flush()
        return attempt

    async def _new_turn(
        self, record: TaskRecord, records: PrivateRecords, writer: TaskWriter
    ) -> Attempt | None:
        """Return the attempt at a new turn, for the oldest waiting message (E2)."""
        received = await self.waiters.oldest_message(self.store, self.task_id)
        question = pending_question(records)
        if received is None:
            return None
        attempt = self._attempt_at(
            record, records, record.turn + 1, latest=received.message, received=received
        )
        if question:
            attempt.journal.answers[question] = UserAnswer.of(received.message, replayed=False)
        self.waiters.take(received)
        writer.turn = attempt.turn
        writer.write(turn_taking(received, turn=attempt.turn, answers=question))
        self._write_working(attempt, writer)
        writer.open_turn(taken=1)
        return attempt

    async def _retry(
        self, record: TaskRecord, records: PrivateRecords, writer: TaskWriter
    ) -> Attempt | None:
        """Return another attempt at an open turn (E3) whose process died, or that was queued.

        An attempt that fell asleep continues.
        """
        attempts, released, is_woken = attempts_of(record, records)
        options = self.executor.options
        if is_woken:
            return self._wake_up(record, records, writer, attempts)
        if attempts > released and options.on_crash == "fail":
            reason = "The server stopped while it was working on this task."
            await self._end_task(TaskState.FAILED, reason)
            return None
        if attempts - released >= options.max_attempts:
            reason = f"The agent did not survive {options.max_attempts} attempts at this task."
            await self._end_task(TaskState.FAILED, reason)
            return None
        attempt = self._attempt_at(
            record, records, record.turn, latest=latest_message(records), number=attempts + 1
        )
        writer.write(TurnStarted(turn=attempt.turn, attempt=attempt.number))
        self._write_working(attempt, writer, {ATTEMPT_KEY: attempt.number} if attempts else None)
        writer.open_turn()
        return attempt

    def _wake_up(
        self, record: TaskRecord, records: PrivateRecords, writer: TaskWriter, number: int
    ) -> Attempt:
        """Return the attempt that fell asleep, to continue it."""
        latest = latest_message(records)
        attempt = self._attempt_at(record, records, record.turn, latest=latest, number=number)
        writer.write(TurnStarted(turn=attempt.turn, attempt=number))
        writer.output_filter = self._filter_of(attempt.request)
        if writer.fold.status.message is not None:  # the reason of the wait
            self._write_working(attempt, writer)
        writer.open_turn()
        return attempt

    def _attempt_at(
        self,
        record: TaskRecord,
        records: PrivateRecords,
        turn: int,
        *,
        latest: Message | None,
        number: int = 1,
        received: MessageReceived | None = None,
    ) -> Attempt:
        request = self._request_of(record, records, turn, received)
        attempt = Attempt(self, request, turn=turn, number=number, latest=latest)
        attempt.replay(records)
        return attempt

    def _request_of(
        self, record: TaskRecord, records: PrivateRecords, turn: int, new: MessageReceived | None
    ) -> Request:
        assert self.writer is not None
        task, executor = self.writer.fold.task, self.executor
        skills, default = executor.skills, executor.default_skill
        return request_of(record, task, records, skills, default, turn=turn, received=new)

    def _write_working(
        self, attempt: Attempt, writer: TaskWriter, metadata: dict[str, Any] | None = None
    ) -> None:
        """Set the task to WORKING; if the output filter rejects that, the turn fails."""
        writer.output_filter = self._filter_of(attempt.request)
        try:
            writer.status(TaskState.WORKING, metadata=metadata)
        except A2AError as error:
            attempt.ending = error

    async def _cancel_at_rest(self, record: TaskRecord) -> None:
        """Cancel a task without a running turn; a skill that handles cancellation is called
        first."""
        skills = self.executor.skills.values()
        value: object = None
        if self.executor.runs_turns and any(skill.runs_on_cancel for skill in skills):
            self._records = self._records or PrivateRecords()
            await self._records.update(self.store, self.task_id)
            latest, turn = latest_message(self._records), max(record.turn, 1)
            request = self._request_of(record, self._records, turn, None)
            if request.skill.runs_on_cancel:
                attempt = self._attempt_at(record, self._records, turn, latest=latest)
                attempt.is_canceling = True
                self.attempt = attempt
                try:
                    async with asyncio.timeout(self.executor.options.cancel_grace):
                        value = await self.executor.invoke(attempt)
                except (Exception, Failed, Rejected):
                    what = f"the cancellation of task {self.task_id}"
                    log_incident(log, what, **self.facts())
        await self._end_canceled(value)

    async def _end_canceled(self, value: object) -> None:
        """End the task as CANCELED, with the function's message, if any."""
        said = value if isinstance(value, TaskOutcome) else TaskOutcome(TaskState.CANCELED)
        if said.state is not TaskState.CANCELED:
            said = TaskOutcome(TaskState.CANCELED)
        await self._end_task(TaskState.CANCELED, said.message, said.metadata)

    # -- one turn ------------------------------------------------------------------------------

    async def _run_turn(self, attempt: Attempt) -> None:
        """Run the function of one attempt, and end or release its turn."""
        self.attempt = attempt
        observed = attempt.observed = turn_log.begin(attempt, self.facts)
        if observed is not None and self.writer is not None:
            self.writer.trace = observed.position
        try:
            failure: BaseException | None = None
            value: object = None
            if not (self.cancel_requested or self.releasing or self.timeout_reason):
                value, failure = await self._call_function(attempt)
                if attempt.ending is not None:
                    value, failure, attempt.ending = None, attempt.ending, None
            writer = self.writer
            if writer is not None and writer.error is not None and not self.abandoned:
                raise writer.error
            if self.abandoned:
                attempt.finished = True
            elif attempt.asleep:
                assert writer is not None
                await writer.flush()
                self.asleep = True
                if observed is not None:
                    observed.end("slept")
            elif attempt.parked:
                assert self.writer is not None
                await (
                    self.writer.flush()
                )  # again: the function may have been cancelled during a flush
                self.reply()
                if observed is not None:
                    observed.end(self.writer.fold.status.state)
            elif self.cancel_requested:  # perhaps during the preparation of the turn
                await self._end_canceled(value)
            elif self.releasing:
                await self._release_turn(attempt)
            elif self.timeout_reason:
                await self._finish(attempt, None, Failed(self.timeout_reason))
            else:
                if failure is not None and (unavailable := store_failure(failure)) is not None:
                    raise unavailable  # the turn is run again, and this attempt counts
                await self._finish(attempt, value, failure)
        finally:
            if observed is not None:
                observed.close()
        self.attempt = None

    async def _call_function(self, attempt: Attempt) -> tuple[object, BaseException | None]:
        """Call the author's function, and return its value or its exception."""
        seconds = None
        if self.deadline is not None:
            seconds = max(0, self.deadline.at - self.store.now()) / 1000
        invoke = self.executor.invoke if attempt.ending is None else None
        assert self._main is not None
        if invoke is not None and attempt.observed is not None:
            invoke = attempt.observed.around(invoke)
        try:
            return await self._function.run(
                invoke, attempt, task=self._main, seconds=seconds, on_timeout=self._time_out
            )
        except asyncio.CancelledError:
            # The event loop ends, and cancels the runner. The function did not fail: the process
            # that finds the open turn runs it again.
            self.executor.may_have_orphans = True
            raise
        finally:
            self._stop_direct_reply_timer()

    # -- finish: the function has ended --------------------------------------------------------

    async def _finish(self, attempt: Attempt, value: object, failure: BaseException | None) -> None:
        """End the turn with the function's value or exception, and reply."""
        outcome = outcome_of(attempt, value, failure, has_task=self.writer is not None)
        if isinstance(outcome, TaskOutcome):
            state, message = outcome.state, outcome.message
            try:
                if outcome.artifact is not None:
                    attempt.write_artifact(outcome.artifact, last=True)
                elif state is TaskState.COMPLETED:
                    attempt.working()
                else:
                    attempt.writer()
            except A2AError as error:
                state, message = TaskState.FAILED, attempt.message(error.message)
            await self._end_task(state, message, outcome.metadata)
            return
        attempt.finished = True
        request = attempt.request
        if isinstance(outcome, Message) and (request.extensions or request.accepted_output_modes):
            try:
                if (output_filter := self._filter_of(request)) is not None:
                    outcome = output_filter.send(outcome)
            except A2AError as error:
                outcome = error
        if isinstance(outcome, A2AError):
            self.waiters.refuse(outcome)
            if attempt.observed is not None and not attempt.reference:
                attempt.observed.end("rejected")
            return
        if self.receipts or self.executor.retention.history:
            exchange = self._exchange(attempt, outcome)
            kept = receipt_of(outcome, self.receipts)
            if kept is not None or exchange:
                await self.store.keep(self.scope, self.context_id, receipt=kept, exchange=exchange)
        if self.push is not None:
            self.executor.push.deliver_reply(self.push, outcome, self.scope, request.trace)
        self.waiters.resolve(outcome)
        if attempt.observed is not None:
            attempt.observed.end("replied", outcome)

    def _filter_of(self, request: Request) -> OutputFilter | None:
        return self.executor.output_filters.of(request.extensions, request.accepted_output_modes)

    async def _end_task(
        self,
        state: TaskState,
        message: Message | str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Write the task's last status, wait until it is durable, and reply to every waiter."""
        writer, attempt = self.writer, self.attempt
        assert writer is not None
        if attempt is None or attempt.results:
            await self._clean_up_results(attempt, state)
        if isinstance(message, str):
            message = agent_message(message, self)
        try:
            if attempt is not None:
                attempt.writer(buffered=True)
                attempt.finished = True
            message = writer.status(state, message, metadata)
        except A2AError as error:
            # The task ends in any case; its message has only the output filter's reason.
            writer.output_filter = None
            if attempt is not None:
                attempt.finished = True
            if state is TaskState.COMPLETED:
                state = TaskState.FAILED
            message = agent_message(error.message, self)
            writer.status(state, message)
        writer.close_turn(exchange=self._exchange(attempt, message))
        await writer.flush()
        self.waiters.resolve(writer.fold.task)
        self.waiters.delegate_pending(self.executor.remote_replies)
        if attempt is None or attempt.observed is None:
            turn_log.note(state, self.facts)
        elif not attempt.reference:
            attempt.observed.end(state, writer.fold.task)

    async def _clean_up_results(self, attempt: Attempt | None, state: TaskState) -> None:
        """Delete the values of the task, and cancel its calls if it did not succeed."""
        results = None if attempt is None else attempt.results
        if attempt is None:
            self._records = self._records or PrivateRecords()
            await self._records.update(self.store, self.task_id)
            results = results_in(self._records)
        if results and state is not TaskState.COMPLETED and (calls := calls_to_cancel(results)):
            await self.executor.cancel_calls(self.task_id, calls)
        if results:
            await forget(self.store, self.scope, self.context_id, results)
            await forget_values(self.store, self.scope, self.context_id, results)

    def _exchange(self, attempt: Attempt | None, closing: Message | None) -> Sequence[Message]:
        if attempt is None or not self.executor.retention.history:
            return ()
        task = None if self.writer is None else self.writer.fold.task
        return exchange_of(attempt, task, closing)

    # -- release: another runner continues -----------------------------------------------------

    async def _release_turn(self, attempt: Attempt) -> None:
        """Release the lease during a turn: it is run again, and this attempt does not count."""
        attempt.finished = True
        writer = self.writer
        if writer is None:
            self.waiters.refuse(shutting_down())
            return
        if attempt.parked:
            return
        writer.write(TurnStarted(turn=attempt.turn, attempt=attempt.number, released=True))
        writer.release()
        await writer.flush()
        if attempt.observed is not None:
            attempt.observed.end("released")
        self.executor.notify_work()
        if self.store.is_shared:
            self.waiters.delegate(self.executor.remote_replies)
        else:
            self.waiters.resolve(writer.fold.task)

    async def _release_idle(self, record: TaskRecord) -> None:
        """Release the lease of a task without a running turn."""
        writer, seq = self.writer, record.seq
        if writer is not None:
            if self._has_ended:
                return
            await writer.flush()
            seq = writer.seq
        await self.store.append(
            Append(
                task_id=self.task_id,
                events=(),
                expected_seq=seq,
                turn=record.turn,
                epoch=self.epoch,
                release=True,
            )
        )
        if record.turn_open or record.waiting or record.cancel_requested:
            self.executor.notify_work()

    # -- the next message ----------------------------------------------------------------------

    async def receive(self) -> MessageReceived:
        """Wait for the next message that no turn has received. It belongs to the current turn."""
        while True:
            self._message_arrived = asyncio.get_running_loop().create_future()
            if self.writer is not None:
                await self.writer.flush()
            received = await self.waiters.oldest_message(self.store, self.task_id)
            if received is not None:
                self.waiters.take(received)
                return received
            await self._message_arrived

    # -- wake-up notifications -----------------------------------------------------------------

    def _listen(self) -> None:
        if self._listening is None:
            self._listening = self.hints.listen(self.task_id, self)
            self._listening.__enter__()

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.__exit__(None, None, None)
            self._listening = None

    def on_record(self, record: LoggedEvent) -> None:
        """Handle a private record of the task that any replica committed."""
        if isinstance(record.event, CancelRequested):
            self.cancel()
        elif isinstance(record.event, MessageReceived):
            self.wake()

    def on_position(self, position: LogPosition) -> None:
        """Handle a new position of the log in the store."""
        if 0 < self.epoch < position.epoch:
            self._stop_fenced()
        elif position.ended:
            return
        elif position.cancel_requested:
            self.cancel()
        elif position.waiting:
            self.wake()

    def wake(self) -> None:
        """Check the log again before the runner ends, and at once in ``receive``."""
        self.woken = True
        if self._message_arrived is not None and not self._message_arrived.done():
            self._message_arrived.set_result(None)

    # -- interface for attempts ----------------------------------------------------------------

    def create_task(self, request: Request | None = None) -> TaskWriter:
        """Write the task's first event, and return the writer.

        ``request`` is given before the first attempt runs.
        """
        if request is None:
            assert self.attempt is not None
            request = self.attempt.request
        if request.skill.replies == "message":
            raise RuntimeError(
                f"the skill {request.skill.id!r} is declared replies='message', so it has no task; "
                "declare replies='task', or leave replies out"
            )
        if not self.holds:
            self._stop_direct_reply_timer()
        at, skills, task_id = self.store.now(), len(self.executor.skills), self.task_id
        self.epoch = 1
        is_held = self.holds or self.attempt is None  # the runner flushes before the function runs
        writer = self.writer = self._open_writer(Fold(strict=True), 0, 1, since=at, is_held=is_held)
        writer.output_filter = self._filter_of(request)
        observed = None if self.attempt is None else self.attempt.observed
        writer.trace = request.trace if observed is None else observed.position
        writer.write(*first_events(request, task_id, self.context_id, skills=skills, at=at))
        writer.open_turn(
            base_url=request.base_url,
            receipts=first_turn_receipts(self.receipts, task_id),
            pushes=(self.push,) if self.push is not None else (),
        )
        self.executor.register(self)
        self._listen()
        for handle in self.waiters.current:
            handle.turn = 1
        return writer

    def _open_writer(
        self, fold: Fold, seq: int, turn: int, since: int = 0, is_held: bool = False
    ) -> TaskWriter:
        measure = None
        if (meter := self.executor.meter) is not None:
            measure = TaskMeter(meter, fold, lambda: self.attempt).measure
        return TaskWriter(
            self.store,
            task_id=self.task_id,
            context_id=self.context_id,
            scope=self.scope,
            fold=fold,
            seq=seq,
            turn=turn,
            hints=self.hints,
            epoch=self.epoch,
            since=since,
            is_held=is_held,
            on_created=None if seq else self._task_created,
            on_error=self._stop_function,
            measure=measure,
        )

    def _task_created(self) -> None:
        if self.push is not None:
            self.executor.push.watch(self.task_id, self.scope)
        for handle in self.waiters.current:
            handle.mark_logged()

    def _stop_direct_reply_timer(self) -> None:
        if self._direct_reply_timer is not None:
            self._direct_reply_timer.discard(self)
            self._direct_reply_timer = None

    def promote(self) -> None:
        """Create the task of a message that the function did not answer in time."""
        self.show_task()
        attempt = self.attempt
        if self.writer is None and attempt is not None and not (attempt.finished or attempt.ending):
            try:
                attempt.working()
            except A2AError as error:
                self.abort(error)

    def show_task(self) -> None:
        """Write the task's log without holding events back: a client may know the task now."""
        self.holds = False
        if self.writer is not None:
            self.writer.show()

    def facts(self) -> dict[str, Any]:
        """Return the fields that name the task and its current turn in a log."""
        scope, attempt = self.scope, self.attempt
        caller = caller_of(scope.owner) if attempt is None else attempt.request.caller
        found: dict[str, Any] = {
            "agent": scope.agent,
            "caller": caller.id,
            "context_id": self.context_id,
        }
        if self.writer is not None:
            found["task_id"] = self.task_id
        if attempt is None:
            return found
        found |= {"skill": attempt.request.skill.id, "message_id": attempt.latest.message_id}
        if trace := attempt.request.trace:
            found["trace_id"] = trace.trace_id
        return {**found, "turn": attempt.turn, "attempt": attempt.number}

    def reply(self) -> None:
        """Reply to the turn's waiters with the current task; the turn continues."""
        assert self.writer is not None
        self.waiters.resolve(self.writer.fold.task)

    def fall_asleep(self, wakes_at: int, events: Sequence[str]) -> None:
        """Let the turn sleep until a time (ms) or any of some events, and cancel the function.

        It wakes up at its deadline at the latest, and fails then.
        """
        attempt, writer = self.attempt, self.writer
        assert attempt is not None
        assert writer is not None
        if self.cancel_requested or self.releasing or self.timeout_reason:
            return  # the function is already being cancelled for a sleep
        if self.deadline is not None:
            wakes_at = min(wakes_at, self.deadline.at)
        writer.write(TurnStarted(turn=attempt.turn, attempt=attempt.number, asleep=True))
        writer.sleep(wakes_at, events)
        attempt.finished = attempt.asleep = True
        self._stop_function()

    async def park(self, question: Message | None) -> None:
        """End the turn with a question: make it durable, reply, and cancel the function."""
        attempt, writer = self.attempt, self.writer
        assert attempt is not None
        assert writer is not None
        if attempt.results:
            await forget(self.store, self.scope, self.context_id, attempt.results)
        writer.close_turn(exchange=self._exchange(attempt, question))
        attempt.finished = attempt.parked = True
        await writer.flush()
        self.reply()
        self._stop_function()

    def abort(self, error: A2AError) -> None:
        """Cancel the function, and end the turn with an error."""
        assert self.attempt is not None
        self.attempt.ending = error
        self._function.cancel()

    def stop_soon(self) -> None:
        """Stop the function unless it ends in time. Thread-safe."""
        self._function.stop_soon(self.executor.options.cancel_grace, self._abandon)

    # -- stop the function ---------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel the task: the function gets ``CancelledError`` and the grace period (E4)."""
        if not self.cancel_requested:
            self.cancel_requested = True
            self.wake()
            self._stop_function()

    def release(self) -> None:
        """Release the task to another process, because this one shuts down."""
        self.releasing = True
        self.wake()
        self._function.cancel()

    def _time_out(self) -> None:
        """Stop the function at the deadline of its turn or task."""
        assert self.deadline is not None
        self.timeout_reason = self.deadline.reason
        self._stop_function()

    def _stop_fenced(self) -> None:
        """Stop, because another executor has claimed the task."""
        self.wake()
        if self.writer is not None:
            self.writer.stop(Fenced(f"task {self.task_id} was claimed by another executor"))

    def _stop_function(self) -> None:
        """Cancel the function, and abandon it if it does not end within the grace period."""
        self._function.stop(self.executor.options.cancel_grace, self._abandon)

    def _abandon(self) -> None:
        """Let another runner continue the task, because the function does not end."""
        attempt = self.attempt
        if attempt is None or self.abandoned:
            return
        log.warning(
            "the skill %r does not end after its cancellation; the task continues without it",
            attempt.request.skill.id,
        )
        self._detach_function(attempt)
        if self.writer is None:
            self.waiters.refuse(InternalError(self.timeout_reason))
        self.executor.replace(self)

    async def release_stuck(self) -> None:
        """Release the task although its function does not end."""
        attempt = self.attempt
        if attempt is not None and self.writer is not None and self._function.is_running:
            self._detach_function(attempt)
            with contextlib.suppress(StoreError):
                await self._release_turn(attempt)

    def _detach_function(self, attempt: Attempt) -> None:
        self.abandoned = True
        attempt.finished = True
        self._stop_listening()

    def cancel_main(self) -> None:
        """Cancel the runner itself, at the end of the process."""
        if self._main is not None:
            self._main.cancel()
