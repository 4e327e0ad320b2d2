"""How often agents are probed, how long that may take, and what counts as healthy."""

from __future__ import annotations

import msgspec


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of probes and heartbeats. Times are in seconds, rates between 0 and 1.

    Raises ``ValueError`` for one that makes no sense.
    """

    interval: float = 300.0
    """Between two probes of an agent that is well."""
    retry: float = 30.0
    """Until the next probe after one that failed; it doubles with every further one."""
    longest: float = 3600.0
    """Between two probes of an agent that stays away."""
    jitter: tuple[float, float] = (0.85, 1.15)
    request_seconds: float = 10.0
    """How long one request of a probe may take."""
    probe_seconds: float = 30.0
    """How long all of a probe may take."""
    lease: float = 90.0
    """How long a probe is claimed: another process continues that of one that was killed."""
    at_once: int = 16
    """The probes of a process at a time."""
    per_host: int = 2
    """Those of one host. Others wait for it without keeping anyone waiting."""
    per_host_seconds: float = 0.2
    """Between the beginnings of two probes of one host."""
    interfaces: int = 6
    """How many interfaces of a card are called."""
    card_bytes: int = 256 * 1024
    answer_bytes: int = 1024 * 1024
    window: int = 60
    """How many probes the measurements are of, at most,"""
    window_seconds: float = 24 * 3600.0
    """and how old the oldest of them may be."""
    unreachable_after: int = 3
    """After how many failed probes in a row an agent that was well is unreachable."""
    healthy_after: int = 2
    """After how many good probes in a row an agent is healthy again."""
    slow_ms: float = 5_000.0
    """An agent whose answers take longer (p95) is degraded."""
    error_rate: float = 0.2
    """An agent is degraded if more of its last probes found errors."""
    message_seconds: float = 3600.0
    """Between two messages to an agent whose owner asked for them, at least."""
    beat: float = 30.0
    """Between two heartbeats of an agent that sends them."""
    suspect_after: int = 2
    """After how many missed heartbeats an agent is suspect,"""
    gone_after: int = 4
    """and after how many it is gone."""
    poll: float = 2.0
    """Between two looks for probes that are due."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name != "jitter" and value <= 0 and field.name != "per_host_seconds":
                raise ValueError(f"{field.name} is more than 0, not {value}")
        if self.lease <= self.probe_seconds:
            raise ValueError(
                f"lease ({self.lease:g}) is longer than probe_seconds ({self.probe_seconds:g}): a "
                "claim must not expire while its probe goes on"
            )
        if self.gone_after <= self.suspect_after:
            raise ValueError(
                f"gone_after ({self.gone_after}) is more than suspect_after ({self.suspect_after})"
            )
        if not 0 < self.jitter[0] <= self.jitter[1]:
            raise ValueError(f"jitter is two factors, the smaller one first, not {self.jitter}")
