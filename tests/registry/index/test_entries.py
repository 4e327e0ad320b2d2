"""Entries are put, listed once, withdrawn, decided on, and followed."""

from __future__ import annotations

import pytest

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import EntrySelection, EntryStanding, Trust
from tests.kit.waiting import Clock
from tests.registry.index.making import CATALOG, draft, found, identifier, listed, standings

pytestmark = pytest.mark.anyio


async def test_drafts_of_one_put_are_all_written_or_none(index: RegistryIndex) -> None:
    with pytest.raises(ValueError, match="1 to 512 characters"):
        await index.put([draft("one"), draft("x" * 600)])
    with pytest.raises(ValueError, match="address of a source"):
        await index.put([draft("one"), draft("two", source="")])
    with pytest.raises(ValueError, match="audience"):
        await index.put([draft("one", audience=("x" * 501,))])
    assert await index.changes(0, 10) == []


# One listed entry of an identifier


# Standings


async def test_what_a_broken_signature_covers_is_never_listed(index: RegistryIndex) -> None:
    [one] = await index.put([draft("one", trust=Trust.FAILED, trust_reason="bad key")])
    assert (one.standing, one.reason) == (EntryStanding.REJECTED, "bad key")
    with pytest.raises(ValueError, match="never listed"):
        await index.decide(one.key, EntryStanding.LISTED, "please", "op")
    assert await listed(index) == set()


# Changes, and forgetting


async def test_withdrawn_entries_are_forgotten_with_all_they_had(
    index: RegistryIndex, clock: Clock
) -> None:
    one = draft("one", "violin", card=b"{}", fields={"tags": ("a",)}, audience=("team",))
    await index.put([one, draft("two", "violin piano", fields={"tags": ("a",)}), draft("spam")])
    spam = (await index.entries_of(identifier("spam")))[0]
    await index.decide(spam.key, EntryStanding.REJECTED, "spam", "op")
    await index.withdraw(CATALOG, [identifier("two")], "gone")
    assert await index.forget(clock.now) == 0
    clock.now += 1
    assert await index.forget(clock.now) == 1
    assert await index.entries_of(identifier("one")) == []
    assert await standings(index, "spam") == {CATALOG: "withdrawn"}, "the decision is kept"
    assert await index.versions(identifier("one")) == []
    assert await found(index, "violin") == ["two"]
    assert await index.facet(EntrySelection(), "tags", 9, 1) == ([("a", 1)], 0)
    [again] = await index.put([one])
    assert again.revision == 1


async def test_an_entry_is_forgotten_by_when_it_was_withdrawn(
    index: RegistryIndex, clock: Clock
) -> None:
    await index.put([draft("one")])
    clock.now += 1_000
    await index.withdraw(CATALOG, [], "gone")
    [one] = await index.entries_of(identifier("one"))
    assert one.updated_at == clock.now
    assert await index.forget(clock.now) == 0, "others have not seen its withdrawal yet"
    clock.now += 1
    assert await index.forget(clock.now) == 1


# Versions of cards


async def test_versions_of_a_card_are_kept_with_their_differences(
    index: RegistryIndex, clock: Clock
) -> None:
    for number, name in enumerate(("a", "b", "b", "a"), 1):
        clock.now = number
        card = b'{"name":"%s","skills":[]}' % name.encode()
        [one] = await index.put([draft("one", card=card, version=f"1.{number}")])
        assert one.card == card
    versions = await index.versions(identifier("one"))
    assert [(v.version, v.seen_at) for v in versions] == [("1.4", 4), ("1.2", 2), ("1.1", 1)]
    change = {"op": "replace", "path": "/name", "value": "b"}
    assert [v.difference for v in versions] == [({**change, "value": "a"},), (change,), ()]
    assert versions[-1].card == b'{"name":"a","skills":[]}'
    assert len({v.digest for v in versions}) == 2
    assert len(await index.versions(identifier("one"), 2)) == 2


async def test_a_card_that_is_gone_for_a_while_is_no_new_version(index: RegistryIndex) -> None:
    await index.put([draft("one", card=b"{}")])
    [without] = await index.put([draft("one")])
    assert (without.card, without.card_digest) == (None, "")
    [again] = await index.put([draft("one", card=b"{}")])
    assert again.card == b"{}"
    assert len(await index.versions(identifier("one"))) == 1


@pytest.mark.parametrize("card", [b"no json", b"[" * 5_000, b'{"a":' * 900 + b"1" + b"}" * 900])
async def test_a_card_that_cannot_be_compared_is_kept_all_the_same(
    index: RegistryIndex, card: bytes
) -> None:
    await index.put([draft("one", card=b"{}")])
    [one] = await index.put([draft("one", card=card)])
    assert one.card == card
    [now, _] = await index.versions(identifier("one"))
    assert now.difference != ()
