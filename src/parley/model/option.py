"""The declaration of a program's option for its command line and its environment."""

from __future__ import annotations

from typing import Any

import msgspec


class Option(msgspec.Struct, frozen=True):
    """The command-line flag and environment variable of an option, and its documentation.

    ``flag`` is the flag; the default is made from the field's name, and ``None`` means no flag. A
    flag with ``sets`` takes no value, and sets the value of ``sets``. ``kind`` is the type of a
    value whose default is ``None``. ``variable`` is the environment variable; the default is
    ``PARLEY_`` with the name of the field or of a flag without a value, and an empty text means no
    variable. In the variable, a list is split at its ``separator``. With ``reads_itself`` the owner
    of the option reads the variable, and commands do not. ``default`` describes the behaviour
    without the option.
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
