"""Each invariant of docs/internals/architecture.md has tests with its marker, such as ``L5``."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house.sizes import ROOT

ROW = re.compile(r"^\| ([LE]\d) \|", re.MULTILINE)


def invariants() -> set[str]:
    plan = ROOT / "docs" / "internals" / "architecture.md"
    return set(ROW.findall(plan.read_text("utf-8")))


def marks(node: ast.AST) -> set[str]:
    """Return the markers in an expression: ``pytest.mark.L5``, alone or in a list."""
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Attribute)
        and part.value.attr == "mark"
    }


def marked(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Return every test of a file, with its own markers and the file's."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_all: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            of_all = marks(node.value)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield node.name, of_all.union(*map(marks, node.decorator_list))


def test_every_invariant_has_tests_under_its_name_and_no_other_has() -> None:
    tests = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, markers in marked(path):
            for marker in markers:
                if re.fullmatch(r"[LE]\d", marker):
                    tests[marker].append(name)
    known = invariants()
    assert len(known) == 13
    assert tests.keys() == known
    assert {marker for marker, names in tests.items() if len(names) < 2} == set()


def test_a_test_that_is_named_after_an_invariant_is_marked_so() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name, markers in marked(path):
            named = re.match(r"test_([le]\d)_", name)
            assert named is None or named[1].upper() in markers, f"{path.name}::{name}"
