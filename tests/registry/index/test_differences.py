"""Applying a difference to what was before makes what is after."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parley.registry.index.writing import MAX_OPERATIONS, card_difference, difference

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
