"""Proofs of domains: shown, looked for again, and of no use to anybody else."""

from __future__ import annotations

from typing import Any

import pytest

from parley.model.errors import InvalidParamsError, PermissionDeniedError, TooManyRequestsError
from parley.model.service import ANONYMOUS
from parley.registry.publishing.callers import ConflictError, NotFoundError, PublishingLimits
from parley.registry.publishing.proofs import PROOF_PATH
from tests.kit.scripted_server import Exchange
from tests.registry.ingest.sites import WebSite, site
from tests.registry.publishing.conftest import ADA, BOB, Publishing

pytestmark = pytest.mark.anyio

DAY = 24 * 3600 * 1000
NAME = "_parley-registry.example.com"


async def test_a_text_in_dns_proves_a_domain(publishing: Publishing) -> None:
    challenge = await publishing.proofs.challenge(ADA, "Example.com")
    assert challenge.domain == "example.com"
    assert challenge.text.endswith("; registry=find.example")
    assert challenge.record == f'{NAME}. 300 IN TXT "{challenge.text}"'
    with pytest.raises(PermissionDeniedError, match=r"has no TXT record.*|cannot be looked up"):
        await publishing.proofs.prove(ADA, "example.com", "dns")
    assert await publishing.proofs.domains(ADA) == {}
    await publishing.prove(ADA, "other.example")
    assert list(await publishing.proofs.domains(ADA)) == ["other.example"]
    assert await publishing.proofs.domains(BOB) == {}


async def test_a_document_proves_a_domain_of_this_machine(
    publishing: Publishing, web: WebSite
) -> None:
    challenge = await publishing.proofs.challenge(ADA, "agents.localhost", origin=web.url)
    assert challenge.url == web.url + PROOF_PATH
    with pytest.raises(PermissionDeniedError, match="answered 404"):
        await publishing.proofs.prove(ADA, "agents.localhost", "well-known", origin=web.url)
    web.pages[PROOF_PATH] = {"proofs": ["another", challenge.text]}
    proved = await publishing.proofs.prove(ADA, "agents.localhost", "well-known", origin=web.url)
    assert proved.method == "well-known"
    # It is looked for there again.
    publishing.clock.now += 2 * DAY
    assert await publishing.proofs.renew() == 1
    until = (await publishing.proofs.domains(ADA))["agents.localhost"]
    assert until == publishing.clock.now + 7 * DAY


@pytest.mark.parametrize("origin", ["http://127.0.0.1:1/deeper", "https://evil.example"])
async def test_no_origin_is_named_but_of_this_machine(publishing: Publishing, origin: str) -> None:
    with pytest.raises(InvalidParamsError, match="must be at https://"):
        await publishing.proofs.challenge(ADA, "agents.localhost", origin=origin)
    with pytest.raises(InvalidParamsError, match="must be at https://"):
        await publishing.proofs.challenge(ADA, "example.com", origin="http://127.0.0.1:8080")


async def test_an_answer_by_redirect_to_another_host_proves_nothing(
    publishing: Publishing, web: WebSite
) -> None:
    challenge = await publishing.proofs.challenge(ADA, "agents.localhost", origin=web.url)
    async with site(host="localhost") as other:
        other.pages[PROOF_PATH] = {"proofs": [challenge.text]}

        async def redirect(exchange: Exchange) -> None:
            await exchange.body_of(b"", 302, location=other.url + PROOF_PATH)

        web.pages[PROOF_PATH] = redirect
        with pytest.raises(PermissionDeniedError, match="another host proves nothing"):
            await publishing.proofs.prove(ADA, "agents.localhost", "well-known", origin=web.url)


async def test_the_text_of_one_caller_is_of_no_use_to_another(publishing: Publishing) -> None:
    await publishing.proofs.challenge(BOB, "example.com")
    await publishing.prove(ADA, "example.com")
    with pytest.raises(
        PermissionDeniedError, match=r"no TXT record .* is the text of this caller's challenge"
    ):
        await publishing.proofs.prove(BOB, "example.com", "dns")


async def test_an_old_token_is_not_replayed(publishing: Publishing) -> None:
    old = await publishing.proofs.challenge(ADA, "example.com")
    publishing.dns.add(NAME, "TXT", f'"{old.text}"')
    new = await publishing.proofs.challenge(ADA, "example.com")
    assert new.text != old.text
    with pytest.raises(PermissionDeniedError):
        await publishing.proofs.prove(ADA, "example.com", "dns")
    publishing.clock.now += DAY
    with pytest.raises(ConflictError, match="has expired"):
        await publishing.proofs.prove(ADA, "example.com", "dns")
    publishing.clock.now += 3 * DAY
    await publishing.proofs.challenge(BOB, "other.example")  # prunes
    with pytest.raises(NotFoundError, match="no challenge"):
        await publishing.proofs.prove(ADA, "example.com", "dns")


async def test_a_proved_challenge_is_used_up(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    with pytest.raises(NotFoundError):
        await publishing.proofs.prove(ADA, "example.com", "dns")


async def test_a_proof_is_renewed_while_it_is_shown_and_ends_when_not(
    publishing: Publishing,
) -> None:
    await publishing.prove(ADA, "example.com")
    shown = publishing.dns.records[NAME, "TXT"]
    first = (await publishing.proofs.domains(ADA))["example.com"]
    assert await publishing.proofs.renew() == 0
    publishing.clock.now += DAY
    assert await publishing.proofs.renew() == 1
    later = (await publishing.proofs.domains(ADA))["example.com"]
    assert later == first + DAY
    del publishing.dns.records[NAME, "TXT"]
    while publishing.clock.now < later:
        publishing.clock.now += DAY // 2
        await publishing.proofs.renew()
    assert await publishing.proofs.domains(ADA) == {}
    kinds = [line.kind for line in await publishing.index.acts()]
    assert kinds[-1] == "domain.ended"
    publishing.dns.records[NAME, "TXT"] = shown
    publishing.clock.now += DAY
    await publishing.proofs.renew()
    assert list(await publishing.proofs.domains(ADA)) == ["example.com"]


async def test_replicas_share_the_renewals(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    publishing.clock.now += DAY
    first = await publishing.index.claim_proofs(10, 60.0)
    assert [each.domain for each in first] == ["example.com"]
    assert await publishing.index.claim_proofs(10, 60.0) == []
    publishing.clock.now += 60_000
    assert len(await publishing.index.claim_proofs(10, 60.0)) == 1


@pytest.mark.parametrize("domain", ["com", "co.uk", "github.io", "localhost", "10.0.0.1", "a b.c"])
async def test_no_domain_that_is_for_everybody_is_proved(
    publishing: Publishing, domain: str
) -> None:
    with pytest.raises(InvalidParamsError):
        await publishing.proofs.challenge(ADA, domain)


async def test_who_proved_nothing_gets_no_challenge(publishing: Publishing) -> None:
    with pytest.raises(PermissionDeniedError, match="send credentials"):
        await publishing.proofs.challenge(ANONYMOUS, "example.com")


async def test_challenges_and_proofs_are_limited(publishing: Publishing) -> None:
    for _ in range(30):
        await publishing.proofs.challenge(ADA, "example.com")
    with pytest.raises(TooManyRequestsError) as refused:
        await publishing.proofs.challenge(ADA, "example.com")
    assert refused.value.retry_after is not None
    await publishing.proofs.challenge(BOB, "example.com")  # others are not affected
    publishing.clock.now += 3_700_000
    await publishing.proofs.challenge(ADA, "example.com")


async def test_challenges_ahead_get_no_more_domains(publishing: Publishing, clock: Any) -> None:
    few = Publishing(publishing.index, publishing.dns, clock, PublishingLimits(domains=1))
    challenge = await few.proofs.challenge(ADA, "one.example")
    few.dns.add("_parley-registry.one.example", "TXT", f'"{challenge.text}"')
    await few.prove(ADA, "two.example")
    with pytest.raises(TooManyRequestsError, match="at most 1 domains"):
        await few.proofs.prove(ADA, "one.example", "dns")
    await few.fetcher.close()


async def test_no_token_is_in_the_audit(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    lines = str(await publishing.index.acts())
    assert "domain.challenged" in lines
    assert "domain.proved" in lines
    assert "parley-registry=" not in lines
