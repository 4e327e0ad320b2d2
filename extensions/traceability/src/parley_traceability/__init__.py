"""Who called whom, with what, in a tree over agents (v1.md).

traceability = Traceability("Planner")
agent = Agent("Planner", extensions=[traceability])

answer = await traceability.delegate(turn, "https://hotel.example", "Two nights")

print(trace_of(task))
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from parley import Agent, Answer, Task, Turn
from parley.client.bindings.http import redacted
from parley.client.errors import ClientError, RemoteTaskFailed
from parley.client.message import to_parts
from parley.extensions import Extension
from parley.model.errors import A2AError
from parley.model.parts import Message
from parley.model.struct import Timestamp, encode
from parley.model.tasks import TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from parley.security.signing.canonical import canonical

__all__ = ["URI", "Call", "Trace", "Traceability", "trace_of"]

URI = "https://github.com/parley-agents/parley/blob/main/extensions/traceability/v1.md"

E = TypeVar("E", Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)

MOST_TASKS = 10_000
"""The tasks whose calls are kept; the oldest is forgotten."""

DEEPEST = 20
LONGEST_NAME = 200


class Call(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """One call of another agent, and what that one says of its own calls.

    ``sent`` is the SHA-256 of the parts that were sent, as canonical JSON of A2A 1.0. ``at`` is
    when, ``seconds`` how long the answer took, ``state`` the state of its task, ``message`` for a
    direct reply, ``error`` for none. ``trace`` is missing where the agent does not know of traces.
    """

    agent: str
    sent: str
    at: str
    seconds: float
    state: str
    task_id: str = ""
    trace: Trace | None = None


class Trace(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """What an agent says of its part in an answer: itself, and its calls in their order.

    ``omitted`` counts the calls that there was no room for.
    """

    agent: str
    calls: tuple[Call, ...] = ()
    omitted: int = 0


class _TaskCalls:
    """The calls of a task, and how many the function has made in its run now."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self._run = (0, 0)
        self._count = 0

    def next_key(self, turn: Turn) -> str:
        """Return the key of a call that has none: its order, the same in all runs."""
        if (run := (turn.number, turn.attempt)) != self._run:
            self._run, self._count = run, 0
        self._count += 1
        return str(self._count)


class Traceability(Extension):
    """Each answer of an agent says which agents had a part in it.

    ``name`` is what the agent is called in traces. A trace has up to ``max_calls`` calls, of all
    agents together; it counts the others. Texts are not in a trace, only their digests.
    """

    uri = URI
    description = "Answers say which agents had a part in them."
    data = Trace

    def __init__(
        self,
        name: str = "agent",
        *,
        max_calls: int = 100,
        required: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_calls < 0:
            raise ValueError("max_calls is 0 or more")
        self.name = name[:LONGEST_NAME]
        self.max_calls = max_calls
        self._clock = clock
        self._tasks: OrderedDict[str, _TaskCalls] = OrderedDict()
        super().__init__(required=required, params={"maxCalls": max_calls})

    async def delegate(
        self,
        turn: Turn,
        agent: str | Agent,
        message: Any,
        *,
        key: str | None = None,
        **options: Any,
    ) -> Answer[Any]:
        """Delegate to another agent as ``turn.delegate`` does, and keep its part of the trace.

        ``key`` identifies the call, else its number among those of the turn does.
        """
        of_task = self._of_task(turn.task_id)
        calls, key = of_task.calls, key or of_task.next_key(turn)
        began = self._clock()
        named = agent.name if isinstance(agent, Agent) else redacted(agent)
        parts = [msgspec.json.decode(encode(part)) for part in to_parts(message)]
        sent = hashlib.sha256(canonical(parts)).hexdigest()

        def note(name: str, state: str, task_id: str = "", trace: Trace | None = None) -> None:
            calls[key] = Call(
                agent=name[:LONGEST_NAME],
                sent=sent,
                at=str(Timestamp.from_milliseconds(int(began * 1000))),
                seconds=round(self._clock() - began, 3),
                state=state,
                task_id=task_id,
                trace=trace,
            )

        try:
            async with turn.connect(agent, extensions=[URI]) as remote:
                named = remote.card.name
                answer = await turn.delegate(remote, message, key=f"traced-{key}", **options)
        except RemoteTaskFailed as error:
            note(named, error.task.state.value, error.task.id, trace_of(error.task))
            raise
        except (A2AError, ClientError):
            note(named, "error")
            raise
        note(named, answer.state.value if answer.id else "message", answer.id, trace_of(answer))
        return answer

    def _of_task(self, task_id: str) -> _TaskCalls:
        found = self._tasks.setdefault(task_id, _TaskCalls())
        self._tasks.move_to_end(task_id)
        while len(self._tasks) > MOST_TASKS:
            self._tasks.popitem(last=False)
        return found

    def send(self, event: E) -> E:
        """Put the trace into what the agent answers: messages and artifacts."""
        of_task = self._tasks.get(event.task_id)
        calls = () if of_task is None else tuple(of_task.calls.values())
        trace = _bounded(Trace(agent=self.name, calls=calls), self.max_calls)
        if isinstance(event, Message):
            return self.put(event, trace)
        if isinstance(event, TaskArtifactUpdateEvent):
            return replace(event, artifact=self.put(event.artifact, trace))
        if event.status.message is not None:
            said = self.put(event.status.message, trace)
            event = replace(event, status=replace(event.status, message=said))
        if event.status.state.is_terminal:
            self._tasks.pop(event.task_id, None)
            return self.put(event, trace)
        return event


def trace_of(answer: Task | Message | Answer[Any]) -> Trace | None:
    """Return the trace in an answer: of its message, or of the newest artifact that has one.

    What other agents wrote is no proof. Returns ``None`` where there is none that can be read.
    """
    if isinstance(answer, Message):
        carriers: list[Any] = [answer]
    else:
        carriers = [answer.status.message, *reversed(answer.artifacts), *reversed(answer.history)]
    for carrier in carriers:
        value = (carrier.metadata or {}).get(URI) if carrier is not None else None
        if value is not None:
            try:
                return _bounded(msgspec.convert(value, Trace), 10_000)
            except (msgspec.ValidationError, RecursionError):
                return None
    return None


def _bounded(trace: Trace, most: int) -> Trace:
    """Return a trace with no more calls than these, the nearest ones first."""
    keep: set[int] = set()
    level, depth = [trace], 0
    while level and depth < DEEPEST:
        calls = [call for each in level for call in each.calls]
        keep.update(id(call) for call in calls[: most - len(keep)])
        level = [call.trace for call in calls if id(call) in keep and call.trace is not None]
        depth += 1
    return _cut(trace, keep)


def _cut(trace: Trace, keep: set[int]) -> Trace:
    calls = tuple(
        replace(call, trace=None if call.trace is None else _cut(call.trace, keep))
        for call in trace.calls
        if id(call) in keep
    )
    left = [call for call in trace.calls if id(call) not in keep]
    return replace(trace, calls=calls, omitted=trace.omitted + sum(map(_size, left)))


def _size(call: Call) -> int:
    if call.trace is None:
        return 1
    return 1 + call.trace.omitted + sum(map(_size, call.trace.calls))
