"""Page through lists of tasks, and encode the tokens that name the next page."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from parley.engine.service.checks import check_history, invalid
from parley.model.ids import may_be_id
from parley.model.requests import ListTasksRequest, ListTasksResponse
from parley.model.tasks import Task
from parley.store.events import Scope
from parley.store.protocols.task_log import TaskLists, TaskQuery
from parley.store.snapshot import StoredTask

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
    store: TaskLists, request: ListTasksRequest, scope: Scope, shown: Callable[[StoredTask], Task]
) -> ListTasksResponse:
    """Return a page of the tasks of a scope, the last updated first (specification §3.1.4).

    ``shown`` makes of each what the page has.

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
