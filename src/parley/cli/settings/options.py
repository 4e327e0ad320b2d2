"""Options, arguments and help of commands.

The options of a command are the fields of a struct: each declares its flag, its help and its
default. Settings that many commands share come from the table of settings: a command receives them
as one ``CommandSettings`` value, and values that the command line leaves out come from the
environment and the ``.env`` files. The order of message parts is recorded here as well, because the
parser groups options by name.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
import typer
from typer.core import TyperCommand

from parley.cli.output.failures import UsageFailure, wrong_usage
from parley.cli.output.redaction import Redactor, without_user
from parley.cli.output.streams import Output, exit_status_of
from parley.cli.output.text import visible
from parley.cli.settings.sources import SettingSource, resolve, sources
from parley.cli.settings.table import BY_FIELD, DEFAULT, CommandSettings, Setting
from parley.model.option import NamedOption, Option, format_duration

AGENT_OPTIONS = (
    "agent_card", "transport", "a2a_version", "svc_param", "insecure", "ca_file", "client_cert",
    "client_key", "proxy", "bearer", "api_key", "trust_origin", "require_signature", "card_keys",
    "card_key_origin",
)  # fmt: skip
REGISTRY_OPTIONS = ("registry", "registry_bearer", "registry_api_key")
"""The settings of commands that call a registry; other commands look up an agent there."""
OUTPUT_OPTIONS = ("output", "stream", "verbose", "debug", "config")
CLIENT_OPTIONS = (*AGENT_OPTIONS, "registry", "timeout", *OUTPUT_OPTIONS)
CALL_OPTIONS = (*AGENT_OPTIONS, "registry", "extension", "timeout", *OUTPUT_OPTIONS)
LOCAL_OPTIONS = ("output", "debug")
"""The settings of commands that make no calls."""

PARTS = ("text", "file", "data", "media_type")
"""The options of message parts, whose order matters."""

WORDS = "parley.words"
"""The key of a context's ``meta`` with the original words after the command."""

_PARTS_KEY = "parley.parts"
_AGENT = "agent__"
"""The parameter for the agent, which precedes the arguments of a command."""

EXIT_HELP = """\b
Exit status:
  0  done: the agent's answer was reported, whatever it was
  1  failed          2  wrong usage
  3  agent or card not reachable
  4  credentials missing or rejected
  5  --timeout ran out"""

SOURCES_HELP = """\b
Every option but --stream can be set in the environment, or (but for --config)
in a .env file:
  --agent-card is A2ACLI_AGENT_CARD, --api-key is A2ACLI_API_KEY, ...
  A flag takes precedence over the environment, then ./.env (or one in a folder
  above), then ~/.config/a2a-cli/.env. See: parley config show
  A ./.env (or one above) can redirect only credentials that it contains."""

SECRETS_HELP = """\b
A credential given as a flag can be seen by others in the process table and
stays in the shell's history. A2ACLI_BEARER and A2ACLI_API_KEY do not."""

AGENT_HELP = "The agent, as for --agent-card or -a."
HELP_ALL = "--help-all"
WIDTH = 78
"""The width of a line of help after its indent of two."""


class CommandOption(Option, frozen=True):
    """An option of a command. A numeric value must be between ``least`` and ``most``.

    A value of the kind ``Path`` is a folder.
    """

    least: int | None = None
    most: int | None = None


class Argument(CommandOption, frozen=True):
    """An argument of a command, at the position of its field."""


Agents = Annotated[
    tuple[str, ...], Argument("The agents, as for --agent-card or -a.", "[AGENT]...")
]
"""The agents of a command that accepts several."""


class CommandFlag(NamedOption, frozen=True):
    """An option on a command line. The variable of an option with a ``prefix`` is read later."""

    def parameter(self) -> inspect.Parameter:
        """Return the parameter from which typer makes the flag."""
        option = self.option
        # click reads no variable of a server's option: its source would be unknown.
        is_own = bool(self.prefix)
        is_plain = self.kind in (str, int) and bool(self.default_text) and not option.default
        is_shown = is_plain and not is_own
        kinds: dict[type, tuple[Any, Any]] = {
            bool: (bool, False),
            tuple: (list[str] | None, None),
            dict: (list[str] | None, None),
            int: (int | None, None if is_own else self.default),
            Path: (Path | None, None),
        }
        kind, default = kinds.get(self.kind, (str, self.default if is_shown else ""))
        text = f"  [env var: {self.variable}]" if is_own and self.variable else ""
        shown = self.default_text if is_own and self.kind is not bool else option.default
        text += f"  [default: {shown}]" if shown else ""
        more: dict[str, Any] = {"file_okay": False} if kind == Path | None else {}
        if isinstance(option, CommandOption):
            more |= {"min": option.least, "max": option.most}
        more |= {
            "help": option.help + text,
            "metavar": "|".join(option.choices) or option.metavar or None,
            "show_default": is_shown,
        }
        if isinstance(option, Argument):
            missing = ... if self.default is msgspec.NODEFAULT else default or None
            declared = typer.Argument(missing, **more)
            kind = str if kind == Path | None else kind  # the agent may stand at its position
        else:
            declared = typer.Option(
                default,
                *self.flag.split(),
                envvar=None if is_own else self.variable or None,
                rich_help_panel=option.panel or None,
                autocompletion=lambda: list(option.choices),
                **more,
            )
        return _parameter(self.name, kind, declared)

    def read(self, given: Any) -> Any:
        """Return the value of the option, ``None`` if it is not given. Raises ``UsageFailure``."""
        if given == "" and isinstance(self.option, Argument):
            return given
        with wrong_usage(f"{self.flag.split()[0]}: "):
            return self.of_flag(given)


def _parameter(name: str, kind: Any, declared: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=declared
    )


def flags_of(struct: type[msgspec.Struct]) -> list[CommandFlag]:
    """Return the flags and arguments that the fields of a struct declare."""
    hints = get_type_hints(struct, include_extras=True)
    return [
        CommandFlag(field.name, hints[field.name].__metadata__[0], field.default)
        for field in msgspec.structs.fields(struct)
    ]


class GroupedCommand(TyperCommand):
    """A command with grouped options in its help; it records its words and the order of parts.

    ``rare`` are the names of the options that ``--help-all`` shows, and ``--help`` does not.
    """

    rare: Collection[str] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual, and record the order of the part flags."""
        ctx.meta[WORDS] = list(args)
        if any(parameter.name == "media_type" for parameter in self.params):
            given, _, order = self.make_parser(ctx).parse_args(args=list(args))
            ctx.meta[_PARTS_KEY] = _ordered_parts(given, order)
        if self.rare and HELP_ALL in args:
            self.rare, args = (), ["--help"]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line, with the agent before the arguments."""
        found = [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]
        return [found[0], *sorted(found[1:], key=lambda piece: piece != "[AGENT]")]

    def get_help(self, ctx: Any) -> str:
        """Return the help, escaped because defaults may come from a ``.env`` file."""
        return visible(super().get_help(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples and notes, on lines that fit."""
        whole, self.epilog = self.epilog, "\n".join(_folded(self.epilog or ""))
        super().format_epilog(ctx, formatter)
        self.epilog = whole

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by group."""
        try:
            found = load_sources(None)
        except UsageFailure:  # help must work without a valid configuration
            found = []
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or parameter.name in self.rare:
                continue
            if parameter.param_type_name == "argument":
                group = "Arguments"
            else:
                group = getattr(parameter, "rich_help_panel", None) or "Options"
            setting = BY_FIELD.get(str(parameter.name).removesuffix("_"))
            if setting is not None and str(parameter.name).endswith("_"):
                record = record[0], f"{setting.help}{_default_text(setting, found)}"
            place = 0 if parameter.name == _AGENT else len(groups.get(group, ()))
            groups.setdefault(group, []).insert(place, record)
        for group, records in groups.items():
            if not records:
                continue
            with formatter.section(group):
                formatter.write_dl(records)


def _folded(text: str) -> Iterator[str]:
    """Yield the lines of a text; a line that is too long is split before its comment, or where it
    fits.
    """
    for is_prose, run in groupby(text.splitlines(), lambda line: line[:1] not in ("", " ", "\b")):
        lines = list(run)
        if is_prose and max(map(len, lines)) > WIDTH:
            lines = textwrap.wrap(" ".join(lines), WIDTH, break_on_hyphens=False)
        for line in lines:
            if len(line) <= WIDTH:
                yield line
            elif found := re.match(r"( *\S.*?) {3,}(\S.*)", line):
                yield from (found[1], f"      {found[2]}")
            else:
                *pieces, last = textwrap.wrap(
                    line, WIDTH - 2, subsequent_indent="      ", break_on_hyphens=False
                )
                yield from [*[f"{piece} \\" for piece in pieces], last]


class PartFlag(NamedTuple):
    """A part flag (``text``, ``file``, ``data`` or ``media_type``), with its value."""

    name: str
    value: str


def _ordered_parts(given: dict[str, Any], order: Sequence[Any]) -> list[PartFlag]:
    values = {name: iter(given.get(name) or ()) for name in PARTS}
    return [
        PartFlag(parameter.name, next(values[parameter.name]))
        for parameter in order
        if parameter.name in values and given.get(parameter.name)
    ]


def part_flags(context: typer.Context) -> list[PartFlag]:
    """Return the part flags in the order of the command line."""
    return list(context.meta.get(_PARTS_KEY, ()))


def load_sources(config: str | None) -> list[SettingSource]:
    """Return the sources of settings of this process. Raises ``UsageFailure``."""
    try:
        folder: Path | None = Path.cwd()
    except OSError:  # the current folder was deleted
        folder = None
    return sources(os.environ, folder, config or os.environ.get("A2ACLI_CONFIG"))


Command = Callable[..., Any]  # returns an exit status or None
Structs = Mapping[str, tuple[type[msgspec.Struct], list[CommandFlag]]]


def own_options(
    function: Callable[..., Any], skip: int = 2, names: Mapping[str, Any] | None = None
) -> tuple[list[inspect.Parameter], Structs]:
    """Return a command's own parameters, and the structs of options among them.

    The first ``skip`` parameters are not its own. ``names`` are the names that annotations use.
    """
    signature = inspect.signature(function, eval_str=True, locals=names)
    own: list[inspect.Parameter] = []
    structs: dict[str, tuple[type[msgspec.Struct], list[CommandFlag]]] = {}
    for each in list(signature.parameters.values())[skip:]:
        if isinstance(each.annotation, type) and issubclass(each.annotation, msgspec.Struct):
            structs[each.name] = each.annotation, flags_of(each.annotation)
        else:
            own.append(each)
    return own, structs


def fill(given: dict[str, Any], structs: Structs) -> None:
    """Replace the values of options by their structs. Raises ``UsageFailure``."""
    for name, (struct, flags) in structs.items():
        read = {flag.name: flag.read(given.pop(flag.name)) for flag in flags}
        given[name] = struct(**{n: value for n, value in read.items() if value is not None})


def settings_command(
    app: typer.Typer, name: str, *fields: str, epilog: str = ""
) -> Callable[[Command], Command]:
    """Register a command that receives its settings (the ``fields``) and the output.

    A parameter whose type is a struct adds the struct's options and arguments. A command with the
    setting ``agent_card`` also accepts the agent as its first argument, or several ``agents``.
    """
    chosen = [BY_FIELD[field] for field in fields]

    def register(function: Command) -> Command:
        own, structs = own_options(function)
        options = [flag for _, flags in structs.values() for flag in flags]
        places = [flag.name for flag in options if isinstance(flag.option, Argument)]
        takes_several = "agents" in places
        takes_agent = "agent_card" in fields and not takes_several

        @wraps(function)
        def run(**given: Any) -> None:
            flags = {s.field: given.pop(f"{s.field}_") for s in chosen}
            if takes_agent and (agent := _agent_in_place(given, places)):
                if flags["agent_card"]:
                    raise UsageFailure("the agent is named twice; give the URL or -a")
                flags["agent_card"] = agent
            if takes_several:
                named = [flags["agent_card"], *(given["agents"] or ())]
                given["agents"] = [each for each in named if each]
                flags["agent_card"] = next(iter(given["agents"]), None)
            found = load_sources(flags.get("config"))
            asks, several = "registry_bearer" in fields, given["agents"] if takes_several else ()
            settings = resolve(flags, found, asks_registry=asks, agents=several)
            output = Output(
                is_json=settings.is_json,
                is_stream=settings.stream,
                debug=settings.debug,
                redact=Redactor(settings.secrets, settings.svc_param),
            )
            _warn_about_open_files(output, found)

            def act() -> int | None:
                fill(given, structs)
                status: int | None = function(settings, output, **given)
                return status

            if status := exit_status_of(output, act):
                raise typer.Exit(status)

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                *own,
                *[flag.parameter() for flag in options],
                *([_AGENT_PARAMETER] if takes_agent else ()),
                *[_setting_parameter(setting, chosen) for setting in chosen],
            ]
        )
        run.__annotations__ = {}
        del run.__wrapped__
        app.command(name, cls=GroupedCommand, epilog=epilog or None)(run)
        return function

    return register


_AGENT_PARAMETER = _parameter(
    _AGENT, str | None, typer.Argument(None, metavar="[AGENT]", help=AGENT_HELP, show_default=False)
)


def _agent_in_place(given: dict[str, Any], places: Sequence[str]) -> str:
    """Return the agent given before the arguments, and move the arguments to their positions.

    It is the first word if there is one word more than the command has arguments, or an address at
    the position of an optional argument.
    """
    names = [*places, _AGENT]
    words = [given[name] for name in names if given[name] is not None]
    is_first = given[_AGENT] is not None or (len(words) > 1 and "://" in words[0])
    agent, *rest = words if is_first else ["", *words]
    given |= dict.fromkeys(names) | dict(zip(names, rest, strict=False))
    del given[_AGENT]
    return str(agent)


def _warn_about_open_files(output: Output, found: Sequence[SettingSource]) -> None:
    secrets = [setting.variable for setting in BY_FIELD.values() if setting.secret]
    for source in found:
        if not source.path or not any(source.values.get(name) for name in secrets):
            continue
        from parley.host.configuration import is_open_to_others  # a slow import

        if is_open_to_others(source.path):
            output.warn(
                f"{source.path} contains credentials and other users can read it; "
                f"chmod 600 {shlex.quote(str(source.path))}"
            )


def _setting_parameter(setting: Setting, chosen: Sequence[Setting]) -> inspect.Parameter:
    kind: Any = {"list": list[str] | None, "flag": bool | None}.get(setting.kind, str | None)
    taken = {flag for other in chosen if other is not setting for flag in other.spellings}
    first, *rest = setting.spellings
    option = typer.Option(
        None,
        "/".join([first, *[flag for flag in setting.off if flag not in taken]]),
        *[flag for flag in rest if flag not in taken],
        metavar=setting.metavar or None,
        rich_help_panel=setting.panel,
        show_default=False,
        autocompletion=lambda: list(setting.choices),
    )
    return _parameter(f"{setting.field}_", kind, option)  # async is a keyword


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
