"""What an operator sees of turns: their log, their spans and their metrics.

The log is records of the logger ``parley.turns``, with fields, for people and programs. An event of
a turn is one record, whose fields name the event, the task, the context, the skill, the caller and
the duration of the attempt. The records of a second are limited, and one further record counts the
rest. A failure with a reference is always logged; above the limit without its traceback. While
nothing observes turns, a turn costs three checks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from parley.extensions.usage import spent_on
from parley.model.ids import log_incident
from parley.model.parts import Message
from parley.model.service import NO_TRACE
from parley.model.tasks import Task, TaskState
from parley.observe import metrics, tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

A = TypeVar("A")

log = logging.getLogger("parley.turns")

MOST_RECORDS = 20
"""The limit of a second for records of failures, and the limit for other records."""

_ENDS = {
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.CANCELED: "canceled",
    TaskState.REJECTED: "rejected",
    TaskState.AUTH_REQUIRED: "needs authorization",
}
"""The event of a turn that leaves its task in a state; in any other state it asks."""

Facts = Callable[[], dict[str, Any]]
"""Returns the fields that name a turn. They are asked for only if a record is written."""


class _Second:
    """The records of the current second: the numbers of both kinds, and the events left out.

    The second is of the event loop's time, which a simulation sets.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ends_at = 0.0
        self.failures = self.others = 0
        self.left_out: Counter[str | TaskState] = Counter()

    def has_room(self, *, is_failure: bool) -> bool:
        """Count a record. Return whether it is within the limit."""
        loop = asyncio.get_running_loop()
        if loop is not self.loop or loop.time() >= self.ends_at:
            self.report()
            self.loop, self.ends_at = loop, loop.time() + 1
            self.failures = self.others = 0
        if is_failure:
            self.failures += 1
            return self.failures <= MOST_RECORDS
        self.others += 1
        return self.others <= MOST_RECORDS

    def leave_out(self, event: str) -> None:
        """Count an event that is not logged, and report it when the second is over."""
        if not self.left_out and self.loop is not None:
            self.loop.call_at(self.ends_at, self.report)
        self.left_out[event] += 1

    def report(self) -> None:
        """Log the number of the events that were left out."""
        left_out, self.left_out = self.left_out, Counter()
        if left_out:
            counts = ", ".join([f"{n} {event}" for event, n in left_out.most_common()])
            log.info("and %d more: %s", left_out.total(), counts, extra={"left_out": left_out})


_second = _Second()


class ObservedTurn:
    """An attempt at a turn that its log, tracing or the metrics observe.

    ``position`` is the position of its span in the trace.
    """

    __slots__ = ("_is_over", "_labels", "_span", "began", "facts", "position")

    def __init__(self, attempt: Any, facts: Facts) -> None:
        self.began = perf_counter()
        self.facts = facts
        self.position = NO_TRACE
        self._is_over = False
        self._span: Span | None = None
        self._labels = attempt.runner.scope.agent, attempt.request.skill.id
        if tracing.tracer is not None:
            self._begin_span(attempt, facts())
        if attempt.number > 1:
            if metrics.current is not None:
                metrics.current.of("recoveries", self._labels[0]).inc()
            note("began again", facts)
        elif log.isEnabledFor(logging.DEBUG):
            _write(logging.DEBUG, "began", facts())

    def _begin_span(self, attempt: Any, found: dict[str, Any]) -> None:
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": found["agent"],
            "gen_ai.conversation.id": found["context_id"],
            "a2a.skill": found["skill"],
            "parley.turn": found["turn"],
            "parley.attempt": attempt.number,
        }
        if tracing.records_content:
            attributes["gen_ai.input.messages"] = _messages("user", attempt.latest.text)
        trace, first = attempt.request.trace, attempt.request.first_trace
        if first.trace_id == trace.trace_id:
            first = NO_TRACE
        name = f"invoke_agent {found['agent']}"
        span = tracing.begin(name, "internal", trace, attributes, link=first)
        if span is not None:
            self._span, self.position = span, tracing.position_of(span, trace.baggage)

    def around(self, invoke: Callable[[A], Awaitable[object]]) -> Callable[[A], Awaitable[object]]:
        """Return the call of the function, in which the span of the turn is the current span."""
        if self._span is None:
            return invoke

        async def invoked(attempt: A) -> object:
            with tracing.current(self._span, self.position.baggage):
                return await invoke(attempt)

        return invoked

    def add_event(self, name: str, key: str) -> None:
        """Add an event of the function to the span: a question, or a wait for ``key``."""
        if self._span is not None:
            self._span.add_event(name, {"parley.key": key} if key else None)

    def end(self, event: str | TaskState, answer: Task | Message | None = None) -> None:
        """Log the end of the attempt, in a state of its task or by an event; end its span.

        The costs that the ``answer`` reports are counted, if this ends its task.
        """
        outcome = _ENDS.get(event, "asked") if isinstance(event, TaskState) else event
        if answer is not None and self._span is not None and tracing.records_content:
            self._span.set_attribute("gen_ai.output.messages", _messages("assistant", answer.text))
        note(outcome, self.facts, self.began)
        self.close(outcome)
        if metrics.current is not None and answer is not None:
            spent = spent_on(answer)
            for name, amount in (("tokens", spent.tokens), ("cost", spent.cost)):
                if amount:
                    metrics.current.of(name, self._labels[0]).inc(amount)

    def close(self, outcome: str = "interrupted", error: BaseException | None = None) -> None:
        """End the span, and count the attempt, unless it has ended."""
        if self._is_over:
            return
        self._is_over = True
        agent, skill = self._labels
        if metrics.current is not None:
            duration = perf_counter() - self.began
            metrics.current.of("turns", agent, skill, outcome).observe(duration)
        if (span := self._span) is not None:
            found = self.facts() if span.is_recording() else {}
            span.set_attribute("parley.outcome", outcome)
            task = {"task_id": found.get("task_id")}
            tracing.end(span, error or ("failed" if outcome == "failed" else None), task)


def _messages(role: str, text: str) -> str:
    """Return a message as the JSON of an attribute for models and agents."""
    messages = [{"role": role, "parts": [{"type": "text", "content": text}]}]
    return msgspec.json.encode(messages).decode()


def begin(attempt: Any, facts: Facts) -> ObservedTurn | None:
    """Return the observation of an ``Attempt`` that begins; ``None`` if nothing observes turns.

    The beginning is logged if this is a repeated attempt, and at level debug.
    """
    is_observed = (
        tracing.tracer is not None or metrics.current is not None or log.isEnabledFor(logging.INFO)
    )
    return ObservedTurn(attempt, facts) if is_observed else None


def note(event: str | TaskState, facts: Facts, began: float = 0.0, **fields: Any) -> None:
    """Log an event of a turn, or its end in a state, within the limit, if turns are logged."""
    if not log.isEnabledFor(logging.INFO):
        return
    if event in _second.left_out:
        loop = asyncio.get_running_loop()
        if loop is _second.loop and loop.time() < _second.ends_at:
            _second.left_out[event] += 1  # the way of most, under load
            return
    if isinstance(event, TaskState):
        event = _ENDS.get(event, "asked")
    if not _second.has_room(is_failure=event == "failed"):
        _second.leave_out(event)
        return
    if began:
        fields["duration"] = round(perf_counter() - began, 6)
    _write(logging.INFO, event, {**fields, **facts()})


def failed(error: BaseException, fields: dict[str, Any], observed: ObservedTurn | None) -> str:
    """Log the unexpected exception that ended a turn. Return the reference for the caller."""
    has_room = _second.has_room(is_failure=True)
    what = _named(fields)
    if not has_room:
        what = f"{what} ({type(error).__name__}; many failures, so without traceback)"
    if observed is not None:
        fields["duration"] = round(perf_counter() - observed.began, 6)
        observed.close("failed", error)
    return log_incident(log, what, error, has_traceback=has_room, event="failed", **fields)


def _named(fields: dict[str, Any]) -> str:
    """Return a turn in words."""
    skill = f"the skill {fields['skill']!r}" if "skill" in fields else "the turn"
    if "task_id" not in fields:
        return skill
    return f"task {fields['task_id']} of context {fields['context_id']}: {skill}"


def _write(level: int, event: str, fields: dict[str, Any]) -> None:
    log.log(level, "%s %s", _named(fields), event, extra={"event": event, **fields})
