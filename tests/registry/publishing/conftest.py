"""Publishing in a registry, on each index, with local DNS and sites."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from parley.model.service import Caller
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.addresses import DnsNames
from parley.registry.ingest.examiner import Examiner
from parley.registry.ingest.fetching import WebFetcher
from parley.registry.publishing.callers import CallerRates, PublishingLimits
from parley.registry.publishing.proofs import DomainProofs
from parley.registry.publishing.pushing import EntryPublishing
from tests.kit.waiting import Clock
from tests.registry.index.conftest import clock as clock
from tests.registry.index.conftest import index as index
from tests.registry.ingest.dns_server import DnsServer, dns_server
from tests.registry.ingest.sites import HERE_ONLY, WebSite, site


def caller(name: str, *scopes: str) -> Caller:
    return Caller(id=name, issuer="keys", authenticated=True, scopes=frozenset(scopes))


ADA, BOB = caller("ada"), caller("bob")


class Publishing:
    """The parts of publishing, assembled."""

    def __init__(
        self,
        index: RegistryIndex,
        dns: DnsServer,
        clock: Clock,
        limits: PublishingLimits | None = None,
    ) -> None:
        self.index = index
        self.dns = dns
        self.clock = clock
        self.fetcher = WebFetcher(HERE_ONLY)
        limits = limits or PublishingLimits()
        rates = CallerRates(limits, clock=lambda: clock.now / 1000)
        self.proofs = DomainProofs(
            index,
            self.fetcher,
            DnsNames([dns.address]),
            registry="find.example",
            limits=limits,
            rates=rates,
        )
        self.examiner = Examiner(self.fetcher)
        self.entries = EntryPublishing(index, self.examiner, self.proofs, rates=rates)

    async def prove(self, who: Caller, domain: str) -> None:
        """Prove a domain by an additional TXT record."""
        challenge = await self.proofs.challenge(who, domain)
        name = f"_parley-registry.{domain}"
        known = self.dns.records.get((name, "TXT"), [])
        self.dns.add(name, "TXT", *known, f'"{challenge.text}"')
        await self.proofs.prove(who, domain, "dns")


@pytest.fixture
async def dns() -> AsyncIterator[DnsServer]:
    async with dns_server() as server:
        yield server


@pytest.fixture
async def web() -> AsyncIterator[WebSite]:
    async with site() as made:
        yield made


@pytest.fixture
async def publishing(
    index: RegistryIndex, dns: DnsServer, clock: Clock
) -> AsyncIterator[Publishing]:
    made = Publishing(index, dns, clock)
    yield made
    await made.fetcher.close()
