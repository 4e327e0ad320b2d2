"""Checks of requests for all operations, their errors, and the pages of lists."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET

from parley.engine.content import gives, media_type_of, not_taken
from parley.engine.description import AgentDescription
from parley.engine.skill import Skill
from parley.model.errors import (
    ContentTypeNotSupportedError,
    FieldViolation,
    InvalidParamsError,
    TaskNotFoundError,
)
from parley.model.ids import may_be_id
from parley.model.operations import (
    ListTasksRequest,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageRequest,
)
from parley.model.parts import Message
from parley.model.tasks import Task
from parley.model.typed.value_type import data_of
from parley.model.typed.violations import Mismatch
from parley.store.events import Scope
from parley.store.protocols.task_log import TaskQuery, TaskRecord
from parley.store.protocols.webhooks import MAX_PUSHES
from parley.store.snapshot import StoredTask
from parley.store.task_store import TaskStore

WHERE = "send the input as a data part, or as text that is a JSON object"


def check_history(length: int | None, field: str) -> None:
    """Reject a negative history length (specification §3.2.4)."""
    if length is not None and length < 0:
        raise invalid(
            field, "0 for none, a positive number for the last messages, or left out for all"
        )


def check_modes(request: SendMessageRequest, skill: Skill, agent: AgentDescription) -> None:
    """Reject parts that the skill does not accept, and callers who accept none of its outputs.

    Raises ``ContentTypeNotSupportedError``.
    """
    if modes := skill.input_modes or agent.input_modes:
        _check_parts(request.message, modes)
    if request.configuration is not None and request.configuration.accepted_output_modes:
        _check_output(request.configuration, skill.output_modes or agent.output_modes)


def _check_parts(message: Message, modes: Sequence[str]) -> None:
    for index in not_taken(modes, message.parts):
        media_type = media_type_of(message.parts[index])
        raise ContentTypeNotSupportedError(
            f"message.parts[{index}] is {media_type}; this agent accepts {', '.join(modes)}",
            metadata={"mediaType": media_type, "supported": ", ".join(modes)},
        )


def _check_output(configuration: SendMessageConfiguration, modes: Sequence[str]) -> None:
    accepted = configuration.accepted_output_modes
    if not gives(modes, accepted):
        raise ContentTypeNotSupportedError(
            f"configuration.acceptedOutputModes has {', '.join(accepted)[:200]}; "
            f"this agent sends {', '.join(modes)}",
            metadata={"supported": ", ".join(modes)},
        )


def read_inputs(message: Message, skill: Skill) -> dict[str, Any] | None:
    """Return the values of a skill's typed parameters; ``None`` if the task will ask for them.

    Raises ``InvalidParamsError`` with each field that does not fit.
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
    store: TaskStore,
    task_id: str,
    scope: Scope,
    *,
    history: int | None = 0,
    artifacts: bool = False,
) -> TaskRecord:
    """Return a task of this scope, with ``history`` of its last messages and maybe its artifacts.

    Raises ``TaskNotFoundError`` for a task of another scope, without reading it.
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
    """Return the error for a message to an unknown task, since some clients choose new task ids."""
    error = not_found(task_id)
    hint = "the agent chooses the ids of tasks, so leave it out to begin one"
    return TaskNotFoundError(f"{error.message}; {hint}", metadata=error.metadata)


def too_many_pushes(field: str) -> InvalidParamsError:
    """Return the error for exceeding the number of push notification configurations."""
    return invalid(
        field,
        f"the task has {MAX_PUSHES} push notification configurations, and may not have more; "
        "delete one, or replace one by giving its id",
    )


T = TypeVar("T")

DEFAULT_PAGE = 50
LARGEST_PAGE = 100

# Tokens come from callers, and stores keep timestamps in 64 bits.
_Milliseconds = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class PageToken(msgspec.Struct, array_like=True):
    """The last task of a page, and the time at which the first page was read (ms)."""

    status_at: _Milliseconds
    task_id: str
    not_after: _Milliseconds


async def page_of_tasks(
    store: TaskStore, request: ListTasksRequest, scope: Scope, shown: Callable[[StoredTask], Task]
) -> ListTasksResponse:
    """Return a page of the tasks of a scope, the last updated first (specification §3.1.4).

    ``shown`` converts each stored task for the page.

    Raises ``InvalidParamsError`` and ``StoreError``.
    """
    check_history(request.history_length, "historyLength")
    size = page_size(request.page_size, DEFAULT_PAGE)
    token = read_token(request.page_token, PageToken) if request.page_token else None
    status_after = request.status_timestamp_after
    not_after = token.not_after if token else None
    page = await store.list(
        TaskQuery(
            scope=scope,
            context_id=request.context_id,
            state=request.status,
            status_after=status_after.milliseconds if status_after is not None else None,
            before=(token.status_at, token.task_id) if token else None,
            not_after=not_after,
            limit=size,
            history=request.history_length,
            artifacts=bool(request.include_artifacts),
        )
    )
    next_token = ""
    if page.more and page.stored:
        last = page.stored[-1]
        first_read_at = not_after if not_after is not None else page.stored[0].status_at
        next_token = write_token(PageToken(last.status_at, last.task_id, first_read_at))
    return ListTasksResponse(
        tasks=tuple([shown(stored) for stored in page.stored]),
        next_page_token=next_token,
        page_size=size,
        total_size=page.total,
    )


def page_size(requested: int | None, default: int) -> int:
    """Return the size of a page. 0 means the default: proto3 clients send it for no size.

    Raises ``InvalidParamsError``.
    """
    size = requested or default
    if not 1 <= size <= LARGEST_PAGE:
        raise invalid("pageSize", f"pageSize is between 1 and {LARGEST_PAGE}, or 0 for the default")
    return size


def write_token(position: object) -> str:
    """Return a token for the position after which the next page begins."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).rstrip(b"=").decode()


def read_token(text: str, kind: type[T]) -> T:
    """Return the position in a token. Raises ``InvalidParamsError`` for an invalid token."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        position = msgspec.json.decode(data, type=kind)
        if may_be_id(getattr(position, "task_id", "")):
            return position
    except (ValueError, msgspec.DecodeError):
        pass
    raise invalid("pageToken", "a token from nextPageToken of the page before, unchanged")
