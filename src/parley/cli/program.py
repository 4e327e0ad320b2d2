"""How the command was started, for the commands that it prints to be copied."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

NAME = "parley"
"""The name of the command, in usage and errors too, however it was started."""


def invocation() -> list[str]:
    """Return the words that begin a command which works in another terminal, in this directory.

    It is ``parley`` where the shell finds this one by that name. Else it is the path that it was
    started by (``.venv/bin/parley``), or the interpreter (``python -m parley``).
    """
    given = Path(sys.argv[0])
    is_module = given.name == "__main__.py"
    if not is_module and given.stem != NAME:  # a program that calls ``main``
        return [NAME]
    is_lent = "UV" in os.environ  # by `uv run` or `uvx`, which set PATH for this process alone
    found = shutil.which(NAME)
    home = sysconfig.get_path("scripts") if is_module else str(given.parent)
    if found and not is_lent and _is_same(os.path.dirname(found), home):
        return [NAME]
    if is_module:
        return [sys.executable if is_lent else sys.orig_argv[0], "-m", NAME]
    return [_short(given)]


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _short(path: Path) -> str:
    """Return a path from here where it is below this directory."""
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()
