"""A run of an executor: a turn of its task, with its events in the task's log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from parley.agent.turn import Turn
from parley.engine.turn.attempt import Attempt, TurnOver
from parley.engine.turn.outcome import TaskOutcome
from parley.model.errors import InvalidAgentResponseError, an
from parley.model.operations import SendMessageConfiguration, SendMessageRequest
from parley.model.parts import Message, Role
from parley.model.struct import decode, encode
from parley.model.tasks import (
    INTERRUPTED_STATES,
    TERMINAL_STATES,
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.store.events import StepResult

if TYPE_CHECKING:
    from parley.integrations.a2a_sdk.sdk_0_3 import Sdk03
    from parley.integrations.a2a_sdk.sdk_1 import Sdk1

_left: set[asyncio.Task[None]] = set()
"""Executors that still run after their tasks have ended: the event loop keeps no reference."""


class ExecutorRun:
    """Runs an executor for a turn."""

    def __init__(self, sdk: Sdk03 | Sdk1, executor: Any, builder: Any, turn: Turn) -> None:
        self._sdk = sdk
        self._executor = executor
        self._builder = builder
        self._turn = turn
        self._events = TurnEvents(turn)
        self._queue = sdk.queue(self._take)

    async def _take(self, event: Any) -> None:
        await self._events.take(self._sdk.event_of(event))

    async def run(self) -> object:
        """Return how the executor ended its turn, for ``Turn``.

        Raises the executor's exception, as an ``A2AError`` for an error of the specification.
        """
        turn, events = self._turn, self._events
        if turn._attempt.is_canceling:
            return await self._cancel()
        await events.begin()
        context = await self._context(self._request())
        work = asyncio.ensure_future(self._execute(context))
        try:
            await asyncio.wait((work, events.ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            return await self._stop(work)
        finally:
            events.stop()
        if events.outcome is not None:
            self._leave(work)
            return events.outcome
        await work
        if events.outcome is not None:
            return events.outcome
        if events.asked is not None:
            await events.park()
        if events.is_empty and turn.number == 1:
            raise InvalidAgentResponseError(
                "the agent sent no reply: its executor ended without an event"
            )
        return None

    async def _execute(self, context: Any) -> None:
        try:
            await self._executor.execute(context, self._queue)
        except Exception as error:
            if (known := self._sdk.error(error)) is not None:
                raise known from error
            raise

    def _leave(self, work: asyncio.Task[None]) -> None:
        """Let an executor finish by itself after it has ended its task."""
        _left.add(work)
        work.add_done_callback(_report)

    # -- cancellation from outside
    # ------------------------------------------------------------------

    async def _stop(self, work: asyncio.Task[None]) -> object:
        """Stop the executor; if its task is canceled, call its ``cancel`` method."""
        outcome: object = None
        is_canceled = self._turn._attempt.runner.cancel_requested
        try:
            if is_canceled:
                outcome = await self._cancel()
        finally:
            work.add_done_callback(_report)
            work.cancel()
            await asyncio.wait((work,))
        if not is_canceled:
            raise asyncio.CancelledError
        return outcome

    async def _cancel(self) -> TaskOutcome:
        """Call the executor's ``cancel``, and return the outcome of the canceled task."""
        events = self._events
        try:
            await self._executor.cancel(await self._context(None), self._queue)
        except Exception:
            log.exception(
                "the executor's cancel failed; the task %s is canceled anyway", self._turn.task_id
            )
        said = events.outcome
        if isinstance(said, TaskOutcome) and said.state is TaskState.CANCELED:
            return said
        return TaskOutcome(TaskState.CANCELED)

    # -- the context of the executor ------------------------------------------------------------

    def _request(self) -> SendMessageRequest:
        turn, asked = self._turn, self._turn._attempt.request
        message = replace(turn.latest, task_id=turn.task_id, context_id=turn.context_id)
        modes = turn.accepted_output_modes
        return SendMessageRequest(
            tenant=turn.tenant,
            message=message,
            configuration=SendMessageConfiguration(accepted_output_modes=modes) if modes else None,
            metadata=asked.metadata if turn.number == 1 else asked.latest_metadata,
        )

    async def _context(self, request: SendMessageRequest | None) -> Any:
        turn, sdk = self._turn, self._sdk
        current = self._current_task()
        headers = {"A2A-Extensions": ", ".join(sorted(turn.extensions)), **turn.trace.headers}
        state = {"turn": turn, "headers": {name: each for name, each in headers.items() if each}}
        context = await self._builder.build(
            params=None if request is None else sdk.params(request),
            task_id=turn.task_id,
            context_id=turn.context_id,
            task=None if current is None else sdk.task(current),
            context=sdk.call_context(turn.caller, turn.tenant, turn.extensions, state),
        )
        if request is not None and request.message.reference_task_ids:
            known = {task.id for task in context.related_tasks}
            for task in await turn.references():
                if task.id not in known:
                    context.attach_related_task(sdk.task(task))
        return context

    def _current_task(self) -> Task | None:
        """Return the task in the SDK's view: ``None`` before the first run of a new task.

        The run for an answer sees the task in the state of the question, as with the SDK's own
        server.
        """
        turn = self._turn
        attempt, task = turn._attempt, turn.task
        is_first = turn.number == turn.attempt == 1 and not attempt.is_canceling
        if task is None or (is_first and self._events.is_empty):
            return None
        if (state := state_before(turn)) is not None and self._events.is_empty:
            task = replace(task, status=replace(task.status, state=state))
        return task


def _report(work: asyncio.Task[None]) -> None:
    _left.discard(work)
    if not work.cancelled() and (error := work.exception()) is not None:
        log.error("an executor failed after its task had ended", exc_info=error)


log = logging.getLogger("parley.integrations.a2a_sdk")

REPLY_AFTER = 0.05
"""The time for which an executor may run after its question, in seconds, until its caller gets the
question.

Most return at once, and the question then ends the turn.
"""

_PAGE = 1000


class TurnEvents:
    """Writes the events that a run of an executor enqueues.

    ``outcome`` is how the executor ended its task, and ``asked`` the unanswered question, if it was
    the last event. ``ended`` is done when there is an outcome.
    """

    def __init__(self, turn: Turn) -> None:
        self.outcome: TaskOutcome | Message | None = None
        self.asked: TaskState | None = None
        self.is_empty = True
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attempt: Attempt = turn._attempt
        self._question: Message | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._replying: asyncio.Task[None] | None = None
        self._earlier: list[str] = []
        self._names: dict[str, str] = {}
        self._kept: frozenset[str] = frozenset()

    async def begin(self) -> None:
        """Read the artifacts of other turns, and of earlier attempts at this turn.

        Artifact ids that the SDK generates differ in each attempt. The n-th artifact gets the id of
        the n-th artifact of an earlier attempt, so that a re-run replaces it.
        """
        attempt = self._attempt
        writer = attempt.runner.writer
        if writer is None or (attempt.turn == 1 and attempt.number == 1):
            return
        known = [artifact.artifact_id for artifact in writer.fold.task.artifacts]
        if attempt.number > 1:
            self._earlier = await self._written_in_this_turn()
        self._kept = frozenset(known) - set(self._earlier)

    async def _written_in_this_turn(self) -> list[str]:
        """Return the ids of the artifacts that began in this turn, in their order."""
        runner, after = self._attempt.runner, 0
        began: dict[str, int] = {}
        while page := await runner.store.events(runner.task_id, after, _PAGE):
            for logged in page:
                if isinstance(logged.event, TaskArtifactUpdateEvent):
                    began.setdefault(logged.event.artifact.artifact_id, logged.turn)
            after = page[-1].seq
        return [name for name, turn in began.items() if turn == self._attempt.turn]

    # -- events --------------------------------------------------------------------------------

    async def take(self, event: Event) -> None:
        """Write an event.

        An event after the end of the task is dropped, with a warning in the log. Raises
        ``ValueError`` for an event of another task.
        """
        attempt = self._attempt
        if self.outcome is not None or attempt.finished:
            log.warning("a %s after the end of its turn is dropped", type(event).__name__)
            return
        self._check_task(event)
        self.is_empty = False
        self._withdraw_question()
        try:
            self._write(event)
            writer = attempt.runner.writer
            if writer is not None and writer.is_full:
                await writer.drain()
        except TurnOver:
            log.warning("a %s after the end of its turn is dropped", type(event).__name__)

    def _check_task(self, event: Event) -> None:
        task_id = event.id if isinstance(event, Task) else event.task_id
        own = self._attempt.runner.task_id
        if task_id != own and not isinstance(event, Message):
            raise ValueError(
                f"the executor works on the task {own}, but enqueued {an(type(event).__name__)} of "
                f"{task_id}; use the ids of the context: context.task_id, context.context_id"
            )

    def _write(self, event: Event) -> None:
        if isinstance(event, Message):
            self._end_with_message(event)
        elif isinstance(event, TaskArtifactUpdateEvent):
            self._artifact(event)
        elif isinstance(event, TaskStatusUpdateEvent):
            self._status(event.status.state, event.status.message, event.metadata)
        else:
            self._task(event)

    def _task(self, task: Task) -> None:
        """Begin the task, or write the changes in a whole task."""
        attempt = self._attempt
        known = attempt.writer().fold.task
        messages = {message.message_id for message in known.history}
        if known.status.message is not None:
            messages.add(known.status.message.message_id)
        for said in task.history:
            if said.role is Role.AGENT and said.message_id not in messages:
                attempt.writer().status(TaskState.WORKING, attempt.message(said))
        artifacts = {artifact.artifact_id: artifact for artifact in known.artifacts}
        for artifact in task.artifacts:
            if artifacts.get(artifact.artifact_id) != artifact:
                whole = TaskArtifactUpdateEvent(
                    task_id=known.id,
                    context_id=known.context_id,
                    artifact=artifact,
                    last_chunk=True,
                )
                self._artifact(whole)
        state, message = task.status.state, task.status.message
        if message is not None and message.message_id in messages:
            message = None
        says_more = message is not None or (task.metadata and task.metadata != known.metadata)
        if says_more or state not in (attempt.writer().fold.state, TaskState.SUBMITTED):
            self._status(state, message, task.metadata)

    def _status(
        self, state: TaskState, message: Message | None, metadata: dict[str, object] | None
    ) -> None:
        attempt = self._attempt
        said = None if message is None else attempt.message(message)
        if state in TERMINAL_STATES:
            self._end(TaskOutcome(state, message=said, metadata=metadata))
            return
        writer = attempt.writer()
        if state in (TaskState.SUBMITTED, TaskState.UNSPECIFIED):
            if said is None and not metadata:
                return
            state = TaskState.WORKING  # the log already has SUBMITTED, which occurs once
        sent = writer.status(state, said, metadata)
        if state in INTERRUPTED_STATES:
            self.asked, self._question = state, sent
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(REPLY_AFTER, self._reply)

    def _artifact(self, event: TaskArtifactUpdateEvent) -> None:
        attempt = self._attempt
        writer = attempt.working()
        artifact_id = self._own_id(event.artifact.artifact_id)
        artifact = msgspec.structs.replace(event.artifact, artifact_id=artifact_id)
        fresh = artifact_id not in attempt.artifact_ids and artifact_id not in self._kept
        append = event.append and not fresh
        if append and writer.fold.is_complete(artifact_id):
            # The SDK allows chunks after the last chunk: the artifact is then written again, with
            # the addition.
            [before] = [a for a in writer.fold.task.artifacts if a.artifact_id == artifact_id]
            artifact = msgspec.structs.replace(before, parts=(*before.parts, *artifact.parts))
            append = False
        attempt.artifact_ids |= {artifact_id}
        update = msgspec.structs.replace(event, artifact=artifact, append=append)
        update = msgspec.structs.replace(
            update, task_id=attempt.runner.task_id, context_id=attempt.runner.context_id
        )
        writer.say(update)

    def _own_id(self, artifact_id: str) -> str:
        """Return the id under which the log has an artifact."""
        if not self._earlier and artifact_id not in self._names:
            return artifact_id
        if artifact_id not in self._names:
            used = set(self._names.values())
            left = [name for name in self._earlier if name not in used and _is_generated(name)]
            is_new = artifact_id not in self._earlier and artifact_id not in self._kept
            takes_over = is_new and left and _is_generated(artifact_id)
            self._names[artifact_id] = left[0] if takes_over else artifact_id
        return self._names[artifact_id]

    # -- the end -------------------------------------------------------------------------------

    def _end_with_message(self, message: Message) -> None:
        if self._attempt.runner.writer is None:
            self._end(message)
        else:
            said = self._attempt.message(message)
            self._end(TaskOutcome(TaskState.COMPLETED, message=said))

    def _end(self, outcome: TaskOutcome | Message) -> None:
        self.outcome = outcome
        if not self.ended.done():
            self.ended.set_result(None)

    # -- questions -----------------------------------------------------------------------------

    def _reply(self) -> None:
        """Deliver the question to the caller while the executor still runs."""
        self._timer = None
        self._replying = asyncio.ensure_future(self._reply_when_durable())

    async def _reply_when_durable(self) -> None:
        await self._attempt.writer().flush()
        self._attempt.runner.reply()

    def _withdraw_question(self) -> None:
        self.asked = self._question = None
        self.stop()

    def stop(self) -> None:
        """Stop waiting to reply."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def park(self) -> None:
        """End the turn with the question; the next message begins another one."""
        attempt, asked, question = self._attempt, self.asked, self._question
        assert asked is not None
        self.stop()
        if self._replying is not None:
            await self._replying
        attempt.writer().write(
            StepResult(key=f"{_STATE}{attempt.turn}", value=msgspec.Raw(encode(asked)))
        )
        await attempt.runner.park(question)
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await never  # the runner cancels the function here


_STATE = "a2a-sdk:state:"


def state_before(turn: Turn) -> TaskState | None:
    """Return the task's state after the previous turn, if that turn ended with a question."""
    attempt = turn._attempt
    value = (attempt.results or {}).get(f"{_STATE}{attempt.turn - 1}")
    return None if value is None else decode(value, TaskState)


def _is_generated(artifact_id: str) -> bool:
    try:
        UUID(artifact_id)
    except ValueError:
        return False
    return True
