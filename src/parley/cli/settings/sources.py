"""Resolution of settings from their sources.

The first source with a value wins (command-line specification, §8.3): a flag, an environment
variable, a local ``.env`` (or the one of ``--config``), the user's ``~/.config/a2a-cli/.env``, the
built-in default. Nothing is ever written. A ``.env`` file has lines ``A2ACLI_<OPTION>=value``; a
project's file may serve other programs, so other lines are ignored.

A discovered local ``.env`` may belong to an untrusted project. It may redirect credentials that it
contains, but no others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from parley.cli.output.failures import UsageFailure
from parley.cli.settings.table import (
    BY_FIELD,
    DEFAULT,
    FLAG,
    PREFIX,
    SETTINGS,
    CommandSettings,
    CredentialRedirect,
    Setting,
)
from parley.model.option import parse_duration, parse_switch
from parley.wire.versions import SUPPORTED_VERSIONS

MIN_DURATION = 0.01
MAX_SIZE = 1024 * 1024
"""The size limit of a ``.env`` file, in bytes."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class SettingSource(msgspec.Struct, frozen=True):
    """A source of settings other than flags: its name and its values.

    ``discovered``: it is a file that the user neither named nor owns as the global file.
    """

    name: str
    values: Mapping[str, str]
    path: Path | None = None
    discovered: bool = False


def sources(
    environment: Mapping[str, str], folder: Path | None, config: str | None
) -> list[SettingSource]:
    """Return the environment and the existing ``.env`` files, in order of precedence.

    Raises ``UsageFailure`` when a file cannot be read.
    """
    found = [SettingSource("environment", environment)]
    local = Path(config) if config else (local_file(folder) if folder else None)
    try:
        own: Path | None = global_file()
    except RuntimeError:  # the user has no home folder
        own = None
    if local is not None:
        is_discovered = not config and local != own
        found.append(SettingSource(str(local), read_file(local), local, discovered=is_discovered))
    if own is not None and own.is_file() and own != local:
        found.append(SettingSource(str(own), read_file(own), own))
    return found


def resolve(
    flags: Mapping[str, Any],
    found: Sequence[SettingSource],
    *,
    asks_registry: bool = False,
    agents: Sequence[str] = (),
) -> CommandSettings:
    """Return the effective settings. ``flags`` has the command line's values by field.

    ``asks_registry``: the registry receives its credentials, whatever the agent is. ``agents`` are
    all agents of a command that accepts several.

    Raises ``UsageFailure`` for an invalid value, naming its source.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    ranks: dict[str, int] = {}
    chosen = [each for each in found if not each.discovered]
    is_chosen = any(_is_set(each, flags, chosen) for each in SETTINGS if each.is_protected)
    for setting in SETTINGS:
        field = setting.field
        values[field], origin[field], ranks[field] = _resolve_one(
            setting, flags.get(field), found, only_chosen=setting.is_protected and is_chosen
        )
    if values["wait"] and values["async"]:
        # A configured --async is overridden by --wait, and the other way round (§7.2).
        if ranks["wait"] == ranks["async"]:
            raise UsageFailure("--wait and --async contradict each other; give one of them")
        values["async" if ranks["wait"] < ranks["async"] else "wait"] = False
    credentials = _credentials_in(values, agents, asks_registry=asks_registry)
    credential_redirect = _find_redirect(values, ranks, origin, found, credentials)
    return CommandSettings(
        async_=values.pop("async"),
        **values,
        sources=origin,
        credential_redirect=credential_redirect,
        protection_file=_find_protection(values, ranks, found),
    )


def _find_protection(
    values: Mapping[str, Any], ranks: Mapping[str, int], found: Sequence[SettingSource]
) -> str | None:
    """Return the discovered file that controls how connections are protected, or ``None``.

    It may name the agent: a login is for one origin, and is only sent there.
    """
    routing = [setting for setting in SETTINGS if setting.name != "agent-card"]
    for rank, source in enumerate(found, 1):
        if source.discovered and any(
            ranks[setting.field] == rank and _routes_credentials(setting, values[setting.field])
            for setting in routing
        ):
            return str(source.path)
    return None


def _find_redirect(
    values: Mapping[str, Any],
    ranks: Mapping[str, int],
    origin: Mapping[str, str],
    found: Sequence[SettingSource],
    credentials: Sequence[str],
) -> CredentialRedirect | None:
    """Return the discovered file that redirects credentials of other sources, or ``None``."""
    for rank, source in enumerate(found, 1):
        if not source.discovered or source.path is None:
            continue
        routing = [
            setting
            for setting in SETTINGS
            if ranks[setting.field] == rank and _routes_credentials(setting, values[setting.field])
        ]
        others = [field for field in credentials if ranks[field] != rank]
        if routing and others:
            return CredentialRedirect(
                file=str(source.path),
                variable=routing[0].variable,
                flag=f"--{routing[0].name}",
                credential=_CREDENTIALS[others[0]],
                origin=_source_name(origin[others[0]], BY_FIELD[others[0]]),
            )
    return None


def _routes_credentials(setting: Setting, value: Any) -> bool:
    """Return whether a value controls where credentials go, as also the Host header does."""
    if setting.name == "svc-param":
        return any(item.partition(":")[0].strip().lower() == "host" for item in value)
    return setting.routes_credentials and value != setting.default


_CREDENTIALS = {
    "bearer": "the bearer token",
    "api_key": "the API key",
    "svc_param": "a service parameter",
    "agent_card": "the password in the agent's address",
    "registry_bearer": "the bearer token for the registry",
    "registry_api_key": "the API key for the registry",
}


def _credentials_in(
    values: Mapping[str, Any], agents: Sequence[str], *, asks_registry: bool
) -> list[str]:
    """Return the settings that contain a secret which the command sends."""
    named = [each.lower() for each in (values["agent_card"], *agents)]
    is_asked = asks_registry or any(each.startswith("urn:") for each in named)
    asked = ("registry_bearer", "registry_api_key") if is_asked else ()
    fields = [field for field in ("bearer", "api_key", *asked) if values[field]]
    if values["svc_param"]:
        from parley.client.origin import PUBLIC_HEADERS  # a slow import, not needed for help

        names = [item.partition(":")[0].strip().lower() for item in values["svc_param"]]
        if not PUBLIC_HEADERS.issuperset(names):
            fields.append("svc_param")
    if any(re.match(r"https?://[^/?#]*@", each) for each in named):
        fields.append("agent_card")
    return fields


def _source_name(origin: str, setting: Setting) -> str:
    return f"--{setting.name}" if origin == FLAG else origin


def _resolve_one(
    setting: Setting, flag: Any, found: Sequence[SettingSource], *, only_chosen: bool
) -> tuple[Any, str, int]:
    if _is_given(flag):
        return _read(setting, flag, f"--{setting.name}"), FLAG, 0
    for rank, source in enumerate(() if setting.local else found, 1):
        raw = source.values.get(setting.variable, "")
        if raw and not (only_chosen and source.discovered):
            if setting.name == "config" and source.path:
                raise UsageFailure(
                    f"{source.path} sets {setting.variable}, but one .env file cannot name another",
                    hint="give the file with --config, or set the variable in the environment",
                )
            where = setting.variable + (f" in {source.name}" if source.path else "")
            lines = raw.splitlines() if setting.kind == "list" else raw
            return _read(setting, lines, where), where, rank
    return setting.default, DEFAULT, len(found) + 1


def _is_given(flag: Any) -> bool:
    return flag is not None and flag != [] and flag != ()


def _is_set(setting: Setting, flags: Mapping[str, Any], chosen: Sequence[SettingSource]) -> bool:
    """Return whether the command line, the environment or a user's file has a setting."""
    in_sources = any(each.values.get(setting.variable) for each in chosen)
    return in_sources or _is_given(flags.get(setting.field))


def _read(setting: Setting, raw: Any, where: str) -> Any:
    try:
        return _READERS[setting.kind](setting, raw)
    except ValueError as error:
        raise UsageFailure(f"{where}: {error}") from None


def _read_text(setting: Setting, raw: str) -> str:
    if setting.name == "a2a-version":
        return _version(raw)
    return raw


def _version(raw: str) -> str:
    numbers = raw.strip().split(".")
    known = ".".join([*numbers, "0"][:2])
    if (
        known not in SUPPORTED_VERSIONS
        or len(numbers) > 3
        or not all(n.isdecimal() for n in numbers)
    ):
        raise ValueError(
            f"{raw!r} is not supported; the versions are {', '.join(SUPPORTED_VERSIONS)}"
        )
    return known


def _read_choice(setting: Setting, raw: str) -> str:
    if raw not in setting.choices:
        raise ValueError(f"{raw!r} is not one of {', '.join(setting.choices)}")
    return raw


def _read_flag(setting: Setting, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    return parse_switch(raw)


_WITH_COMMAS = ("transport", "extension", "trust-origin", "card-key-origin")


def _read_list(setting: Setting, raw: Sequence[str]) -> tuple[str, ...]:
    items: list[str] = []
    for line in raw:
        # One value may list several bindings or origins; a service parameter may contain commas.
        items += line.split(",") if setting.name in _WITH_COMMAS else [line]
    values = tuple(item.strip() for item in items if item.strip())
    if setting.name == "svc-param":
        for item in values:
            _check_parameter(item)
        _check_together(values)
    if setting.name == "transport" and values:
        from parley.client.bindings.binding import check_binding

        for item in values:
            check_binding(item)
    if setting.name in ("trust-origin", "card-key-origin") and values:
        from parley.client.origin import Origin

        for item in values:
            Origin.parse(item)
    return values


def _check_parameter(item: str) -> None:
    name, colon, value = item.partition(":")
    if not colon or not name.strip() or not name.strip().isascii() or " " in name.strip():
        raise ValueError(
            "a service parameter has the form name:value, for example x-trace-id:abc123"
        )
    if any(ord(character) < 32 for character in value):
        raise ValueError("a service parameter's value must be one line of text")


def _check_together(items: Sequence[str]) -> None:
    """Raise ``ValueError`` for reserved headers, and for repeated headers that are not lists."""
    from parley.client.bindings.request_auth import split_headers

    seen: set[str] = set()
    for item in items:
        name, _, value = (each.strip() for each in item.partition(":"))
        others, _ = split_headers({name: value})
        if others and name.lower() in seen:
            raise ValueError(f"the service parameter {name} is given twice")
        seen.add(name.lower())


def _read_duration(setting: Setting, raw: str) -> float:
    seconds = parse_duration(raw)
    if seconds < MIN_DURATION:
        raise ValueError(f"{raw!r} is too short; the shortest interval is 10ms")
    return seconds


def _read_limit(setting: Setting, raw: str) -> float | None:
    if raw.strip().lower() == "none":
        return None
    seconds = parse_duration(raw)
    if seconds == 0:
        raise ValueError("a time limit of zero; give a duration such as 30s, or none")
    return seconds


def _read_number(setting: Setting, raw: str) -> int:
    if not raw.strip().isdecimal():
        raise ValueError(f"{raw!r} is not a whole number of 0 or more")
    return int(raw)


def _read_object(setting: Setting, raw: str) -> dict[str, Any]:
    try:
        value = json.loads(raw, parse_constant=_no_constant)
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


def parse(text: str) -> dict[str, str]:
    """Return the command's settings in ``text``. The last line for a name applies."""
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


def read_file(path: Path) -> dict[str, str]:
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
