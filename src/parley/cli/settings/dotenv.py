"""The ``.env`` files that hold settings: ``A2ACLI_<OPTION>=value``, one a line.

A project's ``.env`` may serve any program, so other lines are ignored.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from parley.cli.output.failures import UsageFailure

PREFIX = "A2ACLI_"
MAX_SIZE = 1024 * 1024
"""The size limit of a ``.env`` file, in bytes."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse(text: str) -> dict[str, str]:
    """Return the command's settings in ``text``. The last line for a name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip().startswith(PREFIX):
            found[name.strip()] = _unquote(value.strip())
    return found


def _unquote(value: str) -> str:
    quote = value[:1]
    if quote not in {"'", '"'}:
        return value.split(" #", 1)[0].rstrip()
    content: list[str] = []
    characters = iter(value[1:])
    for character in characters:
        if character == quote:
            break
        if character == "\\" and quote == '"':
            escaped = next(characters, "")
            content.append(_ESCAPES.get(escaped, escaped))
        else:
            content.append(character)
    return "".join(content)


def global_file() -> Path:
    """Return the path of the user's own settings."""
    return Path.home() / ".config" / "a2a-cli" / ".env"


def local_file(start: Path) -> Path | None:
    """Return the nearest ``.env`` in ``start`` or a folder above it."""
    for folder in (start, *start.parents):
        if (folder / ".env").is_file():
            return folder / ".env"
    return None


def read(path: Path) -> dict[str, str]:
    """Return the command's settings in a file. Raises ``UsageFailure`` if it is unreadable."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SIZE + 1)
        if len(content) > MAX_SIZE:
            raise UsageFailure(
                f"the configuration file {path} is larger than {MAX_SIZE:,} bytes",
                hint="give the .env file that you mean with --config",
            )
        return parse(content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageFailure(
            f"the configuration file {path} cannot be read: {reason}",
            hint="give a readable .env file with --config, or leave --config out",
        ) from None


def is_open_to_others(path: Path) -> bool:
    """Return whether other users of this machine can read the file (on POSIX)."""
    if os.name != "posix":
        return False
    try:
        return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False
