"""The timeline of a task, from the records of its log: ``parley task show``.

Facts about callers, turns and states are read as for the audit. Contents (texts of messages,
results of steps) are left out unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from parley.engine.turn.attempt import CALL_PREFIX, DECISIONS, TOOL_PREFIX, RemoteCall
from parley.model.parts import Part
from parley.model.struct import decode
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.store.audit.reading import CONTENT, SERVER, fact_of
from parley.store.events import LoggedEvent, StepResult, TurnStarted
from parley.store.protocols.tables import NEVER

_STEPS = {
    "step": "step.finished", "sleep": "sleep.began", "slept": "sleep.ended",
    "wait": "event.awaited", "event": "event.arrived",
}  # fmt: skip
"""The events of records by the beginnings of their keys; the name follows."""

_NUMBERED = ("wait", "event")
_RUNNING = (TaskState.SUBMITTED, TaskState.WORKING)
_STARTS = ("turn.started", "turn.retried", "turn.woke", "task.answered")


class Moment(msgspec.Struct, kw_only=True):
    """A line of a timeline: the time (ms), the event, and its details."""

    at: int
    event: str
    details: dict[str, Any]


class Timeline:
    """Collects the moments of a task of ``owner`` from the records of its log, in order.

    ``reference`` is of the failure that the caller knows.
    """

    def __init__(self, owner: str, *, content: bool) -> None:
        self.moments: list[Moment] = []
        self.reference = ""
        self._owner = owner
        self._content = content
        self._question = ""
        self._asked_at = self._began = 0
        self._is_asleep = False
        self._calls: dict[str, int] = {}
        self._artifacts: dict[str, Moment] = {}

    def read(self, records: Iterable[LoggedEvent]) -> None:
        """Add the moments of some records."""
        for record in records:
            self._add(record)

    def _add(self, record: LoggedEvent) -> None:
        event = record.event
        match event:
            case Task():
                self._fact(record)
                self._note(record, "turn.started", {"turn": 1, "attempt": 1})
            case TurnStarted(attempt=0):  # the first turn is queued, and has not begun
                self.moments.pop()
            case TaskArtifactUpdateEvent():
                self._artifact(record, event)
            case StepResult():
                beginning, _, name = event.key.partition(":")
                if f"{beginning}:" == CALL_PREFIX:
                    self._call(record, name, decode(event.value, RemoteCall))
                elif f"{beginning}:" in (TOOL_PREFIX, DECISIONS):
                    self._fact(record)
                elif beginning == "ask":
                    self._question = name
                elif beginning in _STEPS:
                    self._step(record, beginning, name, event.value)
            case TaskStatusUpdateEvent() if event.status.state is TaskState.WORKING:
                if event.status.message is not None:
                    self._note(record, "task.working", {})
            case _:
                self._fact(record)

    def _fact(self, record: LoggedEvent) -> None:
        """Add a fact of the audit."""
        fact = fact_of(record, self._owner, content=self._content)
        if fact is None:
            return
        details: dict[str, Any] = {} if fact.actor == SERVER else {"caller": fact.actor}
        details |= {name: value for name, value in fact.details.items() if name != "context"}
        if fact.kind.startswith(("tool.", "policy.")) and fact.outcome:
            details["outcome"] = fact.outcome
        kind = fact.kind
        if not kind.startswith("turn.") and kind != "task.answered":
            del details["turn"]
        if kind in ("task.input_required", "task.auth_required"):
            details["question"], self._asked_at = self._question, record.at
        elif kind == "task.answered" and self._asked_at:
            details["waited"] = record.at - self._asked_at
        elif kind == "turn.slept":
            self._is_asleep = True
        elif self._is_asleep and kind in _STARTS:
            self._is_asleep, kind = False, "turn.woke"
        self.reference = details.get("reference") or self.reference
        self._note(record, kind, details)

    def _note(self, record: LoggedEvent, event: str, details: dict[str, Any]) -> None:
        if event in _STARTS:
            self._began = record.at
        elif self._began and (event.startswith("turn.") or _is_end(record)):
            details["after"] = record.at - self._began
        self.moments.append(Moment(at=record.at, event=event, details=details))

    def _artifact(self, record: LoggedEvent, event: TaskArtifactUpdateEvent) -> None:
        artifact, size = event.artifact, sum(map(_size, event.artifact.parts))
        moment = self._artifacts.get(artifact.artifact_id)
        if moment is None or not event.append:
            details: dict[str, Any] = {"name": artifact.name} if artifact.name else {}
            details |= {"id": artifact.artifact_id, "chunks": 0, "size": 0, "took": 0}
            moment = Moment(at=record.at, event="artifact", details=details)
            self._artifacts[artifact.artifact_id] = moment
            self.moments.append(moment)
        moment.details["chunks"] += 1
        moment.details["size"] += size
        moment.details["took"] = record.at - moment.at

    def _step(self, record: LoggedEvent, beginning: str, name: str, value: msgspec.Raw) -> None:
        if beginning in _NUMBERED:
            name = name.partition(":")[2]
        details: dict[str, Any] = {"name": name}
        if beginning in ("sleep", "wait"):
            wakes_at = msgspec.json.decode(value)
            if isinstance(wakes_at, int) and wakes_at < NEVER:
                details["until"] = wakes_at
        elif self._content and beginning != "slept":
            details["content"] = bytes(value).decode("utf-8", "replace")[:CONTENT]
        self._note(record, _STEPS[beginning], details)

    def _call(self, record: LoggedEvent, name: str, call: RemoteCall) -> None:
        begun = self._calls.setdefault(name, record.at)
        details: dict[str, Any] = {"call": name, "to": call.address}
        if call.task_id:
            details["task"] = call.task_id
        if call.answered:
            event = "call.answered"
            if call.task is not None:
                details["state"] = call.task.state.value
        elif call.ended:
            event = "call.failed"
        else:
            event = "call.accepted" if call.request is None else "call.sent"
        if event != "call.sent":
            details["took"] = record.at - begun
        self._note(record, event, details)


def _is_end(record: LoggedEvent) -> bool:
    """Return whether a record is the end of a turn."""
    event = record.event
    return isinstance(event, TaskStatusUpdateEvent) and event.status.state not in _RUNNING


def _size(part: Part) -> int:
    """Return the size of a part: characters of a text, bytes of a file or of data as JSON."""
    if part.text is not None:
        return len(part.text)
    return len(part.raw) if part.raw is not None else len(msgspec.json.encode(part.data))
