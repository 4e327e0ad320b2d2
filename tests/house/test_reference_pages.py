"""The generated reference pages match the code."""

from __future__ import annotations

import pytest

from tests.house.reference_pages import FOLDER, PAGES, documented_errors, said, unplaced


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_as_the_code_makes_it(page: str) -> None:
    written = (FOLDER / page).read_text("utf-8")
    assert written == PAGES[page](), "python -m tests.house.reference_pages --write"


def test_every_public_name_is_on_a_page() -> None:
    assert unplaced() == set()


def test_every_error_says_what_it_means_and_what_to_do() -> None:
    errors = documented_errors()
    assert len(errors) > 50
    assert [error for error in errors if not all(said(error))] == []
