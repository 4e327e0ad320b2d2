"""Flags and environment variables of the commands that serve, made from the options of a server."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output, exit_status_of
from parley.cli.settings.options import (
    WORDS,
    CommandFlag,
    CommandOption,
    GroupedCommand,
    fill,
    flags_of,
    own_options,
)
from parley.cli.settings.table import DEFAULT
from parley.host.options import ServerOptions, options_of, shown
from parley.model.option import Option
from parley.server.settings import Settings

if TYPE_CHECKING:
    from parley.push.proofs import WebhookCertificate

LEVELS = ("debug", "info", "warning", "error")

_SENT = "What is sent"


class EgressFlags(msgspec.Struct, frozen=True):
    """The flags of the option ``egress``. The policy reads its own variables."""

    egress_allow: Annotated[
        tuple[str, ...],
        Option(
            "A host (*.example.com includes subdomains), an address or a network, with or without "
            "a "
            "port, to which requests caused by peers may go; repeatable.",
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


class CertificateFlags(msgspec.Struct, frozen=True):
    """The flags of the option ``webhook_certificate``."""

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


def server_flags(struct: type[msgspec.Struct]) -> list[CommandFlag]:
    """Return the server flags that the fields of a struct declare."""
    defaults = zip(struct.__struct_fields__, struct.__struct_defaults__, strict=True)
    values = {name: each.factory() if hasattr(each, "factory") else each for name, each in defaults}
    return [
        CommandFlag(name, option, values[name], "PARLEY_")
        for name, option in options_of(struct).items()
        if option.flag is not None
    ]


FLAGS = {
    flag.name: (struct, flag)
    for struct in (ServerOptions, Settings, EgressFlags, CertificateFlags)
    for flag in server_flags(struct)
}
"""All server flags by name, with the structs that declare them."""


def server_settings() -> list[tuple[str, str, str]]:
    """Return the flags of a server, each with its effective value and the source of the value."""
    found = []
    for _, flag in FLAGS.values():
        if raw := flag.variable and os.environ.get(flag.variable):
            found.append((flag.flag, shown(raw), flag.variable))
        else:
            found.append((flag.flag, flag.default_text, DEFAULT))
    return found


class ServeCommand(msgspec.Struct, frozen=True):
    """A command line that serves: the server's options, its log, and all its words."""

    options: dict[str, Any]
    log_level: str
    words: list[str]
    log_format: str


USUAL = {
    "host", "port", "store", "url", "allowed_hosts", "tls_cert", "tls_key", "allow_anonymous",
    "grpc_port", "limits", "publisher",
}  # fmt: skip
"""The options of a server that ``--help`` shows; ``--help-all`` shows all."""


class ServeFlags(msgspec.Struct, frozen=True):
    """The flags of commands that serve, in addition to the options of the server."""

    log_level: Annotated[
        str,
        CommandOption(
            "The log level for stderr: debug (with every request), info, warning, error.", "LEVEL"
        ),
    ] = "info"
    log_format: Annotated[
        str,
        CommandOption(
            "The form of the log: text, or json with one object per line.",
            variable="PARLEY_LOG_FORMAT",
            choices=("text", "json"),
            default="text on a terminal, else json",
        ),
    ] = ""
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
    """Register a function as the command ``serve``, with all flags of a server or the named ones.

    It receives a ``ServeCommand``, and its own parameters; a parameter whose type is a struct adds
    the struct's options.
    """
    chosen = [flag for name, (_, flag) in FLAGS.items() if name in names or not names]

    def register(function: Callable[..., int | None]) -> None:
        names = {
            "ServeCommand": ServeCommand
        }  # annotations of the registered functions use this name
        own, structs = own_options(function, 1, names)

        @wraps(function)
        def run(context: typer.Context, **given: Any) -> None:
            def serve() -> int | None:
                options = _read({flag.name: given.pop(flag.name) for flag in chosen})
                fill(given, {**structs, "serve": (ServeFlags, flags_of(ServeFlags))})
                flags: ServeFlags = given.pop("serve")
                level = flags.log_level.lower()
                if level not in LEVELS:
                    raise UsageFailure(f"--log-level: {level!r} is not one of {', '.join(LEVELS)}")
                if flags.debug and level not in ("debug", "info"):
                    raise UsageFailure(f"--debug logs everything: leave out --log-level {level}")
                level = "debug" if flags.debug else level
                command = ServeCommand(options, level, context.meta[WORDS], flags.log_format)
                return function(command, **given)

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


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``ServerOptions`` from the flags. Raises ``UsageFailure``."""
    from parley.host.egress import read_egress

    values: dict[Any, dict[str, Any]] = {struct: {} for struct, _ in FLAGS.values()}
    for name, raw in given.items():
        struct, flag = FLAGS[name]
        if (value := flag.read(raw)) is not None:
            values[struct][name] = value
    options, settings, egress, certificate = values.values()
    if certificate:
        options["webhook_certificate"] = _webhook_certificate(**certificate)
    with wrong_usage():
        options["settings"] = Settings(**settings)
        options["egress"] = read_egress(
            egress.get("egress_allow", ()),
            egress.get("egress_deny", ()),
            only_allowed=egress.get("egress_only_allowed", False),
        )
    return options


def _webhook_certificate(
    webhook_cert: str = "", webhook_key: str = "", webhook_ca: str = ""
) -> WebhookCertificate:
    if not webhook_cert:
        raise UsageFailure("--webhook-key and --webhook-ca need a certificate: --webhook-cert")
    from parley.push.proofs import WebhookCertificate

    return WebhookCertificate(webhook_cert, webhook_key or None, webhook_ca or None)


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
