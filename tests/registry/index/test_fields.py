"""Filters, facets and lists on every field path: their syntax, and their costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from parley.registry import records
from parley.registry.index import entry_search
from parley.registry.index.entry_search import EntrySearch, SearchTables
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.sqlite import SqliteRegistryIndex
from parley.registry.index.words import MAX_LENGTH, MAX_WORDS, words_of
from parley.registry.records import Constraint, EntrySelection, Order
from tests.kit.waiting import Clock
from tests.registry.index.making import EVERYBODY, draft, found, listed, short, where

pytestmark = pytest.mark.anyio


FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "a": {
        "tags": ("AI", "Money"),
        "metadata.price": ("9.5",),
        "updatedAt": ("2026-01-02T03:04:05Z",),
        "trustManifest.attestations.type": ("SOC2", "GDPR"),
    },
    "b": {"tags": ("ai",), "metadata.price": ("10",), "updatedAt": ("2026-03-01",)},
    "c": {
        "tags": ("sky",),
        "metadata.price": ("free",),
        "updatedAt": ("2025-12-31T23:00:00-05:00",),
    },
    "d": {},
}


async def fill(index: RegistryIndex) -> None:
    await index.put([draft(name, fields=fields) for name, fields in FIELDS.items()])


@pytest.mark.parametrize(
    ("constraint", "names"),
    [
        (where("tags", "ai"), "ab"),
        (where("tags", "  Ａi "), "ab"),
        (where("tags", "ai", "sky"), "abc"),
        (where("tags", "ai", negated=True), "cd"),
        (where("tags", "nothing"), ""),
        (where("tags", "nothing", negated=True), "abcd"),
        (where("tags"), ""),
        (where("no.such.path", "x"), ""),
        (where("tags", "one", operator="contains"), "a"),
        (where("tags", "I", "SK", operator="contains"), "abc"),
        (where("tags", "%", operator="contains"), ""),
        (where("tags", "_", operator="contains"), ""),
        (where("tags", "i", operator="contains", negated=True), "cd"),
        (where("metadata.price", "9.5", operator="gt"), "b"),
        (where("metadata.price", "9.50", operator="ge"), "ab"),
        (where("metadata.price", "10", operator="lt"), "a"),
        (where("metadata.price", "1e1", operator="le"), "ab"),
        (where("metadata.price", "a", operator="gt"), "c"),
        (where("updatedAt", "2026-01-02T00:00:00+00:00", operator="gt"), "ab"),
        (where("updatedAt", "2026-01-01T04:00:00Z", operator="le"), "c"),
        (where("updatedAt", "2026-01-01T03:59:59Z", operator="le"), ""),
        (where("trustManifest.attestations.type", "gdpr"), "a"),
        (where("identifier", "urn:air:example.com:agents:d"), "d"),
        (where("publisher", "EXAMPLE.com"), "abcd"),
        (where("displayName", "c", operator="contains"), "c"),
        (where("type", "application/a2a-agent-card+json"), "abcd"),
    ],
)
async def test_entries_are_filtered_by_the_values_of_a_path(
    index: RegistryIndex, constraint: Constraint, names: str
) -> None:
    await fill(index)
    assert await listed(index, constraint) == set(names)


@pytest.mark.parametrize("operator", ["contains", "gt"])
async def test_a_constraint_that_very_many_values_fulfil_holds_too(
    index: RegistryIndex, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_search, "MAX_TERMS", 5)
    await index.put([draft(f"n{n}", fields={"tags": (f"tag-{n:02}",)}) for n in range(20)])
    constraint = where("tags", "tag-0", operator=operator)
    expected = {f"n{n}" for n in range(10 if operator == "contains" else 20)}
    assert await listed(index, constraint) == expected
    assert (
        await listed(index, where("tags", "tag-0", operator=operator, negated=True))
        == {f"n{n}" for n in range(20)} - expected
    )


@pytest.mark.parametrize("field", ["registry.createdAt", "registry.updatedAt"])
async def test_times_of_the_registry_are_compared(
    index: RegistryIndex, clock: Clock, field: str
) -> None:
    await index.put([draft("old", "violin", fields={"tags": ("x",)})])
    clock.now += 1_000
    await index.put([draft("new", "violin", fields={"tags": ("x",)})])
    since = where(field, "1970-01-01T00:16:41Z", operator="ge")
    assert await listed(index, since) == {"new"}
    assert await found(index, "violin", since) == ["new"]
    selection = EntrySelection(constraints=(since,))
    assert await index.facet(selection, "tags", 9, 1) == ([("x", 1)], 0)
    one = EntrySelection(constraints=(since, where("tags", "x")))
    assert await index.facet(one, "tags", 9, 1) == ([("x", 1)], 0)
    words = EntrySelection(constraints=(since,), words="violin")
    assert await index.facet(words, "tags", 9, 1) == ([("x", 1)], 0)
    assert [short(each.identifier) for each in await index.browse(words, (), 9, 0)] == ["new"]


@pytest.mark.parametrize("sign", ["'", '"', "\x00", "{", "%", ":x", "\ud800", "\\", "漢" * 400])
async def test_no_field_or_value_fails(index: RegistryIndex, sign: str) -> None:
    await fill(index)
    for operator in ("eq", "contains", "gt", "le"):
        assert await listed(index, where(sign, sign, operator=operator)) == set()
        await listed(index, where("tags", sign, operator=operator))
    assert await index.facet(EVERYBODY, sign, 5, 1) == ([], 0)


async def test_facets_count_entries_by_value(index: RegistryIndex) -> None:
    await index.put(
        [
            draft("a", fields={"tags": ("x", "y", "X")}),
            draft("b", fields={"tags": ("x", "z")}),
            draft("c", fields={"tags": ("x", "y", "w"), "color": ("red",)}),
            draft("d"),
        ]
    )
    buckets, other = await index.facet(EVERYBODY, "tags", 10, 1)
    assert (buckets, other) == ([("x", 3), ("y", 2), ("w", 1), ("z", 1)], 0)
    assert await index.facet(EVERYBODY, "tags", 2, 1) == ([("x", 3), ("y", 2)], 2)
    assert await index.facet(EVERYBODY, "tags", 10, 2) == ([("x", 3), ("y", 2)], 2)
    assert await index.facet(EVERYBODY, "tags", 10, 9) == ([], 7)
    assert await index.facet(EVERYBODY, "tags", 0, 1) == ([], 7)
    few = EntrySelection(constraints=(where("color", "red"),))
    assert await index.facet(few, "tags", 10, 1) == ([("w", 1), ("x", 1), ("y", 1)], 0)
    assert await index.facet(EVERYBODY, "nothing", 10, 1) == ([], 0)


# -- words of texts and of needs -------------------------------------------------------------------


def test_words_are_bounded() -> None:
    assert len(words_of(" ".join([str(n) for n in range(9_999)]))) == MAX_WORDS
    assert words_of("x" * 999) == ["x" * MAX_LENGTH]


# -- the cost of a search does not grow with entries outside its results ---------------------------


class Explaining(SearchTables):
    """Notes how each statement that was put together is run."""

    steps: list[str]

    def ask(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        plan = self.connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict(values))
        self.steps += [str(row[3]) for row in plan]
        return super().ask(statement, values)


@pytest.mark.parametrize("field", records.ORDERS)
async def test_every_order_of_a_list_has_an_index(
    monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(Explaining, "steps", steps, raising=False)
    search = EntrySearch()
    monkeypatch.setattr(search, "_tables", Explaining.made())
    index = SqliteRegistryIndex()
    monkeypatch.setattr(index, "_search", search)
    await index.open()
    await index.put([draft("a"), draft("b")])
    for is_descending in (False, True):
        order = [Order(field=field, descending=is_descending)]
        assert len(await index.browse(EVERYBODY, order, 10, 0)) == 2
    await index.close()
    assert steps
    assert not [step for step in steps if "TEMP B-TREE" in step]
