"""Proofs of domains: created, checked again, and useless to other callers."""

from __future__ import annotations

import pytest

from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.registry.publishing.callers import ConflictError, NotFoundError
from parley.registry.publishing.proofs import PROOF_PATH
from tests.kit.scripted_server import Exchange
from tests.registry.ingest.sites import WebSite, site
from tests.registry.publishing.conftest import ADA, BOB, Publishing

pytestmark = pytest.mark.anyio

DAY = 24 * 3600 * 1000
NAME = "_parley-registry.example.com"


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
    # The registry checks the domain again.
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


async def test_no_token_is_in_the_audit(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    lines = str(await publishing.index.acts())
    assert "domain.challenged" in lines
    assert "domain.proved" in lines
    assert "parley-registry=" not in lines
