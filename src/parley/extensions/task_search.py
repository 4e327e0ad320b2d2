"""The method ``tasks/search`` (``docs/reference/extensions/task-search.md``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.extensions import Extension, method
from parley.model.operations import ListTasksRequest
from parley.model.parts import Message
from parley.model.service import A2AService, CallContext
from parley.model.struct import A2AStruct, Int32, Timestamp, freeze
from parley.model.tasks import Task, TaskState

TASK_SEARCH = "urn:parley:task-search:v1"

DEFAULT_PAGE = 20
LARGEST_PAGE = 100

MOST_TASKS = 500
MOST_LISTS = 20
MOST_CHARACTERS = 4_000_000
MOST_WORDS = 32
"""The limits of one call. It ends with the page of tasks that reaches a limit, or, if it has found
a match, with a page that was cut because its tasks are large.
"""


class SearchTasksRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for the tasks that match all given filters.

    ``text``: every word occurs, in any case, in the text of messages and artifacts or in the names
    and descriptions of artifacts. ``states``: the task is in a listed state.
    ``status_timestamp_after`` and ``status_timestamp_before``, both inclusive, bound the last
    change of its status. ``metadata``: each member occurs, with the same value, in the metadata of
    the task, of a message or of an artifact. ``history_length`` and ``include_artifacts`` are as in
    ListTasks.
    """

    tenant: str = ""
    text: str = ""
    states: tuple[TaskState, ...] = ()
    context_id: str = ""
    status_timestamp_after: Timestamp | None = None
    status_timestamp_before: Timestamp | None = None
    metadata: dict[str, Any] | None = None
    page_size: Int32 | None = None
    page_token: str = ""
    history_length: Int32 | None = None
    include_artifacts: bool | None = None

    def __post_init__(self) -> None:
        freeze(self, "states")


class SearchTasksResponse(A2AStruct, frozen=True, kw_only=True):
    """Tasks that match, the last updated first.

    A page may be short or even empty although more tasks match: only an empty ``next_page_token``
    marks the end.
    """

    tasks: tuple[Task, ...]
    next_page_token: str

    def __post_init__(self) -> None:
        freeze(self, "tasks")


async def search(
    service: A2AService, request: SearchTasksRequest, context: CallContext
) -> SearchTasksResponse:
    """Answer ``tasks/search`` from the tasks that the service lists for this caller.

    The work of one call is bounded. Raises ``InvalidParamsError``.
    """
    size = request.page_size or DEFAULT_PAGE
    if not 1 <= size <= LARGEST_PAGE:
        _reject("pageSize", f"pageSize is between 1 and {LARGEST_PAGE}, or 0 for the default")
    words = request.text.casefold().split()
    if len(words) > MOST_WORDS:
        _reject("text", f"at most {MOST_WORDS} words")
    if request.history_length is not None and request.history_length < 0:
        _reject("historyLength", "0 for none, a positive number, or left out for all")
    # History and artifacts are not read if they are neither searched nor returned.
    reads_content = bool(words or request.metadata)
    found: list[Task] = []
    token, tasks, lists, characters = request.page_token, 0, 0, 0
    while True:
        # A page is never larger than the remaining room in the result, so every match on it fits,
        # and the next call continues after a whole page.
        page = await service.list_tasks(
            ListTasksRequest(
                tenant=request.tenant,
                context_id=request.context_id,
                status=request.states[0] if len(request.states) == 1 else TaskState.UNSPECIFIED,
                status_timestamp_after=request.status_timestamp_after,
                page_size=size - len(found),
                page_token=token,
                history_length=None if reads_content else request.history_length,
                include_artifacts=reads_content or bool(request.include_artifacts),
            ),
            context,
        )
        before = len(found)
        for task in page.tasks:
            if not _matches(task, request):
                continue
            texts = [text.casefold() for text in _texts(task)] if words else []
            characters += sum(map(len, texts))
            if all(any(word in text for text in texts) for word in words):
                found.append(_trimmed(task, request))
        is_large = bool(found) and len(page.tasks) < size - before
        tasks += len(page.tasks)
        lists += 1
        token = page.next_page_token
        if (
            not token
            or len(found) >= size
            or is_large
            or tasks >= MOST_TASKS
            or lists >= MOST_LISTS
            or characters >= MOST_CHARACTERS
        ):
            return SearchTasksResponse(tasks=tuple(found), next_page_token=token)


SEARCH = method(
    TASK_SEARCH,
    "tasks/search",
    SearchTasksRequest,
    SearchTasksResponse,
    search,
    path="/tasks:search",
    safe=True,
)


class TaskSearch(Extension):
    """Callers search their tasks: ``tasks/search``."""

    uri = TASK_SEARCH
    description = "Finds the caller's own tasks by text, state, time and metadata: tasks/search."
    methods = (SEARCH,)


def _matches(task: Task, request: SearchTasksRequest) -> bool:
    """Return whether a task matches all filters except the text."""
    if request.states and task.state not in request.states:
        return False
    before, at = request.status_timestamp_before, task.status.timestamp
    if before is not None and (at is None or at > before):
        return False
    return all(
        any(name in each and _equal(each[name], value) for each in _metadata(task))
        for name, value in (request.metadata or {}).items()
    )


def _equal(held: object, wanted: object) -> bool:
    # In JSON true is not 1.
    return held == wanted and isinstance(held, bool) == isinstance(wanted, bool)


def _messages(task: Task) -> list[Message]:
    return [*task.history, *([task.status.message] if task.status.message is not None else [])]


def _metadata(task: Task) -> Iterator[Mapping[str, Any]]:
    if task.metadata:
        yield task.metadata
    yield from (message.metadata for message in _messages(task) if message.metadata)
    yield from (artifact.metadata for artifact in task.artifacts if artifact.metadata)


def _texts(task: Task) -> Iterable[str]:
    for message in _messages(task):
        yield message.text
    for artifact in task.artifacts:
        yield artifact.name
        yield artifact.description
        yield artifact.text


def _trimmed(task: Task, request: SearchTasksRequest) -> Task:
    length = request.history_length
    history = task.history
    if length is not None:
        history = history[-length:] if length else ()
    artifacts = task.artifacts if request.include_artifacts else ()
    return replace(task, history=history, artifacts=artifacts)


def _reject(field: str, description: str) -> None:
    raise InvalidParamsError(
        f"{field}: {description}", violations=(FieldViolation(field, description),)
    )
