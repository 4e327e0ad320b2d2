"""The state and the history of a context, for one caller (specification §3.4.1), and references.

A message refers to earlier tasks and artifacts (specification §3.4.3).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from parley.engine.content import kept, read
from parley.engine.skill import form_of
from parley.engine.turn.attempt import Attempt
from parley.model.concurrency import KeyedLocks
from parley.model.errors import TaskNotFoundError
from parley.model.ids import RIGHT_ID, may_be_id, new_id
from parley.model.parts import Artifact, Message, Part, Role, artifacts_named, tasks_named
from parley.model.tasks import Task, TaskState
from parley.store.follow import TaskGone, follow
from parley.store.protocols.task_log import TaskQuery

if TYPE_CHECKING:
    from parley.engine.turn.task_runner import TaskRunner

R = TypeVar("R")

Apply = Callable[[Callable[[Any], Any], Any], Awaitable[Any]]
"""Calls a function with a value, in the author's thread."""


class AgentContexts:
    """The contexts of one agent. Turns in this process update a value one at a time."""

    def __init__(self, *, keep_history: bool) -> None:
        self.keeps_history = keep_history
        self._locks = KeyedLocks()

    def of(self, runner: TaskRunner) -> AgentContext:
        """Return the context of the runner's task."""
        return AgentContext(runner, keep_history=self.keeps_history, updating=self._locks)


class AgentContext:
    """The state and history of one context. Callers with equal context ids share nothing."""

    def __init__(self, runner: TaskRunner, *, keep_history: bool, updating: KeyedLocks) -> None:
        self._store = runner.store
        self._scope = runner.scope
        self._context_id = runner.context_id
        self._keep_history = keep_history
        self._updating = updating

    async def history(self, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages, the oldest first."""
        if not self._keep_history:
            raise RuntimeError(
                "this agent keeps no history of its contexts; make it with "
                "Agent(..., retention=Retention(history=True))"
            )
        return await self._store.history(self._scope, self._context_id, limit)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``."""
        _check_key(key)
        value = await self._store.get_value(self._scope, self._context_id, key)
        return default if value is None else read(value)

    async def set(self, key: str, value: Any) -> None:
        """Set the value of ``key``; ``None`` removes it."""
        _check_key(key)
        data = None if value is None else kept(value, what=f"the value remembered as {key!r}")
        await self._store.set_value(self._scope, self._context_id, key, data)

    async def update(
        self,
        key: str,
        function: Callable[[Any], R],
        default: Any = None,
        *,
        apply: Apply | None = None,
    ) -> R:
        """Atomically set the value of ``key`` to the result of ``function``, and return it.

        ``apply`` calls the function if it may not run on the event loop.
        """
        _check_key(key)
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{_plain(key)}, not a coroutine function")
        first = None if default is None else kept(default, what=f"the default of {key!r}")
        lock = self._updating.of((self._scope, self._context_id, key))
        # A lock orders the turns of this process; conflicts with other replicas are retried.
        async with lock:
            while True:
                found = await self._store.get_value(self._scope, self._context_id, key)
                known = first if found is None else found
                value = None if known is None else read(known)
                result: R = function(value) if apply is None else await apply(function, value)
                if inspect.isawaitable(result):
                    if inspect.iscoroutine(result):
                        result.close()
                    raise TypeError(f"{_plain(key)}: it returned an awaitable")
                if result is None and known is not None and value != read(known):
                    raise TypeError(
                        f"the function that updates {key!r} changed the value in place and "
                        "returned None, which would remove it; return the value"
                    )
                what = f"the value remembered as {key!r}"
                data = None if result is None else kept(result, what=what)
                if await self._store.compare_and_set(
                    self._scope, self._context_id, key, found, data
                ):
                    return result

    async def tasks(self, task_ids: Sequence[str]) -> tuple[Task, ...]:
        """Return the tasks with these ids that the caller owns."""
        ids = [task_id for task_id in task_ids if may_be_id(task_id)]
        records = [await self._store.load(task_id, scope=self._scope) for task_id in ids]
        return tuple(record.task for record in records if record is not None)

    async def others(self, task_id: str, limit: int) -> tuple[Task, ...]:
        """Return the context's tasks except one, the last updated first."""
        found: list[Task] = []
        query = TaskQuery(
            scope=self._scope, context_id=self._context_id, limit=limit + 1, artifacts=True
        )
        while len(found) < limit:
            page = await self._store.list(query)
            found += [task for task in page.tasks if task.id != task_id]
            if not page.more:
                break
            last = page.tasks[-1]
            assert last.status.timestamp is not None
            query = replace(query, before=(last.status.timestamp.milliseconds, last.id))
        return tuple(found[:limit])


def _plain(key: str) -> str:
    return f"the update of {key!r} is a plain function of the value that returns the new one"


def _check_key(key: str) -> None:
    if not may_be_id(key):
        raise ValueError(f"the key of a value in a context has {RIGHT_ID}")


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
    """Return the earlier task that the first message of this task means; ask if it is ambiguous.

    The candidates are logged when the question is asked, so that later attempts and changes of the
    context do not alter them.
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
        # Ids rise with time, and a message can only mean tasks that began before its own.
        tasks = [task for task in earlier if task.id < own and task.state not in _FAILED]
    if where is None:
        return list(tasks)
    is_meant = await _of_each(attempt, where, tasks)
    return [task for task, yes in zip(tasks, is_meant, strict=True) if yes]


async def _of_each(
    attempt: Attempt, function: Callable[[Task], T], tasks: Sequence[Task]
) -> list[T]:
    """Return the result of an author's function for each task. The function may block."""
    found: list[T] = await attempt.runner.in_thread(lambda: [function(task) for task in tasks])
    return found


def _label(task: Task) -> str:
    names = ", ".join(artifact.name for artifact in task.artifacts if artifact.name)
    text = next((m.text for m in task.history if m.role is Role.USER and m.text), "")
    line = " ".join(text.split())[:80]
    return f"{line} ({names})" if line and names else line or names or task.id


def _chosen(answer: Message, tasks: Sequence[Task], labels: Sequence[str]) -> Task | None:
    """Return the task in an answer: by reference, by number, or by words of its label."""
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

    Raises ``TaskNotFoundError`` for an unknown task, ``ValueError`` for the waiting task itself.
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
            continue  # the next load reports the failure
