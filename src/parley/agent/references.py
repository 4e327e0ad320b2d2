"""Find the earlier tasks and artifacts that a message refers to (specification §3.4.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec

from parley.agent.context import AgentContext
from parley.engine.skill import form_of
from parley.engine.turn.attempt import Attempt
from parley.model.errors import TaskNotFoundError
from parley.model.ids import may_be_id
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.references import artifacts_named, tasks_named
from parley.model.tasks import Task, TaskState
from parley.model.uuid7 import new_id
from parley.store.follow import TaskGone, follow

T = TypeVar("T")

MAX_CANDIDATES = 50
_FAILED = (TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED)


async def referenced_artifacts(
    context: AgentContext, message: Message, task_id: str
) -> tuple[Artifact, ...]:
    """Return the artifacts that a message's parts refer to and its caller owns.

    A reference without a task id is resolved in the tasks that the message refers to, then in the
    context, the last updated task first.
    """
    named = artifacts_named(message)
    if not named:
        return ()
    tasks = await context.tasks(tasks_named(message))
    others: Sequence[Task] | None = None
    found = []
    for reference in named:
        known = [task for task in tasks if reference.task_id in ("", task.id)]
        artifact = _artifact(known, reference.artifact_id)
        if artifact is None and not reference.task_id:
            if others is None:
                others = await context.others(task_id, MAX_CANDIDATES)
            artifact = _artifact(others, reference.artifact_id)
        if artifact is not None:
            found.append(artifact)
    return tuple(found)


def _artifact(tasks: Sequence[Task], artifact_id: str) -> Artifact | None:
    return next((a for task in tasks for a in task.artifacts if a.artifact_id == artifact_id), None)


async def reference(
    attempt: Attempt,
    context: AgentContext,
    question: str,
    where: Callable[[Task], bool] | None,
    describe: Callable[[Task], str] | None,
) -> Task | None:
    """Return the earlier task that the first message of this one means; ask when in doubt.

    The candidates are logged when the question is asked: later attempts, and changes of the context
    meanwhile, do not change them.
    """
    for function in (where, describe):
        if function is not None and not form_of(function).in_thread:
            raise TypeError(f"where and describe are plain functions of a task, not {function!r}")
    attempt.reference_count += 1
    key = f"reference:{attempt.reference_count}"
    kept = attempt.step_result(key)
    if kept is not None:
        tasks = list(await context.tasks(msgspec.json.decode(kept, type=list[str])))
    else:
        tasks = await _candidates(attempt, context, where)
    if len(tasks) < 2:
        return tasks[0] if tasks else None
    if kept is None:
        await attempt.keep_result(key, msgspec.json.encode([task.id for task in tasks]))
    if describe is None:
        labels = [_label(task) for task in tasks]
    else:
        labels = await _of_each(attempt, describe, tasks)
    lines = [f"{number}. {label}" for number, label in enumerate(labels, 1)]
    asked = Message(
        message_id=new_id(),
        role=Role.AGENT,
        parts=(Part(text="\n".join([question, *lines])),),
        reference_task_ids=tuple(task.id for task in tasks),
    )
    times = 0
    while True:
        times += 1
        asked = msgspec.structs.replace(asked, message_id=new_id())
        answer = await attempt.ask(TaskState.INPUT_REQUIRED, asked, f"{key}:{times}")
        chosen = _chosen(answer, tasks, labels)
        if chosen is not None:
            return chosen


async def _candidates(
    attempt: Attempt, context: AgentContext, where: Callable[[Task], bool] | None
) -> list[Task]:
    tasks: Sequence[Task] = await context.tasks(tasks_named(attempt.request.message))
    if not tasks:
        own = attempt.runner.task_id
        earlier = await context.others(own, MAX_CANDIDATES)
        # Ids rise with time: a message can only mean tasks that began before its own.
        tasks = [task for task in earlier if task.id < own and task.state not in _FAILED]
    if where is None:
        return list(tasks)
    is_meant = await _of_each(attempt, where, tasks)
    return [task for task, yes in zip(tasks, is_meant, strict=True) if yes]


async def _of_each(
    attempt: Attempt, function: Callable[[Task], T], tasks: Sequence[Task]
) -> list[T]:
    """Return the result of an author's function for each task. It may block."""
    found: list[T] = await attempt.runner.in_thread(lambda: [function(task) for task in tasks])
    return found


def _label(task: Task) -> str:
    names = ", ".join(artifact.name for artifact in task.artifacts if artifact.name)
    text = next((m.text for m in task.history if m.role is Role.USER and m.text), "")
    line = " ".join(text.split())[:80]
    return f"{line} ({names})" if line and names else line or names or task.id


def _chosen(answer: Message, tasks: Sequence[Task], labels: Sequence[str]) -> Task | None:
    """Return the task that an answer names: by reference, by number, or by words of its label."""
    named = [task for task in tasks if task.id in tasks_named(answer) or task.id in answer.text]
    if len(named) == 1:
        return named[0]
    number = re.fullmatch(r"\W*(\d{1,3})\W*", answer.text)
    if number:
        position = int(number[1])
        return tasks[position - 1] if 0 < position <= len(tasks) else None
    words = _words(answer.text)
    fits = [len(words & _words(label)) for label in labels]
    best = max(fits)
    return tasks[fits.index(best)] if best and fits.count(best) == 1 else None


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


async def wait_for(attempt: Attempt, task: Task | str) -> Task:
    """Wait until another of the caller's tasks ends, and return it.

    Raises ``TaskNotFoundError`` when there is none, ``ValueError`` for the task itself.
    """
    task_id = task if isinstance(task, str) else task.id
    if task_id == attempt.runner.task_id:
        raise ValueError("a task cannot wait for itself")
    store = attempt.runner.store
    while True:
        record = None
        if may_be_id(task_id):
            record = await store.load(task_id, scope=attempt.runner.scope)
        if record is None:
            raise TaskNotFoundError(
                f"there is no task {task_id[:100]!r} here for this caller",
                metadata={"taskId": task_id[:100]},
            )
        if record.state.is_terminal:
            return record.task
        try:
            events = follow(store, attempt.runner.hints, task_id, record.seq)
            async with aclosing(events):
                async for _ in events:
                    pass
        except TaskGone:
            continue  # the next load reports it
