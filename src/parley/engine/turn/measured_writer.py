"""A task writer that measures what a turn writes, and refuses what is larger than the limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from parley.engine.turn.attempt import Request
from parley.engine.turn.task_writer import TaskWriter
from parley.model.encoding import encode
from parley.model.errors import A2AError
from parley.model.parts import Artifact, Message, Part
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent
from parley.security.rates.limit import SizeLimit
from parley.server.limits.rates import TurnSizes
from parley.store.events import PrivateEvent, TaskEvent, TurnStarted


class OutputTooLarge(A2AError):
    """What the agent made is larger than the server's limits."""


class TurnMeter(Protocol):
    """Knows the limits of turns, and counts what they write. ``None`` stands for unknown."""

    def turn_sizes(self, skill: str) -> TurnSizes:
        """Return the limits for a skill."""
        ...

    def wrote(self, request: Request, size: int) -> None:
        """Count bytes of output."""
        ...

    def began(self, request: Request) -> None:
        """Count a task."""
        ...


class AttemptHolder(Protocol):
    """The runner of a task, whose attempt says what the output is for."""

    attempt: Any


class MeasuredWriter(TaskWriter):
    """A writer with limits. A refused event is not written, and the turn that goes on fails.

    The last status of a task is never refused.
    """

    def __init__(
        self, *given: Any, runner: AttemptHolder, meter: TurnMeter, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self._runner: AttemptHolder | None = runner
        self._meter = meter
        self._sizes: TurnSizes | None = None
        self._artifacts: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._bytes = 0
        self._messages = 0
        self._refusal: OutputTooLarge | None = None
        if self.fold.state is not None:
            task = self.fold.task
            self._artifacts = {each.artifact_id: content_size(each) for each in task.artifacts}
            self._messages = len(task.history)
            self._bytes = sum(self._artifacts.values()) + _size(task.history)

    @classmethod
    def made_for(cls, runner: AttemptHolder, meter: TurnMeter) -> Callable[..., TaskWriter]:
        """Return what makes the writers of a runner."""
        return partial(cls, runner=runner, meter=meter)

    def _write(self, event: TaskEvent | PrivateEvent, payload: bytes) -> None:
        """Count an event. Raises ``OutputTooLarge``."""
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
        super()._write(event, payload)

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

    def detach(self) -> None:
        """Drop what keeps the runner alive."""
        super().detach()
        self._runner = None

    @property
    def _request(self) -> Request | None:
        attempt = None if self._runner is None else self._runner.attempt
        return None if attempt is None else attempt.request

    @property
    def _limits(self) -> TurnSizes | None:
        if self._sizes is None and (request := self._request) is not None:
            self._sizes = self._meter.turn_sizes(request.skill.id)
        return self._sizes

    def _wrote(self, size: int) -> None:
        if (request := self._request) is not None:
            self._meter.wrote(request, size)

    def _count(self, messages: Iterable[Message], size: int | None = None) -> None:
        """Count messages of the history; what is too much ends the turn."""
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
    """Return how many bytes an artifact, or a chunk of one, has."""
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
