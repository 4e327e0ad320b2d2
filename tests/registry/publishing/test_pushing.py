"""Pushed entries: only for proved domains, owned by their caller, removed with the proof."""

from __future__ import annotations

from typing import Any

import pytest

from parley.database.errors import StoreUnavailable
from parley.model.errors import InvalidParamsError, PermissionDeniedError, TooManyRequestsError
from parley.registry.publishing.callers import (
    ConflictError,
    NotFoundError,
    PublishingLimits,
    tokens_of,
)
from parley.registry.publishing.pushing import PublishOptions, source_of
from parley.registry.records import PUBLIC, EntrySelection, EntryStanding, Viewer
from tests.kit.scripted_server import card
from tests.registry.ingest.sites import catalog, entry, nested
from tests.registry.publishing.conftest import ADA, BOB, Publishing, caller

pytestmark = pytest.mark.anyio

OPERATOR = Viewer(sees_all=True)
ROOT = caller("root")


def pushed(name: str = "one", publisher: str = "example.com", **more: Any) -> dict[str, Any]:
    """An entry with an inline card."""
    return entry(name, publisher=publisher, data=card("https://example.com"), **more)


async def publish(publishing: Publishing, who: Any, *entries: Any, **options: Any) -> Any:
    return await publishing.entries.publish(who, catalog(*entries), PublishOptions(**options))


async def found(publishing: Publishing, viewer: Viewer) -> list[str]:
    every = await publishing.index.browse(EntrySelection(viewer=viewer), (), 100, 0)
    return sorted(each.identifier.rpartition(":")[2] for each in every)


async def test_an_inline_catalog_is_no_way_around(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    inside = nested("inside", publisher="example.com", data=catalog(pushed("bank", "bank.example")))
    report = await publish(publishing, ADA, inside)
    assert [each.identifier for each in report.refused] == ["urn:air:bank.example:test:bank"]


async def test_another_caller_withdraws_nothing(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    await publish(publishing, ADA, pushed(), pushed("hidden"))
    await publish(publishing, ADA, pushed("hidden"), audience=("caller:ada",))
    with pytest.raises(PermissionDeniedError):
        await publishing.entries.withdraw(BOB, "urn:air:example.com:test:one")
    with pytest.raises(NotFoundError):  # the caller does not learn that the entry exists
        await publishing.entries.withdraw(BOB, "urn:air:example.com:test:hidden")
    assert await publishing.entries.withdraw(ADA, "urn:air:EXAMPLE.com:test:one") == 1
    assert await publishing.entries.withdraw(ADA, "urn:air:example.com:test:one") == 0
    assert await found(publishing, OPERATOR) == ["hidden"]
    await publish(publishing, ADA, pushed())
    assert await found(publishing, OPERATOR) == ["hidden", "one"]


async def test_the_end_of_a_proof_ends_the_listing_until_it_is_back(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    await publishing.prove(ADA, "other.example")
    await publish(publishing, ADA, pushed(), pushed("two", "other.example"))
    await publishing.proofs.release(ADA, "example.com")
    assert await found(publishing, Viewer()) == ["two"]
    [one] = await publishing.index.entries_of("urn:air:example.com:test:one")
    assert one.standing is EntryStanding.PENDING
    assert "prove the domain again" in one.reason
    report = await publish(publishing, ADA, pushed())
    assert [each.standing for each in report.refused] == ["refused"]
    await publishing.prove(ADA, "example.com")
    assert await found(publishing, Viewer()) == ["one", "two"]


async def test_an_audience_sees_an_entry_and_nobody_else(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    await publish(publishing, ADA, pushed("open"))
    await publish(publishing, ADA, pushed("team"), audience=("scope:team",))
    await publish(publishing, ADA, pushed("bobs"), audience=("caller:bob",))
    await publish(publishing, ADA, pushed("known"), audience=("authenticated",))

    def viewer(who: Any) -> Viewer:
        return Viewer(tokens=tokens_of(who))

    assert await found(publishing, Viewer(tokens=PUBLIC)) == ["open"]
    assert await found(publishing, viewer(BOB)) == ["bobs", "known", "open"]
    assert await found(publishing, viewer(caller("eve", "team"))) == ["known", "open", "team"]
    assert await found(publishing, viewer(ADA)) == ["bobs", "known", "open", "team"]
    # An omitted audience stays; a named audience replaces it.
    await publish(publishing, ADA, pushed("bobs", description="new"))
    assert "bobs" not in await found(publishing, Viewer())
    await publish(publishing, ADA, pushed("bobs"), audience=("public",))
    assert "bobs" in await found(publishing, Viewer())


@pytest.mark.parametrize("name", ["caller:", "everyone", "scope:two words", "caller:a\x1fb"])
async def test_no_audience_is_guessed(publishing: Publishing, name: str) -> None:
    with pytest.raises(InvalidParamsError, match="not an audience"):
        await publish(publishing, ADA, pushed(), audience=(name,))


async def test_the_same_name_of_another_issuer_is_another_caller(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    other = {"caller": "bob", "issuer": "https://elsewhere.example"}
    await publish(publishing, ADA, pushed(), audience=(other,))
    assert await found(publishing, Viewer(tokens=tokens_of(BOB))) == []


async def test_quotas_are_of_each_caller(publishing: Publishing, clock: Any) -> None:
    few = Publishing(
        publishing.index, publishing.dns, clock, PublishingLimits(entries=2, publishes_per_minute=3)
    )
    await few.prove(ADA, "example.com")
    await few.prove(BOB, "example.com")
    await publish(few, ADA, pushed("a"), pushed("b"))
    with pytest.raises(TooManyRequestsError, match="at most 2 entries"):
        await publish(few, ADA, pushed("c"))
    await publish(few, ADA, pushed("c"), replace=True)
    with pytest.raises(TooManyRequestsError, match="3 times 'publish' in a minute"):
        await publish(few, ADA, pushed("c"))
    await publish(few, BOB, pushed("d"))
    assert await found(few, OPERATOR) == ["c", "d"]
    await few.fetcher.close()


async def test_what_is_refused_of_a_catalog_is_not_withdrawn(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    await publish(publishing, ADA, pushed("a"), pushed("b"))
    broken = {**pushed("a"), "displayName": 5}
    report = await publish(publishing, ADA, broken, pushed("c"), replace=True)
    assert [each.identifier for each in report.refused] == ["urn:air:example.com:test:a"]
    assert report.withdrawn == 1
    assert await found(publishing, Viewer()) == ["a", "c"]
    await publishing.proofs.release(ADA, "example.com")
    report = await publish(publishing, ADA, pushed("a"), pushed("c"), replace=True)
    assert (len(report.refused), report.withdrawn) == (2, 0)
    await publishing.prove(ADA, "example.com")  # the entries wait for the proof
    assert await found(publishing, Viewer()) == ["a", "c"]


async def test_a_push_that_is_killed_is_read_again(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publishing.prove(ADA, "example.com")
    index = publishing.index

    async def killed(source: object) -> None:
        raise StoreUnavailable("killed")

    monkeypatch.setattr(index, "end_visit", killed)
    with pytest.raises(StoreUnavailable):
        await publish(publishing, ADA, pushed())
    assert [each.url for each in await index.sources()] == [source_of(ADA.owner)]


async def test_withdrawn_entries_fill_nothing(publishing: Publishing, clock: Any) -> None:
    limits = PublishingLimits(entries=2, withdrawn=2)
    few = Publishing(publishing.index, publishing.dns, clock, limits)
    await few.prove(ADA, "example.com")
    await publish(few, ADA, pushed("a"), pushed("b"))
    await publish(few, ADA, pushed("c"), pushed("d"), replace=True)
    with pytest.raises(TooManyRequestsError, match="including withdrawn entries"):
        await publish(few, ADA, pushed("e"), replace=True)
    await publish(few, ADA, pushed("a"), replace=True)  # an existing entry needs no capacity
    clock.now += 61_000
    assert await few.index.forget(clock.now - 60_000) == 3
    await publish(few, ADA, pushed("e"), replace=True)
    assert await found(few, OPERATOR) == ["e"]
    await few.fetcher.close()


async def test_a_release_that_was_killed_is_finished(publishing: Publishing) -> None:
    await publishing.prove(ADA, "example.com")
    await publish(publishing, ADA, pushed())

    async def killed(claim: object) -> None:
        raise StoreUnavailable("killed")

    publishing.proofs.ended = killed
    with pytest.raises(StoreUnavailable):
        await publishing.proofs.release(ADA, "example.com")
    publishing.proofs.ended = publishing.entries.suspend
    assert await publishing.proofs.domains(ADA) == {}
    publishing.clock.now += 121_000
    await publishing.proofs.renew()
    assert await found(publishing, Viewer()) == []
    assert await publishing.index.claims(ADA.owner) == {}  # although its text is still in DNS


async def test_imports_need_no_proof_and_are_replaced_by_name(publishing: Publishing) -> None:
    bring_in = publishing.entries.bring_in
    first = catalog(pushed("a", "any.example"), pushed("b", "some.example"))
    report = await bring_in(ROOT, first, "agents.json")
    assert [each.standing for each in report.entries] == ["listed", "listed"]
    report = await bring_in(
        ROOT, catalog(pushed("a", "any.example")), "agents.json", PublishOptions(replace=True)
    )
    assert report.withdrawn == 1
    assert await found(publishing, Viewer()) == ["a"]
    await publishing.entries.withdraw(ROOT, "urn:air:any.example:test:a", is_operator=True)
    assert await found(publishing, Viewer()) == []


async def test_an_operator_does_not_withdraw_what_is_crawled(publishing: Publishing) -> None:
    from tests.registry.index.making import draft, identifier

    await publishing.index.put([draft("crawled")])
    with pytest.raises(ConflictError, match="reject it"):
        await publishing.entries.withdraw(ROOT, identifier("crawled"), is_operator=True)
