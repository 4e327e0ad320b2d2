"""What a task's log says of its request and its turns: written first, read when it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from parley.engine.caller import caller_in, record_of
from parley.engine.skill import Skill
from parley.engine.turn.attempt import Request
from parley.engine.turn.private_records import PrivateRecords
from parley.engine.turn.task_writer import timestamp
from parley.model.parts import Message, Role
from parley.model.tasks import Task, TaskState, TaskStatus
from parley.store.events import (
    LoggedEvent,
    PrivateEvent,
    Received,
    Remembered,
    TaskEvent,
    TurnStarted,
)
from parley.store.task_store import Receipt, TaskRecord


def opening(
    request: Request, task_id: str, context_id: str, *, skills: int, at: int, in_line: bool = False
) -> list[TaskEvent | PrivateEvent]:
    """Return the first events of the log of a task that begins at a moment (ms).

    What the message itself does not say of the request is logged beside the Task, if there is
    anything; the skill only where there are several. ``in_line`` says that no attempt at the first
    turn begins with it.
    """
    message = replace(request.message, task_id=task_id, context_id=context_id)
    task = Task(
        id=task_id,
        context_id=context_id,
        status=TaskStatus(state=TaskState.SUBMITTED, timestamp=timestamp(at)),
        history=(message,),
    )
    facts = TurnStarted(
        turn=1,
        attempt=0 if in_line else 1,
        skill=request.skill.id if skills > 1 else "",
        accepted_output_modes=request.accepted_output_modes,
        metadata=request.metadata,
        extensions=tuple(sorted(request.extensions)),
        caller=record_of(request.caller),
    )
    return [task] if facts == TurnStarted(turn=1) else [task, facts]


def begun_by(receipts: Sequence[Receipt], task_id: str) -> list[Receipt]:
    """Return the receipts of a message that begins a task."""
    return [replace(receipt, task_id=task_id, turn=1) for receipt in receipts]


def turns_of(memory: PrivateRecords) -> list[TurnStarted]:
    """Return what the log says of the task's turns."""
    return [record.event for record in memory.turns if isinstance(record.event, TurnStarted)]


def facts_of(records: Iterable[LoggedEvent]) -> TurnStarted:
    """Return what the log says of the request that began a task, given its first turns."""
    for record in records:
        started = record.event
        assert isinstance(started, TurnStarted)
        is_first = started.turn == 1 and started.attempt <= 1
        if is_first and not (started.live or started.released):
            return started
    return TurnStarted(turn=1)


def request_of(
    record: TaskRecord, memory: PrivateRecords, skills: Mapping[str, Skill], default: Skill
) -> Request:
    """Return what the task was asked, as far as the log knows."""
    facts = facts_of(memory.turns)
    return Request(
        message=next(m for m in record.task.history if m.role is Role.USER),
        skill=skills.get(facts.skill, default),
        caller=caller_in(facts.caller, record.scope.owner),
        tenant=record.scope.tenant,
        accepted_output_modes=facts.accepted_output_modes,
        metadata=facts.metadata,
        extensions=frozenset(facts.extensions),
    )


def asked_in(record: TaskRecord, memory: PrivateRecords, turn: int, request: Request) -> Request:
    """Return the request with who sent the message of a later turn, and what it asked for."""
    begun = next(
        (t for t in turns_of(memory) if t.turn == turn and t.messages and not t.live), None
    )
    return request if begun is None or turn == 1 else with_message_options(record, request, begun)


def with_message_options(
    record: TaskRecord, request: Request, asked: Received | TurnStarted
) -> Request:
    """Return the request of a turn: the caller is that of its message, extensions are in force for
    one message, and accepted modes until another message names others.
    """
    return replace(
        request,
        caller=caller_in(asked.caller, record.scope.owner),
        extensions=frozenset(asked.extensions),
        accepted_output_modes=asked.accepted_output_modes or request.accepted_output_modes,
    )


def latest_of(record: TaskRecord, memory: PrivateRecords) -> Message | None:
    """Return the message that the last turn took, nothing for a task's first."""
    taken = [turn.messages[0] for turn in turns_of(memory) if turn.messages and not turn.live]
    return taken[-1] if taken else None


def attempts_of(record: TaskRecord, memory: PrivateRecords) -> tuple[int, int]:
    """Return how often the open turn was attempted, and how often without a fault of its own.

    A turn that stood in line was not attempted yet.
    """
    same = [turn for turn in turns_of(memory) if turn.turn == record.turn]
    return max((t.attempt for t in same), default=1), sum(t.released for t in same)


def pending_question(memory: PrivateRecords) -> str:
    """Return the key of the question that the task waits on, or nothing."""
    asked = [
        record.event.key.removeprefix("ask:")
        for record in memory.remembered
        if isinstance(record.event, Remembered) and record.event.key.startswith("ask:")
    ]
    answered = {turn.answers for turn in turns_of(memory)}
    return next((key for key in reversed(asked) if key not in answered), "")
