"""Every choice that the documentation lists has a test with its number.

Some choices have only rows of the conformance kit, with a defect for each.
"""

from __future__ import annotations

import re

from parley.conformance.server_run import CHECKS
from tests.house.documents import ROOT

PAGE = ROOT / "docs" / "reference" / "specification-choices.md"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", flags=re.M)
ROWS = {
    8: "STREAM-9",
    9: "TASK-12",
    10: "LIST-13",
    19: "MSG-7",
    21: "STREAM-19",
    22: "MSG-31",
    24: "STREAM-3",
    25: "EXT-1",
    29: "LIST-16",
    31: "PUSH-7",
    34: "OLD-3",
    37: "RPC-9",
    38: "LIST-15",
    42: "STREAM-15",
}
"""The choices whose only test is a requirement of the conformance kit."""
TEST = re.compile(r"^(?:async )?def (test_\w+)", flags=re.M)


def choices() -> list[tuple[int, str]]:
    """Return the number of each question, and Parley's choice, from the page."""
    rows = ROW.findall(PAGE.read_text("utf-8"))
    return [(int(number), does) for number, _, does, _ in rows]


def held() -> dict[int, list[str]]:
    """Return the names of the tests with each number."""
    known = {check.requirement.id for check in CHECKS}
    found = {number: [row] for number, row in ROWS.items() if row in known}
    for path in (ROOT / "tests" / "contract" / "choices").glob("test_*.py"):
        for name in TEST.findall(path.read_text("utf-8")):
            for number in re.findall(r"rule_(\d+)", name):
                found.setdefault(int(number), []).append(name)
    return found


def test_every_number_is_on_the_page_once() -> None:
    """The numbers follow the order of subjects, and every line of a table is parsed."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| *\d", line)]
    numbers = sorted(number for number, _ in choices())
    assert numbers == list(range(1, max(43, len(lines)) + 1))


def test_the_choices_that_are_made_are_those_that_have_tests() -> None:
    """A planned choice has no test, and no test has a number that is missing from the page."""
    made = {number for number, does in choices() if not does.startswith("*Planned")}
    assert made == set(held())
