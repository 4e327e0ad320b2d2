"""Metrics, counted by prometheus_client while they are on.

``INSTRUMENTS`` names them as OpenTelemetry does, with their labels: kinds, states, and the names of
an operator's own agents and skills, never ids of callers or tasks. ``/metrics`` shows them in the
text of Prometheus, which spells ``parley.turn.duration`` as ``parley_turn_duration_seconds``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from parley.model.distribution import install_command

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Instrument(msgspec.Struct, frozen=True):
    """An instrument: its kind, its name, its unit as OpenTelemetry writes it, and its labels.

    ``buckets`` are the upper bounds of a histogram. Of several workers a gauge is the sum, or the
    maximum if all see the same (``is_shared``).
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    is_shared: bool = False

    @property
    def text_name(self) -> str:
        """The name in the text of Prometheus, without the suffix of a counter."""
        return self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
LONG_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)

_AGENT = ("agent",)

INSTRUMENTS = {
    "requests": Instrument(
        "histogram", "rpc.server.call.duration", "s",
        "Requests by operation and binding, with their errors, until the answer or the end of a "
        "stream.",
        ("rpc_system_name", "rpc_method", "agent", "error_type"), SECONDS,
    ),
    "first_events": Instrument(
        "histogram", "parley.stream.first_event.duration", "s",
        "Time from the request of a stream to its first event.",
        ("rpc_system_name", "rpc_method", "agent"), SECONDS,
    ),
    "turns": Instrument(
        "histogram", "parley.turn.duration", "s", "Attempts at turns, by their outcome.",
        ("agent", "skill", "outcome"), LONG_SECONDS,
    ),
    "recoveries": Instrument(
        "counter", "parley.turn.recoveries", "{turn}",
        "Turns that were begun again after a crash, a deployment or a failure of the store.",
        _AGENT,
    ),
    "running": Instrument(
        "gauge", "parley.turns.running", "{turn}", "Turns that run in this process.", _AGENT
    ),
    "waiting": Instrument(
        "gauge", "parley.turns.waiting", "{turn}",
        "Turns that wait in the store for a process with capacity.", _AGENT, is_shared=True,
    ),
    "queue_age": Instrument(
        "gauge", "parley.queue.age", "s",
        "How long the next of the waiting turns has waited; 0 if none waits.", _AGENT,
        is_shared=True,
    ),
    "leases": Instrument(
        "gauge", "parley.leases", "{task}", "Tasks that this process holds.", _AGENT
    ),
    "records": Instrument(
        "counter", "parley.log.appends", "{append}", "Appends to logs and tables, by engine.",
        ("db_system_name", "error_type"),
    ),
    "commits": Instrument(
        "histogram", "db.client.operation.duration", "s",
        "Commits of a group of appends, from the first append until it is durable.",
        ("db_system_name",), SECONDS,
    ),
    "readers": Instrument(
        "gauge", "parley.readers", "{reader}", "Streams that follow a task."
    ),
    "lag": Instrument(
        "gauge", "parley.readers.lag", "{event}", "Events that readers have not taken yet."
    ),
    "behind": Instrument(
        "counter", "parley.readers.behind", "{reader}",
        "Times that a reader fell behind, and read the store instead.",
    ),
    "deliveries": Instrument(
        "histogram", "parley.webhook.delivery.duration", "s",
        "Notifications to webhooks, by outcome: delivered, failed, suspended.",
        ("outcome",), SECONDS,
    ),
    "webhooks": Instrument(
        "gauge", "parley.webhooks", "{webhook}",
        "Webhooks that this process delivers to, by state: idle, waiting, failing.", ("state",),
    ),
    "webhook_age": Instrument(
        "gauge", "parley.webhooks.failing.age", "s",
        "How long the longest failing webhook has failed; 0 if none fails.", is_shared=True,
    ),
    "refused_addresses": Instrument(
        "counter", "parley.egress.refusals", "{address}",
        "Addresses of foreign data that the policy for outgoing requests forbids.", ("reason",),
    ),
    "registry": Instrument(
        "histogram", "parley.registry.request.duration", "s",
        "Requests to this registry, by operation and error.", ("operation", "error_type"), SECONDS,
    ),
    "tokens": Instrument(
        "counter", "parley.reported.tokens", "{token}", "Tokens that answers report.", _AGENT
    ),
    "cost": Instrument(
        "counter", "parley.reported.cost", "{cost}", "The cost that answers report.", _AGENT
    ),
    "loop": Instrument(
        "histogram", "parley.event_loop.lag", "s", "How late the event loop is.", (), SECONDS
    ),
}  # fmt: skip
"""All instruments, by their names in the code."""


class Metrics:
    """The instruments of a process, in a registry of prometheus_client."""

    def __init__(self, registry: CollectorRegistry) -> None:
        import prometheus_client

        self.registry = registry
        kinds: Mapping[str, Any] = {
            "counter": prometheus_client.Counter,
            "gauge": prometheus_client.Gauge,
            "histogram": prometheus_client.Histogram,
        }
        self._made: dict[str, Any] = {}
        for name, each in INSTRUMENTS.items():
            more: dict[str, Any] = {"buckets": each.buckets} if each.buckets else {}
            if each.kind == "gauge":
                more["multiprocess_mode"] = "livemax" if each.is_shared else "livesum"
            self._made[name] = kinds[each.kind](
                each.text_name, each.help, each.labels, registry=registry, **more
            )
        self._children: dict[tuple[str, ...], Any] = {}

    def of(self, *key: str) -> Any:
        """Return an instrument by its name and the values of its labels.

        Count with ``inc``, ``observe`` or ``set``.
        """
        if (child := self._children.get(key)) is None:
            name, *labels = key
            made = self._made[name]
            child = self._children[key] = made.labels(*labels) if labels else made
        return child


_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of prometheus_client with the folder of the counts of several processes."""

current: Metrics | None = None
"""The metrics of this process; ``None`` while they are off."""


def use(registry: CollectorRegistry | None) -> None:
    """Count in a registry from now on; ``None`` counts no more.

    Raises ``ValueError`` if the registry has these instruments already.
    """
    global current
    current = None if registry is None else Metrics(registry)


def start(*, workers: int = 1) -> Metrics:
    """Count, if this process does not yet, and return its metrics. Raises ``ValueError``.

    Several ``workers`` that are forked from this process count in files of a temporary folder, so
    that each of them knows the counts of all.
    """
    if current is None:
        if workers > 1 and _FOLDER not in os.environ:
            os.environ[_FOLDER] = folder = tempfile.mkdtemp(prefix="parley-metrics-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        try:
            from prometheus_client import (
                CollectorRegistry,
                ProcessCollector,
                disable_created_metrics,
                values,
            )
        except ModuleNotFoundError:
            hint = install_command("metrics")
            raise ValueError(f"metrics need their extra; install it with: {hint}") from None
        # Otherwise each has one more series, which no dashboard shows.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        # The program may have imported the library before there was a folder.
        values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        use(registry)
        ProcessCollector(registry=registry)
    assert current is not None
    return current


def readable() -> CollectorRegistry:
    """Return the registry to read: of several workers, the counts of all."""
    if _FOLDER not in os.environ:
        return start().registry
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def worker_ended(pid: int) -> None:
    """Leave the gauges of a worker that has ended out of the sums."""
    if current is not None and _FOLDER in os.environ:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid)  # type: ignore[no-untyped-call]
