"""How a turn ends: from what a function returned or raised to what its caller is told."""

from __future__ import annotations

import logging

import msgspec

from parley.engine.content import checked, to_parts
from parley.engine.turn.attempt import Attempt, Failed, Rejected
from parley.model.errors import A2AError, InternalError, UnsupportedOperationError
from parley.model.incident import log_incident
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import TaskState
from parley.model.uuid7 import new_id
from parley.store.task_store import StoreUnavailable

log = logging.getLogger("parley.agent")


class Ending(msgspec.Struct, frozen=True):
    """The turn ends its task in ``state``, saying ``said``, after a last artifact."""

    state: TaskState
    said: Message | None = None
    artifact: Artifact | None = None


def of_value(run: Attempt, value: object, *, is_logged: bool) -> Message | A2AError | Ending:
    """Return how a turn ends whose function returned ``value``: with a direct message, or a task.

    Raises ``UnusableValue`` and ``ValueError`` for what cannot be sent.
    """
    skill = run.request.skill
    needs_task = skill.replies is None and (value is None or isinstance(value, Artifact))
    if not (is_logged or needs_task or skill.replies == "task"):
        return _direct(run, value)
    if isinstance(value, Message):
        return Ending(TaskState.COMPLETED, said=run.message(value))
    artifact: Artifact | None = None
    if isinstance(value, Artifact):
        artifact = checked(value)
    elif value is not None:
        artifact = Artifact(
            artifact_id=run.next_artifact_id(), name=skill.name, parts=to_parts(value)
        )
    return Ending(TaskState.COMPLETED, artifact=artifact)


def _direct(run: Attempt, value: object) -> Message:
    own = checked(value) if isinstance(value, Message) else None
    return Message(
        message_id=(own.message_id if own else "") or new_id(),
        context_id=run.lane.context_id,
        role=Role.AGENT,
        parts=(Part(text=value),)
        if type(value) is str
        else to_parts("" if value is None else value),
        metadata=own.metadata if own else None,
        extensions=own.extensions if own else (),
        reference_task_ids=own.reference_task_ids if own else (),
    )


def of_failure(
    run: Attempt, failure: BaseException, *, is_logged: bool
) -> Message | A2AError | Ending:
    """Return how a turn ends whose function raised: with an error, or a task.

    What the author said with ``reject``, ``fail`` or an ``A2AError`` reaches the caller; of any
    other exception only a reference does, and the server's log has the rest.
    """
    reason = _reason(failure)
    refused = isinstance(reason, Rejected)
    if isinstance(reason, Rejected | Failed | A2AError):
        said = str(reason)
    else:
        reference = log_incident(log, f"the skill {run.request.skill.id!r}", failure)
        said = f"The agent failed while it worked on this. Reference: {reference}"
    if not is_logged:
        if isinstance(reason, A2AError):
            return reason
        if run.request.skill.replies == "message":
            return UnsupportedOperationError(said) if refused else InternalError(said)
    state = TaskState.REJECTED if refused else TaskState.FAILED
    return Ending(state, said=run.message(said))


def of_store(failure: BaseException | None) -> StoreUnavailable | None:
    """Return what kept the store from working, if that is why a function failed."""
    if isinstance(failure, StoreUnavailable):
        return failure
    if isinstance(failure, BaseExceptionGroup):
        return next((found for e in failure.exceptions if (found := of_store(e))), None)
    return None


def _reason(failure: BaseException) -> BaseException:
    """Return what the function meant to say, out of the groups that it may be wrapped in."""
    if not isinstance(failure, BaseExceptionGroup):
        return failure
    for error in failure.exceptions:
        reason = _reason(error)
        if isinstance(reason, Rejected | Failed | A2AError):
            return reason
    return failure
