"""From probes to health: what is measured over a window, and a state that does not flap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

import msgspec

from parley.registry.health.settings import HealthSettings
from parley.registry.records import AgentHealth, Liveness, Observed, ProbeSample

MAX_REASON = 500
RECENT = 10
"""How many probes decide whether an agent is degraded."""

_BETTER = 0.8
"""What a measure has to fall below, of its limit, before an agent is healthy again."""


class ProbeOutcome(IntEnum):
    """What came of a probe."""

    FAILED = 0
    """Nothing speaks A2A there, at any interface."""
    ERRORS = 1
    """It answers, and some of it fails: an interface, its card, or the answers are errors."""
    GUARDED = 2
    """It answers, and wants credentials: healthy as far as can be known."""
    FINE = 3


class ProbeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One probe: what came of it and why, and how many ms an answer took.

    ``retry_after`` is in seconds, if the agent asked for patience. ``messaged``: it was sent a
    message that its owner had asked for.
    """

    outcome: ProbeOutcome
    reason: str = ""
    latency: float = 0.0
    retry_after: float | None = None
    messaged: bool = False


def observe(before: Observed, found: ProbeFinding, now: int, settings: HealthSettings) -> Observed:
    """Return what is known of an agent after a probe, at a time (ms)."""
    oldest = now - round(settings.window_seconds * 1000)
    kept = [each for each in before.samples if oldest <= each.at <= now]
    kept.append(ProbeSample(now, int(found.outcome), round(found.latency, 1)))
    samples = tuple(kept[-settings.window :])
    latencies = [each.latency for each in samples if each.outcome != ProbeOutcome.FAILED]
    bad = sum(each.outcome <= ProbeOutcome.ERRORS for each in samples)
    away = sum(each.outcome == ProbeOutcome.FAILED for each in samples)
    health, reason = _judged(before.health, samples, found, settings)
    health, reason = with_liveness(health, reason, before.liveness)
    return msgspec.structs.replace(
        before,
        health=health,
        reason=reason[:MAX_REASON],
        probed_at=now,
        probes=len(samples),
        availability=round(1 - away / len(samples), 4),
        error_rate=round(bad / len(samples), 4),
        latency_p50=_percentile(latencies, 0.5),
        latency_p95=_percentile(latencies, 0.95),
        samples=samples,
        messaged_at=now if found.messaged else before.messaged_at,
    )


def with_liveness(health: AgentHealth, reason: str, liveness: Liveness) -> tuple[AgentHealth, str]:
    """Return a health as far as heartbeats allow: who does not send them is not healthy."""
    if health is not AgentHealth.HEALTHY or liveness in (Liveness.NONE, Liveness.ALIVE):
        return health, reason
    words = "its heartbeats stay away, and it answers probes"
    return AgentHealth.DEGRADED, f"{words}; {reason}" if reason else words


def failures_in_a_row(samples: Sequence[ProbeSample]) -> int:
    """Return how many of the last probes failed, one after the other."""
    return _in_a_row(samples, lambda each: each.outcome == ProbeOutcome.FAILED)


def _judged(
    before: AgentHealth,
    samples: Sequence[ProbeSample],
    found: ProbeFinding,
    settings: HealthSettings,
) -> tuple[AgentHealth, str]:
    failed = failures_in_a_row(samples)
    if failed:
        was_well = before in (AgentHealth.HEALTHY, AgentHealth.DEGRADED)
        if not was_well or failed >= settings.unreachable_after:
            return AgentHealth.UNREACHABLE, found.reason
        return AgentHealth.DEGRADED, f"{found.reason} ({failed} of {settings.unreachable_after})"
    good = _in_a_row(samples, lambda each: each.outcome >= ProbeOutcome.GUARDED)
    if before is AgentHealth.UNREACHABLE and good < settings.healthy_after:
        words = found.reason if found.outcome is ProbeOutcome.ERRORS else "it answers again"
        return AgentHealth.DEGRADED, words
    recent = samples[-RECENT:]
    errors = sum(each.outcome <= ProbeOutcome.ERRORS for each in recent) / len(recent)
    slow = _percentile([each.latency for each in recent if each.outcome], 0.95) or 0.0
    factor = _BETTER if before is AgentHealth.DEGRADED else 1.0
    if found.outcome is ProbeOutcome.ERRORS:
        # One error of an agent that was well may pass; the first probe of one has to be good.
        if before is not AgentHealth.HEALTHY or errors > settings.error_rate:
            return AgentHealth.DEGRADED, found.reason
        return AgentHealth.HEALTHY, found.reason
    if slow > settings.slow_ms * factor:
        return AgentHealth.DEGRADED, f"its answers take {slow / 1000:.1f} s (p95)"
    if before is AgentHealth.DEGRADED:
        if good < settings.healthy_after:
            return AgentHealth.DEGRADED, "it answers again"
        if errors > settings.error_rate and good < RECENT // 2:
            return AgentHealth.DEGRADED, f"{errors:.0%} of its last probes found errors"
    return AgentHealth.HEALTHY, found.reason


def _in_a_row(samples: Sequence[ProbeSample], holds: Callable[[ProbeSample], bool]) -> int:
    count = 0
    for each in reversed(samples):
        if not holds(each):
            break
        count += 1
    return count


def _percentile(values: Iterable[float], share: float) -> float | None:
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
