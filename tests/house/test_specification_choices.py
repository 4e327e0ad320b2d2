"""Every choice that the documentation lists is held by a test that carries its number."""

from __future__ import annotations

import re

from tests.house.documents import ROOT

PAGE = ROOT / "docs" / "specification-choices.md"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", flags=re.M)
TEST = re.compile(r"^(?:async )?def (test_\w+)", flags=re.M)


def choices() -> dict[int, str]:
    """Return what Parley does about each question, by its number."""
    rows = ROW.findall(PAGE.read_text("utf-8"))
    return {int(number): does for number, _, does, _ in rows}


def held() -> dict[int, list[str]]:
    """Return the names of the tests that carry a number, by the number."""
    found: dict[int, list[str]] = {}
    for path in (ROOT / "tests" / "rules").glob("test_*.py"):
        for name in TEST.findall(path.read_text("utf-8")):
            for number in re.findall(r"rule_(\d\d)", name):
                found.setdefault(int(number), []).append(name)
    return found


def test_the_choices_are_numbered_one_by_one() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| \d", line)]
    assert list(choices()) == list(range(1, len(lines) + 1))
    assert len(lines) >= 43


def test_the_choices_that_are_made_are_those_that_have_tests() -> None:
    """One that is planned has none, and no test carries a number that the page does not have."""
    made = {number for number, does in choices().items() if not does.startswith("*Planned")}
    assert made == set(held())
