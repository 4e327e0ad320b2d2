"""The figures of ``parley top``: what servers did between two readings of their ``/metrics``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

_CALLS = "rpc_server_call_duration_seconds"
_STREAMS = ("SendStreamingMessage", "SubscribeToTask")
"""Operations that last as long as their task; their durations are no latency."""

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by names and labels."""


class AgentFigures(msgspec.Struct, rename="camel", kw_only=True):
    """An agent at work: rates by the second, times in seconds.

    The percentiles are of requests that are not streams; ``None`` without any.
    """

    agent: str
    requests: float
    errors: float
    failed_turns: float
    p50: float | None
    p95: float | None
    running: int
    waiting: int
    queue_age: float


class ServerFigures(msgspec.Struct, rename="camel", kw_only=True):
    """A process and its agents, or the ``error`` for which it cannot be read."""

    server: str
    error: str = ""
    streams: int = 0
    failing_webhooks: int = 0
    loop_lag: float | None = None
    memory: int = 0
    agents: list[AgentFigures] = []


class Reading(NamedTuple):
    """The metrics of a server at a time in seconds."""

    at: float = 0.0
    samples: Samples = {}


def read(at: float, text: str) -> Reading:
    """Return the reading of an answer. Raises ``ValueError`` for metrics of another program."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = {
        (each.name, frozenset(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }
    if ("parley_readers", frozenset()) not in samples:
        raise ValueError("its metrics are not of Parley")
    return Reading(at, samples)


def figures(server: str, before: Reading, now: Reading) -> ServerFigures:
    """Return the figures of the time between two readings. A smaller count is of a new process."""
    seconds = max(now.at - before.at, 0.001)
    done = {
        key: value - (old if (old := before.samples.get(key, 0)) <= value else 0)
        for key, value in now.samples.items()
    }

    def rate(name: str, **labels: str) -> float:
        return round(_sum(done, name, **labels) / seconds, 3)

    def count(name: str, **labels: str) -> int:
        return int(_sum(now.samples, name, **labels))

    def agent(name: str) -> AgentFigures:
        requests, counts = rate(f"{_CALLS}_count", agent=name), _buckets(done, _CALLS, agent=name)
        return AgentFigures(
            agent=name,
            requests=requests,
            errors=round(requests - rate(f"{_CALLS}_count", agent=name, error_type=""), 3),
            failed_turns=rate("parley_turn_duration_seconds_count", agent=name, outcome="failed"),
            p50=percentile(0.5, counts),
            p95=percentile(0.95, counts),
            running=count("parley_turns_running", agent=name),
            waiting=count("parley_turns_waiting", agent=name),
            queue_age=_sum(now.samples, "parley_queue_age_seconds", agent=name),
        )

    names = [dict(labels)["agent"] for name, labels in done if name == "parley_turns_running"]
    return ServerFigures(
        server=server,
        streams=count("parley_readers"),
        failing_webhooks=count("parley_webhooks", state="failing"),
        loop_lag=percentile(0.95, _buckets(done, "parley_event_loop_lag_seconds")),
        memory=count("process_resident_memory_bytes"),
        agents=[agent(name) for name in sorted(names)],
    )


def _sum(samples: Samples, name: str, **wanted: str) -> float:
    """Return the sum of the samples with these labels."""
    return sum(
        value for (own, labels), value in samples.items()
        if own == name and wanted.items() <= labels
    )  # fmt: skip


def _buckets(samples: Samples, name: str, **wanted: str) -> dict[float, float]:
    """Return the counts of a histogram by their upper bounds, without streams."""
    counts: dict[float, float] = defaultdict(float)
    for (own, labels), value in samples.items():
        found = dict(labels)
        is_wanted = own == f"{name}_bucket" and wanted.items() <= labels
        if is_wanted and found.get("rpc_method") not in _STREAMS:
            counts[float(found["le"])] += value
    return counts


def percentile(part: float, counts: Mapping[float, float]) -> float | None:
    """Return a percentile, estimated within its bucket as Prometheus does; ``None`` of nothing.

    ``counts`` are of the values up to each bound.
    """
    rank, lower, below = part * counts.get(math.inf, 0), 0.0, 0.0
    if not rank:
        return None
    for bound, count in sorted(counts.items()):
        if count >= rank:
            share = (rank - below) / (count - below)
            return lower if bound == math.inf else round(lower + (bound - lower) * share, 6)
        lower, below = bound, count
    return lower
