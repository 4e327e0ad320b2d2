"""``make test`` repeats failed tests once, and reports the repetition."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.house.sizes import ROOT

FAILS_ONCE = """
import pathlib, pytest

def fail_once(name):
    mark = pathlib.Path(__file__).with_name(name)
    if not mark.exists():
        mark.touch()
        raise OSError("the machine was busy")

@pytest.mark.parametrize("number", range(COUNT))
def test_in_its_call(number):
    fail_once(f"called-{number}")

@pytest.fixture
def broken():
    fail_once("set up")

def test_in_its_fixture(broken):
    pass

def test_that_passes():
    pass
"""


def run(folder: Path, code: str, part: str = "twice") -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone: last\n    slow: long\n")
    given = ["-p", "tests.second_run", f"--part={part}", "-n2"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    own |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *given, "test_it.py"],
        cwd=folder,
        env=own | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_passes_alone_is_named_with_its_reason_and_passes(tmp_path: Path) -> None:
    ran = run(tmp_path, FAILS_ONCE.replace("COUNT", "1"))
    assert ran.returncode == 0, ran.stdout
    assert "unstable: test_it.py::test_in_its_call[0] (add it to" in ran.stdout
    assert "OSError: the machine was busy" in ran.stdout
    assert "3 passed" in ran.stdout.splitlines()[-1]


def test_more_than_three_unstable_tests_fail_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, FAILS_ONCE.replace("COUNT", "3"))
    assert ran.returncode == 1, ran.stdout
    assert ran.stdout.count("unstable: test_it.py") == 4
    assert "3 failed, 1 passed, 1 error" in ran.stdout.splitlines()[-1]


def test_what_fails_again_fails_the_run(tmp_path: Path) -> None:
    ran = run(tmp_path, "def test_it():\n    assert 1 == 2\n")
    assert ran.returncode == 1, ran.stdout
    assert "unstable" not in ran.stdout


@pytest.mark.parametrize(("value", "code"), [(True, 0), (False, 1)])
def test_what_needs_the_machine_to_itself_runs_last_and_counts(
    tmp_path: Path, value: bool, code: int
) -> None:
    alone = f"""
import os, pytest

@pytest.mark.alone
def test_alone():
    assert {value} and "PYTEST_XDIST_WORKER" not in os.environ

def test_beside():
    assert "PYTEST_XDIST_WORKER" in os.environ
"""
    ran = run(tmp_path, alone)
    assert ran.returncode == code, ran.stdout
    assert ("2 passed" if value else "1 failed, 1 passed") in ran.stdout.splitlines()[-1]


def test_the_list_of_unstable_tests_names_tests_that_exist() -> None:
    for id in tomllib.loads((ROOT / "tests" / "unstable.toml").read_text("utf-8")):
        path, _, name = id.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text("utf-8"), id


def test_a_quick_run_takes_the_first_case_of_each_test_that_costs_little(tmp_path: Path) -> None:
    code = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    assert number == 0

@pytest.mark.slow
def test_that_takes_long():
    assert False

def test_another():
    pass
"""
    ran = run(tmp_path, code, "quick")
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout.splitlines()[-1]
