"""Entries as they are answered: as they were read, with what the registry knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from parley.registry.records import AgentHealth, IndexedEntry, Liveness

REGISTRY = "registry"
"""The member of an answered entry that has what the registry found out. An entry cannot have it of
itself: a publisher's member of this name is replaced.
"""


def answered(entry: IndexedEntry) -> Mapping[str, Any]:
    """Return an entry as JSON values. ``registry`` has its trust, when it was created and last
    changed here, its health as it was measured, and the marks of its texts. Nothing of it takes
    part in the score.
    """
    found: dict[str, Any] = {
        "trust": entry.trust.value,
        "createdAt": _time(entry.created_at),
        "updatedAt": _time(entry.updated_at),
    }
    if entry.trust_reason:
        found["trustReason"] = entry.trust_reason
    observed = entry.observed
    if observed.health is not AgentHealth.UNKNOWN:
        found["health"] = observed.health.value
    if observed.liveness is not Liveness.NONE:
        found["liveness"] = observed.liveness.value
    measured = {
        "availability": observed.availability,
        "errorRate": observed.error_rate,
        "latencyP50": observed.latency_p50,
        "latencyP95": observed.latency_p95,
    }
    found.update({name: value for name, value in measured.items() if value is not None})
    if entry.marks:
        found["marks"] = list(entry.marks)
    return {**entry.entry, REGISTRY: found}


def _time(ms: int) -> str:
    return (
        datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    )
