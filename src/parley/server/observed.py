"""A request as its operator sees it: its span, its metrics, and its line of the access log.

``Dispatcher.call`` begins the observation of every request of every binding that gets as far as an
operation; ``refused`` counts the requests that do not. While nothing observes, a request costs one
check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from parley.model.concurrency import Done
from parley.model.operations import Operation
from parley.model.service import Batches, ItemStream, StreamItem, TraceContext
from parley.observe import metrics, tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from parley.model.service import CallContext

access = logging.getLogger("parley.access")
"""The access log: a record of level INFO for each request, with fields. It is off until it is set
to that level."""

OTHER = "_OTHER"
"""The operation of a request that names none of an agent."""


def is_observed() -> bool:
    """Return whether anything observes requests."""
    return (
        tracing.tracer is not None
        or metrics.current is not None
        or access.level == logging.INFO  # not inherited: it costs too much to be on by chance
    )


class ObservedRequest:
    """A request that is observed, from its parameters to its answer or the end of its stream.

    ``position`` is the position of its span in the trace, where there is one. ``facts`` are for the
    service to add to: the skill, the task. They are ``None`` if neither a recorded span nor the
    access log has them: metrics need none.
    """

    __slots__ = (
        "_agent", "_began", "_caller", "_span", "_streams", "facts", "operation", "position",
        "system",
    )  # fmt: skip

    def __init__(
        self, operation: Operation, system: str, version: str, trace: TraceContext
    ) -> None:
        self.operation, self._streams = operation.name, operation.streaming
        self.system = system
        self.facts: dict[str, Any] | None = {} if access.level == logging.INFO else None
        self.position = trace
        self._began = perf_counter()
        self._agent = self._caller = ""
        self._span: Span | None = None
        if tracing.tracer is not None:
            named = {
                "rpc.system.name": system,
                "rpc.method": operation.name,
                "a2a.version": version,
            }
            span = self._span = tracing.begin(operation.name, "server", trace, named)
            assert span is not None
            self.position = tracing.position_of(span, trace.baggage)
            if span.is_recording():
                self.facts = {}

    def known(self, agent: str, request: Any, context: CallContext) -> None:
        """Record the agent of the request, what the request names, and its caller."""
        self._agent, self._caller = agent, context.caller.id
        if self.facts is None:
            return
        message = getattr(request, "message", None)
        named = {
            "task_id": getattr(request, "task_id", "") or getattr(request, "id", ""),
            "context_id": getattr(request, "context_id", ""),
        }
        if message is not None:
            names = ("task_id", "context_id", "message_id")
            named = {name: getattr(message, name) for name in names}
        self.facts |= {name: value for name, value in named.items() if value}
        if self._span is not None:
            self._span.set_attribute("gen_ai.agent.name", agent)

    def around(self, done: Done) -> Done:
        """Return the receiver of an outcome that ends the observation, and passes the outcome on.

        A stream ends it with its last event.
        """

        def concluded(outcome: Any) -> None:
            if type(outcome) is CoroutineType:
                outcome = self._awaited(outcome)
            else:
                outcome = self._seen(outcome)
            done(outcome)

        return concluded

    async def _awaited(self, answer: CoroutineType[Any, Any, Any]) -> Any:
        try:
            found = await answer
        except BaseException as error:
            self.end(error)
            raise
        return self._seen(found)

    def _seen(self, outcome: Any) -> Any:
        if isinstance(outcome, BaseException):
            self.end(outcome)
        elif self._streams:
            if isinstance(outcome, ItemStream):
                return ItemStream(self._batches(outcome.batches))
            return self._items(outcome)
        else:
            if self.facts is not None:
                tracing.identify(outcome, self.facts)
            self.end()
        return outcome

    async def _batches(self, batches: Batches) -> Batches:
        is_first = True
        error: BaseException | None = None
        try:
            async with aclosing(batches):
                async for batch in batches:
                    if is_first:
                        is_first = False
                        self._first_event()
                    if self.facts is not None:
                        tracing.identify(batch[-1].event, self.facts)
                    yield batch
        except BaseException as raised:
            error = None if isinstance(raised, GeneratorExit) else raised
            raise
        finally:
            self.end(error)
            error = None  # its traceback has this frame: a cycle

    async def _items(self, items: Any) -> AsyncIterator[StreamItem]:
        async def single() -> Batches:
            async with aclosing(items):
                async for item in items:
                    yield (item,)

        async with aclosing(self._batches(single())) as batches:
            async for batch in batches:
                yield batch[0]

    def _first_event(self) -> None:
        if metrics.current is not None:
            seconds = perf_counter() - self._began
            metrics.current.of("first_events", self.system, self.operation, self._agent).observe(
                seconds
            )

    def end(self, error: BaseException | None = None) -> None:
        """End the observation of the request, which an ``error`` may have ended."""
        seconds = perf_counter() - self._began
        if error is not None:
            error.__dict__["is_observed"] = True
        name = "" if error is None else error_name(error)
        if metrics.current is not None:
            metrics.current.of("requests", self.system, self.operation, self._agent, name).observe(
                seconds
            )
        if (span := self._span) is not None:
            tracing.end(span, name or None, self.facts or {})
        if access.level == logging.INFO:
            log_call(
                self.operation, self.system, name, seconds, agent=self._agent, caller=self._caller,
                trace_id=self.position.trace_id, **(self.facts or {}),
            )  # fmt: skip


def error_name(error: BaseException) -> str:
    """Return the name of an error for spans, metrics and logs; a cancelled request has one too."""
    return "canceled" if isinstance(error, asyncio.CancelledError) else type(error).__name__


def refused(error: BaseException, doing: str) -> None:
    """Observe a failed request that has not reached the operation of an agent."""
    if getattr(error, "is_observed", False):
        return
    if metrics.current is not None:
        metrics.current.of("requests", "", OTHER, "", error_name(error)).observe(0)
    if access.level == logging.INFO:
        log_call(doing, "", error_name(error), None)


def log_call(operation: str, system: str, error: str, seconds: float | None, **fields: Any) -> None:
    """Write a record of the access log."""
    found = {name: value for name, value in fields.items() if value}
    if seconds is not None:
        found["duration"] = round(seconds, 6)
    state = str(fields.get("state", "")).removeprefix("TASK_STATE_").lower()
    event = f"{operation} {error or state}".strip()
    found |= {"event": event, "operation": operation, "system": system, "error": error}
    access.info("%s", event, extra=found)
