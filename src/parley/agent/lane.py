"""A task while it is active in this process: its turns, one after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from parley.agent.call import call
from parley.agent.content import to_parts
from parley.agent.ids import new_id
from parley.agent.moments import Deadline, Moments
from parley.agent.next_turn import next_run
from parley.agent.outcome import Ending, of_failure, of_value
from parley.agent.outgoing import Outgoing
from parley.agent.resume import opening, waiting_messages
from parley.agent.run import Request, Run
from parley.agent.senders import Senders, ended, shutting_down
from parley.agent.writer import TaskWriter
from parley.log.events import Received, TurnStarted
from parley.log.fold import Fold
from parley.log.store import (
    Fenced,
    PushRecord,
    Receipt,
    Scope,
    StoreError,
)
from parley.model.encoding import encode
from parley.model.errors import A2AError, InternalError
from parley.model.parts import Message, Role
from parley.model.tasks import TaskState

if TYPE_CHECKING:
    from parley.agent.executor import AgentExecutor

log = logging.getLogger("parley.agent")


class Lane:
    """One active task: at most one exists for a task, so turns never overlap (E1).

    A lane begins with a new message, whose task need not be in the log yet, or with a task that is
    there and has something to do: a message waiting, a turn that a dead process left open, a
    cancellation. It goes on until there is nothing to do; the task then costs a row.
    """

    # What most lanes never change is theirs by class: a direct reply is short.
    writer: TaskWriter | None = None
    run: Run | None = None
    woken = False
    cancel_asked = False
    releasing = False
    abandoned = False
    spoiled: A2AError | None = None
    ended: asyncio.Event | None = None
    receipts: Sequence[Receipt] = ()
    push: PushRecord | None = None
    _arrival: asyncio.Future[None] | None = None
    _main: asyncio.Task[None] | None = None
    _in_function = False
    _moment: Deadline | None = None
    _grace: asyncio.TimerHandle | None = None

    def __init__(
        self, executor: AgentExecutor, *, context_id: str, scope: Scope, task_id: str = ""
    ) -> None:
        self.executor = executor
        self._task_id = task_id
        self.context_id = context_id
        self.scope = scope
        self.senders = Senders(executor.expected)

    @property
    def task_id(self) -> str:
        """The task's id; for a message without a task, the one that it would have."""
        if not self._task_id:
            self._task_id = new_id()
        return self._task_id

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
            self._store_failed(error)
        except asyncio.CancelledError:
            if not (self.abandoned or self.releasing):
                raise
        except Exception:
            self._failed_unforeseen()
        finally:
            self.executor.left(self)
            self.dismiss()

    async def first(self, run: Run, *, moments: Moments | None) -> None:
        """Run a new message's turn, then whatever else comes for its task.

        ``moments`` tells when the function has had its time to answer without a task; ``None`` for
        one that may take as long as it likes.
        """
        if self.writer is not None:
            await self.writer.flush()
        elif moments is not None:
            self._moment = moments.after(self._promote)
        await self._turn(run)
        if self.writer is not None:
            await self.more()

    async def more(self) -> None:
        """Take up a task that is in the log, and see to what comes for it."""
        while not (self.abandoned or self.releasing):
            if self.writer is not None and self.writer.fold.task.state.is_terminal:
                self.senders.refuse_waiting(ended(self.task_id))
                return
            self.woken = False
            record = await self.executor.store.load(self.task_id)
            if record is None or record.task.state.is_terminal:
                self.senders.refuse_waiting(ended(self.task_id))
                return
            self.context_id, self.scope = record.task.context_id, record.scope
            run = await next_run(self, record)
            if run is not None:
                await self._turn(run)
            elif not self.woken:
                return

    def outgoing(self, request: Request) -> Outgoing | None:
        """Return where what a turn says goes through on its way out."""
        return self.executor.outlet.of(request.extensions, request.accepted_output_modes)

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
        writer = self.writer = TaskWriter(
            self.executor.store,
            task_id=self.task_id,
            context_id=self.context_id,
            scope=self.scope,
            fold=Fold(strict=True),
            seq=0,
            turn=1,
            begun=self._begun,
            failed=self.failed,
        )
        writer.outgoing = self.outgoing(request)
        writer.write(*opening(request, self.task_id, self.context_id, len(self.executor.skills)))
        receipts = [
            msgspec.structs.replace(receipt, task_id=self.task_id, turn=1)
            for receipt in self.receipts
        ]
        writer.open_turn(receipts=receipts, pushes=(self.push,) if self.push is not None else ())
        self.executor.adopt(self)
        for ticket in self.senders.present:
            ticket.turn = 1
        return writer

    def _begun(self) -> None:
        if self.push is not None:
            self.executor.push.watch(self.task_id)
        for ticket in self.senders.present:
            ticket.mark_logged()

    def _promote(self) -> None:
        """Make a task of what is taking longer than the moment."""
        self._moment = None
        if self.writer is None and self.run is not None and not self.run.over:
            try:
                self.run.working()
            except A2AError as error:
                self.spoil(error)

    def spoil(self, error: A2AError) -> None:
        """Stop the function: what is to be said in its name may not go out."""
        self.spoiled = error
        self._interrupt()

    # -- one turn ------------------------------------------------------------------------------

    async def _turn(self, run: Run) -> None:
        self.run = run
        if self.cancel_asked:  # while the turn was prepared, when there was nothing to interrupt
            await self.end(TaskState.CANCELED)
            self.run = None
            return
        failure: BaseException | None = None
        value: object = None
        self._in_function = True
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
            if self._moment is not None:
                self._moment.call_off()
                self._moment = None
        if self._main is not None and self._main.cancelling():
            await _absorb_cancellation(self._main)
        writer = self.writer
        if writer is not None and writer.error is not None and not self.abandoned:
            raise writer.error
        if self.abandoned or run.parked:
            run.over = True
            self.run = None
            return
        if self.releasing:
            await self._release(run)
            return
        if self.spoiled is not None:
            failure, self.spoiled = self.spoiled, None
        if self.cancel_asked:
            await self.end(TaskState.CANCELED)
        else:
            await self._settle(run, self._outcome(run, value, failure))
        self.run = None

    def _outcome(
        self, run: Run, value: object, failure: BaseException | None
    ) -> Message | A2AError | Ending:
        is_logged = self.writer is not None
        if failure is None:
            try:
                return of_value(run, value, is_logged=is_logged)
            except Exception as error:  # what the function returned cannot be sent
                failure = error
        return of_failure(run, failure, is_logged=is_logged)

    async def _settle(self, run: Run, outcome: Message | A2AError | Ending) -> None:
        """End the turn, and tell everyone how."""
        if isinstance(outcome, Ending):
            state, said = outcome.state, outcome.said
            try:
                if outcome.artifact is not None:
                    run.write_artifact(outcome.artifact, last=True)
                elif state is TaskState.COMPLETED:
                    run.working()
                else:
                    run.writer()
            except A2AError as error:
                state, said = TaskState.FAILED, run.message(error.message)
            await self.end(state, said)
            return
        run.over = True
        asked = run.request
        if isinstance(outcome, Message) and (asked.extensions or asked.accepted_output_modes):
            outcome = self._sent(run, outcome)
        if isinstance(outcome, A2AError):
            self.senders.refuse(outcome)
            return
        if self.receipts or self.executor.options.keeps_history:
            await self._keep(run, outcome)
        if self.push is not None:
            self.executor.push.tell(self.push, outcome)
        self.senders.resolve(outcome)

    def _sent(self, run: Run, reply: Message) -> Message | A2AError:
        """Return a direct reply as it goes out."""
        outgoing = self.outgoing(run.request)
        try:
            return reply if outgoing is None else outgoing.send(reply)
        except A2AError as error:
            return error

    async def _keep(self, run: Run, reply: Message) -> None:
        exchange = (run.latest, reply) if self.executor.options.keeps_history else ()
        receipt = self.receipts[0] if self.receipts else None
        if receipt is not None:
            receipt = msgspec.structs.replace(receipt, reply=encode(reply))
        await self.executor.store.keep(
            self.scope, self.context_id, receipt=receipt, exchange=exchange
        )

    async def end(self, state: TaskState, said: Message | str | None = None) -> None:
        """Write the task's last event, wait until it is durable, and answer everyone."""
        writer, run = self.writer, self.run
        assert writer is not None
        if isinstance(said, str):
            said = self._said(said)
        try:
            if run is not None:
                run.writer()
                run.over = True
            said = writer.status(state, said)
        except A2AError as error:
            # The task ends all the same, and says no more than why it ends so.
            writer.outgoing = None
            if run is not None:
                run.over = True
            if state is TaskState.COMPLETED:
                state = TaskState.FAILED
            said = self._said(error.message)
            writer.status(state, said)
        writer.close_turn(exchange=self.exchange(run, said) if run else ())
        await writer.flush()
        self.senders.resolve(writer.fold.task)
        self.senders.refuse_waiting(ended(self.task_id))

    def _said(self, text: str) -> Message:
        return Message(
            message_id=new_id(),
            role=Role.AGENT,
            parts=to_parts(text),
            task_id=self.task_id,
            context_id=self.context_id,
        )

    def exchange(self, run: Run, closing: Message | None) -> Sequence[Message]:
        """Return what the turn adds to the context's history."""
        if not self.executor.options.keeps_history:
            return ()
        if closing is not None:
            return (run.latest, closing)
        assert self.writer is not None
        parts = [
            part
            for artifact in self.writer.fold.task.artifacts
            if artifact.artifact_id in run.made
            for part in artifact.parts
        ]
        if not parts:
            return (run.latest,)
        return (run.latest, run.message(parts))

    async def park(self) -> None:
        """Make the turn's end durable, answer its senders, and interrupt the function."""
        assert self.writer is not None
        await self.writer.flush()
        self.senders.resolve(self.writer.fold.task)
        self._interrupt()
        self._grace = asyncio.get_running_loop().call_later(
            self.executor.options.cancel_grace, self._abandon
        )

    def answer(self) -> None:
        """Answer the turn's senders with the task as it stands; the turn goes on."""
        assert self.writer is not None
        self.senders.resolve(self.writer.fold.task)

    def _interrupt(self) -> None:
        if self._main is not None and self._in_function:
            self._main.cancel()

    # -- messages that arrive while a turn runs ------------------------------------------------

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
            memory = await self.executor.store.memory(self.task_id)
            for received in waiting_messages(memory):
                if not self.senders.has_taken(received):
                    return received
            await self._arrival

    # -- cancelling, letting go ----------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel the task: the function is told, and has the grace period to end (E4)."""
        self.cancel_asked = True
        self.wake()
        if self._in_function:
            self._interrupt()
            if self._grace is None:
                self._grace = asyncio.get_running_loop().call_later(
                    self.executor.options.cancel_grace, self._abandon
                )

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
        self.abandoned = True
        run.over = True
        self.executor.replace(self)

    def release(self) -> None:
        """Let the task go, for another process to take up: this one shuts down."""
        self.releasing = True
        self.wake()
        if self._in_function:
            self._interrupt()
        elif self.run is None and self._main is not None:
            self._main.cancel()

    async def set_aside(self) -> None:
        """Let a task go whose turn has not begun: its senders get it as it was logged."""
        if self.writer is not None:
            with contextlib.suppress(StoreError):
                await self.writer.flush()
                self.senders.resolve(self.writer.fold.task)
        self.dismiss()

    async def _release(self, run: Run) -> None:
        run.over = True
        if self.writer is None:
            self.senders.refuse(shutting_down())
            return
        self.writer.write(TurnStarted(turn=run.turn, attempt=run.attempt, released=True))
        await self.writer.flush()
        self.senders.resolve(self.writer.fold.task)

    # -- when it goes wrong, and at the end ----------------------------------------------------

    def failed(self, error: StoreError) -> None:
        """The store refused what the lane wrote: stop the function."""
        self._interrupt()

    def _store_failed(self, error: StoreError) -> None:
        if isinstance(error, Fenced):
            log.warning("task %s was taken over: %s", self.task_id, error)
        else:
            log.error("task %s: the log could not be written: %s", self.task_id, error)
        failure = self.executor.unavailable(error)
        self.senders.refuse_all(failure)

    def _failed_unforeseen(self) -> None:
        """Keep what should not have happened from the senders, and tell the server's log."""
        reference = new_id()[-12:]
        log.exception("task %s failed (reference %s)", self.task_id, reference)
        self.executor.troubled = True
        self.senders.refuse(InternalError(f"the server failed; its log says why under {reference}"))

    def dismiss(self) -> None:
        """Tell those who still wait that this process does no more for the task."""
        if self.ended is not None:
            self.ended.set()
        if self.senders.present or self.senders.waiting:
            self.senders.refuse_all(shutting_down())


async def _absorb_cancellation(task: asyncio.Task[Any]) -> None:
    """Forget the cancellations by which a lane interrupted its own function."""
    while task.uncancel():
        pass
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # one that the function never came to see
