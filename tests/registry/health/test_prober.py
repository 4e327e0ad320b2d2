"""Probes of agents when they are due: claimed, bounded, and not delayed by slow agents."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from parley.registry.health.prober import Prober
from parley.registry.health.probing import AgentProbe, ProbePostponed
from parley.registry.health.settings import HealthSettings, ProbeFinding, ProbeOutcome
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import AgentHealth, IndexedEntry
from parley.security.egress import Egress
from tests.kit.waiting import Clock, until
from tests.registry.index.making import OPERATOR, draft, identifier, listed, where

pytestmark = pytest.mark.anyio

SETTINGS = HealthSettings(at_once=4, per_host_seconds=0.001, poll=0.01, jitter=(1.0, 1.0))


class Scripted(AgentProbe):
    """Returns scripted results, by the agent's name."""

    def __init__(self) -> None:
        super().__init__(Egress())
        self.answers: dict[str, ProbeFinding] = {}
        self.hangs: set[str] = set()
        self.probed: list[str] = []
        self.messages: list[bool] = []
        self.running = 0
        self.most = 0

    async def probe(self, entry: IndexedEntry, *, may_message: bool = False) -> ProbeFinding:
        name = entry.identifier.rpartition(":")[2]
        self.probed.append(name)
        self.messages.append(may_message)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if any(name.startswith(each) for each in self.hangs):
                await asyncio.Event().wait()
            fine = ProbeFinding(outcome=ProbeOutcome.FINE, latency=1.0)
            found = self.answers.get(name, fine)
            return msgspec.structs.replace(found, messaged=found.messaged and may_message)
        finally:
            self.running -= 1


async def health(index: RegistryIndex, name: str) -> AgentHealth:
    entry = await index.entry(identifier(name), OPERATOR)
    assert entry is not None
    return entry.observed.health


async def test_due_agents_are_probed_and_can_be_filtered(index: RegistryIndex) -> None:
    probe = Scripted()
    probe.answers["bad"] = ProbeFinding(outcome=ProbeOutcome.FAILED, reason="nothing there")
    await index.put(
        [draft("good", url="https://a.example/"), draft("bad", url="https://b.example/")]
    )
    prober = Prober(index, probe, SETTINGS)

    async def are_probed() -> bool:
        return AgentHealth.UNKNOWN not in (await health(index, "good"), await health(index, "bad"))

    await prober.start()
    await until(are_probed, seconds=10)
    await prober.stop()
    assert await listed(index, where("observed.health", "healthy")) == {"good"}
    assert await listed(index, where("observed.health", "unreachable")) == {"bad"}
    # A replaced entry keeps its probe time.
    await index.put([draft("bad", "new words", url="https://b.example/")])
    assert await listed(index, where("observed.health", "unreachable")) == {"bad"}
    assert await listed(index, where("observed.health", "healthy")) == {"good"}


async def test_a_probe_that_breaks_here_is_no_verdict_of_unreachable(index: RegistryIndex) -> None:
    class Broken(Scripted):
        async def probe(self, entry: IndexedEntry, *, may_message: bool = False) -> ProbeFinding:
            raise RuntimeError("a bug")

    await index.put([draft("one", url="https://a.example/")])
    [entry] = await index.claim_probes(10, 60.0)
    observed = await Prober(index, Broken(), SETTINGS).probe(entry)
    assert observed.health is AgentHealth.DEGRADED
    assert "the registry failed to probe it" in observed.reason


async def test_a_probe_that_is_postponed_is_no_verdict(index: RegistryIndex, clock: Clock) -> None:
    class Postponed(Scripted):
        async def probe(self, entry: IndexedEntry, *, may_message: bool = False) -> ProbeFinding:
            if not self.probed:
                self.probed.append("postponed")
                raise ProbePostponed("busy.example")
            return await super().probe(entry, may_message=may_message)

    await index.put([draft("one", url="https://a.example/")])
    probe = Postponed()
    prober = Prober(index, probe, SETTINGS)
    await prober.start()
    try:
        await until(lambda: probe.probed, seconds=10)
        assert await health(index, "one") is AgentHealth.UNKNOWN

        def is_probed_later() -> bool:
            clock.now += 1_000
            return len(probe.probed) > 1

        await until(is_probed_later, seconds=10)
    finally:
        await prober.stop()


async def test_a_host_that_hangs_delays_no_other(index: RegistryIndex) -> None:
    probe = Scripted()
    probe.hangs.add("slow")
    await index.put([draft(f"slow{n}", url=f"https://slow.example/{n}") for n in range(30)])
    await index.put([draft(f"quick{n}", url=f"https://q{n}.example/") for n in range(5)])
    prober = Prober(index, probe, SETTINGS)
    await prober.start()
    await until(lambda: sum(each.startswith("quick") for each in probe.probed) >= 5, seconds=15)
    assert sum(each.startswith("slow") for each in probe.probed) == SETTINGS.per_host
    assert probe.most <= SETTINGS.at_once
    await prober.stop()
