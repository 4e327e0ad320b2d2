"""The request, turns and deadlines of a task, reconstructed from its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from parley.engine.agent_options import Execution
from parley.engine.caller import caller_in, record_of
from parley.engine.skill import Skill
from parley.engine.turn.attempt import PrivateRecords, Request
from parley.engine.turn.task_writer import timestamp
from parley.extensions.call_chain import CallChain, Chain
from parley.model.extensions import CALL_CHAIN
from parley.model.ids import milliseconds_of
from parley.model.parts import Message, Role
from parley.model.service import NO_TRACE
from parley.model.struct import encode
from parley.model.tasks import Task, TaskState, TaskStatus
from parley.store.events import (
    LoggedEvent,
    MessageReceived,
    PrivateEvent,
    StepResult,
    TaskEvent,
    TurnStarted,
)
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import TaskRecord
from parley.store.task_store import TaskStore


def first_events(
    request: Request, task_id: str, context_id: str, *, skills: int, at: int, queued: bool = False
) -> list[TaskEvent | PrivateEvent]:
    """Return the first events of the log of a task that begins ``at`` (ms).

    A private record has the facts of the request that are not in the message, if there are any; it
    names the skill only if the agent has several. The address is in the task's head (see
    ``Append.base_url``). ``queued``: no attempt has started yet.
    """
    message = replace(request.message, task_id=task_id, context_id=context_id)
    task = Task(
        id=task_id,
        context_id=context_id,
        status=TaskStatus(state=TaskState.SUBMITTED, timestamp=timestamp(at)),
        history=(message,),
    )
    started = TurnStarted(
        turn=1,
        attempt=0 if queued else 1,
        skill=request.skill.id if skills > 1 else "",
        accepted_output_modes=request.accepted_output_modes,
        metadata=request.metadata,
        extensions=tuple(sorted(request.extensions)),
        caller=record_of(request.caller),
        trace=request.trace or None,
    )
    return [task] if started == TurnStarted(turn=1) else [task, started]


def first_turn_receipts(receipts: Sequence[Receipt], task_id: str) -> list[Receipt]:
    """Return the receipts of a message that begins a task."""
    return [replace(receipt, task_id=task_id, turn=1) for receipt in receipts]


def receipt_of(reply: Message, receipts: Sequence[Receipt]) -> Receipt | None:
    """Return the receipt of a message with its direct reply, if it must be stored."""
    return replace(receipts[0], reply=encode(reply)) if receipts else None


def turns_in(records: PrivateRecords) -> list[TurnStarted]:
    """Return the turns that the log records."""
    return [record.event for record in records.turns if isinstance(record.event, TurnStarted)]


def results_in(records: PrivateRecords) -> dict[str, Raw]:
    """Return the task's stored values by key, the last value of each."""
    return {
        record.event.key: record.event.value
        for record in records.remembered
        if isinstance(record.event, StepResult)
    }


def first_turn(records: Iterable[LoggedEvent]) -> TurnStarted:
    """Return the record of the request that began a task, from records of its first turns."""
    for record in records:
        started = record.event
        assert isinstance(started, TurnStarted)
        is_first = started.turn == 1 and started.attempt <= 1
        if is_first and not (started.live or started.released or started.asleep):
            return started
    return TurnStarted(turn=1)


def request_of(
    record: TaskRecord,
    task: Task,
    records: PrivateRecords,
    skills: Mapping[str, Skill],
    default: Skill,
    *,
    turn: int,
    received: MessageReceived | None = None,
) -> Request:
    """Return the request of a turn, as far as the log has it.

    ``received`` is the message of a new turn; a re-run finds its own in the log. The caller is the
    message's sender; extensions, the trace and the latest metadata come from that message too.
    Accepted output modes and the agent's address persist until another message names others.
    """
    first = first_turn(records.turns)
    request = Request(
        message=next(m for m in task.history if m.role is Role.USER),
        skill=skills.get(first.skill, default),
        caller=caller_in(first.caller, record.scope.owner),
        tenant=record.scope.tenant,
        accepted_output_modes=first.accepted_output_modes,
        metadata=first.metadata,
        extensions=frozenset(first.extensions),
        base_url=record.base_url,
        chain=_chain_in(first.extensions, first.metadata),
        trace=first.trace or NO_TRACE,
    )
    taken: MessageReceived | TurnStarted | None = received
    if taken is None and turn > 1:
        turns = turns_in(records)
        taken = next((t for t in turns if t.turn == turn and t.messages and not t.live), None)
    if taken is None:
        return request
    return replace(
        request,
        caller=caller_in(taken.caller, record.scope.owner),
        extensions=frozenset(taken.extensions),
        accepted_output_modes=taken.accepted_output_modes or request.accepted_output_modes,
        base_url=taken.base_url or request.base_url,
        latest_metadata=taken.metadata,
        chain=_chain_in(taken.extensions, taken.chain and {CALL_CHAIN: taken.chain}),
        trace=taken.trace or NO_TRACE,
        first_trace=request.trace,
    )


def _chain_in(extensions: Iterable[str], metadata: dict[str, Any] | None) -> Chain | None:
    """Return the chain in the metadata of a request that was admitted with the extension."""
    if metadata is None or CALL_CHAIN not in metadata or CALL_CHAIN not in extensions:
        return None
    value = metadata[CALL_CHAIN]
    return CallChain.read(value)


def turn_taking(received: MessageReceived, *, turn: int, answers: str) -> TurnStarted:
    """Return the record of a turn for a message, which answers the question ``answers``."""
    return TurnStarted(
        turn=turn,
        entries=(received.entry,),
        messages=(received.message,),
        answers=answers,
        accepted_output_modes=received.accepted_output_modes,
        extensions=received.extensions,
        caller=received.caller,
        base_url=received.base_url,
        metadata=received.metadata,
        chain=received.chain,
        trace=received.trace,
    )


def latest_message(records: PrivateRecords) -> Message | None:
    """Return the message of the last turn, ``None`` for the first turn."""
    taken = [turn.messages[0] for turn in turns_in(records) if turn.messages and not turn.live]
    return taken[-1] if taken else None


class Attempts(NamedTuple):
    """The number of attempts at a turn, and the number of released ones among them.

    ``asleep``: the last attempt fell asleep, and will continue.
    """

    made: int
    released: int
    asleep: bool


def attempts_of(record: TaskRecord, records: PrivateRecords) -> Attempts:
    """Return the attempts at the open turn; zero for a queued turn."""
    same = [turn for turn in turns_in(records) if turn.turn == record.turn]
    count = max((t.attempt for t in same), default=1)
    return Attempts(count, sum(t.released for t in same), bool(same) and same[-1].asleep)


def pending_question(records: PrivateRecords) -> str:
    """Return the key of the open question of the task, or an empty string."""
    asked = [
        record.event.key.removeprefix("ask:")
        for record in records.remembered
        if isinstance(record.event, StepResult) and record.event.key.startswith("ask:")
    ]
    answered = {turn.answers for turn in turns_in(records)}
    return next((key for key in reversed(asked) if key not in answered), "")


class Deadline(NamedTuple):
    """A time in ms by the store's clock, and the last message of the task if it fails then."""

    at: int
    reason: str


class Deadlines:
    """The deadlines of an agent's tasks, computed from the log by the store's clock."""

    def __init__(self, store: TaskStore, options: Execution) -> None:
        self._store = store
        self._turn = options.turn_timeout
        self._task = options.task_timeout
        self.are_set = not (self._turn is None and self._task is None)

    def for_new_task(self, chain: Chain | None) -> Deadline | None:
        """Return the deadline of a first turn that starts now."""
        now = self._store.now()
        return earliest(
            _deadline(now, self._task, "task"), _deadline(now, self._turn, "turn"), of_chain(chain)
        )

    async def for_turn(
        self, record: TaskRecord, records: PrivateRecords, turn: int
    ) -> Deadline | None:
        """Return the deadline of a task in a turn; only the task's own deadline if ``turn`` is
        0."""
        now = created = self._store.now()
        if self._task is not None or turn == 1:
            created = (await self._store.events(record.stored.task_id, 0, 1))[0].at
        started = _started(records, turn, created, now)
        return earliest(
            _deadline(created, self._task, "task"),
            _deadline(started, self._turn, "turn") if turn else None,
        )

    def of_task(self, task_id: str) -> int | None:
        """Return the approximate time (ms) of a task's timeout: its id has its creation time."""
        if self._task is None:
            return None
        return milliseconds_of(task_id) + _milliseconds(self._task)


def _started(records: PrivateRecords, turn: int, created: int, now: int) -> int:
    """Return the start of the first attempt at a turn; ``now`` if it is starting."""
    if turn == 1 and all(started.attempt for started in turns_in(records)):
        return created  # it was not queued
    for record in records.turns:
        started = record.event
        assert isinstance(started, TurnStarted)
        if started.turn == turn and started.attempt and not started.live:
            return record.at
    return now


def _deadline(since: int, timeout: timedelta | None, what: str) -> Deadline | None:
    if timeout is None:
        return None
    reason = f"The {what} was not finished in the time that it may take ({timeout})."
    return Deadline(since + _milliseconds(timeout), reason)


def _milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def of_chain(chain: Chain | None) -> Deadline | None:
    """Return the deadline given by the caller of a turn."""
    if chain is None or chain.deadline is None:
        return None
    reason = f"The turn was not finished by the deadline of its caller ({chain.deadline})."
    return Deadline(chain.deadline.milliseconds, reason)


def earliest(*deadlines: Deadline | None) -> Deadline | None:
    """Return the earliest of these deadlines."""
    return min([one for one in deadlines if one is not None], default=None)
