"""Checks of tasks: GetTask, ListTasks, CancelTask, and the form of tasks on the wire."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from parley.conformance.probe import MISSING_TASK, CallResult, Probe
from parley.conformance.verdicts import (
    NEW,
    OLD,
    OVER_HTTP,
    RPC,
    Checks,
    ConformanceViolation,
    NotApplicable,
    fail_if,
)
from parley.model.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError
from parley.model.operations import ListTasksResponse
from parley.model.tasks import Task, TaskState

check = Checks()
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z")
_SNAKE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_FREE = ("metadata", "data", "params")


@check("TASK-1", "MUST", "3.1.3", "GetTask returns the current task")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    found = (await probe.get(task.id)).given()
    for name in ("id", "context_id", "state"):
        was, now = getattr(task, name), getattr(found, name)
        fail_if(was != now, f"{name} was {was!s}, but GetTask returns {now!s}")


@check("TASK-2", "MUST", "3.1.3", "An unknown task is rejected with TaskNotFound")
async def _(probe: Probe) -> None:
    said = await probe.get(MISSING_TASK)
    said.rejected_with(TaskNotFoundError, why="of a task that does not exist")


@check("TASK-3", "MUST", "3.2.4", "GetTask returns at most historyLength messages, the latest")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    whole = (await probe.get(task.id)).given().history
    for most in (0, 1) if probe.version == "1.0" else (1,):  # 0.3 does not define 0
        found = (await probe.get(task.id, history=most)).given().history
        fail_if(len(found) > most, f"historyLength {most} returned {len(found)} messages")
        if len(whole) >= len(found):  # without a length a server may leave the history out
            latest = whole[len(whole) - len(found) :]
            fail_if(found != latest, "the returned messages are not the latest")


@check("TASK-4", "SHOULD", "3.2.4", "A negative historyLength is rejected", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    said = await probe.get(task.id, history=-1)
    said.rejected_with(InvalidParamsError, why="with historyLength -1")


@check("TASK-5", "MUST", "4.1.7", "Every artifact has a unique id, and parts")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    if not task.artifacts:
        raise NotApplicable("the task has no artifact")
    ids = [artifact.artifact_id for artifact in task.artifacts]
    fail_if(not all(ids), "an artifact has no artifactId")
    fail_if(len(set(ids)) < len(ids), f"two artifacts have the same artifactId: {ids}")
    fail_if(not all(artifact.parts for artifact in task.artifacts), "an artifact has no parts")


@check(
    *("TASK-6", "MUST", "5.6.1", "Timestamps are ISO 8601 in UTC, with a Z"),
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    names = ("timestamp", "createdAt", "lastModified")
    found = [value for name, value in _members(await _raw_task(probe)) if name in names]
    if not found:
        raise NotApplicable("the task has no timestamp")
    for value in found:
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            raise ConformanceViolation(
                f"a timestamp is {value!r}, not of the form 2026-01-31T12:00:00.000Z"
            )


@check("TASK-7", "MUST", "3.1.5", "Cancelling an ended task is rejected with TaskNotCancelable")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    said = await probe.call("CancelTask", id=task.id)
    if said.error is None and said.value.state is TaskState.CANCELED is task.state:
        return
    said.rejected_with(TaskNotCancelableError, why="of a task that has ended")
    state = (await probe.get(task.id)).given().state
    fail_if(state is not task.state, f"the task is {state} after the rejected CancelTask")


@check("TASK-8", "MUST", "3.1.5", "Cancelling an unknown task is rejected with TaskNotFound")
async def _(probe: Probe) -> None:
    said = await probe.call("CancelTask", id=MISSING_TASK)
    said.rejected_with(TaskNotFoundError, why="of a task that does not exist")


@check("TASK-9", "MUST", "3.1.5", "CancelTask returns the task, canceled")
async def _(probe: Probe) -> None:
    await _canceled(probe)


@check("TASK-12", "MAY", "3.1.5", "Cancelling a canceled task succeeds", versions=NEW)
async def _(probe: Probe) -> None:
    task = await _canceled(probe)
    again = (await probe.call("CancelTask", id=task.id)).given()
    fail_if(
        again.state is not TaskState.CANCELED,
        f"the task is {again.state} after the second CancelTask",
    )


@check("TASK-13", "MUST", "0.3:8.2", "A canceled task is not cancelable", versions=OLD)
async def _(probe: Probe) -> None:
    task = await _canceled(probe)
    said = await probe.call("CancelTask", id=task.id)
    said.rejected_with(TaskNotCancelableError, why="of a canceled task")


@check("TASK-10", "MUST", "5.5", "Members are in camelCase", versions=NEW, bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    for name, _ in _members(await _raw_task(probe)):
        fail_if(_SNAKE.fullmatch(name), f"the member {name!r} is in snake_case")


@check("TASK-11", "MUST", "5.5", "Enum values have their names", versions=NEW, bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    task = await _raw_task(probe)
    state = (task.get("status") or {}).get("state")
    known = {str(each) for each in TaskState}
    fail_if(state not in known, f"the state is {state!r}, not of the form TASK_STATE_COMPLETED")
    for name, value in _members(task):
        wrong = name == "role" and value not in ("ROLE_USER", "ROLE_AGENT")
        fail_if(wrong, f"a role is {value!r}, not ROLE_USER or ROLE_AGENT")


@check("TASK-14", "MAY", "5.7", "Absent members are left out, not null", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    for name, value in _members(await _raw_task(probe)):
        fail_if(value is None, f"{name} is null")


@check(*("OLD-1", "MUST", "0.3:6.1", "Objects of 0.3 have a kind"), versions=OLD, bindings=RPC)
async def _(probe: Probe) -> None:
    task = await _raw_task(probe)
    fail_if(task.get("kind") != "task", f"the task's kind is {task.get('kind')!r}, not 'task'")
    for name, value in _members(task):
        lost = name == "parts" and any("kind" not in part for part in value)
        fail_if(lost, "a part has no kind")
        said = value if name == "history" else [value] if name == "message" else []
        for each in said:
            fail_if(each.get("kind") != "message", "a message does not have the kind 'message'")
            role = each.get("role")
            fail_if(role not in ("user", "agent"), f"a role is {role!r}, not 'user' or 'agent'")


@check(*("OLD-2", "MUST", "0.3:6.3", "States of 0.3 are in lower case"), versions=OLD, bindings=RPC)
async def _(probe: Probe) -> None:
    state = ((await _raw_task(probe)).get("status") or {}).get("state")
    known = {str(s).removeprefix("TASK_STATE_").lower().replace("_", "-") for s in TaskState}
    if state not in known | {"unknown"}:
        raise ConformanceViolation(
            f"the state is {state!r}, not of the form 'completed' or 'input-required'"
        )


@check("LIST-1", "MUST", "3.1.4", "ListTasks returns the caller's task", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    ids = [each.id for each in await _tasks(probe, task)]
    fail_if(task.id not in ids, f"the task {task.id!r} is not among the tasks of its context")


@check(
    "LIST-2",
    "MUST",
    "3.1.4",
    "A list response has all required members",
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    for context in ("", "a-context-without-tasks"):
        members = (await _page(probe, context_id=context, page_size=1)).result
        for name in ("tasks", "nextPageToken", "pageSize", "totalSize"):
            fail_if(name not in members, f"the response has no {name}")


@check("LIST-3", "MUST", "3.1.4", "The pages contain every task once", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    for _ in range(2):
        await probe.task(context=task.context_id)
    seen = [each.id for page in [p async for p in _pages(probe, task)] for each in page.tasks]
    fail_if(len(set(seen)) < len(seen), "a task is on two pages")
    fail_if(task.id not in seen, "no page has the expected task")


@check(
    "LIST-4",
    "MUST",
    "3.1.4",
    "A list filtered by context has no tasks of other contexts",
    versions=NEW,
)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    await probe.task()
    strange = {each.context_id for each in await _tasks(probe, task)} - {task.context_id}
    fail_if(strange, f"the list has tasks of {sorted(strange)}")


@check(
    "LIST-5", "MUST", "3.1.4", "A list filtered by state has no tasks in other states", versions=NEW
)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    page = (await _page(probe, status=task.state)).value
    others = {str(each.state) for each in page.tasks} - {str(task.state)}
    fail_if(others, f"a list of {task.state} has tasks in {sorted(others)}")
    fail_if(not page.tasks, f"a list of {task.state} is empty, although a task has this state")


@check("LIST-6", "MUST", "3.1.4", "The most recently updated task comes first", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    other = await probe.task(context=task.context_id)
    page = (await _page(probe, page_size=20)).value
    times = [each.status.timestamp for each in page.tasks if each.status.timestamp is not None]
    if len(times) < 2 or other.id == task.id:
        raise NotApplicable("there are no two tasks with a timestamp")
    if times != sorted(times, reverse=True):
        raise ConformanceViolation(
            "the tasks are not in descending order of their status' timestamps"
        )


@check("LIST-7", "MUST", "3.1.4", "Artifacts are left out unless requested", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    said = await _page(probe, context_id=task.context_id)
    found = said.result.get("tasks") or () if said.wire else ()
    has = any("artifacts" in each for each in found) or any(t.artifacts for t in said.value.tasks)
    fail_if(has, "a task has artifacts although they were not requested")


@check("LIST-10", "SHOULD", "3.1.4", "Artifacts are included on request", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    if not task.artifacts:
        raise NotApplicable("the task has no artifact")
    found = [t.artifacts for t in await _tasks(probe, task, include_artifacts=True)]
    fail_if(task.artifacts not in found, "a task of a list with includeArtifacts lacks its own")


@check("LIST-8", "MUST", "3.1.4", "A page size outside 1 to 100 is rejected", versions=NEW)
async def _(probe: Probe) -> None:
    for size in (101, -1):
        said = await probe.call("ListTasks", page_size=size)
        said.rejected_with(InvalidParamsError, why=f"with pageSize {size}")


@check("LIST-11", "MAY", "3.1.4", "A page size of 0 is the default", versions=NEW)
async def _(probe: Probe) -> None:
    page = (await _page(probe, page_size=0)).value
    fail_if(page.page_size < 1, f"the response has pageSize {page.page_size}")


@check("LIST-9", "SHOULD", "3.1.4", "An unknown page token is rejected", versions=NEW)
async def _(probe: Probe) -> None:
    said = await probe.call("ListTasks", page_token="not-a-page-token")
    said.rejected_with(InvalidParamsError, why="with an unknown page token")


@check("LIST-12", "MUST", "3.1.4", "totalSize is the number of tasks before paging", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    await probe.task(context=task.context_id)
    pages = [page async for page in _pages(probe, task)]
    sizes, count = {page.total_size for page in pages}, sum(len(page.tasks) for page in pages)
    fail_if(sizes != {count}, f"totalSize is {sorted(sizes)}, but there are {count} tasks")


@check(
    "LIST-13",
    "SHOULD",
    "3.1.4",
    "A task that is updated while paging is not on two pages",
    versions=NEW,
)
async def _(probe: Probe) -> None:
    task = await probe.asking()
    await probe.task(context=task.context_id)
    seen: list[str] = []
    async for page in _pages(probe, task):
        if not seen:  # this update makes the older task the latest
            await probe.send("Here it is", task=task.id)
        seen += [each.id for each in page.tasks]
    fail_if(len(set(seen)) < len(seen), "a task that was updated while paging is on two pages")


@check("LIST-14", "MUST", "3.2.4", "Lists heed historyLength", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    for most in (0, 1):
        found = [len(t.history) for t in await _tasks(probe, task, history_length=most)]
        fail_if(max(found, default=0) > most, f"historyLength {most} returned {found} messages")


@check(
    "LIST-15", "MUST", "3.1.4", "statusTimestampAfter includes tasks of that moment", versions=NEW
)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    moment = (await probe.get(task.id)).given().status.timestamp
    if moment is None:
        raise NotApplicable("the task has no timestamp")
    ids = [t.id for t in await _tasks(probe, task, status_timestamp_after=moment)]
    fail_if(task.id not in ids, "the task with exactly that timestamp is not in the list")
    later = moment.replace(year=moment.year + 1000)
    early = await _tasks(probe, task, status_timestamp_after=later)
    fail_if(early, f"{len(early)} tasks are returned for a moment a thousand years ahead")


@check("LIST-16", "MAY", "3.1.4", "UNSPECIFIED filters nothing", versions=NEW, bindings=RPC)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    members = {"status": "TASK_STATE_UNSPECIFIED"}
    ids = [t.id for t in await _tasks(probe, task, members=members)]
    fail_if(task.id not in ids, "the task is not in the list")


async def _page(probe: Probe, **options: Any) -> CallResult:
    said = await probe.call("ListTasks", **options)
    said.given()
    return said


async def _tasks(probe: Probe, task: Task, **options: Any) -> tuple[Task, ...]:
    """Return the tasks in the context of a task."""
    said = await _page(probe, context_id=task.context_id, **options)
    return tuple(said.value.tasks)


async def _pages(probe: Probe, task: Task) -> AsyncIterator[ListTasksResponse]:
    """Yield pages of a single task in the context of a task, at most twenty pages."""
    token = ""
    for _ in range(20):
        page = (await _page(probe, context_id=task.context_id, page_size=1, page_token=token)).value
        fail_if(len(page.tasks) > 1, f"a page of at most 1 has {len(page.tasks)} tasks")
        yield page
        token = page.next_page_token
        if not token:
            return


async def _canceled(probe: Probe) -> Task:
    """Return a task that was canceled."""
    task = await probe.running()
    said = await probe.call("CancelTask", id=task.id)
    if isinstance(said.error, TaskNotCancelableError):
        raise NotApplicable("the agent did not cancel this task, as the specification allows")
    value: Task = said.given()
    fail_if(value.id != task.id, f"the response is the task {value.id!r}")
    canceled = value.state is TaskState.CANCELED
    fail_if(not canceled, f"the task is {value.state} after CancelTask")
    return value


async def _raw_task(probe: Probe) -> dict[str, Any]:
    """Return a task that has ended, as JSON."""
    return (await probe.get((await probe.finished()).id)).result


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of the objects that the protocol defines, at any depth."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name, each
            if name not in _FREE:
                yield from _members(each)
    elif isinstance(value, list):
        for each in value:
            yield from _members(each)
