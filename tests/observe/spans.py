"""Spans that tests read: of this process, or received from others by OTLP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from parley.observe import tracing


class Spans:
    """The spans of this process, and a tracer for the program's own."""

    def __init__(self, *, content: bool = False) -> None:
        self._memory = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        tracing.use(provider, content=content)
        self.tracer = provider.get_tracer("program")

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._memory.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def path(self, span: ReadableSpan) -> list[str]:
        """Return the names of a span and the spans above it."""
        by_id = {each.context.span_id: each for each in self.all}
        names = [span.name]
        while span.parent is not None and span.parent.span_id in by_id:
            span = by_id[span.parent.span_id]
            names.append(span.name)
        return names


class Received(NamedTuple):
    """A span that a collector has received."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """A collector: an OTLP endpoint that keeps all bytes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.received: list[tuple[str, bytes]] = []

    def bodies(self, signal: str) -> list[bytes]:
        return [body for path, body in self.received if path == f"/v1/{signal}"]

    @property
    def metrics(self) -> dict[str, Any]:
        """The last metrics by name."""
        [part] = ExportMetricsServiceRequest.FromString(self.bodies("metrics")[-1]).resource_metrics
        return {each.name: each for scope in part.scope_metrics for each in scope.metrics}

    @property
    def logs(self) -> list[tuple[str, Any]]:
        """All log records, with their loggers."""
        return [
            (scope.scope.name, record)
            for body in self.bodies("logs")
            for part in ExportLogsServiceRequest.FromString(body).resource_logs
            for scope in part.scope_logs
            for record in scope.log_records
        ]

    @property
    def spans(self) -> list[Received]:
        return [
            Received(
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                values_of(span.attributes),
                values_of(part.resource.attributes),
            )
            for body in self.bodies("traces")
            for part in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]


def values_of(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector at a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.received.append((self.path, body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
