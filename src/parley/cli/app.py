"""The application: all commands together, and the run of a command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from parley import __version__
from parley.cli.output.failures import INTERRUPTED, UsageFailure
from parley.cli.output.streams import (
    Output,
    exit_status_of,
    leave_stdout,
    prepare_streams,
    print_line,
)
from parley.cli.settings.options import GroupedCommand, load_sources
from parley.cli.settings.table import BY_FIELD, SETTINGS
from parley.host.program import NAME

_ParserError: type[Exception] = typer.BadParameter.__mro__[2]  # the base class of all click errors

COMMANDS: dict[str, dict[str, str]] = {
    "Start here": {
        "init": "Begin an agent, with a test and files for deployment.",
        "dev": "Serve an agent while you write it.",
        "demo": "Serve five example agents and show them at work.",
        "serve": "Serve the agents in your files.",
        "chat": "Talk with an agent in the terminal.",
        "send": "Send a message to an agent.",
    },
    "Call agents": {
        "card": "Show, sign and verify agent cards.",
        "task": "Show, await, follow and cancel tasks.",
        "auth": "Log in to agents, list your logins, log out.",
        "push": "Receive push notifications.",
        "envelope": "Call agents by messages over a WebSocket.",
    },
    "Find and publish agents": {
        "agents": "Find agents by what you need, and publish them.",
        "catalog": "Show and check catalogs of agents, and print their DNS records.",
        "registry": "Serve a registry that finds agents by need.",
        "mcp": "Offer A2A agents to MCP hosts.",
    },
    "Operate a server": {
        "store": "Manage a store: migrate, move, prune, resume webhooks.",
        "keys": "Manage API keys of callers, and signing keys of a server.",
        "audit": "Show, export, verify and prune the audit log.",
        "usage": "Show the usage of callers by day.",
        "top": "Show what servers do now: requests, errors, latency, turns.",
        "complete": "Complete an event that tasks wait for.",
    },
    "Practise and test": {
        "examples": "List and copy the examples.",
        "demo-server": "Serve an agent for trying out commands.",
        "conformance": "Test a server or a client against the specification.",
    },
    "This command": {
        "doctor": "Look for problems, and name their remedies.",
        "config": "Show the configuration.",
        "completion": "Print the completion script for a shell.",
        "help": "Show how to use parley, or one of its commands.",
    },
}
"""The commands in the order of the help, grouped by purpose, each with its description.

A command outside the core is listed if its package is installed. Commands of other packages follow
at the end.
"""

WORDS = {name: words for group in COMMANDS.values() for name, words in group.items()}
CORE = WORDS.keys() - {"envelope", "agents", "catalog", "registry", "mcp", "conformance", "help"}
ALONE = (
    "chat",
    "complete",
    "completion",
    "demo",
    "demo-server",
    "help",
    "send",
    "serve",
    "top",
    "usage",
    "audit",
)
"""The commands without subcommands."""

ENTRY_POINTS = "parley.commands"
"""The group of entry points with which an installed package adds commands.

Each is a function that adds a command with the entry point's name to a ``typer.Typer``; a name of
two words, such as ``keys share``, adds a subcommand of the first word.
"""

ABOUT = """Serve AI agents, and call them, over the Agent2Agent protocol (A2A 1.0).

\b
Try it:
  parley demo                                 see it all at work
  parley serve agent.py                       serve the agent in a file
  parley card get http://127.0.0.1:9999       show its card
  parley send http://127.0.0.1:9999 "Hello"   send it a message

\b
An agent is a URL, a host, a card file, or an identifier in a registry
(urn:...): the first argument, or -a. Without one it is the agent at
http://127.0.0.1:9999, where parley serve listens. Nothing is remembered:
--task-id and --context-id take the ids that parley prints.
"""

VARIABLE = f"_{NAME.upper()}_COMPLETE"
"""The environment variable with which a shell requests completions."""

SHELLS = ("bash", "zsh", "fish", "powershell")

INSTALLING = """\b
Install it:
  parley completion bash >> ~/.bashrc
  parley completion zsh >> ~/.zshrc          after compinit
  parley completion fish > ~/.config/fish/completions/parley.fish"""


class Application(TyperGroup):
    """All commands; help lists them by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group."""
        left = {name: WORDS.get(name) or self.commands[name].get_short_help_str(60)
                for name in self.commands}  # fmt: skip
        groups = [(title, [*names]) for title, names in COMMANDS.items()]
        for title, names in [*groups, ("Commands of other packages", sorted(left))]:
            if rows := [(name, left.pop(name)) for name in names if name in left]:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=14)


def build(words: Sequence[str] = ()) -> typer.Typer:
    """Return the application with the command that the ``words`` of a command line name.

    If they name none, all commands are listed, the core's by name only: loading them all takes
    longer than most commands run.
    """
    app = typer.Typer(
        name=NAME,
        cls=Application,
        help=ABOUT,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def top(
        context: typer.Context,
        version: bool = typer.Option(
            False, "-v", "--version", help="Print the version and exit.", show_default=False
        ),
    ) -> None:
        if version:
            print_line(f"parley {__version__}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print_line(context.get_help())

    words = words[1:] if words[:1] == ["help"] else words
    if named := _named(words[0]) if words else None:
        named(app)
        _add_to_groups(app, words)
        _leave_out_siblings(app, words)
    elif words[:1] not in (["-v"], ["--version"]):
        installed = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
        for name in CORE | (installed.keys() & WORDS.keys()):
            app.command(name)(lambda: None)
        for name, each in installed.items():
            if name not in WORDS and " " not in name and (made := _loaded(each)):
                made(app)
    _register_help(app)
    return app


def _register_help(app: typer.Typer) -> None:
    @app.command("help", help=WORDS["help"])
    def show_help(
        context: typer.Context,
        command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND")] = None,
    ) -> None:
        current: Any = context.parent
        names = command or []
        for number, name in enumerate(names):
            if not hasattr(current.command, "resolve_command"):
                raise UsageFailure(
                    f"{current.command_path} has no commands",
                    hint=f"parley help {' '.join(names[:number])} shows its usage",
                )
            _, found, _ = current.command.resolve_command(
                current, [name]
            )  # raises an error with a suggestion if unknown
            current = type(current)(found, info_name=name, parent=current)
        print_line(current.get_help())


def _register_completion(app: typer.Typer) -> None:
    @app.command("completion", cls=GroupedCommand, epilog=INSTALLING)
    def completion(
        shell: Annotated[
            str,
            typer.Argument(
                metavar="|".join(SHELLS), help="The shell.", autocompletion=lambda: list(SHELLS)
            ),
        ],
    ) -> None:
        """Print the script with which a shell completes commands, options and their choices."""
        from typer._completion_shared import get_completion_script

        if shell not in SHELLS:
            raise UsageFailure(f"{shell!r} is not one of {', '.join(SHELLS)}")
        print_line(get_completion_script(prog_name=NAME, complete_var=VARIABLE, shell=shell))


def _named(name: str) -> Any:
    """Return the registration function of a command, ``None`` for an unknown command."""
    if name == "completion":
        return _register_completion
    if name in CORE:
        home = {"examples": "init"}.get(name, name.partition("-")[0])
        module = import_module(f"parley.cli.commands.{home}")
        return module.register if name == "serve" else module.COMMANDS.register
    for each in entry_points(group=ENTRY_POINTS, name=name):
        return each.load()
    return None


def _add_to_groups(app: typer.Typer, words: Sequence[str]) -> None:
    """Add the commands of packages to the groups of the core, unless another group is named."""
    groups = {each.name: each.typer_instance for each in app.registered_groups}
    group = groups.get(words[0]) if len(words) > 1 else None
    if group is not None and words[1] in [each.name for each in group.registered_commands]:
        return
    for each in entry_points(group=ENTRY_POINTS) if groups else ():
        first, _, rest = each.name.partition(" ")
        if rest and first in groups and (register := _loaded(each)) is not None:
            register(groups[first])


def _loaded(each: EntryPoint) -> Any:
    """Return the registration function of a command; warn if it fails to load, and keep
    the others.
    """
    try:
        return each.load()
    except Exception as error:
        Output(is_json=False).warn(
            f"the command {each.name!r} ({each.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        )
        return None


def _leave_out_siblings(app: typer.Typer, words: Sequence[str]) -> None:
    """Remove the siblings of the named command, group by group."""
    for word in words:
        groups = [group for group in app.registered_groups if group.name == word]
        commands = [command for command in app.registered_commands if command.name == word]
        if not groups and not commands:
            return
        app.registered_groups, app.registered_commands = groups, commands
        if commands or (inner := groups[0].typer_instance) is None:
            return
        app = inner


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    prepare_streams()
    output = Output(
        is_json=_is_json_requested(arguments),
        is_stream="--stream" in arguments,
        debug="--debug" in arguments,
    )
    status = exit_status_of(output, lambda: _parse_and_run(_globals_last(arguments)))
    leave_stdout()
    return status


def _parse_and_run(arguments: list[str]) -> int:
    words = arguments
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        words = typed.split()[1:]
    command = typer.main.get_command(build(words))
    try:
        status = command.main(arguments, prog_name=NAME, standalone_mode=False)
    except _ParserError as error:
        raise _usage(error) from None
    except typer.Abort:
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _usage(error: Any) -> UsageFailure:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else NAME
    return UsageFailure(
        str(error.format_message()).rstrip("."), hint=f"{path} --help shows its usage"
    )


def _globals_last(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with options before the command moved after it."""
    spellings = {flag: s for s in SETTINGS for flag in (*s.spellings, *s.off)}
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        name, equals, _ = arguments[index].partition("=")
        setting = spellings.get(name) or spellings.get(name[:2] if name[:2] != "--" else "")
        if setting is None:
            return list(arguments)
        alone = equals or setting.kind == "flag" or name not in spellings
        index += 1 if alone else 2
    rest = list(arguments[index:])
    words = 2 if rest and rest[0] not in ALONE else 1
    words += rest[:2] == ["task", "push-config"]
    return [*rest[:words], *arguments[:index], *rest[words:]]


def _is_json_requested(arguments: Sequence[str]) -> bool:
    """Return whether errors are to be JSON, even for a command line that cannot be parsed."""
    for argument, following in pairwise([*arguments, ""]):
        if argument in {"-o", "--output"}:
            return following == "json"
        if argument in {"-ojson", "--output=json"}:
            return True
    try:
        values = [s.values.get(BY_FIELD["output"].variable) for s in load_sources(None)]
    except UsageFailure:
        return False
    return next((value for value in values if value), "") == "json"
