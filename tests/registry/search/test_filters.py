"""Filters in JSON and as expressions, orders, and page tokens."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.errors import InvalidParamsError
from parley.registry.catalog.entries import A2A_CARD, A2A_CARD_TYPES, MCP_CARD
from parley.registry.catalog.searching import (
    MAX_FACETS,
    MAX_FILTERS,
    ExploreRequest,
    FacetRequest,
    QueryModel,
)
from parley.registry.records import Constraint, Order
from parley.registry.search.filters import constraints_of, facets_of, order_of
from parley.registry.search.filters import constraints_of_expression as read
from parley.registry.search.searcher import PagePlace, asked_digest, page_token, place_in


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
        ({"type": ["nonsense"]}, "is not a media type"),
        ({"description": ["x"]}, "search for its words with query.text"),
        ({"data.tools.name": ["x"]}, "search for its words with query.text"),
        ({"registry.health": ["healthy"]}, "registry.trust and registry.marks"),
        ({"registry": ["x"]}, "registry.trust and registry.marks"),
        ({"registry.createdAt": ["2026-01-01"]}, "a comparison with a time"),
        ({"": ["x"]}, "not a field path"),
        ({"a..b": ["x"]}, "not a field path"),
        ({"a b": ["x"]}, "not a field path"),
        ({".".join("abcdefghij"): ["x"]}, "at most 8 names"),
        ({"a" * 200: ["x"]}, "longer than 128"),
        ({"tags": []}, "has no value"),
        ({"tags": ["x", " "]}, "has no value"),
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
        ("displayName down", "'down' in orderBy is not a direction"),
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
        ([], "name the fields to count"),
        ([FacetRequest(field="type")] * (MAX_FACETS + 1), "at most 16"),
        ([FacetRequest(field="type", limit=0)], "between 1 and 1000"),
        ([FacetRequest(field="type", limit=10**6)], "between 1 and 1000"),
        ([FacetRequest(field="type", min_count=0)], "minCount"),
        ([FacetRequest(field="description")], "query.text"),
        ([FacetRequest(field="a..b")], "not a field path"),
    ],
)
def test_a_wrong_facet_says_what_would_be_right(facets: list[FacetRequest], said: str) -> None:
    with pytest.raises(InvalidParamsError, match=said):
        facets_of(ExploreRequest(facets=facets))


# -- the filter of a list --------------------------------------------------------------------------


CREATED, UPDATED = "registry.createdAt", "registry.updatedAt"


def where(field: str, *values: str, operator: str = "eq", negated: bool = False) -> Constraint:
    return Constraint(field=field, values=values, operator=operator, negated=negated)


ONE = where("version", "1")


@pytest.mark.parametrize(
    ("text", "constraints"),
    [
        ("", []),
        ("   ", []),
        (
            f"type = '{A2A_CARD}' AND createdAfter > '2026-01-01'",
            [where("type", *A2A_CARD_TYPES), where(CREATED, "2026-01-01", operator="gt")],
        ),
        ("type = text/markdown", [where("type", "text/markdown")]),
        ("type = 'application/mcp-server-card json'", [where("type", MCP_CARD)]),
        ("type='text/a,text/b'", [where("type", "text/a", "text/b")]),
        ("publisherId = 'acme.com, other.com'", [where("publisher", "acme.com", "other.com")]),
        ("publisher = acme.com, other.com", [where("publisher", "acme.com", "other.com")]),
        ("displayName = 'Smith, Jones'", [where("displayName", "Smith, Jones")]),
        ("name : weather", [where("displayName", "weather", operator="contains")]),
        ("contains(displayName, 'wea')", [where("displayName", "wea", operator="contains")]),
        ("tags != finance", [where("tags", "finance", negated=True)]),
        ("NOT tags = finance", [where("tags", "finance", negated=True)]),
        ("NOT NOT tags = finance", [where("tags", "finance")]),
        ("not tags != finance", [where("tags", "finance")]),
        ("tags IN (a, 'b c')", [where("tags", "a", "b c")]),
        ("tags NOT IN (a, b)", [where("tags", "a", "b", negated=True)]),
        ("tags = a OR tags = b", [where("tags", "a", "b")]),
        ("tags = a or tags = b and version = 1", "OR can join"),
        ("(tags = a OR tags = b) AND version = 1", [where("tags", "a", "b"), ONE]),
        (
            "NOT (tags = a OR version = 1)",
            [where("tags", "a", negated=True), where("version", "1", negated=True)],
        ),
        ("NOT (tags != a AND tags != b)", [where("tags", "a", "b")]),
        ("metadata.price >= 9.5", [where("metadata.price", "9.5", operator="ge")]),
        ("updatedAfter = '2026-01-31T12'", [where(UPDATED, "2026-01-31T12", operator="gt")]),
        ("createdBefore <= 2026-01-31", [where(CREATED, "2026-01-31", operator="le")]),
        ("updatedAt < '2026-01-31'", [where(UPDATED, "2026-01-31", operator="lt")]),
        ("displayName = 'it''s'", [where("displayName", "it's")]),
        ("displayName = \"it's\"", [where("displayName", "it's")]),
        (r"displayName = 'it\'s'", [where("displayName", "it's")]),
        ("card.skills.tags = a AND card.skills.tags = a", [where("card.skills.tags", "a")]),
        ("identifier = urn:air:acme.com:a:x", [where("identifier", "urn:air:acme.com:a:x")]),
        ("displayName = '1 OR 1=1; --'", [where("displayName", "1 OR 1=1; --")]),
    ],
)  # fmt: skip
def test_an_expression_becomes_constraints(text: str, constraints: object) -> None:
    if isinstance(constraints, str):
        with pytest.raises(InvalidParamsError, match=constraints):
            read(text)
    else:
        assert list(read(text)) == constraints


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("type = MCP", "did you mean 'application/mcp-server-card\\+json'"),
        ("tags", "at the end: an operator is missing after 'tags'"),
        ("tags =", "at the end: a value is missing"),
        ("= finance", "at character 1 \\('='\\): a field is missing"),
        ("tags = a tags = b", "at character 10 \\('tags'\\): AND or OR is missing"),
        ("tags = a AND", "at the end: a field is missing"),
        (
            "tags = a OR version = 1",
            "at character 10 \\('OR'\\): OR can join conditions of one field",
        ),
        ("tags = a OR tags != b", "some are negated"),
        ("tags = a OR tags : b", "one operator only, not = and :"),
        ("displayName:weather", "with a space before :"),
        ("displayName = Weather Agent", "quote a value with spaces"),
        ("(tags = a", "at the end: '\\)' is missing"),
        ("tags = a)", "at character 9"),
        ("tags = 'a", "a quotation mark is not closed"),
        ("tags = ''", "there is no text between"),
        ("tags & a", "has no meaning|operator is missing"),
        ("tags NOT a", "IN is missing after NOT"),
        ("tags IN a", "'\\(' is missing"),
        ("createdAfter > yesterday", "not a time such as"),
        ("createdAfter > '2026-01-01', '2027-01-01'", "compared with one time"),
        ("createdAfter < 2026-01-01", "compared with = or > or >="),
        ("updatedAt = 2026-01-01", "compared with <, <=, > or >="),
        ("description = x", "query.text"),
        ("a..b = x", "not a field path"),
        ("x" * 5_000, "longer than 4000"),
        ("x" * 3_000, "an operator is missing"),
        ("NOT " * 100 + "tags = a", "nested deeper than 32"),
        ("(" * 100 + "tags = a" + ")" * 100, "nested deeper than 32"),
        (" AND ".join(f"f{n} = 1" for n in range(40)), "at most 32"),
        (
            "NOT (" + " AND ".join(f"(tags = a{n} AND tags = b{n})" for n in range(3)) + ")",
            "negated|too complex",
        ),
        (" OR ".join(f"(tags = a{n} AND tags = b{n})" for n in range(12)), "too complex"),
    ],
)
def test_a_wrong_expression_says_where_and_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(InvalidParamsError, match=said) as raised:
        read(text)
    assert len(str(raised.value)) < 500


WORDS = st.sampled_from(
    ["tags", "type", "=", "!=", ">", "(", ")", ",", "AND", "OR", "NOT", "IN", "'a'", '"b', "a/b",
     "contains", "createdAfter", "2026-01-01", ":", "\\", "''", "é", "\x00", "x" * 300]
)  # fmt: skip


@given(st.lists(WORDS, max_size=30).map(" ".join) | st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        constraints = read(text)
    except InvalidParamsError:
        return
    assert all(each.field and each.values for each in constraints)


# -- page tokens -----------------------------------------------------------------------------------


ASKED = asked_digest("search", "weather", [])


def test_a_token_leads_to_the_next_page() -> None:
    place = PagePlace(20, 71)
    assert place_in(page_token(ASKED, place), ASKED) == place
    assert place_in("", ASKED) == PagePlace()


def test_a_token_of_another_question_is_refused() -> None:
    token = page_token(ASKED, PagePlace(20))
    with pytest.raises(InvalidParamsError, match="belongs to another request"):
        place_in(token, asked_digest("search", "news", []))


@pytest.mark.parametrize(
    "token", ["x", "eyJwYWdlIjogMn0=", "ä", "A" * 1_000, "....", "%00", "null", " "]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidParamsError, match="not from this registry"):
        place_in(token, ASKED)


@pytest.mark.parametrize(
    "place", [PagePlace(-1), PagePlace(10**9), PagePlace(0, 101), PagePlace(0, -1)]
)
def test_a_token_that_was_made_up_goes_nowhere_else(place: PagePlace) -> None:
    with pytest.raises(InvalidParamsError, match="not from this registry"):
        place_in(page_token(ASKED, place), ASKED)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_a_place(body: bytes) -> None:
    token = base64.urlsafe_b64encode(body).decode().rstrip("=")
    try:
        place = place_in(token, ASKED)
    except InvalidParamsError:
        return
    assert place.offset >= 0
