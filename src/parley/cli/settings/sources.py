"""Where the value of a setting comes from.

The order is fixed (command-line specification, §8.3), the first that says something counts: a
flag, an environment variable, a local ``.env`` (or the one given by ``--config``), the user's
``~/.config/a2a-cli/.env``, the built-in default. Nothing is ever written.

A local ``.env`` that nobody named may have come with somebody's folder. It may say where the
credentials in it go, and never where others go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from parley.cli.output.failures import UsageFailure
from parley.cli.settings import dotenv
from parley.cli.settings.durations import parse_duration
from parley.cli.settings.table import (
    BY_FIELD,
    DEFAULT,
    FLAG,
    SETTINGS,
    Misdirection,
    Setting,
    Settings,
)
from parley.wire.versions import SUPPORTED_VERSIONS

SHORTEST_POLL = 0.01


class SettingSource(msgspec.Struct, frozen=True):
    """One place that settings come from, other than flags: its name, and what it says.

    ``found``: it is a file that was looked for, and neither named nor the user's own.
    """

    name: str
    values: Mapping[str, str]
    path: Path | None = None
    found: bool = False


def sources(
    environment: Mapping[str, str], folder: Path | None, config: str | None
) -> list[SettingSource]:
    """Return the environment and the ``.env`` files that exist, the strongest first.

    Raises ``UsageFailure`` when a file cannot be read.
    """
    found = [SettingSource("environment", environment)]
    local = Path(config) if config else (dotenv.local_file(folder) if folder else None)
    try:
        own: Path | None = dotenv.global_file()
    except RuntimeError:  # this user has no home
        own = None
    if local is not None:
        is_found = not config and local != own
        found.append(SettingSource(str(local), dotenv.read(local), local, found=is_found))
    if own is not None and own.is_file() and own != local:
        found.append(SettingSource(str(own), dotenv.read(own), own))
    return found


def resolve(flags: Mapping[str, Any], found: Sequence[SettingSource]) -> Settings:
    """Return the settings in force. ``flags`` holds what the command line says, by field.

    Raises ``UsageFailure`` for a value that makes no sense, naming the place where it stands.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for setting in SETTINGS:
        field = setting.field
        values[field], origin[field], ranks[field] = _resolve_one(setting, flags.get(field), found)
    if values["wait"] and values["async"]:
        # A configured --async is overridden by --wait, and the other way round (§7.2).
        if ranks["wait"] == ranks["async"]:
            raise UsageFailure("--wait and --async contradict each other; give one of them")
        values["async" if ranks["wait"] < ranks["async"] else "wait"] = False
    misdirection = _misdirected(values, ranks, origin, found)
    return Settings(async_=values.pop("async"), **values, sources=origin, misdirection=misdirection)


def _misdirected(
    values: Mapping[str, Any],
    ranks: Mapping[str, int],
    origin: Mapping[str, str],
    found: Sequence[SettingSource],
) -> Misdirection | None:
    """Return what a file that was found decides about credentials that are not in it."""
    for rank, source in enumerate(found, 1):
        if not source.found or source.path is None:
            continue
        steering = [
            setting
            for setting in SETTINGS
            if ranks[setting.field] == rank and _steers(setting, values[setting.field])
        ]
        others = [field for field in _credentials_in(values) if ranks[field] != rank]
        if steering and others:
            return Misdirection(
                file=str(source.path),
                variable=steering[0].variable,
                flag=f"--{steering[0].name}",
                credential=_CREDENTIALS[others[0]],
                origin=_said(origin[others[0]], BY_FIELD[others[0]]),
            )
    return None


def _steers(setting: Setting, value: Any) -> bool:
    """Whether a value decides where credentials go. A host's name does: one server has many."""
    if setting.name == "svc-param":
        return any(item.partition(":")[0].strip().lower() == "host" for item in value)
    return setting.steers and value != setting.default


_CREDENTIALS = {
    "bearer": "the bearer token",
    "api_key": "the API key",
    "svc_param": "a service parameter",
    "agent_card": "the password in the agent's address",
}


def _credentials_in(values: Mapping[str, Any]) -> list[str]:
    """Return the settings that hold something which not everybody may have."""
    held = [field for field in ("bearer", "api_key") if values[field]]
    if values["svc_param"]:
        from parley.client.origin import PUBLIC_HEADERS  # pulls in much, and help does without

        names = [item.partition(":")[0].strip().lower() for item in values["svc_param"]]
        if not PUBLIC_HEADERS.issuperset(names):
            held.append("svc_param")
    if re.match(r"https?://[^/?#]*@", values["agent_card"], re.IGNORECASE):
        held.append("agent_card")
    return held


def _said(origin: str, setting: Setting) -> str:
    return f"--{setting.name}" if origin == FLAG else origin


def _resolve_one(
    setting: Setting, flag: Any, found: Sequence[SettingSource]
) -> tuple[Any, str, int]:
    if flag is not None and flag != [] and flag != ():
        return _read(setting, flag, f"--{setting.name}"), FLAG, 0
    for rank, source in enumerate(() if setting.local else found, 1):
        written = source.values.get(setting.variable, "")
        if written:
            if setting.name == "config" and source.path:
                raise UsageFailure(
                    f"{source.path} sets {setting.variable}, but one .env file cannot name another",
                    hint="give the file with --config, or set the variable in the environment",
                )
            where = setting.variable + (f" in {source.name}" if source.path else "")
            lines = written.splitlines() if setting.kind == "list" else written
            return _read(setting, lines, where), where, rank
    return setting.default, DEFAULT, len(found) + 1


def _read(setting: Setting, written: Any, where: str) -> Any:
    try:
        return _READERS[setting.kind](setting, written)
    except ValueError as error:
        raise UsageFailure(f"{where}: {error}") from None


def _read_text(setting: Setting, written: str) -> str:
    if setting.name == "a2a-version":
        return _version(written)
    return written


def _version(written: str) -> str:
    numbers = written.strip().split(".")
    known = ".".join([*numbers, "0"][:2])
    if (
        known not in SUPPORTED_VERSIONS
        or len(numbers) > 3
        or not all(n.isdecimal() for n in numbers)
    ):
        raise ValueError(
            f"{written!r} is not spoken here; there are {', '.join(SUPPORTED_VERSIONS)}"
        )
    return known


def _read_choice(setting: Setting, written: str) -> str:
    if written not in setting.choices:
        raise ValueError(f"{written!r} is not one of {', '.join(setting.choices)}")
    return written


def _read_flag(setting: Setting, written: Any) -> bool:
    if isinstance(written, bool):
        return written
    lowered = written.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise ValueError(f"{written!r} is neither true nor false")


def _read_list(setting: Setting, written: Sequence[str]) -> tuple[str, ...]:
    items: list[str] = []
    for line in written:
        # Bindings are names, so a list of them in one value is plain; a parameter may hold commas.
        items += line.split(",") if setting.name in ("transport", "trust-origin") else [line]
    kept = tuple(item.strip() for item in items if item.strip())
    if setting.name == "svc-param":
        for item in kept:
            _check_parameter(item)
        _check_together(kept)
    if setting.name == "trust-origin" and kept:
        from parley.client.origin import Origin

        for item in kept:
            Origin.parse(item)
    return kept


def _check_parameter(item: str) -> None:
    name, colon, value = item.partition(":")
    if not colon or not name.strip() or not name.strip().isascii() or " " in name.strip():
        raise ValueError("a service parameter is written name:value, for example x-trace-id:abc123")
    if any(ord(character) < 32 for character in value):
        raise ValueError("a service parameter's value is one line of text")


def _check_together(items: Sequence[str]) -> None:
    """Refuse what the client sets by itself, and what is given twice without being a list."""
    from parley.client.headers import split_headers

    seen: set[str] = set()
    for item in items:
        name, _, value = (each.strip() for each in item.partition(":"))
        others, _ = split_headers({name: value})
        if others and name.lower() in seen:
            raise ValueError(f"the service parameter {name} is given twice")
        seen.add(name.lower())


def _read_duration(setting: Setting, written: str) -> float:
    seconds = parse_duration(written)
    if seconds < SHORTEST_POLL:
        raise ValueError(f"{written!r} is too short; the shortest interval is 10ms")
    return seconds


def _read_limit(setting: Setting, written: str) -> float | None:
    if written.strip().lower() == "none":
        return None
    seconds = parse_duration(written)
    if seconds == 0:
        raise ValueError("a limit of no time at all; give a duration such as 30s, or none")
    return seconds


def _read_number(setting: Setting, written: str) -> int:
    if not written.strip().isdecimal():
        raise ValueError(f"{written!r} is not a whole number from 0 up")
    return int(written)


def _read_object(setting: Setting, written: str) -> dict[str, Any]:
    try:
        value = json.loads(written, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError('a JSON object is needed, such as \'{"key": "value"}\'')
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


_READERS: dict[str, Any] = {
    "text": _read_text,
    "choice": _read_choice,
    "flag": _read_flag,
    "list": _read_list,
    "duration": _read_duration,
    "limit": _read_limit,
    "number": _read_number,
    "object": _read_object,
}
