"""Help as a terminal of 80 columns shows it: by what people do, and no wider."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
import typer

from parley.cli.app import COMMANDS, build
from parley.cli.settings.server import FLAGS

SCREEN = 40
"""The lines of a screen."""


def on_terminal(*words: str) -> str:
    """Return what a command shows on a terminal of 80 columns."""
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
    except OSError:  # how Linux says that the other side is gone
        return b""


def width(text: str) -> int:
    return max(map(len, text.splitlines()))


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


@pytest.mark.skipif(os.name != "posix", reason="a terminal as POSIX has it")
def test_help_of_serve_fits_three_screens_and_all_of_it_is_one_flag_away():
    shown, everything = on_terminal("serve", "--help"), on_terminal("serve", "--help-all")
    assert len(shown.splitlines()) <= 3 * SCREEN
    assert width(shown) <= 80
    assert width(everything) <= 80
    for title in ("Arguments:", "Options:", "Who may call:", "How much:", "Catalog:"):
        assert f"\n{title}\n" in shown
    assert "--help-all" in shown
    for _, flag in FLAGS.values():
        assert flag.flag in everything
    assert not all(flag.flag in shown for _, flag in FLAGS.values())


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
