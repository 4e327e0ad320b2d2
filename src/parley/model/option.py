"""The declaration of a program's option for its command line, its environment and its file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TERM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_PLAIN = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(text: str) -> float:
    """Return ``text`` in seconds; a plain number is in seconds. Raises ``ValueError``."""
    normal = text.strip().lower()
    if _PLAIN.fullmatch(normal):
        return float(normal)
    if not normal or _TERM.sub("", normal):
        raise ValueError(f"{text!r} is not a duration such as 2s, 500ms, 1m or 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in _TERM.findall(normal))


def parse_span(text: str) -> float:
    """Return a span of days or less in seconds: 30d, 12h, 1h30m. Raises ``ValueError``."""
    days = re.fullmatch(r"(\d+(?:\.\d+)?)d", text.strip().lower())
    return float(days[1]) * 86_400 if days else parse_duration(text)


def format_duration(seconds: float) -> str:
    """Return ``seconds`` in a form for ``parse_duration``."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit in ("h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"


def parse_switch(text: str) -> bool:
    """Return the value of a flag in a variable. Raises ``ValueError``."""
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


class Option(msgspec.Struct, frozen=True):
    """The command-line flag and environment variable of an option, and its documentation.

    ``flag`` is the flag; the default is made from the field's name, and ``None`` means no flag. A
    flag with ``sets`` takes no value, and sets the value of ``sets``. ``kind`` is the type of a
    value whose default is ``None``. ``variable`` is the environment variable; the default is
    ``PARLEY_`` with the name of the field or of a flag without a value, and an empty text means no
    variable. In the variable, a list is split at its ``separator``. With ``reads_itself`` the owner
    of the option reads the variable, and commands do not. ``default`` describes the behaviour
    without the option. A number with the metavar ``TIME`` is a duration.
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


_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool, list), "true or false"),
    tuple: ((list,), "a list of texts"),
    dict: ((dict,), "a table"),
    int: ((int,), "a whole number"),
    float: ((int, float, str), "a number"),
}
"""The types of TOML for the kinds of values, and their names; every other kind is a text."""


class NamedOption(msgspec.Struct, frozen=True):
    """An option with the name and the default of its field.

    ``prefix`` begins the environment variable of an option that does not name its own; without it
    such an option has no variable.
    """

    name: str
    option: Option
    default: Any
    prefix: str = ""

    @property
    def kind(self) -> type:
        """The type of the value: ``bool`` for a flag without a value."""
        if self.option.sets is not None:
            return bool
        if isinstance(self.default, Mapping):
            return dict
        is_open = self.default is None or self.default is msgspec.NODEFAULT
        found = self.option.kind if is_open else type(self.default)
        return float if self.is_time and found is int else found

    @property
    def is_time(self) -> bool:
        """True for a duration."""
        return self.option.metavar == "TIME"

    @property
    def flag(self) -> str:
        """The flag, with its dashes."""
        return self.option.flag or f"--{self.name.strip('_').replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable, or an empty string."""
        if self.option.variable is not None or not self.prefix:
            return self.option.variable or ""
        name = self.flag.lstrip("-").replace("-", "_") if self.kind is bool else self.name
        return self.prefix + name.upper()

    @property
    def default_text(self) -> str:
        """The text for the value without the flag, or an empty string."""
        if self.option.default or self.kind is bool:
            return self.option.default or ("yes" if self.default is True else "no")
        if self.kind is float and type(self.default) in (int, float):
            return format_duration(self.default) if self.is_time else f"{self.default:g}"
        return str(self.default) if type(self.default) in (str, int) else ""

    def of_flag(self, given: Any) -> Any:
        """Return the value of a flag, ``None`` if it is not given. Raises ``ValueError``."""
        if given is None or given is False or given == [] or given == "":
            return None
        if self.kind is bool:
            return True if self.option.sets is None else self.option.sets
        return self._read(given)

    def of_variable(self, text: str) -> Any:
        """Return the value of the environment variable. Raises ``ValueError``."""
        kind, option = self.kind, self.option
        if kind is bool:
            value = True if option.sets is None else option.sets
            return value if parse_switch(text) else not value
        if kind in (tuple, dict):
            parts = text.split(option.separator or None)
            return self._read([part.strip() for part in parts if part.strip()])
        return self._read(text)

    def of_file(self, value: Any) -> Any:
        """Return the value of the setting in a file (TOML). Raises ``ValueError``."""
        kind = self.kind
        types, what = _KINDS.get(kind, ((str,), "a text"))
        texts = value if isinstance(value, list) else []
        is_right = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
        if not is_right or not all(isinstance(each, str) for each in texts):
            raise ValueError(f"takes {what}, not {_named(value)}")
        if kind is bool:
            return tuple(value) if isinstance(value, list) else value
        return dict(value) if kind is dict else self._read(value)

    def _read(self, given: Any) -> Any:
        kind, option = self.kind, self.option
        choices = option.choices
        if choices and given not in choices and (given := given.lower()) not in choices:
            raise ValueError(f"{given!r} is not one of {', '.join(option.choices)}")
        if kind is dict:
            return _table(given, option.metavar)
        if kind is int and isinstance(given, str):
            if not given.strip().lstrip("-").isdecimal():
                raise ValueError(f"{given!r} is not a whole number")
            return int(given)
        if kind is float:
            if isinstance(given, str):
                parse = parse_span if self.is_time else float
                given = parse(given)
            return round(given) if type(self.default) is int else given
        if kind not in (str, int, tuple, Path):
            try:
                return kind(seconds=parse_span(given))
            except OverflowError as error:
                raise ValueError(str(error)) from None
        return kind(given) if kind in (tuple, Path) else given


def _named(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    names |= {list: "a list", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")


def _table(words: Sequence[str], metavar: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in words:
        name, equals, value = each.partition("=")
        if not name or not equals or not value:
            raise ValueError(f"{each!r} is not of the form {metavar}")
        if name in found:
            raise ValueError(f"{name!r} is given twice")
        found[name] = value
    return found
