"""One exchange for each side of every peer; ``make interop`` runs all exchanges of all cells."""

from __future__ import annotations

import pytest

from .deviations import differences, known
from .environments import NotMade
from .matrix import Cell, Outcome, cells, least, outcomes
from .pages import PAGE, as_known, written
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


def test_the_page_says_what_is_known() -> None:
    page = PAGE.read_text("utf-8")
    assert page == written(page, as_known(known()), known()), "run: make interop"


def test_a_deviation_that_makes_no_sense_is_refused() -> None:
    entry = "[[deviation]]\npeer = 'js-1.3'\nside = 'server'\nexchange = 'card'\n"
    said = "whose = 'theirs'\nhappens = 'x'\nwhy = 'y'\n"
    assert len(known(entry + said)) == 1
    for wrong in (entry, entry.replace("js-1.3", "js-9") + said, entry.replace("card", "x") + said):
        with pytest.raises(ValueError, match=r"deviation|there is no|names no|missing"):
            known(wrong)


def test_what_comes_out_otherwise_than_known_is_named_for_better_or_for_worse() -> None:
    entries = [entry for entry in known() if entry.exchange == "cancel"][:1]
    [cell] = [each for each in cells() if each[:2] == (entries[0].peer, entries[0].side)]
    other = Outcome(failed="something else")
    assert differences({cell: {"cancel": Outcome()}}, entries) == [
        f"{cell}: cancel: works, and is known not to"
    ]
    assert differences({cell: {"cancel": other, "card": other}}, entries) == [
        f"{cell}: cancel: something else",
        f"{cell}: card: something else",
    ]
    assert differences({cell: {"cancel": Outcome(offered=False)}}, []) == []
