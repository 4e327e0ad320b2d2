"""Entries are put, listed once, withdrawn, decided on, and followed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import (
    Authority,
    EntryDraft,
    EntrySelection,
    EntryStanding,
    Trust,
    Viewer,
)
from tests.kit.waiting import Clock
from tests.registry.index.making import (
    CATALOG,
    OPERATOR,
    draft,
    found,
    identifier,
    listed,
    standings,
    where,
)

pytestmark = pytest.mark.anyio

OTHER = "https://other.example/catalog.json"


async def test_an_entry_comes_back_as_it_was_put(index: RegistryIndex, clock: Clock) -> None:
    one = draft(
        "one",
        entry={"displayName": "One", "metadata": {"n": [1, 2.5, None, True]}, "b": 1, "a": "é"},
        version="1.2",
        trust=Trust.VERIFIED,
        trust_reason="key k",
        card=b'{"name": "One"}',
        card_digest="sha256:abc",
        fields={"tags": ("x", "y")},
        texts={"A": "one", "C": "text"},
        audience=("team",),
        owner="me",
        marks=("instructions",),
    )
    [put] = await index.put([one])
    assert {name: getattr(put, name) for name in EntryDraft.__struct_fields__} == {
        name: getattr(one, name) for name in EntryDraft.__struct_fields__
    }
    assert list(put.entry) == ["displayName", "metadata", "b", "a"]
    assert (put.created_at, put.updated_at, put.seen_at) == (clock.now,) * 3
    assert put.revision == 1
    assert await index.entry(identifier("one"), Viewer(tokens=("team",))) == put
    assert await index.entries_of(identifier("one")) == [put]


async def test_an_unchanged_entry_is_seen_and_nothing_else(
    index: RegistryIndex, clock: Clock
) -> None:
    [before] = await index.put([draft("one", card=b"{}")])
    clock.now += 5
    [after] = await index.put([draft("one", card=b"{}")])
    assert after == msgspec.structs.replace(before, seen_at=clock.now)
    assert await index.changes(before.change, 10) == []


async def test_a_changed_entry_replaces_the_one_before(index: RegistryIndex, clock: Clock) -> None:
    [before] = await index.put([draft("one", "violins", fields={"tags": ("a", "b")})])
    clock.now += 5
    [after] = await index.put([draft("one", "pianos", fields={"tags": ("b", "c")})])
    assert (after.key, after.created_at) == (before.key, before.created_at)
    assert (after.revision, after.updated_at) == (2, clock.now)
    assert after.change > before.change
    assert await found(index, "violin") == []
    assert await found(index, "piano") == ["one"]
    assert await listed(index, where("tags", "a")) == set()
    assert await listed(index, where("tags", "c")) == {"one"}
    assert await index.facet(EntrySelection(), "tags", 10, 1) == ([("b", 1), ("c", 1)], 0)


async def test_drafts_of_one_put_are_all_written_or_none(index: RegistryIndex) -> None:
    with pytest.raises(ValueError, match="1 to 512 characters"):
        await index.put([draft("one"), draft("x" * 600)])
    with pytest.raises(ValueError, match="address of a source"):
        await index.put([draft("one"), draft("two", source="")])
    with pytest.raises(ValueError, match="audience"):
        await index.put([draft("one", audience=("x" * 501,))])
    assert await index.changes(0, 10) == []


async def test_of_drafts_with_one_place_the_last_counts(index: RegistryIndex) -> None:
    first, second = await index.put([draft("one", "violin"), draft("one", "piano")])
    assert first == second
    assert await found(index, "violin piano") == ["one"]
    assert second.texts == {"A": "piano"}


async def test_entries_put_at_the_same_time_are_all_there(index: RegistryIndex) -> None:
    await asyncio.gather(*[index.put([draft(f"n{n}"), draft(f"m{n}")]) for n in range(20)])
    assert len(await listed(index)) == 40
    numbers = [entry.change for entry in await index.changes(0, 100)]
    assert numbers == list(range(1, 41))


@pytest.mark.parametrize(
    "text",
    [
        "nul \x00 in it",
        "half \ud800 a pair",
        "'; DROP TABLE entries; --",
        "\u202e\u0000",
        "😀" * 99,
    ],
)
async def test_no_text_keeps_an_entry_from_being_put(index: RegistryIndex, text: str) -> None:
    entry: dict[str, Any] = {"displayName": text, "metadata": {text: [text]}}
    one = draft("one", f"violin {text}", entry=entry, fields={"tags": (text,), text: ("v",)})
    one = msgspec.structs.replace(one, owner=text, reason=text, audience=(text,), version=text)
    await index.put([one])
    await index.put([msgspec.structs.replace(one, audience=(), marks=(text,))])
    assert await found(index, "violin") == ["one"]
    assert await listed(index, where("tags", text)) == {"one"}
    await found(index, text)
    assert await index.entry(text, OPERATOR) is None


async def test_very_long_texts_are_indexed_by_their_beginning(index: RegistryIndex) -> None:
    words = " ".join([f"{n:x}" + "字" * 30 + str(n) for n in range(20_000)])
    huge = {weight: f"violin {words}" for weight in "ABCD"}
    values = tuple(f"{n} {'v' * 3000}" for n in range(5_000))
    await index.put([draft("one", texts=huge, fields={"tags": values})])
    assert await found(index, "violin") == ["one"]
    assert await listed(index, where("tags", values[7])) == {"one"}


async def test_as_many_long_words_as_are_indexed_fit_into_a_row(index: RegistryIndex) -> None:
    def word(number: int) -> str:
        """A word of 40 letters of four bytes each."""
        digits = f"{number:06o}"
        return "".join([chr(0x10330 + int(digit)) for digit in digits]) + chr(0x10340) * 34

    texts = {
        weight: " ".join([word(10_000 * at + n) for n in range(2_000)])
        for at, weight in enumerate("ABCD")
    }
    await index.put([draft("one", texts=texts)])
    assert await found(index, word(7)) == ["one"]
    assert await found(index, word(31_499)) == ["one"]


# One listed entry of an identifier


async def test_an_identifier_is_listed_of_the_strongest_authority(index: RegistryIndex) -> None:
    await index.put([draft("one", "violin")])
    await index.put([draft("one", "piano", source=OTHER, authority=Authority.OPERATOR)])
    assert await standings(index, "one") == {CATALOG: "shadowed", OTHER: "listed"}
    assert await found(index, "violin piano") == ["one"]
    assert await listed(index) == {"one"}
    one = await index.entry(identifier("one"), Viewer())
    assert one is not None
    assert one.source == OTHER
    [_, shadowed] = await index.entries_of(identifier("one"))
    assert "lists the same identifier" in shadowed.reason


async def test_of_equal_authorities_the_oldest_is_listed(
    index: RegistryIndex, clock: Clock
) -> None:
    await index.put([draft("one", source=OTHER)])
    clock.now -= 1_000  # the clock was set: keys do not decide
    await index.put([draft("one")])
    assert await standings(index, "one") == {CATALOG: "listed", OTHER: "shadowed"}


async def test_the_next_source_is_listed_when_one_is_gone(index: RegistryIndex) -> None:
    await index.put([draft("one", source=OTHER, authority=Authority.OPERATOR), draft("one")])
    assert await index.withdraw(OTHER, [], "removed") == 1
    assert await standings(index, "one") == {CATALOG: "listed", OTHER: "withdrawn"}
    await index.put([draft("one", source=OTHER, authority=Authority.OPERATOR)])
    assert await standings(index, "one") == {CATALOG: "shadowed", OTHER: "listed"}
    [strong, _] = await index.entries_of(identifier("one"))
    assert await index.decide(strong.key, EntryStanding.REJECTED, "spam", "op")
    assert await standings(index, "one") == {CATALOG: "listed", OTHER: "rejected"}
    held = draft(
        "one", source=OTHER, authority=Authority.OPERATOR, standing=EntryStanding.HELD, reason="r"
    )
    await index.put([held])
    assert await standings(index, "one") == {CATALOG: "listed", OTHER: "rejected"}


async def test_nothing_unproved_takes_the_place_of_what_is_held(index: RegistryIndex) -> None:
    """An older entry without the pinned keys would be a way around them."""
    await index.put([draft("one", source=OTHER)])
    await index.put([draft("one", trust=Trust.VERIFIED, authority=Authority.PROVED)])
    assert await standings(index, "one") == {CATALOG: "listed", OTHER: "shadowed"}
    held = draft("one", standing=EntryStanding.HELD, reason="no pinned key signed the card")
    await index.put([held])
    assert await standings(index, "one") == {CATALOG: "held", OTHER: "shadowed"}
    assert await listed(index) == set()
    await index.put([draft("one", source=OTHER, trust=Trust.VERIFIED)])
    assert await standings(index, "one") == {CATALOG: "held", OTHER: "listed"}
    await index.put([draft("one", source=OTHER)])
    assert await listed(index) == set()
    [first, _] = sorted(
        await index.entries_of(identifier("one")), key=lambda e: e.source != CATALOG
    )
    assert await index.decide(first.key, EntryStanding.REJECTED, "stolen", "op")
    assert await standings(index, "one") == {CATALOG: "rejected", OTHER: "listed"}


async def test_sources_that_swap_in_one_put_leave_one_listed(index: RegistryIndex) -> None:
    weak, strong = Authority.DOMAIN, Authority.PROVED
    for _ in range(2):
        for first, second in ((weak, strong), (strong, weak)):
            await index.put(
                [draft("one", authority=first), draft("one", source=OTHER, authority=second)]
            )
            assert sorted((await standings(index, "one")).values()) == ["listed", "shadowed"]
            assert await listed(index) == {"one"}


async def test_a_shadowed_entry_that_is_put_back_is_listed_in_its_turn(
    index: RegistryIndex,
) -> None:
    await index.put([draft("one"), draft("one", source=OTHER)])
    [_, shadowed] = await index.entries_of(identifier("one"))
    as_draft = {name: getattr(shadowed, name) for name in EntryDraft.__struct_fields__}
    await index.put([EntryDraft(**{**as_draft, "owner": "me"})])
    await index.withdraw(CATALOG, [], "gone")
    assert await standings(index, "one") == {CATALOG: "withdrawn", OTHER: "listed"}


async def test_a_stronger_source_for_few_does_not_show_the_entry_to_others(
    index: RegistryIndex,
) -> None:
    await index.put([draft("one", source=OTHER, authority=Authority.OPERATOR, audience=("team",))])
    await index.put([draft("one")])
    assert await index.entry(identifier("one"), Viewer()) is None
    assert await index.entry(identifier("one"), Viewer(tokens=("team",))) is not None


# Standings


@pytest.mark.parametrize(
    "standing", [EntryStanding.PENDING, EntryStanding.HELD, EntryStanding.REJECTED]
)
async def test_only_operators_find_what_is_not_listed(
    index: RegistryIndex, standing: EntryStanding
) -> None:
    await index.put([draft("one", "violin", standing=standing, reason="because")])
    assert await found(index, "violin") == []
    assert await listed(index) == set()
    assert await index.facet(EntrySelection(), "type", 9, 1) == ([], 0)
    assert await index.entry(identifier("one"), Viewer()) is None
    assert await found(index, "violin", standings=(standing,), viewer=OPERATOR) == ["one"]
    assert await listed(index, standings=tuple(EntryStanding), viewer=OPERATOR) == {"one"}
    one = await index.entry(identifier("one"), OPERATOR)
    assert one is not None
    assert (one.standing, one.reason) == (standing, "because")


async def test_what_a_broken_signature_covers_is_never_listed(index: RegistryIndex) -> None:
    [one] = await index.put([draft("one", trust=Trust.FAILED, trust_reason="bad key")])
    assert (one.standing, one.reason) == (EntryStanding.REJECTED, "bad key")
    with pytest.raises(ValueError, match="never listed"):
        await index.decide(one.key, EntryStanding.LISTED, "please", "op")
    assert await listed(index) == set()


async def test_what_an_operator_rejected_stays_rejected(index: RegistryIndex) -> None:
    [one] = await index.put([draft("one")])
    assert await index.decide(one.key, EntryStanding.REJECTED, "spam", "op")
    await index.put([draft("one")])
    await index.put([draft("one", "something else")])
    assert await standings(index, "one") == {CATALOG: "rejected"}
    await index.withdraw(CATALOG, [], "gone")
    await index.put([draft("one")])
    one_again = await index.entry(identifier("one"), OPERATOR)
    assert one_again is not None
    assert (one_again.standing, one_again.reason) == (EntryStanding.REJECTED, "spam")
    assert await index.decide(one.key, EntryStanding.LISTED, "", "op")
    assert await listed(index) == {"one"}
    await index.put([draft("one", "changed again")])
    assert await listed(index) == {"one"}


async def test_a_held_card_that_an_operator_let_through_is_held_again_when_it_changes(
    index: RegistryIndex,
) -> None:
    def held(card: bytes, text: str) -> EntryDraft:
        return draft("one", text, card=card, standing=EntryStanding.HELD, reason="the key changed")

    [one] = await index.put([held(b'{"a":1}', "violin")])
    assert await index.decide(one.key, EntryStanding.LISTED, "", "op")
    await index.put([held(b'{"a":1}', "violin")])
    await index.put([held(b'{"a":1}', "piano")])
    assert await standings(index, "one") == {CATALOG: "listed"}
    await index.put([held(b'{"a":2}', "piano")])
    assert await standings(index, "one") == {CATALOG: "held"}


async def test_deciding_on_an_entry_that_is_not_there_says_so(index: RegistryIndex) -> None:
    assert not await index.decide(7, EntryStanding.LISTED, "", "op")


async def test_entries_that_a_source_does_not_have_any_more_are_withdrawn(
    index: RegistryIndex,
) -> None:
    await index.put([draft("one"), draft("two"), draft("three"), draft("three", source=OTHER)])
    assert await index.withdraw(CATALOG, [identifier("two")], "not in the catalog") == 2
    assert await index.withdraw(CATALOG, [identifier("two")], "not in the catalog") == 0
    assert await listed(index) == {"two", "three"}
    one = await index.entry(identifier("one"), OPERATOR)
    assert one is not None
    assert (one.standing, one.reason) == (EntryStanding.WITHDRAWN, "not in the catalog")
    await index.put([draft("one")])
    assert await listed(index) == {"one", "two", "three"}


# Changes, and forgetting


async def test_changes_are_followed_by_their_numbers(index: RegistryIndex) -> None:
    await index.put([draft("one"), draft("two")])
    first = await index.changes(0, 1)
    rest = await index.changes(first[-1].change, 10)
    assert [e.identifier for e in (*first, *rest)] == [identifier("one"), identifier("two")]
    await index.put([draft("one", "changed")])
    await index.withdraw(CATALOG, [identifier("one")], "gone")
    later = await index.changes(rest[-1].change, 10)
    assert [(e.identifier, e.standing.value) for e in later] == [
        (identifier("one"), "listed"),
        (identifier("two"), "withdrawn"),
    ]
    assert [e.change for e in later] == sorted({e.change for e in later})
    assert await index.changes(later[-1].change, 10) == []


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


@pytest.mark.parametrize("audience", [(), ("other",), ("team", "other")])
async def test_versions_are_not_for_those_who_could_not_see_them(
    index: RegistryIndex, audience: tuple[str, ...]
) -> None:
    for name in ("secret", "secrets"):
        await index.put([draft("one", card=b'{"name":"%s"}' % name.encode(), audience=("team",))])
    assert len(await index.versions(identifier("one"))) == 2
    [one] = await index.put([draft("one", card=b'{"name":"shown"}', audience=audience)])
    [version] = await index.versions(identifier("one"))
    assert (version.card, version.difference) == (one.card, ())
    await index.put([draft("one", card=b'{"name":"next"}', audience=audience)])
    assert len(await index.versions(identifier("one"))) == 2


async def test_fewer_viewers_see_all_versions(index: RegistryIndex) -> None:
    await index.put([draft("one", card=b'{"n":1}', audience=("team", "other"))])
    await index.put([draft("one", card=b'{"n":2}', audience=("team",))])
    assert len(await index.versions(identifier("one"))) == 2


async def test_versions_of_a_card_that_is_gone_are_not_for_others(index: RegistryIndex) -> None:
    await index.put([draft("one", card=b'{"n":1}', audience=("team",))])
    await index.put([draft("one")])
    assert await index.versions(identifier("one")) == []
    [one] = await index.put([draft("one", card=b'{"n":2}')])
    assert one.card == b'{"n":2}'


async def test_fifty_versions_of_a_card_are_kept(index: RegistryIndex) -> None:
    for number in range(55):
        await index.put([draft("one", card=b'{"n":%d}' % number)])
    versions = await index.versions(identifier("one"), 100)
    assert [v.card for v in versions] == [b'{"n":%d}' % n for n in range(54, 4, -1)]


async def test_a_card_that_is_gone_for_a_while_is_no_new_version(index: RegistryIndex) -> None:
    await index.put([draft("one", card=b"{}")])
    [without] = await index.put([draft("one")])
    assert (without.card, without.card_digest) == (None, "")
    [again] = await index.put([draft("one", card=b"{}")])
    assert again.card == b"{}"
    assert len(await index.versions(identifier("one"))) == 1


async def test_versions_are_those_of_the_listed_source(index: RegistryIndex) -> None:
    await index.put([draft("one", card=b'{"mine":1}')])
    claimed = draft("one", card=b'{"theirs":1}', source=OTHER, standing=EntryStanding.REJECTED)
    await index.put([claimed])
    assert [v.card for v in await index.versions(identifier("one"))] == [b'{"mine":1}']


@pytest.mark.parametrize("card", [b"no json", b"[" * 5_000, b'{"a":' * 900 + b"1" + b"}" * 900])
async def test_a_card_that_cannot_be_compared_is_kept_all_the_same(
    index: RegistryIndex, card: bytes
) -> None:
    await index.put([draft("one", card=b"{}")])
    [one] = await index.put([draft("one", card=card)])
    assert one.card == card
    [now, _] = await index.versions(identifier("one"))
    assert now.difference != ()
