"""Help, completion, and the report about the implemented parts of the specification."""

from __future__ import annotations

import ast
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from parley.cli.app import COMMANDS, build
from parley.cli.settings.server import FLAGS

HERE = Path(__file__).parent


REPORT = HERE.parents[1] / "docs" / "reference" / "cli-compliance.md"


TIER_1 = {
    "CARD_GET": 1, "SEND": 6, "TASK_GET": 1, "TASK_CANCEL": 1, "INTERACT": 5, "TASK_POLL": 4,
    "OUT": 6, "EXIT": 2, "AUTH": 4, "TX": 3, "VER": 1, "DEFAULT": 1, "CONFIG": 1, "CLI": 1,
    "SKILL": 2,
}  # fmt: skip


TIER_2 = {
    "CARD_GET": (2,), "TASK_LIST": (1,), "TASK_SUBSCRIBE": (1, 2), "AUTH": (5, 6, 7), "TX": (4,),
    "VER": (3,), "CONFIG": (2,), "DOWNLOAD": (1,), "OUT": (7,), "CONFORM": (1,), "CLI": (2,),
    "PUSH": (1,),
}  # fmt: skip


TIER_3 = {
    "CARD_GET": (3, 4, 5), "AUTH": (8, 9, 10, 11), "PUSH": (2,), "CHAT": (1,), "TX": (5,),
    "DEMO_SERVER": (1,), "VER": (2,),
}  # fmt: skip


TIERS = [{area: range(1, count + 1) for area, count in TIER_1.items()}, TIER_2, TIER_3]


ROW = re.compile(
    r"\| `(A2ACLI_[A-Z_]+_\d{3})` \|.*\| (✅ Pass|— N/A|◐ Partial|❌ Fail) \| (.*?) \| (.*?) ?\|"
)


def rows():
    return [match.groups() for line in REPORT.read_text("utf-8").splitlines()
            if (match := ROW.match(line))]  # fmt: skip


def wanted(tier):
    return [f"A2ACLI_{area}_{n:03}" for area, numbers in tier.items() for n in numbers]


SCREEN = 40
"""The lines of a screen."""


def on_terminal(*words: str) -> str:
    """Return the output of a command on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "parley.cli", *words],
        env=os.environ | {"COLUMNS": "80", "LINES": str(SCREEN), "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while piece := read(ours):
        shown += piece
    os.close(ours)
    assert program.wait(15) == 0, shown
    return shown.decode().replace("\r\n", "\n")


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux reports a closed terminal this way
        return b""


def width(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a terminal as POSIX has it")
def test_help_lists_commands_by_what_people_do_on_a_terminal_of_80_columns():
    """A2ACLI_CLI_001"""
    shown = on_terminal("--help")
    titles = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Options:", *[f"{title}:" for title in COMMANDS]]
    listed = shown[shown.index("Start here:") :].splitlines()
    names = {line.split()[0] for line in listed if line.startswith("  ")}
    assert names == {name for group in COMMANDS.values() for name in group}
    assert width(shown) <= 80
    assert "..." not in shown[shown.index("Start here:") :]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a terminal as POSIX has it")
def test_help_of_serve_fits_three_screens_and_all_of_it_is_one_flag_away():
    shown, everything = on_terminal("serve", "--help"), on_terminal("serve", "--help-all")
    assert len(shown.splitlines()) <= 3 * SCREEN
    assert width(shown) <= 80
    assert width(everything) <= 80
    for title in ("Arguments:", "Options:", "Who may call:", "How much:", "Catalog:"):
        assert f"\n{title}\n" in shown
    assert "--help-all" in shown
    for flag in FLAGS.values():
        assert flag.flag in everything
    assert not all(flag.flag in shown for flag in FLAGS.values())


def commands(group: object, *words: str) -> list[tuple[str, ...]]:
    found = []
    for name, command in getattr(group, "commands", {}).items():
        inner = commands(command, *words, name)
        found += inner or [(*words, name)]
    return found


def all_commands() -> list[tuple[str, ...]]:
    """Return the words of every command."""
    names = [name for group in COMMANDS.values() for name in group]
    built = [typer.main.get_command(build([name, ""])) for name in names if name != "help"]
    found = [each for one in built for each in commands(one)]
    return sorted(set(found))


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_no_help_is_wider_than_80_columns(parley, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    shown = parley(*words, "--help").stdout
    assert shown.startswith("Usage: parley ")
    wide = [line for line in shown.splitlines() if len(line) > 80]
    assert wide == []


# -- the report about the implemented parts of the specification is true ---------------------------


def files_by_requirement():
    found: dict[str, set[str]] = {}
    for file in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for name in re.findall(r"A2ACLI_[A-Z_]+_\d{3}", ast.get_docstring(node) or ""):
                    found.setdefault(name, set()).add(file.relative_to(HERE).as_posix())
    return found


def test_the_report_names_all_requirements_of_the_specification_once_tier_by_tier():
    tiers = [wanted(tier) for tier in TIERS]
    assert [len(tier) for tier in tiers] == [39, 15, 12]
    names = [name for name, *_ in rows()]
    assert len(names) == 66
    for tier in tiers:
        assert sorted(names[: len(tier)]) == sorted(tier)
        del names[: len(tier)]


def test_what_is_marked_as_passed_is_shown_by_the_tests_that_are_named():
    shown = files_by_requirement()
    for name, status, files, note in rows():
        if status == "✅ Pass":
            assert set(re.findall(r"tests/cli/([\w/]*test_\w+\.py)", files)) == shown[name], name
        else:
            assert note, f"{name} needs a reason"
    assert set(shown) <= {name for name, *_ in rows()}


# -- ``parley completion``: completion in shells ---------------------------------------------------


BASH = shutil.which("bash")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_script_for_each_shell_asks_the_command(parley, shell):
    """A2ACLI_CLI_002"""
    ran = parley("completion", shell)
    assert ran.status == 0
    assert "_PARLEY_COMPLETE" in ran.stdout


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("parley ser", {"serve"}),
        ("parley task dow", {"download"}),
        ("parley send --sk", {"--skill"}),
        ("parley send -o ", {"text", "json"}),
        ("parley completion z", {"zsh"}),
    ],
)
def test_bash_completes_commands_options_and_choices(parley, tmp_path, words, found):
    """A2ACLI_CLI_002"""
    script = tmp_path / "completion.bash"
    script.write_text(parley("completion", "bash").stdout)
    program = tmp_path / "parley"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m parley "$@"\n')
    program.chmod(0o755)
    typed = words.split(" ")
    asked = (
        f"source {script}; COMP_WORDS=({' '.join(typed)} ''); COMP_CWORD={len(typed) - 1}; "
        '_parley_completion parley; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(
        [BASH, "-c", asked], env=environment, capture_output=True, text=True, timeout=60
    )
    assert set(ran.stdout.split()) == found, ran.stderr


def test_the_counts_of_the_report_are_those_of_its_rows():
    left = [status for _, status, *_ in rows()]
    for number, tier in enumerate(TIERS, 1):
        total = len(wanted(tier))
        statuses, left = left[:total], left[total:]
        marks = ("✅ Pass", "◐ Partial", "❌ Fail", "⊘ Not measured", "— N/A")
        counts = [statuses.count(mark) for mark in marks]
        holds = "yes" if counts[0] + counts[4] == total else "no"
        cells = " | ".join(map(str, [total, *counts, holds]))
        found = re.search(rf"^\| Tier {number}, \w+ \| (.*) \|$", REPORT.read_text("utf-8"), re.M)
        assert found[1] == cells
