"""One exchange for each side of every peer; ``make interop`` runs all exchanges of all cells."""

from __future__ import annotations

import pytest

from .deviations import differences, known
from .environments import NotMade
from .matrix import Cell, cells, least, outcomes
from .pages import PAGE, rendered
from .table import TABLE

SIDES = list({cell[:2]: cell for cell in reversed(list(cells()))}.values())[::-1]


@pytest.mark.anyio
@pytest.mark.may_be_missing
@pytest.mark.parametrize("cell", SIDES, ids=lambda cell: f"{cell.peer} {cell.side}")
async def test_an_exchange_with_a_peer_comes_out_as_it_is_known_to(cell: Cell) -> None:
    try:
        results = {cell: await outcomes(cell, (least(cell),))}
    except NotMade as error:
        pytest.skip(f"{TABLE[cell.peer].title}: {error}")
    assert differences(results, known()) == []


def test_the_page_names_every_peer_and_every_known_deviation() -> None:
    page = PAGE.read_text("utf-8")
    for one in TABLE.values():
        assert one.title in page
    for entry in known():
        assert f"| {entry.whose} | {entry.why} |" in page, "run: make interop"


def test_the_page_has_what_cannot_be_otherwise() -> None:
    """What does not depend on a run stands there as it would be written now."""
    page = PAGE.read_text("utf-8").splitlines()
    for line in rendered({}, known()).splitlines():
        assert line in page or line == "Everything works.", "run: make interop"
