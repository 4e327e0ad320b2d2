"""Spans by OpenTelemetry, if the program uses it.

``use`` sets the provider of spans, ``find`` takes the provider that the program has set. Without
one ``tracer`` is ``None``, and no span costs more than that check. Attributes have names, ids and
states; the content of messages only with ``records_content``.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from parley.model.operations import SendMessageResponse
from parley.model.service import NO_TRACE, TraceContext
from parley.model.tasks import Task, TaskStatusUpdateEvent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

SCOPE = "parley"
"""The name of the instrumentation scope."""

Kind = Literal["internal", "server", "client", "producer", "consumer"]

tracer: Tracer | None = None
"""The source of spans; ``None`` while there is no tracing."""

_NOTHING: Mapping[str, Any] = {}

records_content = False
"""True if spans may have the content of messages, of prompts and of results."""


def use(provider: TracerProvider | None, *, content: bool = False) -> None:
    """Make all further spans by a provider; ``None`` ends tracing. ``content``: spans have it."""
    global tracer, records_content
    tracer = None if provider is None else provider.get_tracer(SCOPE)
    records_content = content


def find(*, content: bool = False) -> None:
    """Use the provider that the program has set with OpenTelemetry, unless there is one."""
    global records_content
    records_content |= content
    if tracer is None and (provider := program_provider()) is not None:
        use(provider, content=records_content)


def program_provider() -> TracerProvider | None:
    """Return the provider that the program has set with OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    provider: TracerProvider | None = None if api is None else api.get_tracer_provider()
    if api is None or isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    return provider


def begin(
    name: str,
    kind: Kind = "internal",
    parent: TraceContext | None = None,
    attributes: Mapping[str, Any] | None = None,
    link: TraceContext = NO_TRACE,
) -> Span | None:
    """Return a new span, ``None`` without tracing. End it with ``end``.

    Its parent is the position ``parent``, by default the current span of the program. A ``parent``
    without a trace begins a new one. ``link`` is a position in another trace.
    """
    if tracer is None:
        return None
    api = _otel()
    links = None
    if link.traceparent:
        there = api.trace.get_current_span(context_at(link)).get_span_context()
        links = [api.trace.Link(there)]
    context = None if parent is None else context_at(parent)
    return tracer.start_span(name, context, api.kinds[kind], attributes, links)


def outgoing(
    name: str, given: TraceContext, attributes: Mapping[str, Any], kind: Kind = "client"
) -> tuple[Span | None, TraceContext]:
    """Return the span of a request to another server, and the position to send with it.

    The span is below the program's current span, else below ``given``. Without tracing, the
    program's current span itself is the position, else ``given``.
    """
    if tracer is None:
        return None, position(given)
    is_below = _otel().trace.get_current_span().get_span_context().is_valid
    span = begin(name, kind, None if is_below else given, attributes)
    assert span is not None
    return span, position_of(span, _baggage(given.baggage))


ATTRIBUTES = {
    "skill": "a2a.skill",
    "task_id": "a2a.task.id",
    "context_id": "gen_ai.conversation.id",
    "correlation_id": "messaging.message.conversation_id",
    "state": "a2a.task.state",
}
"""The names of facts as attributes."""


class _StatusInJson(msgspec.Struct):
    state: str


class _TaskInJson(msgspec.Struct, rename="camel"):
    id: str
    status: _StatusInJson
    context_id: str = ""


_TASK_IN_JSON = msgspec.json.Decoder(_TaskInJson)


def identify(answer: Any, facts: dict[str, Any]) -> None:
    """Add the task, the context and the state of an answer or an event to facts."""
    if isinstance(answer, SendMessageResponse):
        answer = answer.payload
    if isinstance(answer, msgspec.Raw):
        task = _TASK_IN_JSON.decode(answer)
        facts |= {"task_id": task.id, "context_id": task.context_id, "state": task.status.state}
        return
    for name in ("task_id", "context_id"):
        if found := getattr(answer, name, ""):
            facts[name] = found
    if isinstance(answer, Task):
        facts["task_id"] = answer.id
    if isinstance(answer, Task | TaskStatusUpdateEvent):
        facts["state"] = answer.status.state.value


def end(
    span: Span, error: BaseException | str | None = None, facts: Mapping[str, Any] = _NOTHING
) -> None:
    """End a span. An ``error``, or the name of one, is its status; ``facts`` become attributes.

    A cancellation is no error: a function that asks or sleeps ends so.
    The text of an error may have content, so it is only recorded where content is.
    """
    for name, value in facts.items() if span.is_recording() else ():
        if value and (attribute := ATTRIBUTES.get(name)):
            span.set_attribute(attribute, value)
    if error is not None and not isinstance(error, CancelledError | GeneratorExit):
        name = error if isinstance(error, str) else type(error).__qualname__
        span.set_attribute("error.type", name)
        span.set_status(_otel().trace.StatusCode.ERROR)
        if records_content and isinstance(error, BaseException):
            span.record_exception(error)
    span.end()


@contextmanager
def current(span: Span | None, baggage: str | None = None) -> Iterator[None]:
    """Make a span the current one, below which the program's further spans nest.

    ``baggage``, if given, replaces the program's.
    """
    if span is None:
        yield
        return
    api = _otel()
    found = None if baggage is None else api.empty
    if baggage:
        found = context_at(TraceContext(baggage=baggage))
    token = api.context.attach(api.trace.set_span_in_context(span, found))
    try:
        yield
    finally:
        api.context.detach(token)


@contextmanager
def spanned(
    name: str,
    kind: Kind = "internal",
    attributes: Mapping[str, Any] | None = None,
    parent: TraceContext | None = None,
) -> Iterator[Span | None]:
    """Make a new span the current one, and end it; an exception is its status."""
    span = begin(name, kind, parent, attributes)
    if span is None:
        yield None
        return
    with ending(span), current(span, None if parent is None else parent.baggage):
        yield span


@contextmanager
def ending(span: Span | None, facts: Mapping[str, Any] = _NOTHING) -> Iterator[None]:
    """End a span at the end of a block, with its exception and the facts found in it."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if span is not None:
            end(span, error, facts)
        error = None  # its traceback has this frame: a cycle


def context_at(trace: TraceContext) -> Context:
    """Return the context of OpenTelemetry at a position in a trace, with its baggage."""
    otel = _otel()
    api = otel.trace
    context: Context = otel.empty
    if trace.baggage:
        context = otel.propagator.extract({"baggage": trace.baggage}, context)
    if not trace.traceparent:
        return context
    _, trace_id, span_id, flags, *_ = trace.traceparent.split("-")
    position = api.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(flags, 16)),
        trace_state=api.TraceState.from_header([trace.tracestate]) if trace.tracestate else None,
    )
    found: Context = api.set_span_in_context(api.NonRecordingSpan(position), context)
    return found


@cache
def _otel() -> Any:
    """Return the parts of OpenTelemetry, which is imported once it is used."""
    from opentelemetry import baggage, context, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator

    kinds = {each.name.lower(): each for each in trace.SpanKind}
    propagator, empty = W3CBaggagePropagator(), context.Context()
    return SimpleNamespace(
        baggage=baggage, context=context, trace=trace, kinds=kinds, propagator=propagator,
        empty=empty,
    )  # fmt: skip


def position_of(span: Span, baggage: str = "") -> TraceContext:
    """Return the position of a span, to be sent or logged."""
    found = span.get_span_context()
    if not found.is_valid:
        return TraceContext(baggage=baggage) if baggage else NO_TRACE
    return TraceContext(
        traceparent=f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}",
        tracestate=found.trace_state.to_header(),
        baggage=baggage,
    )


def position(given: TraceContext = NO_TRACE) -> TraceContext:
    """Return the position of the program's current span, with the program's baggage.

    Without one, or if the program does not use OpenTelemetry, the position is ``given``.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return given
    baggage = _baggage(given.baggage)
    if not (span := api.get_current_span()).get_span_context().is_valid:
        return given if baggage == given.baggage else replace(given, baggage=baggage)
    return position_of(span, baggage)


def _baggage(given: str) -> str:
    """Return the program's baggage as a header, in the spelling of ``given`` if it is equal."""
    otel, headers = _otel(), dict[str, str]()
    if not (found := otel.baggage.get_all()):
        return given
    if given and otel.baggage.get_all(context_at(TraceContext(baggage=given))) == found:
        return given
    otel.propagator.inject(headers)
    return headers.get("baggage", "")
