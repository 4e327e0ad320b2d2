"""Refuse requests: the checks of all operations, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from parley.engine.content import gives, media_type_of, not_taken
from parley.engine.description import AgentDescription
from parley.engine.skill import Skill
from parley.engine.typed.message_data import data_of
from parley.engine.typed.mismatch import Mismatch
from parley.model.errors import (
    ContentTypeNotSupportedError,
    FieldViolation,
    InvalidParamsError,
    TaskNotFoundError,
)
from parley.model.parts import Message, Role
from parley.model.requests import SendMessageConfiguration, SendMessageRequest
from parley.store.events import Scope
from parley.store.protocols.task_log import TaskLog, TaskRecord
from parley.store.protocols.webhooks import MAX_PUSHES

WHERE = "send the input as a data part, or as text that is a JSON object"


def check_request(request: SendMessageRequest) -> None:
    """Refuse a message that no agent accepts. Raises ``InvalidParamsError``."""
    if request.message.role is not Role.USER:
        raise invalid("message.role", "a message to an agent has the role ROLE_USER")
    if request.configuration is not None:
        check_history(request.configuration.history_length, "configuration.historyLength")


def check_history(length: int | None, field: str) -> None:
    """Refuse a negative history length (specification §3.2.4)."""
    if length is not None and length < 0:
        raise invalid(
            field, "0 for none, a positive number for the last messages, or left out for all"
        )


def check_modes(request: SendMessageRequest, skill: Skill, agent: AgentDescription) -> None:
    """Refuse parts that the skill does not take, and callers who accept none of its outputs.

    Raises ``ContentTypeNotSupportedError``.
    """
    _check_parts(request.message, skill.input_modes or agent.input_modes)
    if request.configuration is not None and request.configuration.accepted_output_modes:
        _check_output(request.configuration, skill.output_modes or agent.output_modes)


def _check_parts(message: Message, modes: Sequence[str]) -> None:
    for index in not_taken(modes, message.parts):
        media_type = media_type_of(message.parts[index])
        raise ContentTypeNotSupportedError(
            f"message.parts[{index}] is {media_type}; this agent takes {', '.join(modes)}",
            metadata={"mediaType": media_type, "supported": ", ".join(modes)},
        )


def _check_output(configuration: SendMessageConfiguration, modes: Sequence[str]) -> None:
    accepted = configuration.accepted_output_modes
    if not gives(modes, accepted):
        raise ContentTypeNotSupportedError(
            f"configuration.acceptedOutputModes has {', '.join(accepted)[:200]}; "
            f"this agent gives {', '.join(modes)}",
            metadata={"supported": ", ".join(modes)},
        )


def read_inputs(message: Message, skill: Skill) -> dict[str, Any] | None:
    """Return the values of a skill's typed parameters; ``None`` if the task asks for them.

    Raises ``InvalidParamsError`` that names each field that does not fit.
    """
    assert skill.inputs is not None
    try:
        return skill.inputs.read(message)
    except Mismatch as mismatch:
        if skill.invalid_input == "ask":
            return None
        hint = f"; {WHERE}" if data_of(message) is UNSET else ""
        raise InvalidParamsError(
            f"the input of the skill {skill.id!r} does not fit: {mismatch}{hint}",
            violations=mismatch.fields,
        ) from None


async def owned(
    store: TaskLog, task_id: str, scope: Scope, *, history: int | None = 0, artifacts: bool = False
) -> TaskRecord:
    """Return a task of this scope, with ``history`` of its last messages and maybe its artifacts.

    Raises ``TaskNotFoundError`` for any other task, without reading it.
    """
    record = await store.load(task_id, scope=scope, history=history, artifacts=artifacts)
    if record is None:
        raise not_found(task_id)
    return record


def invalid(field: str, description: str) -> InvalidParamsError:
    """Return the error for one field, named as on the wire."""
    return InvalidParamsError(
        f"{field}: {description}", violations=(FieldViolation(field, description),)
    )


def not_found(task_id: str) -> TaskNotFoundError:
    """Return the error for a task that does not exist, or belongs to another caller."""
    return TaskNotFoundError(
        f"there is no task {task_id[:100]!r} here for this caller",
        metadata={"taskId": task_id[:100]},
    )


def cannot_join(task_id: str) -> TaskNotFoundError:
    """Return the error for a message to such a task: some clients choose the ids of new tasks."""
    error = not_found(task_id)
    hint = "the agent chooses the ids of tasks, so leave it out to begin one"
    return TaskNotFoundError(f"{error.message}; {hint}", metadata=error.metadata)


def too_many_pushes(field: str) -> InvalidParamsError:
    """Return the error for one push notification configuration too many."""
    return invalid(
        field,
        f"the task has {MAX_PUSHES} push notification configurations, and may not have more; "
        "delete one, or replace one by giving its id",
    )
