"""The call of an attempt's function, and its outcome: a reply, an error, or the last status."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from parley.engine.content import check_metadata, checked, to_parts, writable
from parley.engine.turn import turn_log
from parley.engine.turn.attempt import Attempt, Failed, NotAuthorized, Rejected
from parley.model.errors import (
    A2AError,
    InternalError,
    PermissionDeniedError,
    UnsupportedOperationError,
)
from parley.model.ids import INCIDENT_KEY, new_id
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import Task, TaskState
from parley.store.protocols.errors import StoreUnavailable

Invoke = Callable[[Attempt], Awaitable[object]]


class FunctionCall:
    """Calls an author's function in the asyncio task of a runner, one attempt after another.

    ``cancel`` and ``stop`` cancel only the function. A cancellation of the asyncio task itself ends
    the runner: the function is cancelled, and ``run`` raises the cancellation.
    """

    # Class attributes as defaults, as in a runner.
    is_running = False
    _task: asyncio.Task[None] | None = None
    _cancellations = 0
    _timer: asyncio.TimerHandle | None = None
    _grace_timer: asyncio.TimerHandle | None = None

    async def run(
        self,
        invoke: Invoke | None,
        attempt: Attempt,
        *,
        task: asyncio.Task[None],
        seconds: float | None,
        on_timeout: Callable[[], None],
    ) -> tuple[object, BaseException | None]:
        """Call the function in ``task``, the current one, and return its value or its exception.

        ``on_timeout`` is called after ``seconds`` if it still runs. Without ``invoke`` the attempt
        ends without a call. Raises ``CancelledError`` if ``task`` was cancelled from outside.
        """
        failure: BaseException | None = None
        value: object = None
        self._task = task
        self.is_running = True
        if seconds is not None:
            self._timer = task.get_loop().call_later(seconds, on_timeout)
        try:
            if invoke is not None:
                value = await invoke(attempt)
        except BaseException as error:
            failure = error
        finally:
            self.is_running = False
            for call in attempt.calls:
                call.cancel()
            for close in attempt.on_end:
                close()
            if self._timer is not None or self._grace_timer is not None:
                self._stop_timers()
        try:
            if cancelling := task.cancelling():
                if cancelling > self._cancellations and isinstance(failure, asyncio.CancelledError):
                    raise failure
                self._cancellations = 0
                await _absorb_cancellation(task)
            return value, failure
        finally:
            failure = None  # avoids a reference cycle through its traceback

    def cancel(self) -> None:
        """Cancel the function, if it is running."""
        if self._task is not None and self.is_running:
            self._cancellations += 1
            self._task.cancel()

    def stop(self, grace: float, on_stuck: Callable[[], None]) -> None:
        """Cancel the function, and call ``on_stuck`` if it still runs after ``grace`` seconds."""
        if self.is_running:
            self.cancel()
            if self._grace_timer is None:
                loop = asyncio.get_running_loop()
                self._grace_timer = loop.call_later(grace, self._is_stuck, on_stuck)

    def stop_soon(self, grace: float, on_stuck: Callable[[], None]) -> None:
        """``stop`` the function if it still runs after ``grace`` seconds. Thread-safe."""
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._wait_for_end, grace, on_stuck)

    def _wait_for_end(self, grace: float, on_stuck: Callable[[], None]) -> None:
        if self.is_running and self._grace_timer is None:
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(grace, self._stop_late, grace, on_stuck)

    def _stop_late(self, grace: float, on_stuck: Callable[[], None]) -> None:
        self._grace_timer = None
        self.stop(grace, on_stuck)

    def _is_stuck(self, on_stuck: Callable[[], None]) -> None:
        self._grace_timer = None
        if self.is_running:
            on_stuck()

    def _stop_timers(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _absorb_cancellation(task: asyncio.Task[None]) -> None:
    """Clear the cancellations by which a runner cancelled its own function."""
    while task.uncancel():
        pass
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # raises a cancellation that the function did not receive


SHOWN_FRAMES = -5  # the last ones of a traceback, where callers see it


class TaskOutcome(msgspec.Struct, frozen=True):
    """The turn ends its task in ``state`` with ``message``, after a last ``artifact``.

    ``metadata`` belongs to the status update. Functions of adapters return this to determine all of
    it; others return values and raise exceptions.
    """

    state: TaskState
    message: Message | None = None
    artifact: Artifact | None = None
    metadata: dict[str, Any] | None = None


Outcome = Message | A2AError | TaskOutcome


def outcome_of(
    attempt: Attempt, value: object, failure: BaseException | None, *, has_task: bool
) -> Outcome:
    """Return the outcome of a turn whose function returned ``value`` or raised ``failure``."""
    if failure is None:
        try:
            return _of_value(attempt, value, has_task=has_task)
        except Exception as error:  # the returned value cannot be sent
            return _of_failure(attempt, error, has_task=has_task)
    return _of_failure(attempt, failure, has_task=has_task)


def _of_value(attempt: Attempt, value: object, *, has_task: bool) -> Outcome:
    """Raise ``UnusableValue`` or ``ValueError`` for a value that cannot be sent."""
    if isinstance(value, TaskOutcome):
        message = None if value.message is None else checked(value.message)
        artifact = None if value.artifact is None else checked(value.artifact)
        return TaskOutcome(value.state, message, artifact, check_metadata(value.metadata))
    skill = attempt.request.skill
    if skill.result is not None and (data := skill.result.dump(value)) is not None:
        value = Part(data=data)
    needs_task = skill.replies is None and (value is None or isinstance(value, Artifact))
    if not (has_task or needs_task or skill.replies == "task"):
        return _direct_reply(attempt, value)
    if isinstance(value, Message):
        return TaskOutcome(TaskState.COMPLETED, message=attempt.message(value))
    artifact = None
    if isinstance(value, Artifact):
        artifact = checked(value)
    elif value is not None:
        artifact = Artifact(
            artifact_id=attempt.next_artifact_id(), name=skill.name, parts=to_parts(value)
        )
    return TaskOutcome(TaskState.COMPLETED, artifact=artifact)


def _direct_reply(attempt: Attempt, value: object) -> Message:
    own = checked(value) if isinstance(value, Message) else None
    reply = Message(
        message_id=(own.message_id if own else "") or new_id(),
        context_id=attempt.runner.context_id,
        role=Role.AGENT,
        parts=(Part(text=value),)
        if type(value) is str
        else to_parts("" if value is None else value),
        metadata=own.metadata if own else None,
        extensions=own.extensions if own else (),
        reference_task_ids=own.reference_task_ids if own else (),
    )
    return reply if type(value) is str and value.isascii() else writable(reply)[0]


def _of_failure(attempt: Attempt, failure: BaseException, *, has_task: bool) -> Outcome:
    """Return the outcome of an exception.

    The text of ``reject``, ``fail`` and of an ``A2AError`` is sent to the caller; for any other
    exception only a reference is, and the server's log has the details (``parley dev`` sends them
    too). An error of another agent
    counts as such an exception: the caller does not know that agent.
    """
    reason, skill = _reason(failure), attempt.request.skill
    metadata = reason.metadata if isinstance(reason, Failed | Rejected) else None
    is_rejected = isinstance(reason, Rejected | NotAuthorized)
    if _is_for_caller(reason):
        text = str(reason)
    else:
        fields = attempt.runner.facts()
        if skill.replies != "message":
            fields["task_id"] = attempt.runner.task_id
        reference = attempt.reference = turn_log.failed(failure, fields, attempt.observed)
        metadata = {INCIDENT_KEY: {"reference": reference, "skill": skill.id}}
        text = f"The agent failed while it worked on this. Reference: {reference}"
        if attempt.runner.executor.shows_errors:
            lines = traceback.format_exception(failure, limit=SHOWN_FRAMES)
            text += f"\n\n```\n{''.join(lines).rstrip()}\n```"
    if not has_task:
        if isinstance(reason, A2AError) and _is_own(reason):
            return reason
        if isinstance(reason, NotAuthorized):
            return PermissionDeniedError(text)
        if skill.replies == "message":
            return UnsupportedOperationError(text) if is_rejected else InternalError(text)
    state = TaskState.REJECTED if is_rejected else TaskState.FAILED
    said = attempt.message(text)
    if metadata:
        said = msgspec.structs.replace(said, metadata=metadata)
    return TaskOutcome(state, message=said)


def store_failure(failure: BaseException) -> StoreUnavailable | None:
    """Return the store's failure, if it made a function fail."""
    if isinstance(failure, StoreUnavailable):
        return failure
    if isinstance(failure, BaseExceptionGroup):
        return next((found for e in failure.exceptions if (found := store_failure(e))), None)
    return None


def _reason(failure: BaseException) -> BaseException:
    """Return the original exception from exception groups."""
    if not isinstance(failure, BaseExceptionGroup):
        return failure
    for error in failure.exceptions:
        reason = _reason(error)
        if _is_for_caller(reason):
            return reason
    return failure


def _is_for_caller(error: BaseException) -> bool:
    """Return whether the caller may see the error's text."""
    return isinstance(error, Rejected | Failed | NotAuthorized) or _is_own(error)


def _is_own(error: BaseException) -> bool:
    """Return whether an A2A error is meant for the caller."""
    return isinstance(error, A2AError) and not error.is_remote


def exchange_of(attempt: Attempt, task: Task | None, closing: Message | None) -> Sequence[Message]:
    """Return a turn's addition to the context's history: its message, and its last message."""
    latest, _ = writable(attempt.latest)
    if closing is not None:
        return (latest, closing)
    parts = [
        part
        for artifact in (() if task is None else task.artifacts)
        if artifact.artifact_id in attempt.artifact_ids
        for part in artifact.parts
    ]
    if not parts:
        return (latest,)
    return (latest, attempt.message(parts))
