"""The settings of probes and heartbeats, and the definition of health.

Health is measured over a window of probes, with hysteresis so that a state does not flap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

import msgspec

from parley.registry.catalog.entries import all_positive
from parley.registry.records import AgentHealth, Liveness, Observed, ProbeSample

MAX_REASON = 500
RECENT = 10
"""The number of recent probes that decide whether an agent is degraded."""

_BETTER = 0.8
"""The fraction of a limit below which a measure must fall before an agent is healthy again."""


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of probes and heartbeats. Times are in seconds, rates between 0 and 1.

    Raises ``ValueError`` for an inconsistent setting.
    """

    interval: float = 300.0
    """The interval between two probes of a healthy agent."""
    retry: float = 30.0
    """The delay after a failed probe; it doubles with every further failure."""
    longest: float = 3600.0
    """The longest interval between two probes of an unreachable agent."""
    jitter: tuple[float, float] = (0.85, 1.15)
    request_seconds: float = 10.0
    """The time limit of one request of a probe."""
    probe_seconds: float = 30.0
    """The time limit of a whole probe."""
    lease: float = 90.0
    """The time for which a probe is claimed: another process continues the probe of a killed
    process.
    """
    at_once: int = 16
    """The number of probes a process runs at a time."""
    per_host: int = 2
    """The number of probes of one host that run at a time. Further probes of the host wait without
    delaying others.
    """
    per_host_seconds: float = 0.2
    """The least delay between the starts of two probes of one host."""
    interfaces: int = 6
    """The number of interfaces of a card called."""
    card_bytes: int = 256 * 1024
    answer_bytes: int = 1024 * 1024
    window: int = 60
    """The most probes that the measurements cover."""
    window_seconds: float = 24 * 3600.0
    """The greatest age of the probes that the measurements cover."""
    unreachable_after: int = 3
    """After how many failed probes in succession a healthy agent is unreachable."""
    healthy_after: int = 2
    """After how many good probes in succession an agent is healthy again."""
    slow_ms: float = 5_000.0
    """An agent with slower responses (p95) is degraded."""
    error_rate: float = 0.2
    """An agent with a higher rate of errors in its recent probes is degraded."""
    message_seconds: float = 3600.0
    """The least interval between two messages to an agent whose owner requested them."""
    beat: float = 30.0
    """The interval between two heartbeats of an agent."""
    suspect_after: int = 2
    """After how many missed heartbeats an agent is suspect."""
    gone_after: int = 4
    """After how many missed heartbeats an agent is gone."""
    poll: float = 2.0
    """The interval between two searches for due probes."""

    def __post_init__(self) -> None:
        all_positive(self, "jitter", "per_host_seconds")
        if self.lease <= self.probe_seconds:
            raise ValueError(
                f"lease ({self.lease:g}) must be longer than probe_seconds "
                f"({self.probe_seconds:g}): a "
                "claim must not expire while its probe runs"
            )
        if self.gone_after <= self.suspect_after:
            raise ValueError(
                f"gone_after ({self.gone_after}) must be more than suspect_after "
                f"({self.suspect_after})"
            )
        if not 0 < self.jitter[0] <= self.jitter[1]:
            raise ValueError(f"jitter must be two factors, the smaller first, not {self.jitter}")


class ProbeOutcome(IntEnum):
    """The outcome of a probe."""

    FAILED = 0
    """No interface of the agent speaks A2A."""
    ERRORS = 1
    """The agent answers, but with a fault: of an interface, its card, or its responses."""
    GUARDED = 2
    """The agent answers, and requires credentials: healthy as far as a probe can tell."""
    FINE = 3


class ProbeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe: its outcome with the reason, and the latency of a response in ms.

    ``retry_after`` is in seconds, if the agent sent Retry-After. ``messaged``: the probe sent the
    message that its owner had requested.
    """

    outcome: ProbeOutcome
    reason: str = ""
    latency: float = 0.0
    retry_after: float | None = None
    messaged: bool = False


def observe(before: Observed, found: ProbeFinding, now: int, settings: HealthSettings) -> Observed:
    """Return the observations of an agent after a probe, at a time (ms)."""
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
    """Return the health limited by heartbeats: an agent with missing heartbeats is not healthy."""
    if health is not AgentHealth.HEALTHY or liveness in (Liveness.NONE, Liveness.ALIVE):
        return health, reason
    words = "its heartbeats are missing, but it answers probes"
    return AgentHealth.DEGRADED, f"{words}; {reason}" if reason else words


def failures_in_a_row(samples: Sequence[ProbeSample]) -> int:
    """Return how many of the last probes failed in succession."""
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
        # A single error of a healthy agent is ignored; an agent's first probe must be good.
        if before is not AgentHealth.HEALTHY or errors > settings.error_rate:
            return AgentHealth.DEGRADED, found.reason
        return AgentHealth.HEALTHY, found.reason
    if slow > settings.slow_ms * factor:
        return AgentHealth.DEGRADED, f"its responses take {slow / 1000:.1f} s (p95)"
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
