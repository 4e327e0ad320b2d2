"""Flags of the commands that serve, made from the settings of a server."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output, exit_status_of, print_line
from parley.cli.settings.options import (
    WORDS,
    CommandFlag,
    CommandOption,
    GroupedCommand,
    fill,
    flags_of,
    own_options,
)
from parley.cli.settings.table import SETTINGS as CLIENT_SETTINGS
from parley.host.configuration import FILE, SETTINGS, Configuration, nearest
from parley.host.options import shown

FLAGS = {
    each.name: CommandFlag(each.name, each.option, each.default, each.prefix)
    for each in SETTINGS.values()
    if each.option.flag is not None
}
"""All flags of a server by name."""

FAMILIES = ("PARLEY_REGISTRY_", "PARLEY_PUSH_", "PARLEY_MCP_")
"""The beginnings of variables of outer rooms."""

KUBERNETES = re.compile(r"PARLEY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")
"""Variables that Kubernetes sets for services whose names begin with parley."""

OTHERS = frozenset(  # each is read by its owner
    """
A2ACLI_CONFIG PARLEY_API_KEY PARLEY_AUTH_FOLDER PARLEY_AUTH_ORIGIN PARLEY_AUTH_PASSPHRASE
PARLEY_AUTH_STORAGE PARLEY_CASSETTES PARLEY_CLIENT_ID PARLEY_CLIENT_SECRET PARLEY_MODEL
PARLEY_MODEL_URL PARLEY_REGISTRY PARLEY_SIGNING_KEYS PARLEY_TLS_KEY_PASSWORD PARLEY_TOKEN
""".split()  # noqa: SIM905
)
"""The variables that are no option of a command."""


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that nothing reads, each with the most similar known one."""
    known = {each.variable for each in CLIENT_SETTINGS} | OTHERS
    known |= {each.variable for each in SETTINGS.values()}
    return {
        name: nearest(name, known)
        for name in sorted(environment)
        if name.startswith(("PARLEY_", "A2ACLI_"))
        and name not in known
        and not name.startswith(FAMILIES)
        and not KUBERNETES.fullmatch(name)
    }


def found_file() -> str | None:
    """Return the file of settings that ``PARLEY_CONFIG`` names, or ``parley.toml`` if it exists."""
    return os.environ.get("PARLEY_CONFIG") or (FILE if Path(FILE).is_file() else None)


class ServeCommand(msgspec.Struct, frozen=True):
    """A command line that serves: its settings, the log's level and form, and all its words."""

    settings: Configuration
    log_level: str
    words: list[str]
    log_format: str

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of the server."""
        return self.settings.keywords


USUAL = {
    "host", "port", "store", "url", "allowed_hosts", "tls_cert", "tls_key", "allow_anonymous",
    "grpc_port", "limits", "publisher", "config", "log_level", "log_format", "tenants",
}  # fmt: skip
"""The options of a server that ``--help`` shows; ``--help-all`` shows all."""


class ServeFlags(msgspec.Struct, frozen=True):
    """The flags of commands that serve, in addition to the options of the server."""

    debug: Annotated[
        bool,
        CommandOption(
            "Log everything (--log-level debug), and tracebacks of errors that stop the server."
        ),
    ] = False
    help_all: Annotated[bool, CommandOption("Show all options, and exit.")] = False


class ServerCommand(GroupedCommand):
    """A command that serves, with more options than help shows by default."""

    rare = FLAGS.keys() - USUAL


def server_command(
    app: typer.Typer, *names: str, epilog: str
) -> Callable[[Callable[..., int | None]], None]:
    """Register a function as the command ``serve``, with all settings of a server or the named
    ones.

    It receives a ``ServeCommand``, and its own parameters; a parameter whose type is a struct adds
    the struct's options.
    """
    names = (*names, "log_level", "log_format") if names else tuple(SETTINGS)
    chosen = [FLAGS[name] for name in names if name in FLAGS]

    def register(function: Callable[..., int | None]) -> None:
        # Annotations of the registered functions use this name.
        own, structs = own_options(function, 1, {"ServeCommand": ServeCommand})

        @wraps(function)
        def run(context: typer.Context, **given: Any) -> None:
            def serve() -> int | None:
                found = {flag.name: flag.read(given.pop(flag.name)) for flag in chosen}
                fill(given, {**structs, "serve": (ServeFlags, flags_of(ServeFlags))})
                debugs = given.pop("serve").debug
                settings = _configuration(found, names)
                level = settings.values.get("log_level", "info")
                if debugs and found.get("log_level") not in (None, "debug", "info"):
                    raise UsageFailure(f"--debug logs everything: leave out --log-level {level}")
                level = "debug" if debugs else level
                form = settings.values.get("log_format", "")
                return function(ServeCommand(settings, level, context.meta[WORDS], form), **given)

            if status := exit_status_of(Output(is_json=False, debug=given["debug"]), serve):
                raise typer.Exit(status)

        flags = [flag for _, flags in structs.values() for flag in flags]
        declared = [flag.parameter() for flag in (*flags, *chosen, *flags_of(ServeFlags))]
        run.__signature__ = inspect.Signature([_CONTEXT, *own, *declared])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        del run.__wrapped__
        app.command("serve", cls=ServerCommand, epilog=epilog)(run)

    return register


_CONTEXT = inspect.Parameter(
    "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)


def _configuration(given: Mapping[str, Any], names: Collection[str]) -> Configuration:
    """Return the settings of a command line. Raises ``UsageFailure`` with all problems.

    A command with some of the settings reads no file, which has all.
    """
    file = (given.get("config") or found_file()) if "config" in names else None
    labels = {flag.name: flag.flag.split()[0] for flag in FLAGS.values()}
    found = Configuration(
        given, file, labels=labels, names=names, defaults={"config": file} if file else {}
    )
    with wrong_usage():
        found.checked()
    for text in found.warnings:
        print_line(f"warning: {text}", err=True)
    return found


@contextmanager
def reporting(store: str, anonymous: str = "") -> Iterator[None]:
    """Report errors that prevent or stop a server as ``CommandFailure``.

    ``anonymous`` says why everyone could call it, instead of the error's own words.
    """
    from parley.agent.lifespan import LifespanFailed
    from parley.files.objects import FilesUnavailable
    from parley.server.run import AnonymousRefused
    from parley.server.sockets import ListenError
    from parley.server.tls import TlsFailure
    from parley.store.protocols.errors import StoreError

    try:
        yield
    except AnonymousRefused as error:
        raise UsageFailure(
            anonymous or str(error), hint="the same command with --allow-anonymous"
        ) from error
    except TlsFailure as error:
        raise CommandFailure("PARLEY_ERR_TLS", str(error)) from error
    except ListenError as error:
        raise CommandFailure(
            "PARLEY_ERR_LISTEN", str(error), hint="--port 0 selects a free port"
        ) from error
    except FilesUnavailable as error:
        raise CommandFailure(
            "PARLEY_ERR_FILES", str(error), hint="name another folder with --files, or none"
        ) from error
    except (LifespanFailed, StoreError) as error:
        cause = error.__cause__ if isinstance(error, LifespanFailed) else error
        if not isinstance(cause, StoreError):
            raise CommandFailure(
                "PARLEY_ERR_AGENT", str(error), hint="the same command with --debug shows where"
            ) from error
        where = "" if shown(store).startswith("postgres") else f" {shown(store)}"
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"the store{where} cannot be used: {cause}",
            hint="name another with --store, such as --store sqlite:///other.db" if where else None,
        ) from error
