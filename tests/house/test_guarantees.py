"""The guarantees of compositions: each combinator has a test for each case on the page."""

from __future__ import annotations

import ast
import re
import runpy

import pytest

from tests.house.documents import ROOT

TABLES = (ROOT / "docs" / "reference" / "compositions.md").read_text("utf-8")
GUIDE = (ROOT / "docs" / "guides" / "compositions.md").read_text("utf-8")
TESTS = ROOT / "tests" / "compose" / "test_guarantees.py"


def promised() -> set[str]:
    """Return the names of the tests that the tables list."""
    shared, _, each = TABLES.partition("## Each combinator")
    combinators = re.findall(r"^\| `(\w+)` \|", each, flags=re.M)
    [columns] = re.findall(r"^\| \| (fails .*) \|$", each, flags=re.M)
    *cases, cancels = columns.split(" | ")
    assert cancels == "the caller cancels"
    cases += re.findall(r"^\| ([a-z][a-z ]+) \|", shared, flags=re.M)
    whens = [f"a_part_{case.replace(' ', '_')}" for case in cases]
    return {
        f"test_{combinator}_when_{when}"
        for combinator in combinators
        for when in (*whens, "the_caller_cancels")
    }


def test_every_guarantee_has_a_test_by_its_name_and_every_test_a_guarantee() -> None:
    parsed = ast.parse(TESTS.read_text("utf-8")).body
    tests = {each.name for each in parsed if isinstance(each, ast.AsyncFunctionDef)}
    assert {name for name in tests if name.startswith("test_")} == promised()
    assert len(promised()) == 8 * 7


@pytest.mark.parametrize("example", ["answering", "report"])
def test_the_pictures_of_the_examples_are_what_they_draw(example: str) -> None:
    agent = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))["agent"]
    assert f"```mermaid\n{agent.mermaid()}```\n" in GUIDE
