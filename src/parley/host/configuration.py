"""The settings of a server from keywords or flags, the environment and a file (``parley.toml``).

Every setting has the name of its field in all sources. Nothing is ignored: an unknown name or an
impossible value is a problem that names its file and line, its variable or its flag.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from parley.host.options import ServerOptions, options_of, shown
from parley.model.option import NamedOption, Option, format_duration
from parley.server.settings import Settings

FILE = "parley.toml"
DEFAULT = "default"
LEVELS = ("debug", "info", "warning", "error")

MAX_FILE = 256 * 1024
"""The size limit of a file of settings, in bytes."""

_SENT = "What is sent"
_LINK = re.compile(r"(?:tcp|udp|sctp)://")
"""Kubernetes sets PARLEY_PORT and the like to such an address for a service of that name."""

log = logging.getLogger("parley.host")


class EgressOptions(msgspec.Struct, frozen=True):
    """The parts of the option ``egress``. The policy reads its own variables."""

    egress_allow: Annotated[
        tuple[str, ...],
        Option(
            "A host (*.example.com includes subdomains), an address or a network, with or without "
            "a port, to which requests caused by peers may go; repeatable.",
            "PLACE",
            _SENT,
            reads_itself=True,
        ),
    ] = ()
    egress_deny: Annotated[
        tuple[str, ...],
        Option(
            "A destination that is always forbidden to them; repeatable.",
            "PLACE",
            _SENT,
            reads_itself=True,
        ),
    ] = ()
    egress_only_allowed: Annotated[
        bool,
        Option(
            "Allow such requests only to --egress-allow, not to the public internet.",
            panel=_SENT,
            reads_itself=True,
        ),
    ] = False


class CertificateOptions(msgspec.Struct, frozen=True):
    """The parts of the option ``webhook_certificate``."""

    webhook_cert: Annotated[
        str,
        Option(
            "Certificate for webhooks that require it (MutualTLS), with its chain (PEM); "
            "read again when it changes.",
            "FILE",
            _SENT,
        ),
    ] = ""
    webhook_key: Annotated[
        str,
        Option(
            "Its private key (PEM), not encrypted; by default in the file of --webhook-cert.",
            "FILE",
            _SENT,
        ),
    ] = ""
    webhook_ca: Annotated[
        str,
        Option(
            "Authorities of these webhooks' certificates (PEM), instead of the system's.",
            "FILE",
            _SENT,
        ),
    ] = ""


class CommandOptions(msgspec.Struct, frozen=True):
    """The settings of ``parley serve`` that are no keywords of ``parley.serve``."""

    targets: Annotated[
        tuple[str, ...],
        Option("The agents to serve.", "TARGET", flag=None, variable="PARLEY_TARGETS"),
    ] = ()
    tenants: Annotated[
        Mapping[str, str],
        Option(
            "An agent that serves one tenant of the server's address; repeatable.",
            "NAME=TARGET",
            flag="--tenant",
        ),
    ] = {}
    envelope_keys: Annotated[
        str,
        Option(
            "The keys of senders that sign messages of the envelope protocol (parley keys share); "
            "read again when they change.",
            "FILE",
            "Who may call",
        ),
    ] = ""
    log_level: Annotated[
        str,
        Option(
            "The log level for stderr: debug (with every request), info, warning, error.",
            "LEVEL",
            choices=LEVELS,
        ),
    ] = "info"
    log_format: Annotated[
        str,
        Option(
            "The form of the log: text, or json with one object per line.",
            choices=("text", "json"),
            default="text on a terminal, else json",
        ),
    ] = ""


STRUCTS = (ServerOptions, Settings, EgressOptions, CertificateOptions, CommandOptions)


def _settings() -> Iterator[tuple[type[msgspec.Struct], NamedOption]]:
    for struct in STRUCTS:
        defaults = zip(struct.__struct_fields__, struct.__struct_defaults__, strict=True)
        values = {
            name: each.factory() if hasattr(each, "factory") else each for name, each in defaults
        }
        for name, option in options_of(struct).items():
            if option.flag is not None or option.variable:
                yield struct, NamedOption(name, option, values[name], "PARLEY_")


OWNERS = {option.name: struct for struct, option in _settings()}
"""The struct of each setting."""

SETTINGS = {option.name: option for _, option in _settings()}
"""All settings that are no Python objects, by name."""


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that is most like a wrong one, or an empty string."""
    return next(iter(difflib.get_close_matches(name, known, 1)), "")


def is_open_to_others(path: Path) -> bool:
    """Return whether other users of this machine can read the file (on POSIX)."""
    if os.name != "posix":
        return False
    try:
        return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the lines of the keys of a valid TOML document, of tables and of their keys.

    Each statement is parsed alone, below the header of its table.
    """
    found: dict[tuple[str, ...], int] = {}
    table, statement, begin = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        statement += f"{line}\n"
        try:
            parsed = tomllib.loads(table + statement)
        except tomllib.TOMLDecodeError:
            continue  # the statement continues
        for key, value in parsed.items():
            found.setdefault((key,), begin)
            for inner in value if isinstance(value, dict) else ():
                found.setdefault((key, inner), begin)
        if statement.lstrip().startswith("["):
            table = statement
        statement, begin = "", number + 1
    return found


class Configuration:
    """The settings that are given to a server, with their sources and all ``problems``.

    ``given`` has values of keywords or flags by name, and ``labels`` the flags; the environment is
    weaker, then the ``file``, then ``defaults``. ``names`` are the settings to read from the
    environment. ``options`` are the options of the server, unless there are problems;
    ``keywords`` are their values. ``warnings`` name secrets that others can read. ``again`` reads
    the same sources again.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        file: str | Path | None = None,
        *,
        labels: Mapping[str, str] = {},
        names: Collection[str] = SETTINGS.keys(),
        defaults: Mapping[str, Any] = {},
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.file = None if file is None else Path(file)
        self.values: dict[str, Any] = dict(defaults)
        self.sources: dict[str, str] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self._lines: dict[tuple[str, ...], int] = {}
        self.again: Callable[[], Configuration] = partial(
            Configuration, given, file, labels=labels, names=names, defaults=defaults,
            environment=environment,
        )  # fmt: skip
        if self.file is not None:
            self._read_file(self.file)
        self._read_environment(os.environ if environment is None else environment, names)
        for name, value in given.items():
            if value is not None:
                self._set(name, value, labels.get(name, name))
        self._check_whole(given)
        self.keywords: dict[str, Any] = {}
        self.options = self._built()

    def checked(self) -> ServerOptions:
        """Return the options. Raises ``ValueError`` with all problems, one a line."""
        if self.problems or self.options is None:
            raise ValueError("\n".join(self.problems))
        return self.options

    def shown(self, name: str) -> str:
        """Return the value of a setting for people. Secrets are not shown."""
        setting, value = SETTINGS[name], self.values.get(name)
        if name not in self.sources:
            return setting.default_text
        if setting.option.secret:
            return "set, not shown"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, Mapping):
            return ", ".join(f"{k}={_joined(v)}" for k, v in value.items())
        if setting.is_time and isinstance(value, int | float):
            return format_duration(value)
        if not isinstance(value, str | tuple | list):
            return str(value)
        return _joined([shown(each) for each in ([value] if isinstance(value, str) else value)])

    # -- sources -------------------------------------------------------------------------------

    def _set(self, name: str, value: Any, source: str) -> None:
        self.values[name], self.sources[name] = value, source

    def _read_file(self, file: Path) -> None:
        try:
            with file.open("rb") as opened:
                data = opened.read(MAX_FILE + 1)
            if len(data) > MAX_FILE:
                raise ValueError(f"{file}: it is larger than {MAX_FILE:,} bytes")
            text = data.decode("utf-8-sig")
            document = tomllib.loads(text)
        except OSError as error:
            self.problems.append(f"{file}: it cannot be read: {error.strerror or error}")
            return
        except tomllib.TOMLDecodeError as error:
            place = re.search(r" \(at line (\d+), column \d+\)", str(error))
            line = place[1] if place else len(text.splitlines())
            reason = str(error).replace(place[0] if place else " (at end of document)", "")
            self.problems.append(f"{file}:{line}: it is not TOML: {reason}")
            return
        except ValueError as error:
            is_text = not isinstance(error, UnicodeDecodeError)
            self.problems.append(str(error) if is_text else f"{file}: it is not UTF-8 text")
            return
        self._lines = _lines(text)
        for name, value in document.items():
            where = f"{file}:{self._lines.get((name,), 1)}"
            if name not in SETTINGS or name == "config":
                self.problems.append(f"{where}: {_unknown(name, value)}")
                continue
            try:
                self._set(name, SETTINGS[name].of_file(value), where)
            except ValueError as error:
                self.problems.append(f"{where}: {name}: {error}")
        secret = [name for name in document if self._is_secret(name)]
        if secret and is_open_to_others(file):
            self.warnings.append(
                f"{self.sources[secret[0]]}: {secret[0]} is secret, and other users can read "
                f"{file}; chmod 600 {file}"
            )

    def _is_secret(self, name: str) -> bool:
        value = self.values.get(name)
        is_hidden = isinstance(value, str) and shown(value) != value
        return name in self.sources and (is_hidden or SETTINGS[name].option.secret)

    def _read_environment(self, environment: Mapping[str, str], names: Collection[str]) -> None:
        for name in names:
            setting = SETTINGS[name]
            text = environment.get(setting.variable, "") if setting.variable else ""
            if not text or (setting.kind is int and _LINK.match(text)):
                continue
            self._set(name, text, setting.variable)
            if setting.option.reads_itself:
                continue
            try:
                self.values[name] = setting.of_variable(text)
            except ValueError as error:
                del self.values[name]
                self.problems.append(f"{setting.variable}: {error}")

    def _check_whole(self, given: Mapping[str, Any]) -> None:
        """Reject a keyword whose parts have other sources too."""
        for whole, struct in _PARTS.items():
            parts = [name for name in self.sources if OWNERS.get(name) is struct]
            if given.get(whole) is not None and parts:
                self.problems.append(
                    f"{self.sources[parts[0]]}: {parts[0]} is part of {whole}, which is a keyword "
                    "here: give all of it in one place"
                )

    # -- the options ---------------------------------------------------------------------------

    def _built(self) -> ServerOptions | None:
        parts: dict[type, dict[str, Any]] = {struct: {} for struct in STRUCTS}
        for name, value in self.values.items():
            reads_itself = name in SETTINGS and SETTINGS[name].option.reads_itself
            if not reads_itself or self.sources.get(name) != SETTINGS[name].variable:
                parts[OWNERS.get(name, ServerOptions)][name] = value
        keywords = self.keywords = parts[ServerOptions]
        for whole, struct in _PARTS.items():
            if keywords.get(whole) is None and (parts[struct] or whole != "webhook_certificate"):
                keywords[whole] = self._made(_MAKERS[whole], parts[struct])
        options = self._made(ServerOptions, keywords)
        if options is not None:
            self._check(options)
        return None if self.problems else options

    def _made(self, make: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """Return a struct of values, and without the values that it rejects. Notes problems."""
        values = dict(values)
        while True:
            try:
                return make(**values)
            except (ValueError, TypeError) as error:
                name = _first_name(str(error), [each for each in values if each in self.sources])
                self.problems.append(self._placed(name, str(error)))
                if not name:
                    return None
                del values[name]

    def _check(self, options: ServerOptions) -> None:
        """Note the problems of values that are first used when the server opens."""
        from parley.host.files import open_files  # not needed for help, and slow to import
        from parley.host.host import check_shared, sealing_key
        from parley.host.store_urls import open_bus, open_store
        from parley.observe.export import collector_of
        from parley.security.limits.declaration import parse_limits
        from parley.security.signing.keys import SigningKeys

        def check_store() -> None:
            check_shared(options, open_store(options.store, options.lease, migrate=options.migrate))

        operations = re.findall(r"\w+", " ".join(options.limits))  # extensions have their own
        checks: dict[str, Callable[[], object]] = {
            "limits": lambda: parse_limits(options.limits, operations=operations),
            "store": check_store,
            "bus": lambda: open_bus(options.bus, options.store),
            "files": lambda: open_files(options.files, options.store),
            "otlp": lambda: collector_of(options.otlp) if options.otlp else None,
            "secret_key": lambda: sealing_key(options.secret_key),
            "signing_keys": lambda: SigningKeys.load(options.signing_keys),
        }
        for name, check in checks.items():
            try:
                check()
            except (ValueError, TypeError) as error:
                others = ["lease", "migrate", "workers", "role"] if name == "store" else []
                named = _first_name(str(error), others)
                self.problems.append(self._placed(named or name, str(error)))

    def _placed(self, name: str, text: str) -> str:
        """Return the text of an error with the source of a setting before it."""
        source, value = self.sources.get(name, ""), self.values.get(name)
        if isinstance(value, Mapping) and source.startswith(f"{self.file}:"):
            lines = [self._lines.get((name, key)) for key in value if repr(key) in text]
            source = f"{self.file}:{lines[0]}" if lines and lines[0] else source
        return f"{source}: {text}" if source else text


def _certificate(webhook_cert: str = "", webhook_key: str = "", webhook_ca: str = "") -> Any:
    if not webhook_cert:
        raise ValueError("webhook_key and webhook_ca need a certificate: --webhook-cert")
    from parley.push.proofs import WebhookCertificate

    return WebhookCertificate(webhook_cert, webhook_key or None, webhook_ca or None)


def _egress(
    egress_allow: Collection[str] = (),
    egress_deny: Collection[str] = (),
    egress_only_allowed: bool = False,
) -> Any:
    from parley.host.egress import read_egress

    return read_egress(egress_allow, egress_deny, only_allowed=egress_only_allowed)


_PARTS = {
    "settings": Settings, "egress": EgressOptions, "webhook_certificate": CertificateOptions,
}  # fmt: skip
"""The keywords that have settings as their parts."""

_MAKERS: dict[str, Callable[..., Any]] = {
    "settings": Settings, "egress": _egress, "webhook_certificate": _certificate,
}  # fmt: skip


def _first_name(text: str, names: Collection[str]) -> str:
    """Return the name that a text has first, or an empty string."""
    found = [(match.start(), name) for name in names if (match := re.search(rf"\b{name}\b", text))]
    return min(found, default=(0, ""))[1]


def _unknown(name: str, value: Any) -> str:
    if name == "config":
        return "config: a file cannot name another"
    if name in ServerOptions.__struct_fields__:
        parts = [part for part in SETTINGS if OWNERS[part] is _PARTS.get(name)]
        return f"{name} is a keyword of Python: " + (
            f"here its parts are settings, such as {parts[0]}"
            if parts
            else "give it to parley.serve"
        )
    is_table = isinstance(value, dict)
    names = [each for each, setting in SETTINGS.items() if (setting.kind is dict) is is_table]
    near = nearest(name.replace("-", "_"), names)
    hint = f"; the nearest is {near}" if near else "; parley config show lists all"
    table = " (settings have no table)" if is_table and not near else ""
    return f"unknown setting {name!r}{table}{hint}"


def _joined(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(map(str, value))


# -- keywords, and reloading ------------------------------------------------------------------


def configured(
    keywords: Mapping[str, Any], *, unused: Collection[str] = (), **defaults: Any
) -> tuple[ServerOptions, Configuration]:
    """Return the options of keywords. ``config`` names a file, which is read with the environment.

    Settings without an effect here, of the command and the ``unused`` ones, are logged. Raises
    ``ValueError`` with all problems.
    """
    keywords, file = dict(keywords), keywords["config"]
    tenants = keywords.pop("tenants", None)
    found = Configuration(keywords, file, defaults=defaults)
    options = found.checked()
    for text in found.warnings:
        log.warning("%s", text)
    for name, source in found.sources.items():
        if (is_of_command := OWNERS.get(name) is CommandOptions) or name in unused:
            user = "the command parley serve" if is_of_command else "parley.serve"
            log.warning("%s: %s is for %s, and has no effect here", source, name, user)
    return msgspec.structs.replace(options, tenants=tenants), found


class Reloading:
    """Reads the sources of settings again, and applies the changes that need no restart.

    ``apply`` has a function for each setting that can change while the server runs; a
    ``ValueError`` of the first rejects all changes.
    """

    def __init__(
        self, configuration: Configuration, apply: Mapping[str, Callable[[Any], None]]
    ) -> None:
        self._configuration = configuration
        self._running = dict(configuration.values)
        self._apply = apply
        if configuration.file is not None:
            log.info("settings are read from %s", configuration.file)

    async def reload(self) -> str:
        """Return the settings that have changed, for the log; empty if there are none."""
        import asyncio  # not needed for help, and slow to import

        new = await asyncio.to_thread(self._configuration.again)
        names = [
            name
            for name in dict.fromkeys((*self._apply, *self._running, *new.values))
            if name in SETTINGS
            and self._value(name, new.values) != self._value(name, self._running)
        ]
        problems, changed = list(new.problems), [name for name in names if name in self._apply]
        try:
            for name in () if problems else changed:
                self._apply[name](self._value(name, new.values))
        except ValueError as error:
            problems.append(f"{new.sources.get(changed[0], changed[0])}: {error}")
        if problems:
            log.error("the settings stay as they are: %s", "; ".join(problems))
            return ""
        for text in new.warnings:
            log.warning("%s", text)
        self._running |= {name: self._value(name, new.values) for name in changed}
        if kept := [each for each in names if each not in changed]:
            places = [f"{each} ({new.sources.get(each, DEFAULT)})" for each in kept]
            log.warning("%s changed, and needs a restart", ", ".join(places))
        return ", ".join(f"{each} = {new.shown(each) or 'none'}" for each in changed)

    def _value(self, name: str, values: Mapping[str, Any]) -> Any:
        return values.get(name, SETTINGS[name].default)
