"""The guarantees of compositions: each row of a table on the page has a test by its name."""

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
    """Return the names of the tests that the tables promise."""
    names = set()
    for section in re.split(r"^## ", TABLES, flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        if "| When a part |" not in text:
            continue
        table = text.split("| When a part |")[1].split("\n\n")[0]
        rows = re.findall(r"^\| ([a-z ]+) \|", table, flags=re.M)
        names |= {f"test_{title}_when_a_part_{row.replace(' ', '_')}" for row in rows}
        if "\nWhen the caller cancels, " in text:
            names.add(f"test_{title}_when_the_caller_cancels")
    return names


def test_every_guarantee_has_a_test_by_its_name_and_every_test_a_row() -> None:
    parsed = ast.parse(TESTS.read_text("utf-8")).body
    tests = {each.name for each in parsed if isinstance(each, ast.AsyncFunctionDef)}
    assert {name for name in tests if name.startswith("test_")} == promised()
    assert len(promised()) == 8 * 7


@pytest.mark.parametrize("example", ["answering", "report"])
def test_the_pictures_of_the_examples_are_what_they_draw(example: str) -> None:
    agent = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))["agent"]
    assert f"```mermaid\n{agent.mermaid()}```\n" in GUIDE
