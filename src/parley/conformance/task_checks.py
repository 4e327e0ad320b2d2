"""Checks of tasks: getting, listing and cancelling them, and their form on the wire."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from parley.conformance.probe import MISSING_TASK, Probe
from parley.conformance.verdicts import OVER_HTTP, Checks, ConformanceViolation, NotApplicable
from parley.model.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError
from parley.model.operations import CancelTaskRequest, ListTasksRequest
from parley.model.tasks import Task, TaskState

check = Checks()
NEW = ("1.0",)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z")
_SNAKE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_FREE = ("metadata", "data", "params")


@check("TASK-1", "MUST", "3.1.3", "GetTask returns the task as it stands")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    found = (await probe.get(task.id)).given()
    for name in ("id", "context_id", "state"):
        was, now = getattr(task, name), getattr(found, name)
        if was != now:
            raise ConformanceViolation(f"{name} was {was!s}, and GetTask says {now!s}")


@check("TASK-2", "MUST", "3.1.3", "An unknown task is refused as TaskNotFound")
async def _(probe: Probe) -> None:
    said = await probe.get(MISSING_TASK)
    said.refused_with(TaskNotFoundError, why="of a task that does not exist")


@check("TASK-3", "MUST", "3.2.4", "GetTask returns no more history than asked for")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    for most in (0, 1) if probe.version == "1.0" else (1,):  # 0.3 leaves open what 0 means
        found = (await probe.get(task.id, history=most)).given()
        if len(found.history) > most:
            raise ConformanceViolation(
                f"historyLength {most} returned {len(found.history)} messages"
            )


@check("TASK-4", "SHOULD", "3.2.4", "A negative historyLength is refused", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    said = await probe.get(task.id, history=-1)
    said.refused_with(InvalidParamsError, why="with historyLength -1")


@check("TASK-5", "MUST", "4.1.7", "Every artifact has an id of its own, and parts")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    if not task.artifacts:
        raise NotApplicable("the task has no artifact")
    ids = [artifact.artifact_id for artifact in task.artifacts]
    if not all(ids):
        raise ConformanceViolation("an artifact has no artifactId")
    if len(set(ids)) < len(ids):
        raise ConformanceViolation(f"two artifacts have the same artifactId: {ids}")
    if not all(artifact.parts for artifact in task.artifacts):
        raise ConformanceViolation("an artifact has no parts")


@check(
    "TASK-6",
    "MUST",
    "5.6.1",
    "Timestamps are ISO 8601 in UTC, with a Z",
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    found = [
        value
        for name, value in _members(await _raw_task(probe))
        if name in ("timestamp", "createdAt", "lastModified")
    ]
    if not found:
        raise NotApplicable("the task has no timestamp")
    for value in found:
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            raise ConformanceViolation(
                f"a timestamp is {value!r}, not one like 2026-01-31T12:00:00.000Z"
            )


@check("TASK-7", "MUST", "3.1.5", "Cancelling an ended task is refused as TaskNotCancelable")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    said = await probe.call("CancelTask", CancelTaskRequest(id=task.id))
    if said.error is None and said.value.state is TaskState.CANCELED is task.state:
        return
    said.refused_with(TaskNotCancelableError, why="of a task that has ended")


@check("TASK-8", "MUST", "3.1.5", "Cancelling an unknown task is refused as TaskNotFound")
async def _(probe: Probe) -> None:
    said = await probe.call("CancelTask", CancelTaskRequest(id=MISSING_TASK))
    said.refused_with(TaskNotFoundError, why="of a task that does not exist")


@check("TASK-9", "MUST", "3.1.5", "CancelTask returns the task, canceled")
async def _(probe: Probe) -> None:
    task = await probe.running()
    said = await probe.call("CancelTask", CancelTaskRequest(id=task.id))
    if isinstance(said.error, TaskNotCancelableError):
        raise NotApplicable("the agent does not cancel this task, which it may")
    value = said.given()
    if value.id != task.id:
        raise ConformanceViolation(f"the answer is the task {value.id!r}")
    if value.state is not TaskState.CANCELED:
        raise ConformanceViolation(f"the task is {value.state} after CancelTask")


@check("TASK-10", "MUST", "5.5", "Members are in camelCase", versions=NEW, bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    for name, _ in _members(await _raw_task(probe)):
        if _SNAKE.fullmatch(name):
            raise ConformanceViolation(f"the member {name!r} is in snake_case")


@check("TASK-11", "MUST", "5.5", "Enum values have their names", versions=NEW, bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    task = await _raw_task(probe)
    state = (task.get("status") or {}).get("state")
    if state not in {str(each) for each in TaskState}:
        raise ConformanceViolation(f"the state is {state!r}, not one like TASK_STATE_COMPLETED")
    for name, value in _members(task):
        if name == "role" and value not in ("ROLE_USER", "ROLE_AGENT"):
            raise ConformanceViolation(f"a role is {value!r}, not ROLE_USER or ROLE_AGENT")


@check(
    "OLD-1",
    "MUST",
    "0.3:6.1",
    "Objects of 0.3 say what they are (kind)",
    versions=("0.3",),
    bindings=("JSONRPC",),
)
async def _(probe: Probe) -> None:
    task = await _raw_task(probe)
    if task.get("kind") != "task":
        raise ConformanceViolation(f"the task's kind is {task.get('kind')!r}, not 'task'")
    for name, value in _members(task):
        if name == "parts" and any("kind" not in part for part in value):
            raise ConformanceViolation("a part has no kind")


@check(
    "OLD-2",
    "MUST",
    "0.3:6.3",
    "States of 0.3 are in lower case",
    versions=("0.3",),
    bindings=("JSONRPC",),
)
async def _(probe: Probe) -> None:
    state = ((await _raw_task(probe)).get("status") or {}).get("state")
    known = {str(s).removeprefix("TASK_STATE_").lower().replace("_", "-") for s in TaskState}
    if state not in known | {"unknown"}:
        raise ConformanceViolation(
            f"the state is {state!r}, not one like 'completed' or 'input-required'"
        )


@check("LIST-1", "MUST", "3.1.4", "ListTasks has the caller's task", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    page = await _page(probe, context_id=task.context_id)
    if task.id not in [each.id for each in page.tasks]:
        raise ConformanceViolation(f"the task {task.id!r} is not among those of its own context")


@check(
    "LIST-2", "MUST", "3.1.4", "A list has all members of a page", versions=NEW, bindings=OVER_HTTP
)
async def _(probe: Probe) -> None:
    await _page(probe, page_size=1)
    members = _result(probe)
    for name in ("tasks", "nextPageToken", "pageSize", "totalSize"):
        if name not in members:
            raise ConformanceViolation(f"the page has no {name}")


@check("LIST-3", "MUST", "3.1.4", "Pages lead through all tasks, each once", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    text = probe.texts.task or probe.texts.text
    for _ in range(2):
        await probe.send(text, context=task.context_id)
    seen: list[str] = []
    token = ""
    for _ in range(20):
        page = await _page(probe, context_id=task.context_id, page_size=1, page_token=token)
        if len(page.tasks) > 1:
            raise ConformanceViolation(f"a page of at most 1 has {len(page.tasks)} tasks")
        seen += [each.id for each in page.tasks]
        token = page.next_page_token
        if not token:
            break
    if len(set(seen)) < len(seen):
        raise ConformanceViolation("a task is on two pages")
    if task.id not in seen:
        raise ConformanceViolation("the pages end without the task that was looked for")


@check("LIST-4", "MUST", "3.1.4", "A list of a context has no tasks of others", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    await probe.send(probe.texts.task or probe.texts.text)
    page = await _page(probe, context_id=task.context_id)
    strange = {each.context_id for each in page.tasks} - {task.context_id}
    if strange:
        raise ConformanceViolation(f"there are tasks of {sorted(strange)}")


@check("LIST-5", "MUST", "3.1.4", "A list of a state has no tasks in others", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    page = await _page(probe, status=task.state)
    others = {str(each.state) for each in page.tasks} - {str(task.state)}
    if others:
        raise ConformanceViolation(f"a list of {task.state} has tasks in {sorted(others)}")
    if not page.tasks:
        raise ConformanceViolation(f"a list of {task.state} is empty, and there is such a task")


@check("LIST-6", "MUST", "3.1.4", "The latest updated task comes first", versions=NEW)
async def _(probe: Probe) -> None:
    await probe.finished()
    page = await _page(probe, page_size=20)
    times = [each.status.timestamp for each in page.tasks if each.status.timestamp is not None]
    if len(times) < 2:
        raise NotApplicable("there are no two tasks with a timestamp")
    if times != sorted(times, reverse=True):
        raise ConformanceViolation(
            "the tasks are not in descending order of their status' timestamps"
        )


@check(
    "LIST-7",
    "MUST",
    "3.1.4",
    "Artifacts are left out unless asked for",
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    await _page(probe, context_id=task.context_id)
    for each in _result(probe).get("tasks") or ():
        if "artifacts" in each:
            raise ConformanceViolation("a task of a list that did not ask for artifacts has them")


@check("LIST-8", "MUST", "3.1.4", "A page size outside of 1 to 100 is refused", versions=NEW)
async def _(probe: Probe) -> None:
    for size in (101, -1):
        said = await probe.call("ListTasks", ListTasksRequest(page_size=size))
        said.refused_with(InvalidParamsError, why=f"with pageSize {size}")


@check("LIST-9", "SHOULD", "3.1.4", "A page token that nobody gave is refused", versions=NEW)
async def _(probe: Probe) -> None:
    said = await probe.call("ListTasks", ListTasksRequest(page_token="not-a-page-token"))
    said.refused_with(InvalidParamsError, why="with a page token of nobody")


async def _page(probe: Probe, **options: Any) -> Any:
    return (await probe.call("ListTasks", ListTasksRequest(**options))).given()


def _result(probe: Probe) -> dict[str, Any]:
    """Return the result of the last answer, as JSON."""
    answer = probe.http.last.json if probe.http.last is not None else None
    if not isinstance(answer, dict):
        raise ConformanceViolation("the answer is not a JSON object")
    found = answer.get("result") if probe.binding == "JSONRPC" else answer
    return found if isinstance(found, dict) else {}


async def _raw_task(probe: Probe) -> dict[str, Any]:
    """Return a task that has ended, as JSON."""
    task: Task = await probe.finished()
    (await probe.get(task.id)).given()
    return _result(probe)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of the protocol's own objects, at any depth."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name, each
            if name not in _FREE:
                yield from _members(each)
    elif isinstance(value, list):
        for each in value:
            yield from _members(each)
