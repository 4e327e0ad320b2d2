"""Filters of searches, facets and orders."""

from __future__ import annotations

import pytest

from parley.model.errors import InvalidParamsError
from parley.registry.catalog.entries import A2A_CARD_TYPES
from parley.registry.catalog.searching import (
    MAX_FACETS,
    MAX_FILTERS,
    ExploreRequest,
    FacetRequest,
    QueryModel,
)
from parley.registry.records import Constraint, Order
from parley.registry.search.filters import constraints_of, facets_of, order_of


def test_values_are_alternatives_and_fields_all_hold() -> None:
    filter = {"tags": ["finance", "tax"], "trustManifest.attestations.type": "SOC2"}
    assert constraints_of(QueryModel(filter=filter)) == (
        Constraint(field="tags", values=("finance", "tax")),
        Constraint(field="trustManifest.attestations.type", values=("SOC2",)),
    )


def test_numbers_and_truth_values_are_compared_as_texts() -> None:
    filter = {"metadata.seats": 3, "metadata.free": [True, 1.5]}
    assert constraints_of(QueryModel(filter=filter)) == (
        Constraint(field="metadata.seats", values=("3",)),
        Constraint(field="metadata.free", values=("true", "1.5")),
    )


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("publisher", "publisher"),
        ("publisherId", "publisher"),
        ("mediaType", "type"),
        ("skills.tags", "card.skills.tags"),
        ("card.supportedInterfaces.protocolBinding", "card.bindings"),
        ("card.defaultInputModes", "card.modes"),
        ("metadata.region", "metadata.region"),
        ("schema:offers.@type", "schema:offers.@type"),
        ("no.such.path", "no.such.path"),
    ],
)
def test_a_path_may_have_other_names(path: str, field: str) -> None:
    [constraint] = constraints_of(QueryModel(filter={path: ("application/x",)}))
    assert constraint.field == field


def test_the_names_that_a_type_has_had_stand_for_each_other() -> None:
    [constraint] = constraints_of(
        QueryModel(filter={"type": ("application/agent-card+json", "text/markdown")})
    )
    assert set(constraint.values) == {*A2A_CARD_TYPES, "text/markdown"}


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ({"type": ["MCP"]}, "did you mean 'application/mcp-server-card.json'"),
        ({"type": ["nonsense"]}, "is no media type"),
        ({"description": ["x"]}, "search for its words with query.text"),
        ({"data.tools.name": ["x"]}, "search for its words with query.text"),
        ({"registry.health": ["healthy"]}, "registry.trust and registry.marks"),
        ({"registry": ["x"]}, "registry.trust and registry.marks"),
        ({"registry.createdAt": ["2026-01-01"]}, "a time to compare with"),
        ({"": ["x"]}, "no field path"),
        ({"a..b": ["x"]}, "no field path"),
        ({"a b": ["x"]}, "no field path"),
        ({".".join("abcdefghij"): ["x"]}, "at most 8 names"),
        ({"a" * 200: ["x"]}, "longer than 128"),
        ({"tags": []}, "compared with nothing"),
        ({"tags": ["x", " "]}, "compared with nothing"),
        ({"tags": [None]}, "compared with null"),
        ({"tags": {"a": 1}}, "compared with an object"),
        ({"tags": [["x"]]}, "compared with a list"),
        ({"tags": ["x" * 2_000]}, "longer than 1000"),
        ({"tags": [str(n) for n in range(101)]}, "at most 100"),
        ({f"f{n}": "x" for n in range(MAX_FILTERS + 1)}, "at most 32"),
    ],
)
def test_a_wrong_filter_says_what_would_be_right(filter: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidParamsError, match=said):
        constraints_of(QueryModel(filter=filter))


def test_no_filter_demands_nothing() -> None:
    assert constraints_of(QueryModel()) == ()


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("", ()),
        ("displayName", (Order(field="displayName"),)),
        ("name", (Order(field="displayName"),)),
        ("created_at DESC", (Order(field="createdAt", descending=True),)),
        (
            " updatedAt desc ,displayName ASC",
            (Order(field="updatedAt", descending=True), Order(field="displayName")),
        ),
    ],
)
def test_lists_are_ordered_by_fields(text: str, order: tuple[Order, ...]) -> None:
    assert order_of(text) == order


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("score", "by displayName, identifier"),
        ("tags", "by displayName, identifier"),
        ("displayName down", "'down' in orderBy is no direction"),
        ("displayName DESC type", "a comma before the next field"),
        ("displayName,", "a comma with no field"),
        ("type, type DESC", "names type twice"),
        ("type " * 200, "longer than 500"),
        ("displayName; DROP TABLE entries", "displayName;"),
    ],
)
def test_a_wrong_order_says_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(InvalidParamsError, match=said):
        order_of(text)


@pytest.mark.parametrize(
    ("facets", "said"),
    [
        ([], "name what to count"),
        ([FacetRequest(field="type")] * (MAX_FACETS + 1), "at most 16"),
        ([FacetRequest(field="type", limit=0)], "between 1 and 1000"),
        ([FacetRequest(field="type", limit=10**6)], "between 1 and 1000"),
        ([FacetRequest(field="type", min_count=0)], "minCount"),
        ([FacetRequest(field="description")], "query.text"),
        ([FacetRequest(field="a..b")], "no field path"),
    ],
)
def test_a_wrong_facet_says_what_would_be_right(facets: list[FacetRequest], said: str) -> None:
    with pytest.raises(InvalidParamsError, match=said):
        facets_of(ExploreRequest(facets=facets))
