"""Metrics by OTLP: the registry of prometheus_client as OpenTelemetry's data, for its exporter."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from parley.observe.export import log, sent_in_time
from parley.observe.metrics import INSTRUMENTS, Instrument, start
from parley.observe.tracing import SCOPE

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData
    from opentelemetry.sdk.resources import Resource
    from prometheus_client import CollectorRegistry

    from parley.observe.export import Collector

_PROCESS = {
    "process_cpu_seconds": Instrument(
        "counter", "process.cpu.time", "s", "Processor time of the process."
    ),
    "process_resident_memory_bytes": Instrument(
        "gauge", "process.memory.usage", "By", "Memory of the process."
    ),
    "process_open_fds": Instrument(
        "gauge", "process.unix.file_descriptor.count", "{file_descriptor}", "Open files."
    ),
}
SIGNAL = "metrics"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"

_BY_TEXT_NAME = {each.text_name: each for each in INSTRUMENTS.values()} | _PROCESS


class MetricsSender:
    """Sends the metrics of this process to a collector."""

    def __init__(self, collector: Collector, resource: Resource) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._exporter = OTLPMetricExporter(endpoint=collector.endpoint(SIGNAL))
        self._resource = resource
        self._registry = start().registry
        self._started_at = time.time_ns()

    @property
    def seconds(self) -> float:
        """The time between two exports, which OpenTelemetry's variable sets in ms."""
        given = os.environ.get(INTERVAL, "")
        if given.isdecimal() and int(given):
            return int(given) / 1000
        if given:
            log.warning("%s=%r is no number of ms; metrics are sent each minute", INTERVAL, given)
        return 60.0

    async def send(self) -> None:
        """Send the metrics, as they are now."""
        data = metrics_data(self._registry, self._resource, self._started_at)
        await sent_in_time(partial(self._exporter.export, data))


def metrics_data(registry: CollectorRegistry, resource: Resource, started_at: int) -> MetricsData:
    """Return the metrics of a registry as OpenTelemetry's data.

    ``started_at`` is the time (ns since 1970) at which the counters were 0.
    """
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    times = started_at, time.time_ns()
    found = [
        _metric(instrument, family.samples, times)
        for family in registry.collect()
        if (instrument := _BY_TEXT_NAME.get(family.name)) is not None and family.samples
    ]
    scope = export.ScopeMetrics(InstrumentationScope(SCOPE), found, "")
    return export.MetricsData([export.ResourceMetrics(resource, [scope], "")])


def _metric(instrument: Instrument, samples: Iterable[Any], times: tuple[int, int]) -> Metric:
    from opentelemetry.sdk.metrics import export

    cumulative = export.AggregationTemporality.CUMULATIVE
    data: export.Histogram | export.Sum | export.Gauge
    if instrument.kind == "histogram":
        points = [_histogram(instrument, attributes, each, times) for attributes, each in
                  _grouped(samples)]  # fmt: skip
        data = export.Histogram(points, cumulative)
    else:
        numbers = [
            export.NumberDataPoint(_attributes(each.labels), *times, each.value)
            for each in samples
            if not each.name.endswith("_created")
        ]
        is_sum = instrument.kind == "counter"
        data = export.Sum(numbers, cumulative, True) if is_sum else export.Gauge(numbers)
    return export.Metric(instrument.name, instrument.help, instrument.unit, data)


def _grouped(samples: Iterable[Any]) -> Iterable[tuple[dict[str, str], list[Any]]]:
    """Return the samples of each histogram, with its attributes."""
    found: dict[tuple[tuple[str, str], ...], list[Any]] = {}
    for each in samples:
        key = tuple((name, value) for name, value in each.labels.items() if name != "le")
        found.setdefault(key, []).append(each)
    return [(_attributes(dict(key)), each) for key, each in found.items()]


def _histogram(
    instrument: Instrument, attributes: dict[str, str], samples: list[Any], times: tuple[int, int]
) -> Any:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    counts = [int(each.value) for each in samples if each.name.endswith("_bucket")]
    below = [0, *counts]
    total = next((each.value for each in samples if each.name.endswith("_sum")), 0.0)
    return HistogramDataPoint(
        attributes,
        *times,
        count=counts[-1],
        sum=total,
        bucket_counts=[after - before for before, after in zip(below, counts, strict=False)],
        explicit_bounds=instrument.buckets,
        min=None,  # type: ignore[arg-type]  # unknown, and optional in the protocol
        max=None,  # type: ignore[arg-type]
    )


def _attributes(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels with the names of OpenTelemetry: ``error.type`` for ``error_type``."""
    return {name.replace("_", "."): value for name, value in labels.items() if value}
