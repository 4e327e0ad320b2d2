"""Acts and their actors: the entries of the audit, and the facts in the logs of tasks, by time.

The log of a task is the only copy of its facts. A fact has the form of an entry, and its id names
the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from typing import Any

import msgspec

from parley.model.ids import INCIDENT_KEY
from parley.model.parts import Message
from parley.model.service import caller_of
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.store.audit.trail import AuditEntry, AuditFilter, AuditLine, line_of
from parley.store.events import (
    CancelRequested,
    LoggedEvent,
    MessageReceived,
    RecordKind,
    StepResult,
    StoredCaller,
    TurnStarted,
    logged,
)

Rows = Callable[[str, Sequence[Any]], Iterable[Sequence[Any]]]
"""Returns the rows of a query of ``sql/shared/audit.sql``."""

DECISION = '{"key":"authorize:'
"""The beginning of a policy decision's record, logged by ``Turn.authorize``."""

TOOL_CALL = '{"key":"tool:'
"""The beginning of a tool call's record, logged by ``Turn.tools``."""

SERVER = "server"
"""The actor of acts by a server itself."""

CONTENT = 2000
"""The number of characters of a message that are shown on request."""

_SHOWN = frozenset(TaskState) - {TaskState.UNSPECIFIED, TaskState.SUBMITTED, TaskState.WORKING}


class AuditReading:
    """Reads acts and their actors from a store, at one moment."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def chain(self) -> Iterator[AuditLine]:
        """Yield all lines of the audit, in the order of their numbers."""
        return (line_of(row) for row in self._rows("audit_chain", ()))

    def entries(
        self, which: AuditFilter, *, after: int = 0, content: bool = False
    ) -> Iterator[AuditEntry]:
        """Yield lines of the audit after a number, and facts of tasks, the oldest first."""
        lines, facts = self.lines(which, after=after), self.facts(which, content=content)
        return merge(lines, facts, key=lambda entry: entry.at)

    def last(self) -> AuditLine | None:
        """Return the last line of the audit."""
        return next((line_of(row) for row in self._rows("audit_last", ())), None)

    def lines(self, which: AuditFilter, *, after: int = 0) -> Iterator[AuditLine]:
        """Yield lines of the audit after a number, the oldest first."""
        since, until = which.span
        rows = self._rows("audit_by_time", (after, since, until))
        return (line for line in map(line_of, rows) if which.selects(line))

    def log(self, key: int, task_id: str) -> Iterator[LoggedEvent]:
        """Yield the records of the task with a key in the store, in the order of its log."""
        for _, seq, sub, turn, kind, at, payload in self._rows("audit_log", (key,)):
            yield logged(task_id, seq, sub, turn, RecordKind(kind), at, bytes(payload))

    def facts(self, which: AuditFilter, *, content: bool = False) -> Iterator[AuditEntry]:
        """Yield facts of tasks, the oldest first; ``content`` adds texts of messages."""
        since, until = which.span
        agent, task_id = which.agent, which.task_id
        values = (since, since, until, agent, agent, task_id, task_id)
        for row in self._rows("audit_facts", values):
            task_id, agent, tenant, owner, seq, sub, turn, kind, at, payload, first = row
            record = logged(task_id, seq, sub, turn, RecordKind(kind), at, bytes(payload))
            asked = first and logged(task_id, seq, 1, turn, RecordKind.TURN, at, first)
            fact = fact_of(record, owner, asked, content=content)
            if fact is not None:
                fact = msgspec.structs.replace(fact, agent=agent, tenant=tenant)
                if which.selects(fact):
                    yield fact


class _Decision(msgspec.Struct, frozen=True, rename="camel"):
    action: str = ""
    resource: str = ""
    allowed: bool = False
    caller: StoredCaller | None = None


class _ToolCall(msgspec.Struct, frozen=True, rename="camel"):
    state: str = ""
    tool: str = ""
    server: str = ""
    failed: bool = False


def fact_of(
    record: LoggedEvent, owner: str, asked: LoggedEvent | None = None, *, content: bool = False
) -> AuditEntry | None:
    """Return the fact in a record of a task of ``owner``, if there is one.

    ``asked`` is the record of the request that began the task.
    """
    event = record.event
    details: dict[str, Any] = {"turn": record.turn}
    kind, outcome = "", ""
    caller: StoredCaller | None = None
    messages: Sequence[Message] = ()
    match event:
        case Task():
            kind, messages = "task.created", event.history[:1]
            request = asked.event if asked is not None else None
            caller = _caller(request.caller if isinstance(request, TurnStarted) else None, owner)
        case MessageReceived():
            kind, messages = "message.received", (event.message,)
            caller = _caller(event.caller, owner)
        case TurnStarted():
            kind = _kind_of(event, record)
            details |= {"attempt": event.attempt}
            if event.entries and not event.live:
                caller, messages = _caller(event.caller, owner), event.messages
            if event.answers:
                details |= {"question": event.answers}
        case CancelRequested():
            kind, caller = "task.cancel_requested", _canceller(event, owner)
            if event.reason:
                details |= {"reason": event.reason}
        case TaskStatusUpdateEvent():
            state = event.status.state
            if state in _SHOWN:
                outcome = state.name.lower()
                kind = f"task.{outcome}"
            if event.status.message is not None:
                messages = (event.status.message,)
                incident = (event.status.message.metadata or {}).get(INCIDENT_KEY)
                if state is TaskState.FAILED and isinstance(incident, dict):
                    details |= {"context": event.context_id}
                    details |= {each: incident.get(each) for each in ("reference", "skill")}
        case StepResult() if event.key.startswith("tool:"):
            call = msgspec.json.decode(event.value, type=_ToolCall)
            kind, outcome = f"tool.{call.state}", "failed" if call.failed else ""
            details |= {"tool": call.tool, "server": call.server}
        case StepResult():
            decision = msgspec.json.decode(event.value, type=_Decision)
            kind, outcome = "policy.decided", "allowed" if decision.allowed else "denied"
            details |= {"action": decision.action, "resource": decision.resource}
            caller = _caller(decision.caller, owner)
    if not kind:
        return None
    if content and messages:
        details |= {"content": _texts(messages)}
    who = caller or StoredCaller(id=SERVER, issuer="parley")
    return AuditEntry(
        id=f"task:{record.task_id}:{record.seq}.{record.sub}",
        kind=kind,
        at=record.at,
        issuer=who.issuer,
        actor=who.id,
        client=who.client,
        subject=record.task_id,
        outcome=outcome,
        details=details | ({"actors": list(who.actors)} if who.actors else {}),
    )


def _kind_of(turn: TurnStarted, record: LoggedEvent) -> str:
    if turn.live or (record.seq, record.sub) == (1, 1):
        return ""  # its message and its task are separate facts
    if turn.released:
        return "turn.released"
    if turn.asleep:
        return "turn.slept"
    if turn.answers:
        return "task.answered"
    return "turn.started" if turn.attempt <= 1 else "turn.retried"


def _caller(stored: StoredCaller | None, owner: str) -> StoredCaller:
    """Return the caller in the log; without a record it was the owner."""
    by = caller_of(owner)
    if stored is None:
        return StoredCaller(id=by.id or "anonymous", issuer=by.issuer, client=by.client)
    if not stored.issuer and stored.id == by.id:
        return msgspec.structs.replace(stored, issuer=by.issuer)
    return stored


def _canceller(event: CancelRequested, owner: str) -> StoredCaller | None:
    """Return the caller who cancelled, ``None`` for the server itself.

    Logs of earlier versions do not identify the server. A caller with an id is always recorded.
    """
    if event.reason or (event.caller is None and caller_of(owner).id):
        return None
    return _caller(event.caller, owner)


def _texts(messages: Sequence[Message]) -> str:
    texts = [part.text for each in messages for part in each.parts if part.text is not None]
    return "\n".join(texts)[:CONTENT]
