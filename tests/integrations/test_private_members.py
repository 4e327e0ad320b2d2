"""Private members of frameworks are used where the decision says so, and why."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADAPTERS = ROOT / "src" / "parley" / "integrations"
DECISION = ROOT / "docs" / "internals" / "decisions" / "0013-frameworks.md"

OURS = {"_attempt", "_is_protocol"}
"""Members of Parley's own turn, and of the standard library."""


def is_private(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"_[A-Za-z]\w*", name) is not None


def members_in(tree: ast.Module) -> set[str]:
    """Return the private names that a module imports, or uses of objects that are not its own."""
    own, found = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("parley"):
            names = [*(node.module or "").split("."), *(each.name for each in node.names)]
            private = [each for each in names if is_private(each)]
            found.update(private[-1:])
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if is_self else found).add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            name = getattr(node.args[1], "value", None)
            found.update([name] if is_private(name) else [])
    return found - own - OURS


def test_each_private_member_of_a_framework_is_named_with_its_reason() -> None:
    used = {
        (folder.name, member)
        for folder in ADAPTERS.iterdir()
        if folder.is_dir()
        for path in folder.glob("*.py")
        for member in members_in(ast.parse(path.read_text()))
    }
    table = DECISION.read_text().partition("## Private members of frameworks")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", table, re.MULTILINE)
    named = {(name, member) for name, cells in rows for member in re.findall(r"`(\w+)`", cells)}
    assert used == named
