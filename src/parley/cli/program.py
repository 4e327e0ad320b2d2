"""The words that started this command, for the commands that it prints to be copied."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

NAME = "parley"
"""The name of the command in usage and errors, however it was started."""


def invocation() -> list[str]:
    """Return the first words of a command that works in another terminal, in this directory.

    This is ``parley`` if the shell finds this program by that name. Otherwise it is the path that
    started it (``.venv/bin/parley``), or the interpreter (``python -m parley``).
    """
    program = Path(sys.argv[0])
    is_module = program.name == "__main__.py"
    if not is_module and program.stem != NAME:  # a program that calls ``main``
        return [NAME]
    by_uv = "UV" in os.environ  # `uv run` and `uvx` set PATH for this process alone
    found = shutil.which(NAME)
    folder = sysconfig.get_path("scripts") if is_module else str(program.parent)
    if found and not by_uv and _is_same(os.path.dirname(found), folder):
        return [NAME]
    if is_module:
        return [sys.executable if by_uv else sys.orig_argv[0], "-m", NAME]
    return [_relative(program)]


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _relative(path: Path) -> str:
    """Return a path relative to this directory if it is below it."""
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()
