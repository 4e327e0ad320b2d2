"""Filters in JSON and as expressions, orders, and page tokens."""

from __future__ import annotations

import pytest

from parley.model.errors import InvalidParamsError
from parley.registry.catalog.entries import A2A_CARD, A2A_CARD_TYPES, MCP_CARD
from parley.registry.catalog.searching import QueryModel
from parley.registry.records import Constraint
from parley.registry.search.filters import constraints_of
from parley.registry.search.filters import constraints_of_expression as read
from parley.registry.search.searcher import asked_digest, place_in


def test_values_are_alternatives_and_fields_all_hold() -> None:
    filter = {"tags": ["finance", "tax"], "trustManifest.attestations.type": "SOC2"}
    assert constraints_of(QueryModel(filter=filter)) == (
        Constraint(field="tags", values=("finance", "tax")),
        Constraint(field="trustManifest.attestations.type", values=("SOC2",)),
    )


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


# -- page tokens -----------------------------------------------------------------------------------


ASKED = asked_digest("search", "weather", [])


@pytest.mark.parametrize(
    "token", ["x", "eyJwYWdlIjogMn0=", "ä", "A" * 1_000, "....", "%00", "null", " "]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidParamsError, match="not from this registry"):
        place_in(token, ASKED)
