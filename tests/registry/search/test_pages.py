"""Page tokens."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.errors import InvalidParamsError
from parley.registry.search.searcher import PagePlace, asked_digest, page_token, place_in

ASKED = asked_digest("search", "weather", [])


def test_a_token_leads_to_the_next_page() -> None:
    place = PagePlace(20, 71)
    assert place_in(page_token(ASKED, place), ASKED) == place
    assert place_in("", ASKED) == PagePlace()


def test_a_token_of_another_question_is_refused() -> None:
    token = page_token(ASKED, PagePlace(20))
    with pytest.raises(InvalidParamsError, match="of another question"):
        place_in(token, asked_digest("search", "news", []))


@pytest.mark.parametrize(
    "token", ["x", "eyJwYWdlIjogMn0=", "ä", "A" * 1_000, "....", "%00", "null", " "]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidParamsError, match="none of this registry's"):
        place_in(token, ASKED)


@pytest.mark.parametrize(
    "place", [PagePlace(-1), PagePlace(10**9), PagePlace(0, 101), PagePlace(0, -1)]
)
def test_a_token_that_was_made_up_goes_nowhere_else(place: PagePlace) -> None:
    with pytest.raises(InvalidParamsError, match="none of this registry's"):
        place_in(page_token(ASKED, place), ASKED)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_a_place(body: bytes) -> None:
    token = base64.urlsafe_b64encode(body).decode().rstrip("=")
    try:
        place = place_in(token, ASKED)
    except InvalidParamsError:
        return
    assert place.offset >= 0
