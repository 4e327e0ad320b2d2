"""The runner of mutants: its changes, the mutants that tests detect, and the survivors."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.mutants.loading import ROOT
from tests.mutants.mutations import mutants, mutated, probed

SOURCE = '''
LIMIT = 5

def price(count: int, known=3) -> int:
    """Return a price."""
    if count > LIMIT and not known:
        raise ValueError("that is too many")
    total = count * 2
    return total

class Shop:
    async def buy(self, *, count: "int | None" = None) -> str:
        self.count = count
        await self.pay(once=True)
        return "bought"
'''


def test_mutants_are_within_functions_and_change_one_place_each() -> None:
    changes = mutants(SOURCE)
    assert changes[0].after.startswith("if not (count > LIMIT and (not known)): raise ")
    assert [change[1:] for change in changes] == [
        (6, changes[0].before, changes[0].after),
        (6, "count > LIMIT and (not known)", "count > LIMIT or not known"),
        (6, "count > LIMIT and (not known)", "count > LIMIT"),
        (6, "count > LIMIT", "count >= LIMIT"),
        (6, "not known", "known"),
        (7, "raise ValueError('that is too many')", "pass"),
        (8, "count * 2", "count // 2"),
        (8, "2", "3"),
        (9, "return total", "return None"),
        (13, "self.count = count", "pass"),
        (14, "await self.pay(once=True)", "pass"),
        (14, "self.pay(once=True)", "self.pay()"),
        (14, "True", "False"),
        (15, "return 'bought'", "return None"),
        (15, "'bought'", "'boughtx'"),
    ]  # fmt: skip
    for mutant in mutants(SOURCE):
        assert ast.unparse(mutated(SOURCE, mutant.number)) != ast.unparse(ast.parse(SOURCE))


def test_a_probe_stands_before_the_statement_of_its_mutant() -> None:
    lines = ast.unparse(probed(SOURCE, {7: 70, 14: 140})).splitlines()
    assert lines[lines.index("    total = count * 2") - 1].strip() == "__reached__(70)"
    assert lines[lines.index("        return 'bought'") - 1].strip() == "__reached__(140)"


def test_a_run_kills_mutants_and_names_the_survivors(tmp_path: Path) -> None:
    """The run has one room with the tests of one module, in this process's folder."""

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.mutants",
                "model",
                "--mutants",
                "40",
                "--seed",
                "3",
                *arguments,
            ],
            cwd=ROOT,
            env=os.environ | {"PARLEY_MUTANTS": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("--reach", "--jobs", "1", "--tests", "tests/model/test_values.py")
    reached = json.loads((tmp_path / "reach.json").read_text("utf-8"))["reached"]
    assert reached
    shown = run("--jobs", "1", "--killers", "2", "-v")
    results = json.loads((tmp_path / "model.json").read_text("utf-8"))
    killed = {name for name, result in results.items() if result["killers"]}
    assert killed
    assert killed <= reached.keys()
    assert f"model: {len(killed)} of 40 mutants killed" in shown
    assert shown.count("reached by no test: ") == 40 - len(reached)
    needed = [line for line in run("--needed").splitlines() if line.startswith("needed")]
    assert needed
    assert all("tests/model/test_values.py::test_" in line for line in needed)
    before = run("--jobs", "1", "--before", str(tmp_path / "model.json"))
    assert "killed before, not now" not in before


def test_a_run_needs_a_record_of_the_same_mutants(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "model", "--seed", "7"],
        cwd=ROOT,
        env=os.environ | {"PARLEY_MUTANTS": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "records no run with --mutants 500 --seed 7" in done.stdout
    assert "--reach" in done.stdout
