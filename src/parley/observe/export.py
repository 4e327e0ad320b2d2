"""The export to a collector by OTLP over HTTP, with OpenTelemetry's SDK (the extra ``otel``).

OpenTelemetry's own variables apply: samplers, batches, headers, resource attributes. A process has
one collector. A program that has set its own provider keeps it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from parley.model.distribution import install_command
from parley.observe import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"

FLUSH_SECONDS = 2.0
"""The time in which a server that stops sends the last spans, metrics and logs, all together."""

log = logging.getLogger("parley.observe")

Flush = Callable[[], Awaitable[None]]


class Collector(msgspec.Struct, frozen=True):
    """The address of a collector, and whether an option gave it, or OpenTelemetry's variable."""

    address: str
    is_given: bool

    def endpoint(self, signal: str) -> str | None:
        """Return the address for a signal, such as ``traces``; ``None``: the exporter reads it."""
        return f"{self.address.rstrip('/')}/v1/{signal}" if self.is_given else None

    def wants(self, signal: str) -> bool:
        """Return whether a signal is sent: ``OTEL_METRICS_EXPORTER=none`` leaves out metrics."""
        return os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp") == "otlp"


def collector_of(given: str | None) -> Collector | None:
    """Return the collector of an option, else of the variable; ``None`` without one.

    Raises ``ValueError`` for an option that cannot be followed. A variable that cannot be followed
    is only logged, because a whole machine may have it.
    """
    address = given or os.environ.get(VARIABLE, "")
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not address or given == "none" or is_off:
        return None
    problem = _problem(address)
    if problem and given:
        raise ValueError(f"otlp: {problem}")
    if problem:
        log.warning("nothing is sent to the address in %s: %s", VARIABLE, problem)
    return None if problem else Collector(address, bool(given))


def _problem(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        return (
            "the address of a collector is such as http://collector:4318; credentials belong in "
            "OTEL_EXPORTER_OTLP_HEADERS"
        )
    if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf") != "http/protobuf":
        return "the protocol must be http/protobuf; unset OTEL_EXPORTER_OTLP_PROTOCOL"
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError:
        return f"it needs its extra; install it with: {install_command('otel')}"
    return ""


async def sent_in_time(send: Callable[[], object]) -> None:
    """Send in a thread, and wait for at most ``FLUSH_SECONDS``: no collector delays a stop longer.

    The thread is a daemon, so that a process can end while it tries again.
    """
    loop = asyncio.get_running_loop()
    sent = loop.create_future()

    def end() -> None:
        if not sent.done():
            sent.set_result(None)

    def run() -> None:
        try:
            send()
        finally:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end)

    threading.Thread(target=run, name="parley-export", daemon=True).start()
    await asyncio.wait({sent}, timeout=FLUSH_SECONDS)


def resource_of(name: str, version: str, replica: str) -> Resource:
    """Return the resource of a server. ``OTEL_SERVICE_NAME`` and others take precedence."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    found = {"service.name": name, "service.version": version, "service.instance.id": replica}
    own = Resource.create({key: value for key, value in found.items() if value})
    return own.merge(OTELResourceDetector().detect())


_spans: tuple[Collector, TracerProvider] | None = None


def start_spans(collector: Collector, resource: Resource, *, keeps: bool) -> Flush | None:
    """Send spans to a collector from now on. Return what sends the last spans.

    ``keeps``: the last traces are kept in memory too.

    Raises ``ValueError`` if the program, or another server of this process, sends them elsewhere.
    """
    global _spans
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if _spans is None:
        is_taken = tracing.program_provider() is not None
        if collector.is_given and is_taken:
            raise ValueError(
                "otlp: the program has set its own provider of spans with OpenTelemetry, which "
                "sends them already; leave out otlp, or the provider"
            )
        if is_taken or not collector.wants("traces"):
            return None
        # A collector that does not answer is named once for a batch, not for each try.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.ERROR)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=collector.endpoint("traces"))
        provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)  # for the spans of frameworks
        _spans = collector, provider
    if collector != _spans[0]:
        raise ValueError(f"otlp: this process sends its spans to {_spans[0].address} already")
    provider = _spans[1]
    if keeps:
        from parley.observe.recent import recent

        recent.keep(provider)

    async def flush() -> None:
        await sent_in_time(partial(provider.force_flush, round(FLUSH_SECONDS * 1000)))

    return flush
