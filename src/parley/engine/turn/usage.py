"""Usage of turns (seconds, bytes, tasks): measuring, limiting, and reporting."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from parley.engine.turn.attempt import Attempt, Request
from parley.extensions.usage import MOST_LINES, LimitState, UsageOfDay, UsageResponse
from parley.model.errors import A2AError, UnsupportedOperationError
from parley.model.parts import Artifact, Message, Part
from parley.model.service import CallContext, Caller
from parley.model.struct import encode
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent
from parley.security.limits.agent_limits import AgentLimits, Sizes
from parley.security.limits.declaration import DAY_MS, SizeLimit
from parley.security.limits.usage import UsageQuery
from parley.store.events import PrivateEvent, TaskEvent, TurnStarted
from parley.store.fold import Fold


class OutputTooLarge(A2AError):
    """A result of the agent is larger than the server's limits."""


class TaskMeter:
    """Measures the output of one task, and rejects output beyond the limits of its skill.

    A rejected event is not written, and a turn that continues fails. The last status of a task is
    never rejected. ``attempt`` returns the attempt that writes.
    """

    def __init__(
        self, meter: AgentMeter, fold: Fold, attempt: Callable[[], Attempt | None]
    ) -> None:
        self._meter = meter
        self._attempt = attempt
        self._sizes: Sizes | None = None
        self._artifacts: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._bytes = 0
        self._messages = 0
        self._refusal: OutputTooLarge | None = None
        if fold.state is not None:
            task = fold.task
            self._artifacts = {each.artifact_id: content_size(each) for each in task.artifacts}
            self._messages = len(task.history)
            self._bytes = sum(self._artifacts.values()) + _size(task.history)

    def measure(self, event: TaskEvent | PrivateEvent) -> None:
        """Count an event that will be written. Raises ``OutputTooLarge``."""
        if isinstance(event, TaskArtifactUpdateEvent):
            self._measure(event)
        elif isinstance(event, TaskStatusUpdateEvent):
            self._measure_status(event.status)
        elif isinstance(event, TurnStarted) and event.messages:
            self._count(event.messages)
        elif isinstance(event, Task):
            self._count(event.history)
            if (request := self._request) is not None:
                self._meter.began(request)

    def _measure(self, update: TaskArtifactUpdateEvent) -> None:
        if self._refusal is not None:
            raise self._refusal
        artifact, limits = update.artifact, self._limits
        size = content_size(artifact)
        before = self._artifacts.get(artifact.artifact_id, 0)
        total = before + size if update.append else size
        if limits is not None:
            name = self._names.get(artifact.artifact_id) or artifact.name or artifact.artifact_id
            self._check(limits.artifact, total, f"the artifact {name!r}")
            self._check(limits.task, self._bytes + total - before, "the task")
        self._artifacts[artifact.artifact_id] = total
        if artifact.name:
            self._names[artifact.artifact_id] = artifact.name
        self._bytes += total - before
        self._wrote(size)

    def _measure_status(self, status: TaskStatus) -> None:
        if status.message is not None:
            size = len(encode(status.message))
            if not status.state.is_terminal:
                self._count((status.message,), size)
            self._wrote(size)
        if self._refusal is not None and not status.state.is_terminal:
            raise self._refusal

    @property
    def _request(self) -> Request | None:
        attempt = self._attempt()
        return None if attempt is None else attempt.request

    @property
    def _limits(self) -> Sizes | None:
        if self._sizes is None and (request := self._request) is not None:
            self._sizes = self._meter.turn_sizes(request.skill.id)
        return self._sizes

    def _wrote(self, size: int) -> None:
        if (request := self._request) is not None:
            self._meter.wrote(request, size)

    def _count(self, messages: Iterable[Message], size: int | None = None) -> None:
        """Count messages of the history. Too many end the turn."""
        messages = tuple(messages)
        self._messages += len(messages)
        self._bytes += _size(messages) if size is None else size
        if (limits := self._limits) is None:
            return
        try:
            self._check(limits.history, self._messages, "the history of the task")
            self._check(limits.task, self._bytes, "the task")
        except OutputTooLarge as refusal:
            self._refusal = refusal

    def _check(self, limit: SizeLimit | None, found: int, what: str) -> None:
        if limit is not None and found > limit.amount:
            unit = "messages" if limit.what == "history" else "bytes"
            raise OutputTooLarge(
                f"{what} would have {found} {unit}, which is more than the limit of {limit.text}",
                metadata={"limit": limit.text},
            )


def _size(messages: Iterable[Message]) -> int:
    return sum([len(encode(each)) for each in messages])


def content_size(artifact: Artifact) -> int:
    """Return the size of an artifact, or a chunk of one, in bytes."""
    size = 0 if artifact.metadata is None else len(encode(artifact.metadata))
    return size + sum([_part_size(part) for part in artifact.parts])


def _part_size(part: Part) -> int:
    size = 0 if part.metadata is None else len(encode(part.metadata))
    if part.text is not None:
        return size + (len(part.text) if part.text.isascii() else len(part.text.encode()))
    if part.raw is not None:
        return size + len(part.raw)
    if part.url is not None:
        return size + len(part.url)
    return size + len(encode(part.data))


class AgentMeter:
    """Counts the turns of an agent, if usage is counted, and has their limits."""

    def __init__(self, limits: AgentLimits) -> None:
        self._limits = limits

    def turn_sizes(self, skill: str) -> Sizes:
        """Return the limits of the output of a skill's turn."""
        return self._limits.sizes(skill)

    def wrote(self, request: Request, size: int) -> None:
        """Count bytes of output."""
        self._count("output_bytes", request, size)

    def began(self, request: Request) -> None:
        """Count a task."""
        self._count("tasks", request, 1)

    def measured(
        self, invoke: Callable[[Attempt], Awaitable[object]]
    ) -> Callable[[Attempt], Awaitable[object]]:
        """Return a function that calls the author's function and counts its running time."""

        async def measured(attempt: Attempt) -> object:
            began = time.monotonic()
            runner, request = attempt.runner, attempt.request
            if attempt.turn == 1 and attempt.number == 1 and runner.writer is not None:
                self.began(request)  # a task that is created later is counted by its writer
            value: object = None
            try:
                value = await invoke(attempt)
                return value
            finally:
                self._count("run_ms", request, round((time.monotonic() - began) * 1000))
                if runner.writer is None:
                    self.wrote(request, _reply_size(value))

        return measured

    def _count(self, what: str, request: Request, amount: int) -> None:
        usage = self._limits.usage
        if usage is not None and amount:
            skill = request.skill.id
            usage.count(
                what, self._limits.agent, request.tenant, billed(request.caller), skill, amount
            )


def billed(caller: Caller) -> str:
    """Return the caller key for usage."""
    return caller.owner if caller.authenticated else ""


def _reply_size(value: Any) -> int:
    """Return the approximate size of a direct reply in bytes; an artifact needs a task."""
    if value is None or isinstance(value, Artifact):
        return 0
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, bytes):
        return len(value)
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return 0


async def usage_report(
    agent: str, limits: AgentLimits | None, context: CallContext, days: int, now: int
) -> UsageResponse:
    """Return a caller's usage of an agent in the last days, and its limits.

    Raises ``UnsupportedOperationError`` if nothing is counted, and ``StoreError``.
    """
    if limits is None or limits.usage is None:
        raise UnsupportedOperationError("this server does not count usage")
    today = now // DAY_MS
    query = UsageQuery(
        since=today - days + 1,
        until=today,
        agent=agent,
        tenant=context.tenant,
        caller=billed(context.caller),
        limit=MOST_LINES,
    )
    rows = await limits.usage.read(query)
    return UsageResponse(
        usage=tuple(
            [
                UsageOfDay(
                    day=day_name(row.day),
                    skill=row.skill,
                    requests=row.requests,
                    refusals=row.refusals,
                    messages=row.messages,
                    tasks=row.tasks,
                    output_bytes=row.output_bytes,
                    run_seconds=row.run_ms / 1000,
                )
                for row in rows[:MOST_LINES]
            ]
        ),
        limits=tuple(
            [
                LimitState(
                    limit=limit.text,
                    name="" if isinstance(limit, SizeLimit) else limit.name,
                    amount=limit.amount,
                    remaining=remaining,
                    reset_seconds=reset,
                )
                for limit, remaining, reset in await limits.report(context)
            ]
        ),
    )


def day_name(day: int) -> str:
    """Return the date of a day, such as ``2026-11-23``."""
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
