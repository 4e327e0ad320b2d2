"""Options and help of the client commands, generated from the table of settings.

A command gets its settings as one ``CommandSettings`` value. What the command line leaves out comes
from the environment and the ``.env`` files. The order of message parts is kept here too, because
the parser groups options by name.
"""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from parley.cli.boundary import exit_status_of
from parley.cli.messages import Flag
from parley.cli.output.failures import UsageFailure
from parley.cli.output.redaction import Redactor, without_user
from parley.cli.output.streams import Output
from parley.cli.output.text import format_duration, visible
from parley.cli.settings.dotenv import is_open_to_others
from parley.cli.settings.sources import SettingSource, resolve, sources
from parley.cli.settings.table import BY_FIELD, DEFAULT, CommandSettings, Setting


def text_option(panel: str, flag: str, metavar: str, text: str, variable: str | None = None) -> str:
    """Return the default of a parameter that is an option, shown in a panel of the help page.

    ``variable`` is the environment variable that has its value too.
    """
    option: str = typer.Option(
        "",
        flag,
        metavar=metavar,
        help=text,
        envvar=variable,
        show_envvar=variable is not None,
        rich_help_panel=panel,
        show_default=False,
    )
    return option


AGENT_OPTIONS = (
    "agent_card",
    "transport",
    "a2a_version",
    "svc_param",
    "insecure",
    "ca_file",
    "client_cert",
    "client_key",
    "proxy",
    "bearer",
    "api_key",
    "trust_origin",
    "require_signature",
    "card_keys",
    "card_key_origin",
)
OUTPUT_OPTIONS = ("output", "stream", "verbose", "debug", "config")
CLIENT_OPTIONS = (*AGENT_OPTIONS, "timeout", *OUTPUT_OPTIONS)
CALL_OPTIONS = (*AGENT_OPTIONS, "extension", "timeout", *OUTPUT_OPTIONS)

PART_FLAGS = {"text": "--text", "file": "--file", "data": "--data", "media_type": "--media-type"}
SAVE = typer.Option(
    None,
    "--save",
    metavar="DIR",
    file_okay=False,
    help="Save the files of the answer in this folder; it is created if needed.",
    show_default=False,
    rich_help_panel="Output",
)
"""The option to save files; one may be large, so no setting turns it on."""

_PARTS_KEY = "parley.parts"
WORDS = "parley.words"
"""The key of a context's ``meta`` that has the words behind the command, as they were given."""

EXIT_HELP = """\b
Exit status:
  0  done: the agent was asked and its answer reported, whatever the answer
  1  failed          2  wrong usage
  3  agent or card out of reach
  4  credentials missing or refused
  5  --timeout ran out"""

SOURCES_HELP = """\b
Every option but --stream can be set in the environment, or (but for --config)
in a .env file:
  --agent-card is A2ACLI_AGENT_CARD, --api-key is A2ACLI_API_KEY, ...
  A flag counts before the environment, that before ./.env (or one in a folder
  above), that before ~/.config/a2a-cli/.env. See: parley config show
  A ./.env (or one above) says where the credentials in it go, never others."""

SECRETS_HELP = """\b
A credential given as a flag can be seen by others in the process table and
stays in the shell's history. A2ACLI_BEARER and A2ACLI_API_KEY do not."""


class GroupedCommand(TyperCommand):
    """A command with grouped options in its help, which keeps its words and the order of parts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual, and keep the part flags in their order."""
        ctx.meta[WORDS] = list(args)
        if any(parameter.name == "media_type" for parameter in self.params):
            given, _, order = self.make_parser(ctx).parse_args(args=list(args))
            ctx.meta[_PARTS_KEY] = _ordered_parts(given, order)
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """Return the help, escaped because defaults may come from a ``.env`` file."""
        return visible(super().get_help(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by group."""
        try:
            found = load_sources(None)
        except UsageFailure:  # help must work without a valid configuration
            found = []
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                group = "Arguments"
            else:
                group = getattr(parameter, "rich_help_panel", None) or "Options"
            setting = BY_FIELD.get(str(parameter.name).removesuffix("_"))
            if setting is not None:
                record = record[0], f"{setting.help}{_default_text(setting, found)}"
            groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def _ordered_parts(given: dict[str, Any], order: Sequence[Any]) -> list[Flag]:
    values = {name: iter(given.get(name) or ()) for name in PART_FLAGS}
    return [
        Flag(parameter.name, next(values[parameter.name]))
        for parameter in order
        if parameter.name in values and given.get(parameter.name)
    ]


def part_flags(context: typer.Context) -> list[Flag]:
    """Return the part flags in the order of the command line."""
    return list(context.meta.get(_PARTS_KEY, ()))


def load_sources(config: str | None) -> list[SettingSource]:
    """Return the sources of settings of this process. Raises ``UsageFailure``."""
    try:
        folder: Path | None = Path.cwd()
    except OSError:  # the folder was deleted
        folder = None
    return sources(os.environ, folder, config or os.environ.get("A2ACLI_CONFIG"))


def settings_command(
    app: typer.Typer, name: str, *fields: str, epilog: str = "", parts: bool = False
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register a command that gets its settings (the ``fields``) and the output.

    Its other parameters are its own arguments and options. ``parts`` adds the flags for message
    parts; the command reads them with ``part_flags``.
    """
    chosen = [BY_FIELD[field] for field in fields]

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        @wraps(function)
        def run(**given: Any) -> None:
            flags = {s.field: given.pop(f"{s.field}_") for s in chosen}
            for name in PART_FLAGS if parts else ():
                given.pop(name)
            found = load_sources(flags.get("config"))
            settings = resolve(flags, found)
            output = Output(
                is_json=settings.is_json,
                is_stream=settings.stream,
                debug=settings.debug,
                redact=Redactor((settings.bearer, settings.api_key), settings.svc_param),
            )
            _warn_about_open_files(output, found)
            status = exit_status_of(output, lambda: function(settings, output, **given))
            if status:
                raise typer.Exit(status)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[2:]
        options = [_parameter(setting, chosen) for setting in chosen]
        flags = [_part_option(name) for name in PART_FLAGS] if parts else []
        run.__signature__ = inspect.Signature([*own, *flags, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {}
        del run.__wrapped__
        app.command(name, cls=GroupedCommand, epilog=epilog or None)(run)
        return function

    return register


def _warn_about_open_files(output: Output, found: Sequence[SettingSource]) -> None:
    secrets = [setting.variable for setting in BY_FIELD.values() if setting.secret]
    for source in found:
        holds_secrets = any(source.values.get(name) for name in secrets)
        if source.path and holds_secrets and is_open_to_others(source.path):
            output.warn(
                f"{source.path} holds credentials and other users can read it; "
                f"chmod 600 {shlex.quote(str(source.path))}"
            )


def _parameter(setting: Setting, chosen: Sequence[Setting]) -> inspect.Parameter:
    kind: Any = {"list": list[str] | None, "flag": bool | None}.get(setting.kind, str | None)
    option = typer.Option(
        None,
        *_declarations(setting, chosen),
        metavar=setting.metavar or None,
        rich_help_panel=setting.panel,
        show_default=False,
        autocompletion=lambda: list(setting.choices),
    )
    name = f"{setting.field}_"  # async is a keyword
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=option)


def _declarations(setting: Setting, chosen: Sequence[Setting]) -> list[str]:
    taken = {flag for other in chosen if other is not setting for flag in other.spellings}
    off = [flag for flag in setting.off if flag not in taken]
    first, *rest = setting.spellings
    return ["/".join([first, *off]), *rest]


def _part_option(name: str) -> inspect.Parameter:
    option = typer.Option(
        None,
        PART_FLAGS[name],
        help=_PART_HELP[name],
        metavar=_PART_METAVARS[name],
        rich_help_panel="Message",
        show_default=False,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=list[str] | None, default=option
    )


_PART_METAVARS = {"text": "TEXT", "file": "PATH|URL", "data": "PATH|-", "media_type": "TYPE"}
_PART_HELP = {
    "text": "A text part.",
    "file": "A file part: a file here, uploaded if it is large, or a URL for the agent to fetch.",
    "data": "A data part: a JSON file, or - for standard input.",
    "media_type": "The media type of the part before it; guessed from the name if left out.",
}


def _default_text(setting: Setting, found: Sequence[SettingSource]) -> str:
    """Return the effective default, with its source if it is configured."""
    try:
        settings = resolve({}, found)
    except UsageFailure:
        settings = resolve({}, ())
    origin = settings.sources[setting.field]
    if origin != DEFAULT:
        return f"  [default: {display_value(setting, settings)}, from {origin}]"
    text = setting.default_text or display_value(setting, settings)
    return f"  [default: {text}]" if text else ""


def display_value(setting: Setting, settings: CommandSettings) -> str:
    """Return a setting's value for display; never a credential."""
    value = getattr(settings, "async_" if setting.field == "async" else setting.field)
    if value is None or value == ():
        return "none" if setting.kind == "limit" else ""
    if setting.secret:
        return "set, not shown"
    if setting.name == "svc-param":
        return ", ".join(f"{item.partition(':')[0]}:(not shown)" for item in value)
    if setting.kind in {"duration", "limit"}:
        return format_duration(value)
    if setting.kind == "flag":
        return "yes" if value else "no"
    return ", ".join(value) if setting.kind == "list" else without_user(str(value))
