"""Tests wait for a condition; only ``tests/kit/waiting.py`` and agents sleep."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.sizes import ROOT

TESTS = ROOT / "tests"

# The simulation has its own clock; peers run in environments without the tests; the other files are
# agents in separate processes.
MAY_SLEEP = (
    "simulation/",
    "peers/",
    "kit/waiting.py",
    "agent/tools/shop_server.py",
    "deploy/agent.py",
    "faults/served.py",
    "faults/waiting.py",
    "fleet/served.py",
    "integrations/a2a_sdk/book/",
    "integrations/a2a_sdk/served_",
)

MAKES_A_SKILL = {"skill", "router", "extended_card"}


def sleeps(node: ast.AST) -> Iterator[int]:
    """Yield the line of each sleep outside of agent functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and is_of_an_agent(child):
            continue
        if isinstance(child, ast.Call) and is_a_sleep(child):
            yield child.lineno
        yield from sleeps(child)


def is_a_sleep(call: ast.Call) -> bool:
    """Return whether a call waits; ``sleep(0)`` does not."""
    return ast.unparse(call.func).endswith(".sleep") and [*map(ast.unparse, call.args)] != ["0"]


def is_of_an_agent(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a skill, a router or an extended card of an agent."""
    made = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    return any(isinstance(each, ast.Attribute) and each.attr in MAKES_A_SKILL for each in made)


def test_tests_wait_for_conditions() -> None:
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if not name.startswith(MAY_SLEEP):
            found += [f"{name}:{line}" for line in sleeps(ast.parse(path.read_text("utf-8")))]
    assert found == [], "use until() or let_time_pass() of tests/kit/waiting.py"
