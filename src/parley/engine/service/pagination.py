"""Lists of tasks, a page at a time, and the tokens by which callers ask for the next one."""

from __future__ import annotations

import base64
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from parley.engine.service.admission import check_history, invalid
from parley.model.ids import may_be_id
from parley.model.requests import ListTasksRequest, ListTasksResponse
from parley.model.tasks import Task
from parley.store.task_store import Scope, TaskQuery, TaskStore

T = TypeVar("T")

DEFAULT_PAGE = 50
LARGEST_PAGE = 100

# Tokens come from outside, and a store takes moments of 64 bits.
_Moment = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class PageToken(msgspec.Struct, array_like=True):
    """Where the next page begins: after a task, in a walk that began at a moment (ms)."""

    status_at: _Moment
    task_id: str
    not_after: _Moment


async def page_of_tasks(
    store: TaskStore, request: ListTasksRequest, scope: Scope
) -> ListTasksResponse:
    """Return a page of the tasks of a scope, the last updated first (specification §3.1.4).

    Raises ``InvalidParamsError`` and ``StoreError``.
    """
    check_history(request.history_length, "historyLength")
    size = page_size(request.page_size, DEFAULT_PAGE)
    token = read_token(request.page_token, PageToken) if request.page_token else None
    after = request.status_timestamp_after
    not_after = token.not_after if token else None
    page = await store.list(
        TaskQuery(
            scope=scope,
            context_id=request.context_id,
            state=request.status,
            status_after=after.milliseconds if after is not None else None,
            before=(token.status_at, token.task_id) if token else None,
            not_after=not_after,
            limit=size,
            history=request.history_length,
            artifacts=bool(request.include_artifacts),
        )
    )
    following = ""
    if page.more and page.tasks:
        last = page.tasks[-1]
        began = not_after if not_after is not None else _status_at(page.tasks[0])
        following = write_token(PageToken(_status_at(last), last.id, began))
    return ListTasksResponse(
        tasks=page.tasks, next_page_token=following, page_size=size, total_size=page.total
    )


def page_size(asked: int | None, default: int) -> int:
    """Return the size of a page; 0 asks for the default, as proto3 clients do who ask for none.

    Raises ``InvalidParamsError``.
    """
    size = asked or default
    if not 1 <= size <= LARGEST_PAGE:
        invalid("pageSize", f"pageSize is between 1 and {LARGEST_PAGE}, or 0 for the default")
    return size


def with_history(task: Task, length: int | None) -> Task:
    """Return a task with so many of its last messages, or all of them (specification §3.2.4)."""
    if length is None or length >= len(task.history):
        return task
    history = task.history[-length:] if length else ()
    return replace(task, history=history)


def write_token(place: object) -> str:
    """Return a token that says where the next page begins."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).rstrip(b"=").decode()


def read_token(text: str, kind: type[T]) -> T:
    """Return the place that a token says. Raises ``InvalidParamsError`` for what is no token."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        place = msgspec.json.decode(data, type=kind)
        if may_be_id(getattr(place, "task_id", "")):
            return place
    except (ValueError, msgspec.DecodeError):
        pass
    invalid("pageToken", "a token from nextPageToken of the page before, unchanged")


def _status_at(task: Task) -> int:
    return task.status.timestamp.milliseconds if task.status.timestamp is not None else 0
