"""Metrics, counted by prometheus_client while they are on.

``INSTRUMENTS`` names them as OpenTelemetry does, with their labels: kinds, states, and the names of
an operator's own agents and skills, never ids of callers or tasks. ``/metrics`` shows them in the
text of Prometheus, which spells ``parley.turn.duration`` as ``parley_turn_duration_seconds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Instrument(msgspec.Struct, frozen=True):
    """An instrument: its kind, its name, its unit as OpenTelemetry writes it, and its labels.

    ``buckets`` are the upper bounds of a histogram.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def text_name(self) -> str:
        """The name in the text of Prometheus, without the suffix of a counter."""
        unit = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}.get(self.unit, "")
        return self.name.replace(".", "_") + unit


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
LONG_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)

INSTRUMENTS = {
    "requests": Instrument(
        "histogram",
        "rpc.server.call.duration",
        "s",
        "Requests by operation and binding, with their errors, until the answer or the end of a "
        "stream.",
        ("rpc_system_name", "rpc_method", "agent", "error_type"),
        SECONDS,
    ),
    "first_events": Instrument(
        "histogram",
        "parley.stream.first_event.duration",
        "s",
        "Time from the request of a stream to its first event.",
        ("rpc_system_name", "rpc_method", "agent"),
        SECONDS,
    ),
    "turns": Instrument(
        "histogram",
        "parley.turn.duration",
        "s",
        "Attempts at turns, by their outcome.",
        ("agent", "skill", "outcome"),
        LONG_SECONDS,
    ),
    "running": Instrument(
        "gauge", "parley.turns.running", "{turn}", "Turns whose function runs now.", ("agent",)
    ),
}
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
            more = {"buckets": each.buckets} if each.buckets else {}
            self._made[name] = kinds[each.kind](
                each.text_name, each.help, each.labels, registry=registry, **more
            )
        self._children: dict[tuple[str, ...], Any] = {}

    def of(self, name: str, *labels: str) -> Any:
        """Return an instrument with the values of its labels: count with ``inc``, ``observe``."""
        key = (name, *labels)
        if (child := self._children.get(key)) is None:
            made = self._made[name]
            child = self._children[key] = made.labels(*labels) if labels else made
        return child


current: Metrics | None = None
"""The metrics of this process; ``None`` while they are off."""


def use(registry: CollectorRegistry | None) -> None:
    """Count in a registry from now on; ``None`` counts no more.

    Raises ``ValueError`` if the registry has these instruments already.
    """
    global current
    current = None if registry is None else Metrics(registry)
