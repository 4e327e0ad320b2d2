"""Health from probes: measured over a window, and without flapping."""

from __future__ import annotations

import pytest

from parley.registry.health.settings import HealthSettings, ProbeFinding, ProbeOutcome, observe
from parley.registry.records import AgentHealth, Liveness, Observed

SETTINGS = HealthSettings()
MINUTE = 60_000


def probed(
    outcomes: str,
    before: Observed | None = None,
    *,
    latency: float = 20.0,
    settings: HealthSettings = SETTINGS,
) -> list[str]:
    """The health after each of some probes: ``f``ine, ``g``uarded, ``e``rrors, ``x`` failed."""
    kinds = {
        "f": ProbeOutcome.FINE,
        "g": ProbeOutcome.GUARDED,
        "e": ProbeOutcome.ERRORS,
        "x": ProbeOutcome.FAILED,
    }
    observed, found = before or Observed(), []
    for count, each in enumerate(outcomes):
        finding = ProbeFinding(outcome=kinds[each], reason=each, latency=latency)
        observed = observe(observed, finding, (observed.probed_at or 0) + MINUTE + count, SETTINGS)
        found.append(observed.health.value)
    return found


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("f", ["healthy"]),
        ("g", ["healthy"]),
        ("e", ["degraded"]),
        ("x", ["unreachable"]),
        # Once well, it is not healthy from the first failure, and unreachable after three.
        ("fxxx", ["healthy", "degraded", "degraded", "unreachable"]),
        ("fxffff", ["healthy", "degraded", "degraded", "degraded", "healthy", "healthy"]),
        # It comes back after good ones in a row, once few of the last are bad.
        ("xffff", ["unreachable", "degraded", "degraded", "degraded", "healthy"]),
        ("xfxf", ["unreachable", "degraded", "degraded", "degraded"]),
        # One error of ten may pass; more do not.
        ("ffffffffe", ["healthy"] * 9),
        ("fffee", ["healthy", "healthy", "healthy", "degraded", "degraded"]),
    ],
)
def test_health_follows_probes_without_flapping(outcomes: str, expected: list[str]) -> None:
    assert probed(outcomes) == expected


def test_a_failed_probe_never_looks_healthy() -> None:
    for before in AgentHealth:
        observed = observe(
            Observed(health=before),
            ProbeFinding(outcome=ProbeOutcome.FAILED, reason="gone"),
            1,
            SETTINGS,
        )
        assert observed.health is not AgentHealth.HEALTHY
        assert "gone" in observed.reason


def test_slow_answers_degrade_until_they_are_clearly_faster() -> None:
    slow = Observed()
    for latency, expected in ((6_000.0, "degraded"), (4_500.0, "degraded"), (1_000.0, "degraded")):
        slow = observe(
            slow,
            ProbeFinding(outcome=ProbeOutcome.FINE, latency=latency),
            (slow.probed_at or 0) + 1,
            SETTINGS,
        )
        assert slow.health.value == expected
    assert "s (p95)" in slow.reason
    assert probed("f" * 12, slow, latency=50.0)[-1] == "healthy"


def test_measurements_are_of_a_window() -> None:
    settings = HealthSettings(window=4, window_seconds=1_000.0)
    observed = Observed()
    for count, (outcome, latency) in enumerate(
        [(0, 0.0), (3, 10.0), (3, 20.0), (1, 30.0), (2, 40.0)]
    ):
        finding = ProbeFinding(outcome=ProbeOutcome(outcome), latency=latency)
        observed = observe(observed, finding, count * 1_000, settings)
    assert observed.probes == 4
    assert observed.availability == 1.0
    assert observed.error_rate == 0.25
    assert (observed.latency_p50, observed.latency_p95) == (30.0, 40.0)
    later = observe(observed, ProbeFinding(outcome=ProbeOutcome.FAILED), 10_000_000, settings)
    assert (later.probes, later.availability, later.error_rate) == (1, 0.0, 1.0)
    assert later.latency_p50 is None


@pytest.mark.parametrize("liveness", [Liveness.SUSPECT, Liveness.GONE])
def test_who_stops_beating_is_not_healthy(liveness: Liveness) -> None:
    before = Observed(health=AgentHealth.HEALTHY, liveness=liveness)
    observed = observe(before, ProbeFinding(outcome=ProbeOutcome.FINE), 1, SETTINGS)
    assert observed.health is AgentHealth.DEGRADED
    assert "heartbeats stay away" in observed.reason


@pytest.mark.parametrize(
    "wrong",
    [{"interval": 0}, {"lease": 10.0}, {"gone_after": 1}, {"jitter": (2.0, 1.0)}, {"at_once": -1}],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        HealthSettings(**wrong)  # type: ignore[arg-type]
