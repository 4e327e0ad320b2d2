"""One run of an executor: a turn of its task."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from msgspec.structs import replace

from parley.agent.turn import Turn
from parley.engine.turn.outcome import TaskOutcome
from parley.integrations.a2a_sdk.official_sdk import OfficialSdk
from parley.integrations.a2a_sdk.turn_events import TurnEvents, state_before
from parley.model.errors import InvalidAgentResponseError
from parley.model.operations import SendMessageConfiguration, SendMessageRequest
from parley.model.tasks import Task, TaskState

log = logging.getLogger("parley.integrations.a2a_sdk")

_left: set[asyncio.Task[None]] = set()
"""Executors that work on after they ended their tasks: the event loop keeps no reference."""


class Execution:
    """Runs an executor for a turn."""

    def __init__(self, sdk: OfficialSdk, executor: Any, builder: Any, turn: Turn) -> None:
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

        Raises what the executor raises, its ``A2AError`` if it is one of the specification.
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
                "the agent said nothing: its executor ended without an event"
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
        """Let an executor end by itself that has ended its task."""
        _left.add(work)
        work.add_done_callback(_report)

    # -- the end from outside ------------------------------------------------------------------

    async def _stop(self, work: asyncio.Task[None]) -> object:
        """Stop the executor, and tell it if that is because its task is canceled."""
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
        """Call the executor's ``cancel``, and return what the canceled task says."""
        events = self._events
        try:
            await self._executor.cancel(await self._context(None), self._queue)
        except Exception:
            log.exception(
                "the executor's cancel failed; the task %s is canceled all the same",
                self._turn.task_id,
            )
        said = events.outcome
        if isinstance(said, TaskOutcome) and said.state is TaskState.CANCELED:
            return said
        return TaskOutcome(TaskState.CANCELED)

    # -- what the executor gets ----------------------------------------------------------------

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
        """Return the task as executors know it: none before the first run of a new one.

        The run for an answer sees the state that asked, as with the SDK's own server.
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
