"""Answers of registries are read as far as they can be, and nothing in them breaks the reader."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.registry.catalog.searching import (
    FederationMode,
    InvalidAnswer,
    QueryModel,
    SearchRequest,
    clamped,
    read_error,
    read_explore,
    read_list,
    read_one,
    read_search,
    write_search,
)

ENTRY = {
    "identifier": "urn:air:example.com:agent:a",
    "displayName": "A",
    "type": "application/a2a-agent-card+json",
    "url": "https://example.com/a.json",
}


def test_a_search_is_written_with_what_was_asked() -> None:
    request = SearchRequest(
        query=QueryModel(text="need", filter={"tags": ("a", "b")}),
        federation=FederationMode.NONE,
        page_size=3,
        page_token="t",
    )
    assert json.loads(write_search(request)) == {
        "query": {"text": "need", "filter": {"tags": ["a", "b"]}},
        "federation": "none",
        "pageSize": 3,
        "pageToken": "t",
    }


def test_results_beyond_those_asked_for_are_not_read() -> None:
    read = read_search(json.dumps({"results": [ENTRY] * 9}).encode(), max_results=4)
    assert len(read.results) == 4
    assert [each.reason for each in read.rejected] == [
        "5 entries beyond the 4 that were asked for are not read"
    ]


def test_score_and_source_are_no_members_of_the_entry() -> None:
    body = json.dumps({"results": [{**ENTRY, "score": 5, "source": "s", "own": 1}]}).encode()
    [result] = read_search(body, max_results=1).results
    assert result.entry.more == {"own": 1}
    assert result.document == {**ENTRY, "own": 1}


def test_referrals_of_another_type_are_left_out_and_bounded() -> None:
    good = {**ENTRY, "type": "application/ai-registry"}
    given: list[Any] = [ENTRY, 7, {**good, "url": 7}, {"url": "https://b.example"}, *[good] * 99]
    read = read_search(json.dumps({"results": [], "referrals": given}).encode(), max_results=1)
    assert len(read.referrals) == 47
    assert read.referrals[0].type == "application/ai-registry+json"


def test_a_page_token_that_is_too_long_ends_the_pages() -> None:
    body = {"results": [], "pageToken": "x" * 5000}
    assert read_search(json.dumps(body).encode(), max_results=1).page_token == ""


@pytest.mark.parametrize("score", [None, "7", True, [], 1e400, float("-inf")])
def test_a_score_that_is_no_number_is_none(score: Any) -> None:
    body = json.dumps({"results": [{**ENTRY, "score": score}]}).encode()
    try:
        [result] = read_search(body, max_results=1).results
    except InvalidAnswer:
        return  # Python writes what is no JSON
    assert result.score is None
    assert clamped(result.score) == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"errorCode": "A", "message": "b"}, ("A", "b")),
        ({"error": {"code": "A", "message": "b"}}, ("A", "b")),
        ({"error": "a", "error_description": "b"}, ("a", "b")),
        ({"detail": "b"}, ("", "b")),
        ([], ("", "")),
        (7, ("", "")),
    ],
)
def test_errors_are_read_in_the_forms_that_there_are(body: Any, expected: Any) -> None:
    assert read_error(json.dumps(body).encode()) == expected


MEMBERS = (
    "results", "items", "entry", "identifier", "displayName", "type", "url", "data", "score",
    "source", "referrals", "pageToken", "facets", "buckets", "value",
)  # fmt: skip

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(JSON)
def test_whatever_is_answered_is_read_or_refused(value: Any) -> None:
    body = json.dumps(value).encode()
    for read in (
        lambda: read_search(body, max_results=5),
        lambda: read_list(body, max_items=5),
        lambda: read_explore(body),
        lambda: read_one(body),
    ):
        with suppress(InvalidAnswer):
            read()
    read_error(body)
