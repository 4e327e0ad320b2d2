"""The words that started this command, for printed commands that a user can copy."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from parley.model.distribution import DISTRIBUTION

NAME = "parley"
"""The name of the command in usage and errors, however it was started."""

DEFAULT_ADDRESS = "http://127.0.0.1:9999"
"""The default address of a server, and of commands that call one."""


def invocation() -> list[str]:
    """Return the first words of a command that works in another terminal, in this directory.

    This is ``parley`` if the shell finds this program by that name. Otherwise it is the path that
    started it (``.venv/bin/parley``), or the interpreter (``python -m parley``), or ``uvx --from
    ...`` for an environment of uvx. A program that serves agents uses the ``parley`` of its
    interpreter.
    """
    by_uv = "UV" in os.environ  # `uv run` and `uvx` set PATH for this process only
    if by_uv and Path(sys.prefix).parent.name.startswith("archive-v"):
        return ["uvx", "--from", _requirement(), NAME]
    program = Path(sys.argv[0])
    is_module = program.name == "__main__.py" and program.parent.name in (NAME, "cli")
    if not is_module and program.stem != NAME:
        program = Path(sysconfig.get_path("scripts"), NAME)
        is_module = not shutil.which(program)
    found = shutil.which(NAME)
    folder = sysconfig.get_path("scripts") if is_module else str(program.parent)
    if found and not by_uv and _is_same(os.path.dirname(found), folder):
        return [NAME]
    if is_module:
        return [sys.executable if by_uv else sys.orig_argv[0], "-m", NAME]
    return [_relative(program)]


def _requirement() -> str:
    """Return the requirement for pip and uv of this distribution, with the extra of the command."""
    from importlib.metadata import PackageNotFoundError, distribution

    name = f"{DISTRIBUTION}[cli]"
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url, version = origin.get("url", ""), origin.get("vcs_info", {})
    at = f"@{version['commit_id']}" if "commit_id" in version else ""
    return f"{name} @ {version.get('vcs', '')}{'+' * bool(version)}{url}{at}" if url else name


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _relative(path: Path) -> str:
    """Return a path relative to this directory if it is below it."""
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()
