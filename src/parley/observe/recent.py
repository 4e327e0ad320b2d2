"""The spans of the last traces of this process, for the callers who may see their tasks.

They have names, times, errors and few attributes: no content, and nothing that an author adds.
"""

from __future__ import annotations

from collections import defaultdict, deque

import msgspec
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.trace import SpanKind, StatusCode

MOST_SPANS = 10_000
"""The limit of spans in memory: the oldest are dropped."""

MOST_OF_TASK = 500
"""The limit of spans in an answer: those that began first."""

SHOWN = (
    "a2a.skill", "gen_ai.request.model", "gen_ai.tool.name", "parley.attempt", "parley.key",
    "parley.outcome",
)  # fmt: skip
"""The attributes that are kept."""

_OWN_REQUESTS = ("SendMessage", "SendStreamingMessage", "CancelTask")


class RecentSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A finished span: times are in ms, ``start`` since 1970. ``error`` is empty or its name."""

    id: str
    parent: str
    name: str
    start: float
    duration: float
    error: str
    attributes: dict[str, str]


class _Kept(msgspec.Struct, frozen=True):
    trace: int
    id: int
    parent: int
    name: str
    begin: int
    end: int
    error: str
    kind: SpanKind
    attributes: dict[str, str]
    task_id: str
    is_request: bool

    def begins(self, task_id: str) -> bool:
        """Return whether the span is the task's own, and shown to its owner.

        A request that others send, or that is refused, may name any task.
        """
        if self.task_id != task_id:
            return False
        is_own = self.kind is SpanKind.SERVER and self.name in _OWN_REQUESTS
        return not self.is_request or (is_own and not self.error)

    def belongs_below(self, task_id: str) -> bool:
        """Return whether the span belongs to the task of its parent.

        A caller chooses the parent of its request, so requests to this server never do.
        """
        is_of_other = self.task_id not in ("", task_id) and self.kind is not SpanKind.CLIENT
        return self.kind is not SpanKind.SERVER and not is_of_other

    def shown(self) -> RecentSpan:
        """Return the span for an answer."""
        return RecentSpan(
            id=f"{self.id:016x}",
            parent=f"{self.parent:016x}" if self.parent else "",
            name=self.name,
            start=self.begin / 1e6,
            duration=(self.end - self.begin) / 1e6,
            error=self.error,
            attributes=self.attributes,
        )


class RecentSpans(SpanProcessor):
    """Keeps finished spans in memory, a bounded number of them. Threads may share it."""

    def __init__(self) -> None:
        self._spans: deque[_Kept] = deque(maxlen=MOST_SPANS)
        self._provider: SdkTracerProvider | None = None

    def keep(self, provider: SdkTracerProvider) -> None:
        """Keep the spans of a provider from now on."""
        if provider is not self._provider:
            self._provider = provider
            provider.add_span_processor(self)

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span."""
        found, context = dict(span.attributes or {}), span.get_span_context()
        assert context is not None
        is_error = span.status.status_code is StatusCode.ERROR
        kept = _Kept(
            context.trace_id,
            context.span_id,
            0 if span.parent is None else span.parent.span_id,
            span.name,
            span.start_time or 0,
            span.end_time or 0,
            str(found.get("error.type", "error")) if is_error else "",
            span.kind,
            {name: str(found[name]) for name in SHOWN if name in found},
            str(found.get("a2a.task.id", "")),
            "rpc.method" in found,
        )
        self._spans.append(kept)

    def of_task(self, task_id: str) -> list[RecentSpan]:
        """Return the spans of a task, the first to begin first."""
        spans = self._spans.copy()
        waiting = [each for each in spans if each.begins(task_id)]
        traces = {each.trace for each in waiting}
        below: dict[int, list[_Kept]] = defaultdict(list)
        for each in spans:
            if each.trace in traces and each.belongs_below(task_id):
                below[each.parent].append(each)
        found: dict[int, _Kept] = {}
        while waiting:
            each = waiting.pop()
            if each.id not in found:
                found[each.id] = each
                waiting += below[each.id]
        first = sorted(found.values(), key=lambda each: each.begin)[:MOST_OF_TASK]
        return [each.shown() for each in first]


recent = RecentSpans()
"""The spans of this process."""
