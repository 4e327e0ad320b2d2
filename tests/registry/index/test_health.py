"""Probes and heartbeats: claimed, kept, and not mixed up."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import AgentHealth, EntryStanding, Liveness, Observed
from tests.kit.waiting import Clock
from tests.registry.index.making import CATALOG, OPERATOR, draft, identifier, listed, short, where

pytestmark = pytest.mark.anyio

MEASURED = Observed(
    health=AgentHealth.DEGRADED,
    reason="slow",
    probed_at=7,
    probes=3,
    availability=0.5,
    error_rate=0.25,
    latency_p50=1.5,
    latency_p95=2.5,
)


async def claimed(index: RegistryIndex, limit: int = 10, lease: float = 60.0) -> list[str]:
    return [short(entry.identifier) for entry in await index.claim_probes(limit, lease)]


async def observed(index: RegistryIndex, name: str = "one") -> Observed:
    entry = await index.entry(identifier(name), OPERATOR)
    assert entry is not None
    return entry.observed


async def test_listed_a2a_entries_are_probed(index: RegistryIndex, clock: Clock) -> None:
    await index.put(
        [
            draft("one"),
            draft("card", type="application/agent-card+json"),
            draft("tool", type="application/mcp-server-card+json"),
            draft("held", standing=EntryStanding.HELD),
            draft("one", source="https://other.example/"),
        ]
    )
    assert sorted(await claimed(index)) == ["card", "one"]
    assert await claimed(index) == []
    clock.now += 60_000
    assert len(await claimed(index, limit=1)) == 1
    assert len(await claimed(index)) == 1


async def test_a_probe_is_due_again_when_its_end_said(index: RegistryIndex, clock: Clock) -> None:
    [one] = await index.put([draft("one")])
    assert await claimed(index) == ["one"]
    await index.end_probe(one.key, MEASURED, clock.now + 5)
    assert await observed(index) == MEASURED
    assert await claimed(index) == []
    clock.now += 5
    assert await claimed(index) == ["one"]
    await index.put([draft("one", "changed")])
    assert await claimed(index) == [], "a change does not make a probe due"
    assert await observed(index) == MEASURED


async def test_what_is_not_listed_any_more_is_not_probed(
    index: RegistryIndex, clock: Clock
) -> None:
    one, two = await index.put([draft("one"), draft("two")])
    await index.decide(one.key, EntryStanding.HELD, "", "op")
    await index.put([draft("two", type="application/mcp-server-card+json")])
    assert await claimed(index) == []
    await index.end_probe(two.key, MEASURED, 0)
    assert await claimed(index) == []
    await index.decide(one.key, EntryStanding.LISTED, "", "op")
    assert await claimed(index) == ["one"]
    await index.withdraw(CATALOG, [], "gone")
    clock.now += 60_000
    assert await claimed(index) == []


async def test_the_probe_of_an_entry_that_is_gone_is_nothing(index: RegistryIndex) -> None:
    await index.end_probe(77, MEASURED, 0)
    await index.put([draft("one")])
    assert await observed(index) == Observed()


async def test_a_publisher_cannot_say_that_its_agent_is_healthy(index: RegistryIndex) -> None:
    claims = {"observed.health": ("healthy",), "observed.liveness": ("alive",)}
    [one] = await index.put([draft("one", fields=claims)])
    assert await listed(index, where("observed.health", "healthy")) == set()
    assert await listed(index, where("observed.liveness", "alive")) == set()
    await index.end_probe(one.key, msgspec.structs.replace(MEASURED, liveness=Liveness.ALIVE), 0)
    await index.put([draft("one", "changed", fields=claims), draft("other")])
    assert await listed(index, where("observed.health", "degraded")) == {"one"}
    assert await listed(index, where("observed.health", "healthy")) == set()
    assert await listed(index, where("observed.liveness", "alive")) == {"one"}


async def test_heartbeats_are_taken_from_the_owner(index: RegistryIndex) -> None:
    await index.put([draft("one", owner="me"), draft("nobodys")])
    assert not await index.beat(identifier("one"), "you", 5, {})
    assert not await index.beat(identifier("nobodys"), "", 5, {})
    assert not await index.beat(identifier("none"), "me", 5, {})
    assert await observed(index) == Observed()
    assert await index.beat(identifier("one"), "me", 5, {"version": "2", "l\x00ad": "\ud800"})
    kept = await observed(index)
    assert (kept.liveness, kept.last_beat) == (Liveness.ALIVE, 5)
    assert kept.beat_details == {"version": "2", "l\ufffdad": "?"}
    assert await index.beat(identifier("one"), "me", 4, {}), "one that comes late is welcome"
    assert (await observed(index)).last_beat == 5


async def test_too_many_details_of_a_heartbeat_are_refused(index: RegistryIndex) -> None:
    for details in ({f"n{n}": "" for n in range(33)}, {"n": "x" * 501}, {"x" * 501: ""}):
        with pytest.raises(ValueError, match="up to 32 details"):
            await index.beat(identifier("one"), "me", 5, details)


async def test_a_probe_does_not_undo_a_heartbeat_that_came_meanwhile(index: RegistryIndex) -> None:
    [one] = await index.put([draft("one", owner="me")])
    await index.beat(identifier("one"), "me", 5, {})
    old = msgspec.structs.replace(MEASURED, liveness=Liveness.SUSPECT, last_beat=5)
    await index.end_probe(one.key, old, 0)
    assert (await observed(index)).liveness is Liveness.SUSPECT
    await index.beat(identifier("one"), "me", 6, {"a": "b"})
    await index.end_probe(one.key, old, 0)
    kept = await observed(index)
    assert (kept.liveness, kept.last_beat, kept.probes) == (Liveness.ALIVE, 6, 3)
    assert kept.beat_details == {"a": "b"}


async def test_agents_that_fell_silent_are_found_the_longest_silent_first(
    index: RegistryIndex,
) -> None:
    entries = await index.put([draft(name, owner="me") for name in ("a", "b", "c", "never")])
    for at, name in ((30, "a"), (10, "b"), (20, "c")):
        await index.beat(identifier(name), "me", at, {})

    async def overdue(before: int) -> list[str]:
        return [short(entry.identifier) for entry in await index.overdue_beats(before, 10)]

    assert await overdue(10) == []
    assert await overdue(30) == ["b", "c"]
    assert await overdue(99) == ["b", "c", "a"]
    gone = msgspec.structs.replace(MEASURED, liveness=Liveness.GONE, last_beat=10)
    await index.end_probe(entries[1].key, gone, 0)
    assert await overdue(99) == ["c", "a"]
    await index.beat(identifier("b"), "me", 40, {})
    assert await overdue(99) == ["c", "a", "b"]


async def test_many_heartbeats_at_once_are_all_kept(index: RegistryIndex) -> None:
    await index.put([draft(f"n{n}", owner="me") for n in range(30)])
    beats = [index.beat(identifier(f"n{n}"), "me", n + 1, {}) for n in range(30)]
    assert all(await asyncio.gather(*beats))
    assert len(await index.overdue_beats(99, 99)) == 30
