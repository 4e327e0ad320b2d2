"""An option of a program, as its command line and its environment give it."""

from __future__ import annotations

from typing import Any

import msgspec


class Option(msgspec.Struct, frozen=True):
    """How the command line and the environment give an option, and the text that documents it.

    ``flag`` is the flag, by default that of the field's name; ``None`` for an option that only
    Python code gives. A flag with ``sets`` takes no value, and sets that one. ``kind`` is the type
    of a value whose default is ``None``. ``variable`` is the environment variable, by default
    ``PARLEY_`` and the field's name, or that of a flag without a value; empty for none. There a
    list is split at its ``separator``. With ``reads_itself`` the owner of the option reads the
    variable, and no command does. ``default`` says in words what holds without the option.
    """

    help: str
    metavar: str = ""
    panel: str = "Options"
    flag: str | None = ""
    variable: str | None = None
    default: str = ""
    sets: Any = None
    kind: type = str
    choices: tuple[str, ...] = ()
    separator: str = ""
    secret: bool = False
    reads_itself: bool = False
