"""A task while it is active in this process: its turns, one after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from parley.agent.invoke import call
from parley.engine.queue.deadlines import Due
from parley.engine.queue.shared_timer import Deadline, SharedTimer
from parley.engine.replies.waiters import Waiters
from parley.engine.turn import finish, release
from parley.engine.turn.attempt import Attempt, Failed, Request
from parley.engine.turn.next_turn import next_attempt
from parley.engine.turn.outcome import of_store
from parley.engine.turn.output_filter import OutputFilter
from parley.engine.turn.private_records import PrivateRecords
from parley.engine.turn.replay import begun_by, opening
from parley.engine.turn.task_writer import TaskWriter
from parley.model.errors import A2AError, InternalError
from parley.model.parts import Message
from parley.model.tasks import TaskState
from parley.model.uuid7 import new_id
from parley.store.events import CancelRequested, LoggedEvent, Received
from parley.store.fold import Fold
from parley.store.task_store import Fenced, LogPosition, PushRecord, Receipt, Scope, StoreError

if TYPE_CHECKING:
    from parley.engine.executor import AgentExecutor

log = logging.getLogger("parley.agent")

NOBODY = Scope(agent="")
"""Whose a task is before the log was asked."""


class TaskRunner:
    """One active task: at most one exists for a task, so turns never overlap (E1).

    A lane begins with a new message, whose task need not be in the log yet, or with a task that is
    there and has something to do: a message waiting, a turn that nobody works on, a cancellation.
    It goes on until there is nothing to do; the task then costs a row. It ends as well, and leaves
    its senders to the log, when another replica has taken the task.
    """

    # What most lanes never change is theirs by class: a direct reply is short.
    writer: TaskWriter | None = None
    before: TaskWriter | None = None
    run: Attempt | None = None
    epoch = 0
    successor = 0
    woken = False
    blameless = False
    cancel_asked = False
    releasing = False
    abandoned = False
    spoiled: A2AError | None = None
    overdue = ""
    due: Due | None = None
    receipts: Sequence[Receipt] = ()
    push: PushRecord | None = None
    _memory: PrivateRecords | None = None
    _arrival: asyncio.Future[None] | None = None
    _main: asyncio.Task[None] | None = None
    _in_function = False
    _interrupts = 0
    _moment: Deadline | None = None
    _grace: asyncio.TimerHandle | None = None
    _deadline: asyncio.TimerHandle | None = None
    _listening: AbstractContextManager[None] | None = None

    def __init__(
        self,
        executor: AgentExecutor,
        *,
        context_id: str = "",
        scope: Scope = NOBODY,
        task_id: str = "",
    ) -> None:
        self.executor = executor
        self._task_id = task_id
        self.context_id = context_id
        self.scope = scope
        self.senders = Waiters(executor.expected)

    @property
    def task_id(self) -> str:
        """The task's id; for a message without a task, the one that it would have."""
        if not self._task_id:
            self._task_id = new_id(self.executor.store.now())
        return self._task_id

    @property
    def memory(self) -> PrivateRecords:
        """What the log remembers of the task, as far as it was read."""
        if self._memory is None:
            self._memory = PrivateRecords()
        return self._memory

    @property
    def is_named(self) -> bool:
        """Whether anybody has asked for the task's id yet."""
        return bool(self._task_id)

    # -- beginning -----------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the lane run; ``work`` is ``first`` or ``more``."""
        self._main = asyncio.get_running_loop().create_task(self._do(work))

    async def _do(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StoreError as error:
            release.store_failed(self, error)
        except asyncio.CancelledError:
            if not self.abandoned:
                raise
        except Exception:
            release.failed_unforeseen(self)
        finally:
            if self._listening is not None:
                self._stop_listening()
            self.executor.left(self)
            if self.writer is not None:
                self.writer.left()
            if self.senders.are_left:
                self.senders.hand_over(self.executor.elsewhere)

    async def first(self, run: Attempt, *, moments: SharedTimer | None) -> None:
        """Run a new message's turn, then whatever else comes for its task.

        ``moments`` tells when the function has had its time to answer without a task; ``None`` for
        one that may take as long as it likes.
        """
        if self.executor.deadlines.are_set:
            self.due = self.executor.deadlines.of_new()
        if self.writer is not None:
            await self.writer.flush()
        elif moments is not None:
            self._moment = moments.after(self._promote)
        await self._turn(run)
        if self.writer is not None and not self.abandoned:
            await self.more()

    async def more(self) -> None:
        """Take up a task that is in the log, and see to what comes for it."""
        self._listen()
        store = self.executor.store
        if self.before is not None:
            await self._wait_for(self.before)
        if not self.epoch:
            self.epoch = await store.claim(self.task_id)
        while not self.abandoned:
            if self.writer is not None and self.writer.fold.status.state.is_terminal:
                return
            self.woken = False
            if self.writer is None:
                record = await store.load(self.task_id)
            else:  # what the task holds is known here
                record = await store.load(self.task_id, history=0, artifacts=False)
            if record is None or record.task.state.is_terminal:
                return
            if record.epoch != self.epoch:
                raise Fenced(f"task {self.task_id} was taken over")
            self.context_id, self.scope = record.task.context_id, record.scope
            run = None if self.releasing else await next_attempt(self, record)
            if run is not None:
                await self._turn(run)
            elif self.releasing or not self.woken:
                if record.lease_owner == store.replica:
                    await release.let_go(self, record)
                if self.releasing or not self.woken:
                    return

    def outgoing(self, request: Request) -> OutputFilter | None:
        """Return where what a turn says goes through on its way out."""
        return self.executor.outlet.of(request.extensions, request.accepted_output_modes)

    async def _wait_for(self, before: TaskWriter) -> None:
        """Wait for what the lane wrote that this one replaces: the task itself may be among it."""
        with contextlib.suppress(StoreError):
            await before.flush()
            for ticket in self.senders.present:
                ticket.mark_logged()

    # -- the task comes to be ------------------------------------------------------------------

    def log(self, request: Request | None = None) -> TaskWriter:
        """Write the task's first event, and return the writer."""
        if request is None:
            assert self.run is not None
            request = self.run.request
        if request.skill.replies == "message":
            raise RuntimeError(
                f"the skill {request.skill.id!r} is declared replies='message', so it has no task "
                "to use; declare replies='task', or neither"
            )
        if self._moment is not None:
            self._moment.call_off()
            self._moment = None
        executor, at = self.executor, self.executor.store.now()
        self.epoch = 1
        writer = self.writer = TaskWriter(
            executor.store,
            task_id=self.task_id,
            context_id=self.context_id,
            scope=self.scope,
            fold=Fold(strict=True),
            seq=0,
            turn=1,
            since=at,
            begun=self._begun,
            failed=self.failed,
        )
        writer.outgoing = self.outgoing(request)
        skills = len(executor.skills)
        writer.write(*opening(request, self.task_id, self.context_id, skills=skills, at=at))
        writer.open_turn(
            receipts=begun_by(self.receipts, self.task_id),
            pushes=(self.push,) if self.push is not None else (),
        )
        executor.know(self)
        self._listen()
        for ticket in self.senders.present:
            ticket.turn = 1
        return writer

    def _begun(self) -> None:
        if self.push is not None:
            self.executor.push.watch(self.task_id, self.scope)
        for ticket in self.senders.present:
            ticket.mark_logged()

    def _promote(self) -> None:
        """Make a task of what is taking longer than the moment."""
        self._moment = None
        if self.writer is None and self.run is not None and not self.run.over:
            try:
                self.run.working()
            except A2AError as error:
                self.abort(error)

    def abort(self, error: A2AError) -> None:
        """Stop the function: what is to be said in its name may not go out."""
        self.spoiled = error
        self._interrupt()

    # -- one turn ------------------------------------------------------------------------------

    async def _turn(self, run: Attempt) -> None:
        self.run = run
        failure: BaseException | None = None
        value: object = None
        if not (self.cancel_asked or self.releasing or self.overdue):
            value, failure = await self._function(run)
        writer = self.writer
        if writer is not None and writer.error is not None and not self.abandoned:
            raise writer.error
        if self.abandoned:
            run.over = True
        elif run.parked:
            run.over = True
            await self._answer_parked()  # again, should it have been interrupted
        elif self.cancel_asked:  # perhaps while the turn was prepared
            await finish.end(self, TaskState.CANCELED)
        elif self.releasing:
            await release.release(self, run)
        elif self.overdue:
            await finish.settle(self, run, None, Failed(self.overdue))
        else:
            if self.spoiled is not None:
                failure, self.spoiled = self.spoiled, None
            if (unavailable_reason := of_store(failure)) is not None:
                raise unavailable_reason  # no fault of the function's: its turn is run again
            await finish.settle(self, run, value, failure)
        self.run = None

    async def _function(self, run: Attempt) -> tuple[object, BaseException | None]:
        """Run the author's function, and return its value or what it raised."""
        failure: BaseException | None = None
        value: object = None
        self._in_function = True
        if self.due is not None:
            wait = max(0, self.due.at - self.executor.store.now()) / 1000
            self._deadline = asyncio.get_running_loop().call_later(wait, self._overdue)
        try:
            if self.spoiled is None:
                value = await call(run, self.executor)
        except BaseException as error:
            failure = error
        finally:
            self._in_function = False
            for task in run.calls:
                task.cancel()
            if self._grace is not None:
                self._grace.cancel()
                self._grace = None
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            if self._moment is not None:
                self._moment.call_off()
                self._moment = None
        try:
            if self._main is not None and (times := self._main.cancelling()):
                if times > self._interrupts and isinstance(failure, asyncio.CancelledError):
                    # Not by us: the event loop ends, and the function with it. It did not fail, and
                    # its turn is run again by whoever finds it open.
                    self.executor.troubled = True
                    raise failure
                self._interrupts = 0
                await _absorb_cancellation(self._main)
            return value, failure
        finally:
            failure = None  # whose traceback has this frame: each would keep the other

    async def park(self) -> None:
        """Make the turn's end durable, answer its senders, and interrupt the function."""
        await self._answer_parked()
        self._tell_to_end()

    async def _answer_parked(self) -> None:
        assert self.writer is not None
        await self.writer.flush()
        self.senders.resolve(self.writer.fold.task)

    def answer(self) -> None:
        """Answer the turn's senders with the task as it stands; the turn goes on."""
        assert self.writer is not None
        self.senders.resolve(self.writer.fold.task)

    def exchange(self, run: Attempt, closing: Message | None) -> Sequence[Message]:
        """Return what a turn adds to the context's history."""
        return finish.exchange(self, run, closing)

    # -- what the log has for it ---------------------------------------------------------------

    def _listen(self) -> None:
        if self._listening is None:
            self._listening = self.executor.hints.listen(self.task_id, self)
            self._listening.__enter__()

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.__exit__(None, None, None)
            self._listening = None

    def on_record(self, record: LoggedEvent) -> None:
        """Take note of a private record of the task, whoever wrote it."""
        if isinstance(record.event, CancelRequested):
            self.cancel()
        elif isinstance(record.event, Received):
            self.wake()

    def on_position(self, place: LogPosition) -> None:
        """Take note of where the store has the task."""
        if 0 < self.epoch < place.epoch:
            self._lost()
        elif place.ended:
            return
        elif place.cancel_requested:
            self.cancel()
        elif place.waiting:
            self.wake()

    def wake(self) -> None:
        """Say that the log has something new for this task."""
        self.woken = True
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def received(self) -> Received:
        """Return the next message that no turn has taken, waiting for it."""
        while True:
            self._arrival = asyncio.get_running_loop().create_future()
            if self.writer is not None:
                await self.writer.flush()
            received = await self.next_received()
            if received is not None:
                return received
            await self._arrival

    async def next_received(self) -> Received | None:
        """Return the oldest message in the log that no turn has taken."""
        skip = 0
        while found := await self.executor.store.waiting_messages(self.task_id, skip=skip):
            received = found[0].event
            assert isinstance(received, Received)
            if not self.senders.has_taken(received):
                return received
            skip += 1  # a turn took it, and the log is yet to say so
        return None

    # -- cancelling, letting go ----------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel the task: the function is told, and has the grace period to end (E4)."""
        if not self.cancel_asked:
            self.cancel_asked = True
            self.wake()
            self._tell_to_end()

    def _overdue(self) -> None:
        """Stop the function: the turn, or the task, has had its time."""
        assert self.due is not None
        self._deadline = None
        self.overdue = self.due.reason
        self._tell_to_end()

    def _lost(self) -> None:
        """Stop: another executor has the task."""
        self.wake()
        if self.writer is not None:
            self.writer.stop(Fenced(f"task {self.task_id} was taken over"))

    def failed(self, error: StoreError) -> None:
        """The store refused what the lane wrote: stop the function."""
        self._tell_to_end()

    def release(self) -> None:
        """Let the task go, for another process to take up: this one shuts down."""
        self.releasing = True
        self.wake()
        self._interrupt()

    def _tell_to_end(self) -> None:
        """Interrupt the function, and go on without it if it does not end."""
        if self._in_function:
            self._interrupt()
            if self._grace is None:
                grace = self.executor.options.cancel_grace
                self._grace = asyncio.get_running_loop().call_later(grace, self._abandon)

    def _interrupt(self) -> None:
        if self._main is not None and self._in_function:
            self._interrupts += 1
            self._main.cancel()

    def _abandon(self) -> None:
        """Go on without a function that does not end."""
        self._grace = None
        run = self.run
        if run is None or self.abandoned or not self._in_function:
            return
        log.warning(
            "the skill %r does not end after it was told to; the task goes on without it",
            run.request.skill.id,
        )
        self._leave(run)
        if self.writer is None:
            self.senders.refuse(InternalError(self.overdue))
        self.executor.replace(self)

    def _leave(self, run: Attempt) -> None:
        self.abandoned = True
        run.over = True
        self._stop_listening()

    async def release_without_function(self) -> None:
        """Let the task go although its function does not end."""
        run = self.run
        if run is not None and self.writer is not None and self._in_function:
            self._leave(run)
            with contextlib.suppress(StoreError):
                await release.release(self, run)


async def _absorb_cancellation(task: asyncio.Task[None]) -> None:
    """Forget the cancellations by which a lane interrupted its own function."""
    while task.uncancel():
        pass
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # one that the function never came to see
