"""The application: all commands together, and one run of a command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from typing import Annotated, Any

import typer

from parley import __version__
from parley.cli import completion
from parley.cli.boundary import exit_status_of, leave_stdout
from parley.cli.commands import (
    audit,
    auth,
    card,
    complete,
    config,
    demo,
    keys,
    push,
    send,
    serve,
    store,
    task,
    usage,
)
from parley.cli.output.failures import INTERRUPTED, UsageFailure
from parley.cli.output.streams import Output, prepare_streams, print_line
from parley.cli.settings.options import load_sources
from parley.cli.settings.table import BY_FIELD, SETTINGS
from parley.host.program import NAME

ALONE = ("audit", "complete", "completion", "demo", "help", "send", "serve", "usage")
"""The commands without commands of their own."""

_ParserError: type[Exception] = typer.BadParameter.__mro__[2]  # the base of all its errors

COMMANDS: dict[str, Any] = {
    "serve": serve,
    "demo": demo,
    "card": card,
    "send": send,
    "task": task,
    "push": push,
    "auth": auth,
    "complete": complete,
    "keys": keys,
    "store": store,
    "usage": usage,
    "audit": audit,
    "config": config,
    "completion": completion,
}
"""The modules that register the commands of the core, by their names."""

ENTRY_POINTS = "parley.commands"
"""The entry points of an installed package that name further commands.

Each is a function that adds a command of the entry point's name to a ``typer.Typer``: with a name
of two words, such as ``keys share``, to that of the first.
"""

ORDER = (
    "serve", "demo", "card", "catalog", "send", "agents", "task", "envelope", "mcp", "push",
    "registry", "auth", "complete", "keys", "store", "usage", "audit", "conformance", "config",
    "completion",
)  # fmt: skip
"""The commands as help lists them; those of other packages follow."""

ABOUT = """Serve AI agents, and call them, over the Agent2Agent protocol (A2A 1.0).

\b
Try it:
  parley demo                                    see it all at work
  parley serve agent.py                          serve the agent in a file
  parley card get -a http://127.0.0.1:9999       see who is there
  parley send -a http://127.0.0.1:9999 "Hello"   ask it something

\b
Calling is stateless: parley prints the ids of a task and its context, and takes
them back with --task-id and --context-id. Without -a it calls
http://127.0.0.1:9999, where parley serve listens.
"""


def build(words: Sequence[str] = ()) -> typer.Typer:
    """Return the application with all its commands.

    With the ``words`` of a command line, only the command that they name is there, if they name
    one: to make them all takes longer than most of them run.
    """
    app = typer.Typer(
        name=NAME,
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

    named = _command_named(words[0]) if words else None
    for register in _all_commands() if named is None else [named]:
        register(app)
    _add_to_groups(app, words)
    if named is not None:
        _leave_out_siblings(app, words)

    @app.command("help", help="Show how to use parley, or one of its commands.")
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
                    hint=f"parley help {' '.join(names[:number])} shows how to use it",
                )
            _, found, _ = current.command.resolve_command(current, [name])  # or it suggests one
            current = type(current)(found, info_name=name, parent=current)
        print_line(current.get_help())

    return app


def _command_named(name: str) -> Any:
    """Return what registers a command, ``None`` if there is none."""
    if name in COMMANDS:
        return COMMANDS[name].register
    for each in entry_points(group=ENTRY_POINTS, name=name):
        return each.load()
    return None


def _all_commands() -> list[Any]:
    """Return what registers each command, as help lists them."""
    installed = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
    wanted = [e for n, e in installed.items() if n not in COMMANDS and " " not in n]
    found = {e.name: made for e in wanted if (made := _loaded(e)) is not None}
    found |= {name: module.register for name, module in COMMANDS.items()}
    last = len(ORDER)
    names = sorted(found, key=lambda n: (ORDER.index(n) if n in ORDER else last, n))
    return [found[name] for name in names]


def _add_to_groups(app: typer.Typer, words: Sequence[str]) -> None:
    """Add the commands of packages to the groups of the core, unless others are named."""
    groups = {each.name: each.typer_instance for each in app.registered_groups}
    group = groups.get(words[0]) if len(words) > 1 else None
    if group is not None and words[1] in [each.name for each in group.registered_commands]:
        return
    for each in entry_points(group=ENTRY_POINTS) if groups else ():
        first, _, rest = each.name.partition(" ")
        if rest and first in groups and (register := _loaded(each)) is not None:
            register(groups[first])


def _loaded(each: EntryPoint) -> Any:
    """Return what registers a command; warn of one that fails, for the sake of the others."""
    try:
        return each.load()
    except Exception as error:
        Output(is_json=False).warn(
            f"the command {each.name!r} ({each.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        )
        return None


def _leave_out_siblings(app: typer.Typer, words: Sequence[str]) -> None:
    """Leave out the commands beside the one that is named, group by group."""
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
    command = typer.main.get_command(build(arguments))
    if completion.VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
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
        str(error.format_message()).rstrip("."), hint=f"{path} --help shows how to use it"
    )


def _globals_last(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with options before the command moved behind it."""
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
