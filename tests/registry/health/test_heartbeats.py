"""Health from heartbeats, and from probes within a window."""

from __future__ import annotations

import pytest

from parley.model.errors import InvalidParamsError, TooManyRequestsError
from parley.model.service import Caller
from parley.registry.health.prober import Heartbeats
from parley.registry.health.settings import HealthSettings, ProbeFinding, ProbeOutcome, observe
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.publishing.callers import CallerRates, PublishingLimits
from parley.registry.records import AgentHealth, IndexedEntry, Liveness, Observed
from tests.kit.waiting import Clock
from tests.registry.index.making import OPERATOR, draft, identifier, listed, where

pytestmark = pytest.mark.anyio


ADA = Caller(id="ada", issuer="keys", authenticated=True)
BOB = Caller(id="bob", issuer="keys", authenticated=True)
SETTINGS = HealthSettings(beat=30.0)


@pytest.fixture
def heartbeats(index: RegistryIndex, clock: Clock) -> Heartbeats:
    limits = PublishingLimits(beats_per_minute=20)
    return Heartbeats(index, CallerRates(limits, clock=lambda: clock.now / 1000), SETTINGS)


async def one(index: RegistryIndex, name: str = "one") -> IndexedEntry:
    entry = await index.entry(identifier(name), OPERATOR)
    assert entry is not None
    return entry


async def passed(heartbeats: Heartbeats, clock: Clock, seconds: float) -> int:
    """Advance time, with its sweeps; return how many agents changed."""
    changed = 0
    for _ in range(round(seconds / 15)):
        clock.now += 15_000
        changed += await heartbeats.sweep()
    return changed


async def test_an_agent_that_stops_is_suspect_then_gone_then_back(
    index: RegistryIndex, heartbeats: Heartbeats, clock: Clock
) -> None:
    await index.put([draft("one", owner=ADA.owner)])
    await passed(heartbeats, clock, 120)
    answer = await heartbeats.beat(ADA, [identifier("one")], {"version": "2"})
    assert (answer.alive, answer.interval) == ((identifier("one"),), 30.0)
    assert (await one(index)).observed.beat_details == {"version": "2"}
    await passed(heartbeats, clock, 60)
    assert (await one(index)).observed.liveness is Liveness.ALIVE
    await passed(heartbeats, clock, 30)
    assert (await one(index)).observed.liveness is Liveness.SUSPECT
    await passed(heartbeats, clock, 60)
    seen = (await one(index)).observed
    assert (seen.liveness, seen.health) == (Liveness.GONE, AgentHealth.UNREACHABLE)
    assert await listed(index, where("observed.liveness", "gone")) == {"one"}
    await heartbeats.beat(ADA, [identifier("one")])
    assert (await one(index)).observed.liveness is Liveness.ALIVE


async def test_a_silent_agent_is_not_healthy_and_is_probed_at_once(
    index: RegistryIndex, heartbeats: Heartbeats, clock: Clock
) -> None:
    await index.put([draft("one", owner=ADA.owner)])
    await passed(heartbeats, clock, 120)
    await heartbeats.beat(ADA, [identifier("one")])
    [entry] = await index.claim_probes(10, 60.0)
    well = Observed(health=AgentHealth.HEALTHY, liveness=Liveness.ALIVE, last_beat=clock.now)
    await index.end_probe(entry.key, well, clock.now + 3_600_000)
    await passed(heartbeats, clock, 90)
    assert (await one(index)).observed.health is AgentHealth.DEGRADED
    assert len(await index.claim_probes(10, 60.0)) == 1


async def test_after_an_outage_of_the_registry_nobody_is_suspect_at_once(
    index: RegistryIndex, heartbeats: Heartbeats, clock: Clock
) -> None:
    await index.put([draft("one", owner=ADA.owner)])
    await heartbeats.sweep()
    await passed(heartbeats, clock, 120)
    await heartbeats.beat(ADA, [identifier("one")])
    clock.now += 3_600_000  # the registry was unreachable, or its process was suspended
    assert await heartbeats.sweep() == 0
    assert await passed(heartbeats, clock, 60) == 0
    assert (await one(index)).observed.liveness is Liveness.ALIVE
    assert await passed(heartbeats, clock, 30) == 1
    assert (await one(index)).observed.liveness is Liveness.GONE


async def test_a_flood_of_heartbeats_is_refused(
    index: RegistryIndex, heartbeats: Heartbeats
) -> None:
    await index.put([draft("one", owner=ADA.owner)])
    for _ in range(20):
        await heartbeats.beat(ADA, [identifier("one")])
    with pytest.raises(TooManyRequestsError):
        await heartbeats.beat(ADA, [identifier("one")])
    with pytest.raises(InvalidParamsError, match="1 to 500"):
        await heartbeats.beat(BOB, [f"urn:air:x.example:n{n}" for n in range(501)])
    with pytest.raises(InvalidParamsError, match="details"):
        await heartbeats.beat(BOB, [identifier("one")], {f"d{n}": "" for n in range(33)})


# -- health from probes: within a window, and without flapping -------------------------------------


JUDGING_SETTINGS = HealthSettings()
MINUTE = 60_000


def probed(
    outcomes: str,
    before: Observed | None = None,
    *,
    latency: float = 20.0,
    settings: HealthSettings = JUDGING_SETTINGS,
) -> list[str]:
    """The health after each probe: ``f``ine, ``g``uarded, ``e``rrors, ``x`` failed."""
    kinds = {
        "f": ProbeOutcome.FINE,
        "g": ProbeOutcome.GUARDED,
        "e": ProbeOutcome.ERRORS,
        "x": ProbeOutcome.FAILED,
    }
    observed, found = before or Observed(), []
    for count, each in enumerate(outcomes):
        finding = ProbeFinding(outcome=kinds[each], reason=each, latency=latency)
        observed = observe(
            observed, finding, (observed.probed_at or 0) + MINUTE + count, JUDGING_SETTINGS
        )
        found.append(observed.health.value)
    return found


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("f", ["healthy"]),
        ("g", ["healthy"]),
        ("e", ["degraded"]),
        ("x", ["unreachable"]),
        # One failure does not make a healthy agent unhealthy; three make it unreachable.
        ("fxxx", ["healthy", "degraded", "degraded", "unreachable"]),
        ("fxffff", ["healthy", "degraded", "degraded", "degraded", "healthy", "healthy"]),
        # It recovers after several successes in a row, once few of the recent probes failed.
        ("xffff", ["unreachable", "degraded", "degraded", "degraded", "healthy"]),
        ("xfxf", ["unreachable", "degraded", "degraded", "degraded"]),
        # One error in ten is tolerated; more are not.
        ("ffffffffe", ["healthy"] * 9),
        ("fffee", ["healthy", "healthy", "healthy", "degraded", "degraded"]),
    ],
)
def test_health_follows_probes_without_flapping(outcomes: str, expected: list[str]) -> None:
    assert probed(outcomes) == expected


def test_slow_answers_degrade_until_they_are_clearly_faster() -> None:
    slow = Observed()
    for latency, expected in ((6_000.0, "degraded"), (4_500.0, "degraded"), (1_000.0, "degraded")):
        slow = observe(
            slow,
            ProbeFinding(outcome=ProbeOutcome.FINE, latency=latency),
            (slow.probed_at or 0) + 1,
            JUDGING_SETTINGS,
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
    observed = observe(before, ProbeFinding(outcome=ProbeOutcome.FINE), 1, JUDGING_SETTINGS)
    assert observed.health is AgentHealth.DEGRADED
    assert "heartbeats are missing" in observed.reason
