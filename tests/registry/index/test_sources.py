"""Sources are visited when they are due; differences and proofs of domains."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.registry.index.registry_index import CHALLENGE_KEPT_MS as KEPT_MS
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.writing import MAX_OPERATIONS, card_difference, difference
from parley.registry.records import Source, SourceKind, SourceState
from tests.kit.waiting import Clock
from tests.registry.index.making import CATALOG, draft, listed, standings

pytestmark = pytest.mark.anyio


def source(name: str, **changes: object) -> Source:
    values: dict[str, object] = {"url": f"https://{name}.example/", "kind": SourceKind.CATALOG}
    return Source(**{**values, **changes})  # type: ignore[arg-type]


async def test_sources_are_added_once(index: RegistryIndex) -> None:
    first = source("a", found_by="https://b.example/", depth=2, settings={"interval": 60})
    assert await index.add_sources([first, source("b")]) == 2
    assert await index.add_sources([source("a", kind=SourceKind.SITE), source("c")]) == 1
    assert await index.sources() == [first, source("b"), source("c")]
    assert await index.sources(limit=1) == [first]
    assert await index.add_sources([]) == 0


async def test_a_source_is_found_by_its_address(index: RegistryIndex) -> None:
    there = source("a")
    await index.add_sources([there])
    assert await index.source(there.url) == there
    assert await index.source("https://b.example/") is None


async def test_a_source_with_a_very_long_address_is_refused(index: RegistryIndex) -> None:
    with pytest.raises(ValueError, match="1 to 2000 bytes"):
        await index.add_sources([source("a"), source("a" * 3000)])
    assert await index.sources() == []


async def test_due_sources_are_claimed_the_longest_due_first(
    index: RegistryIndex, clock: Clock
) -> None:
    await index.add_sources(
        [
            source("later", due_at=clock.now + 1),
            source("second", due_at=clock.now),
            source("first", due_at=5),
            source("pushed", kind=SourceKind.PUSH, due_at=clock.now - 1),
            source("upstream", kind=SourceKind.REGISTRY),
        ]
    )
    claimed = await index.claim_sources(10, 60.0)
    names = ["first", "pushed", "second"]
    assert [each.url for each in claimed] == [f"https://{name}.example/" for name in names]
    assert await index.claim_sources(10, 60.0) == []
    clock.now += 1
    assert [each.url for each in await index.claim_sources(10, 60.0)] == ["https://later.example/"]


async def test_no_more_sources_are_claimed_than_asked_for(index: RegistryIndex) -> None:
    await index.add_sources([source(f"s{n}", due_at=n) for n in range(5)])
    assert [s.due_at for s in await index.claim_sources(2, 60.0)] == [0, 1]
    assert [s.due_at for s in await index.claim_sources(9, 60.0)] == [2, 3, 4]
    assert await index.claim_sources(0, 60.0) == []


async def test_a_claim_that_is_not_ended_expires(index: RegistryIndex, clock: Clock) -> None:
    await index.add_sources([source("a")])
    assert len(await index.claim_sources(1, 60.0)) == 1
    clock.now += 59_999
    assert await index.claim_sources(1, 60.0) == []
    clock.now += 1
    assert len(await index.claim_sources(1, 60.0)) == 1


async def test_a_visit_stores_what_it_found(index: RegistryIndex, clock: Clock) -> None:
    await index.add_sources([source("a")])
    [claimed] = await index.claim_sources(1, 60.0)
    visited = msgspec.structs.replace(
        claimed,
        state=SourceState.FAILED,
        reason="it does not answer: \x00",
        failures=3,
        etag='"e"',
        last_modified="today",
        fetched_at=clock.now,
        due_at=clock.now + 10,
    )
    await index.end_visit(visited)
    [kept] = await index.sources()
    assert kept == msgspec.structs.replace(visited, reason="it does not answer: \ufffd")
    assert await index.claim_sources(1, 60.0) == []
    clock.now += 10
    assert len(await index.claim_sources(1, 60.0)) == 1


async def test_the_end_of_a_visit_to_a_removed_source_adds_none(index: RegistryIndex) -> None:
    await index.end_visit(source("a"))
    assert await index.sources() == []


async def test_a_removed_source_takes_its_entries_along(index: RegistryIndex) -> None:
    await index.add_sources([source("a", url=CATALOG)])
    await index.put([draft("one"), draft("two", source="https://b.example/")])
    assert await index.remove_source(CATALOG)
    assert not await index.remove_source(CATALOG)
    assert await index.sources() == []
    assert await listed(index) == {"two"}
    assert await standings(index, "one") == {CATALOG: "withdrawn"}


# -- applying a difference to what was before makes what is after ----------------------------------


LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~é", max_size=3)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=4)
    ),
    max_leaves=20,
)
SKILLS = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from("abcd"), "tags": st.lists(LEAVES, max_size=2)}),
    max_size=6,
)


def applied(before: Any, operations: tuple[Mapping[str, Any], ...]) -> Any:
    """Apply operations as RFC 6902 says."""
    document = {"": copy.deepcopy(before)}
    for operation in operations:
        parts = operation["path"].split("/")[1:]
        *way, last = ["", *[part.replace("~1", "/").replace("~0", "~") for part in parts]]
        target: Any = document
        for part in way:
            target = target[int(part)] if isinstance(target, list) else target[part]
        value = copy.deepcopy(operation.get("value"))
        if isinstance(target, list):
            at = int(last)
            assert 0 <= at <= len(target) - (operation["op"] != "add")
            if operation["op"] == "add":
                target.insert(at, value)
            elif operation["op"] == "remove":
                del target[at]
            else:
                target[at] = value
        elif operation["op"] == "remove":
            del target[last]
        else:
            assert (last in target) == (operation["op"] == "replace")
            target[last] = value
    return document[""]


@given(VALUES, VALUES)
def test_a_difference_makes_one_value_into_the_other(before: Any, after: Any) -> None:
    assert repr_of(applied(before, difference(before, after))) == repr_of(after)


@given(SKILLS, SKILLS)
def test_lists_of_named_items_too(before: Any, after: Any) -> None:
    assert repr_of(applied(before, difference(before, after))) == repr_of(after)


def repr_of(value: Any) -> str:
    """A text that tells ``1`` from ``true``, and no order of members."""
    if isinstance(value, dict):
        return repr(sorted((name, repr_of(member)) for name, member in value.items()))
    if isinstance(value, list):
        return repr([repr_of(item) for item in value])
    return repr(value)


def test_equal_values_have_no_difference() -> None:
    assert difference({"a": [1, {"b": 1.0}]}, {"a": [1, {"b": 1}]}) == ()
    assert difference(1, True) != ()


def test_a_skill_that_is_added_or_changed_is_told_by_itself() -> None:
    before = {"skills": [{"id": "a"}, {"id": "b", "name": "B"}, {"id": "c"}]}
    after = {"skills": [{"id": "a"}, {"id": "n"}, {"id": "b", "name": "Bee"}, {"id": "c"}]}
    assert difference(before, after) == (
        {"op": "add", "path": "/skills/1", "value": {"id": "n"}},
        {"op": "replace", "path": "/skills/2/name", "value": "Bee"},
    )
    assert difference(after, before) == (
        {"op": "remove", "path": "/skills/1"},
        {"op": "replace", "path": "/skills/1/name", "value": "B"},
    )


def test_names_are_escaped_in_pointers() -> None:
    assert difference({"a/b~c": 1}, {"a/b~c": 2})[0]["path"] == "/a~1b~0c"


def test_a_long_difference_is_one_replacement() -> None:
    before, after = {f"n{n}": 1 for n in range(MAX_OPERATIONS + 1)}, {"x": 1}
    assert difference(before, after) == ({"op": "replace", "path": "", "value": after},)


def test_what_is_no_json_counts_as_null() -> None:
    assert card_difference(b"x", b'{"a":1}') == ({"op": "replace", "path": "", "value": {"a": 1}},)
    assert card_difference(b"x", b"y") == ()


# -- proofs of domains are kept for each caller ----------------------------------------------------


async def test_a_challenge_is_of_one_caller_and_the_newest_counts(
    index: RegistryIndex, clock: Clock
) -> None:
    await index.put_challenge("example.com", "me", "t1", clock.now + 1)
    await index.put_challenge("example.com", "me", "t2", clock.now + 2)
    assert await index.challenge("example.com", "me") == ("t2", clock.now + 2)
    assert await index.challenge("example.com", "you") is None
    assert await index.challenge("other.example", "me") is None


async def test_challenges_that_ended_long_ago_are_removed(
    index: RegistryIndex, clock: Clock
) -> None:
    end = clock.now + 1
    await index.put_challenge("example.com", "me", "t", end)
    clock.now = end + KEPT_MS
    await index.put_challenge("other.example", "you", "t", clock.now)
    assert await index.challenge("example.com", "me") == ("t", end), "to say that it ended"
    clock.now += 1
    await index.put_challenge("other.example", "you", "t", clock.now)
    assert await index.challenge("example.com", "me") is None


async def test_claims_are_those_of_a_caller(index: RegistryIndex) -> None:
    await index.put_claim("b.example", "me", "dns", 5)
    await index.put_claim("a.example", "me", "well-known", 6)
    await index.put_claim("a.example", "you", "dns", 7)
    await index.put_claim("b.example", "me", "well-known", 8)
    assert await index.claims("me") == {"a.example": 6, "b.example": 8}
    assert await index.claims("you") == {"a.example": 7}
    assert await index.claims("\x00'; --") == {}
