"""Flags and environment variables of the commands that serve, made from the options of a server."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from parley.cli.boundary import exit_status_of
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.output.text import parse_duration, parse_span
from parley.cli.settings.options import WORDS, GroupedCommand
from parley.cli.settings.table import DEFAULT
from parley.host.options import ServerOptions, options_of, shown
from parley.server.settings import Option, Settings

if TYPE_CHECKING:
    from parley.push.proofs import WebhookCertificate

LEVELS = ("debug", "info", "warning", "error")

_SENT = "What is sent"


class EgressFlags(msgspec.Struct, frozen=True):
    """The flags of the option ``egress``. The policy reads its variables itself."""

    egress_allow: Annotated[
        tuple[str, ...],
        Option(
            "A host (*.example.com for all below), an address or a network, with a port or "
            "without, that requests may go to which others cause; repeat it.",
            metavar="PLACE",
            panel=_SENT,
            reads_itself=True,
        ),
    ] = ()
    egress_deny: Annotated[
        tuple[str, ...],
        Option(
            "One that they must not go to, whatever allows it; repeat it.",
            metavar="PLACE",
            panel=_SENT,
            reads_itself=True,
        ),
    ] = ()
    egress_only_allowed: Annotated[
        bool,
        Option(
            "Send such requests nowhere but where --egress-allow says, not to the public internet.",
            panel=_SENT,
            reads_itself=True,
        ),
    ] = False


class CertificateFlags(msgspec.Struct, frozen=True):
    """The flags of the option ``webhook_certificate``."""

    webhook_cert: Annotated[
        str,
        Option(
            "Certificate to show to webhooks that ask for it (MutualTLS), with its chain (PEM); "
            "read again when it changes.",
            metavar="FILE",
            panel=_SENT,
        ),
    ] = ""
    webhook_key: Annotated[
        str,
        Option(
            "Its private key (PEM), not encrypted; by default in the file of --webhook-cert.",
            metavar="FILE",
            panel=_SENT,
        ),
    ] = ""
    webhook_ca: Annotated[
        str,
        Option(
            "Authorities of the certificates of these webhooks (PEM), in place of the system's.",
            metavar="FILE",
            panel=_SENT,
        ),
    ] = ""


class ServerFlag(msgspec.Struct, frozen=True):
    """An option on a command line, with its name and default in Python."""

    name: str
    option: Option
    default: Any

    @property
    def kind(self) -> type:
        """The type of the value: ``bool`` for a flag without one."""
        if self.option.sets is not None:
            return bool
        if isinstance(self.default, Mapping):
            return tuple
        return self.option.kind if self.default is None else type(self.default)

    @property
    def flag(self) -> str:
        """The flag, with its dashes."""
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable, empty for none."""
        if self.option.variable is not None:
            return self.option.variable
        name = self.flag.lstrip("-").replace("-", "_") if self.kind is bool else self.name
        return f"PARLEY_{name.upper()}"

    @property
    def default_text(self) -> str:
        """The words for the value without the flag, empty for none."""
        if self.option.default or self.kind is bool:
            return self.option.default or "no"
        return str(self.default) if self.kind in (str, int) and self.default is not None else ""

    def parameter(self) -> inspect.Parameter:
        """Return the parameter that typer makes the flag of."""
        option = self.option
        is_shown = self.kind in (str, int) and bool(self.default_text) and not option.default
        kinds: dict[type, tuple[Any, Any]] = {
            bool: (bool, False),
            tuple: (list[str] | None, None),
            int: (int | None, self.default),
        }
        kind, default = kinds.get(self.kind, (str, self.default if is_shown else ""))
        # click splits the variable of a list at spaces; that of another separator is read later.
        is_own = bool(option.separator) or option.reads_itself
        variable = "" if is_own else self.variable
        text = f"  [env var: {self.variable}]" if is_own else ""
        text += f"  [default: {option.default}]" if option.default else ""
        declared = typer.Option(
            default,
            self.flag,
            help=option.help + text,
            metavar="|".join(option.choices) or option.metavar or None,
            envvar=variable or None,
            rich_help_panel=option.panel or None,
            show_default=is_shown,
        )
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=declared
        )

    def read(self, given: Any) -> Any:
        """Return the value of the option, ``None`` if it is not given. Raises ``UsageFailure``."""
        option = self.option
        if option.separator and not given:
            parts = os.environ.get(self.variable, "").split(option.separator)
            given = [part.strip() for part in parts if part.strip()]
        if given is None or given is False or given in ("", []):
            return None
        if self.kind is bool:
            return True if option.sets is None else option.sets
        if option.choices and given not in option.choices:
            raise UsageFailure(f"{self.flag}: {given!r} is not one of {', '.join(option.choices)}")
        try:
            if self.kind is float:
                return parse_duration(given)
            if self.kind is timedelta:
                return timedelta(seconds=parse_span(given))
        except (ValueError, OverflowError) as error:
            raise UsageFailure(f"{self.flag}: {error}") from None
        if isinstance(self.default, Mapping):
            return _read_restrict(given)
        return tuple(given) if self.kind is tuple else given


def flags_of(struct: type[msgspec.Struct]) -> list[ServerFlag]:
    """Return the flags of the options of a struct."""
    defaults = {
        name: each.factory() if hasattr(each, "factory") else each
        for name, each in zip(struct.__struct_fields__, struct.__struct_defaults__, strict=True)
    }
    return [
        ServerFlag(name, option, defaults[name])
        for name, option in options_of(struct).items()
        if option.flag is not None
    ]


FLAGS = {
    flag.name: (struct, flag)
    for struct in (ServerOptions, Settings, EgressFlags, CertificateFlags)
    for flag in flags_of(struct)
}
"""All flags of servers by their names, with the structs whose fields they are."""


def server_settings() -> list[tuple[str, str, str]]:
    """Return the flags of a server, each with its value in force and the source of the value."""
    found = []
    for _, flag in FLAGS.values():
        if raw := flag.variable and os.environ.get(flag.variable):
            found.append((flag.flag, shown(raw), flag.variable))
        else:
            found.append((flag.flag, flag.default_text, DEFAULT))
    return found


class ServeCommand(msgspec.Struct, frozen=True):
    """A command line that serves: the server's options, the log's level, and all its words."""

    options: dict[str, Any]
    log_level: str
    words: list[str]


def server_command(
    app: typer.Typer, *names: str, epilog: str
) -> Callable[[Callable[..., int | None]], None]:
    """Register a function as the command ``serve``, with all flags of a server or those named.

    It gets a ``ServeCommand``, and what its own parameters name.
    """
    chosen = [flag for name, (_, flag) in FLAGS.items() if name in names or not names]

    def register(function: Callable[..., int | None]) -> None:
        @wraps(function)
        def run(context: typer.Context, log_level: str, debug: bool, **given: Any) -> None:
            def serve() -> int | None:
                level = log_level.lower()
                if level not in LEVELS:
                    raise UsageFailure(f"--log-level: {level!r} is not one of {', '.join(LEVELS)}")
                options = _read({flag.name: given.pop(flag.name) for flag in chosen})
                return function(ServeCommand(options, level, context.meta[WORDS]), **given)

            if status := exit_status_of(Output(is_json=False, debug=debug), serve):
                raise typer.Exit(status)

        names = {"ServeCommand": ServeCommand}  # which functions import when they are registered
        signature = inspect.signature(function, eval_str=True, locals=names)
        own = list(signature.parameters.values())[1:]
        flags = [flag.parameter() for flag in chosen]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [_CONTEXT, *own, *flags, *_LOG]
        )
        run.__annotations__ = {}
        del run.__wrapped__
        app.command("serve", cls=GroupedCommand, epilog=epilog)(run)

    return register


def _log_parameter(name: str, kind: Any, default: Any, **shown: Any) -> inspect.Parameter:
    declared = typer.Option(default, f"--{name.replace('_', '-')}", **shown)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=declared
    )


_CONTEXT = inspect.Parameter(
    "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)
_LOG = (
    _log_parameter(
        "log_level",
        str,
        "info",
        help="How much to log to stderr: debug (with every request), info, warning, error.",
        metavar="LEVEL",
    ),
    _log_parameter("debug", bool, False, help="Show tracebacks of what stops the server."),
)


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``ServerOptions`` that flags give. Raises ``UsageFailure``."""
    from parley.host.egress import read_egress

    values: dict[Any, dict[str, Any]] = {struct: {} for struct, _ in FLAGS.values()}
    for name, raw in given.items():
        struct, flag = FLAGS[name]
        if (value := flag.read(raw)) is not None:
            values[struct][name] = value
    options, settings, egress, certificate = values.values()
    if certificate:
        options["webhook_certificate"] = _webhook_certificate(**certificate)
    try:
        options["settings"] = Settings(**settings)
        options["egress"] = read_egress(
            egress.get("egress_allow", ()),
            egress.get("egress_deny", ()),
            only_allowed=egress.get("egress_only_allowed", False),
        )
    except ValueError as error:
        raise UsageFailure(str(error)) from error
    return options


def _webhook_certificate(
    webhook_cert: str = "", webhook_key: str = "", webhook_ca: str = ""
) -> WebhookCertificate:
    if not webhook_cert:
        raise UsageFailure("--webhook-key and --webhook-ca go with a certificate: --webhook-cert")
    from parley.push.proofs import WebhookCertificate

    return WebhookCertificate(webhook_cert, webhook_key or None, webhook_ca or None)


def _read_restrict(given: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """Return the setting ``restrict`` of a server. Raises ``UsageFailure``."""
    found: dict[str, str | tuple[str, ...]] = {}
    for each in given:
        endpoint, equals, value = each.partition("=")
        if not equals or not value:
            raise UsageFailure(
                f"--restrict: {each!r} is not ENDPOINT=WHO", hint="--restrict docs=authenticated"
            )
        if endpoint in found:
            raise UsageFailure(
                f"--restrict: {endpoint} is given twice; list its networks with commas"
            )
        found[endpoint] = value if value == "authenticated" else tuple(value.split(","))
    return found


@contextmanager
def reporting(store: str, anonymous: str = "") -> Iterator[None]:
    """Report what keeps a server from running on a store, or stops it, as ``CommandFailure``.

    ``anonymous`` says why everyone could call it, in place of the error's own words.
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
            "PARLEY_ERR_LISTEN", str(error), hint="--port 0 takes a free port"
        ) from error
    except FilesUnavailable as error:
        raise CommandFailure(
            "PARLEY_ERR_FILES", str(error), hint="name another place with --files, or none"
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
