"""Due visits to sources, differences, and proofs of domains."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.registry.index.registry_index import CHALLENGE_KEPT_MS as KEPT_MS
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.writing import difference
from parley.registry.records import Source, SourceKind
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio


def source(name: str, **changes: object) -> Source:
    values: dict[str, object] = {"url": f"https://{name}.example/", "kind": SourceKind.CATALOG}
    return Source(**{**values, **changes})  # type: ignore[arg-type]


async def test_the_end_of_a_visit_to_a_removed_source_adds_none(index: RegistryIndex) -> None:
    await index.end_visit(source("a"))
    assert await index.sources() == []


# -- a difference, applied to the old value, gives the new value -----------------------------------


LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~é", max_size=3)
SKILLS = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from("abcd"), "tags": st.lists(LEAVES, max_size=2)}),
    max_size=6,
)


def applied(before: Any, operations: tuple[Mapping[str, Any], ...]) -> Any:
    """Apply operations as in RFC 6902."""
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


@pytest.mark.slow
@given(SKILLS, SKILLS)
def test_lists_of_named_items_too(before: Any, after: Any) -> None:
    assert repr_of(applied(before, difference(before, after))) == repr_of(after)


def repr_of(value: Any) -> str:
    """A text that distinguishes ``1`` from ``true`` and ignores the order of members."""
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


# -- proofs of domains are stored for each caller --------------------------------------------------


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
