"""Commands and command groups, as modules declare them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Self

import typer
from typer.core import TyperGroup

from parley.cli.output.streams import Output
from parley.cli.settings.options import Command, settings_command
from parley.cli.settings.table import CommandSettings


def _calling(function: Command) -> Command:
    """Return a command that runs an async function with the call of an agent."""
    signature = inspect.signature(function, eval_str=True, locals={"AgentCall": object})

    @wraps(function)
    def run(settings: CommandSettings, output: Output, **given: Any) -> int:
        from parley.cli.calls.agent_call import AgentCall

        call = AgentCall(settings, output)
        tasks = [getattr(each, "task_id", "") for each in given.values()]
        call.task_id = "".join(tasks) or call.task_id
        return call.run(lambda: function(call, **given))

    first, *own = signature.parameters.values()
    both = [first.replace(name=name) for name in ("settings", "output")]
    run.__signature__ = signature.replace(parameters=[*both, *own])  # type: ignore[attr-defined]
    return run


class Commands:
    """The commands of a group, or of the top level without a ``name``: ``add`` is a decorator.

    An async function receives the call of an agent instead of the settings and the output.
    """

    def __init__(self, name: str = "", about: str = "", cls: Any = None) -> None:
        self._name = name
        self._about = about
        self._cls = cls
        self._added: list[Callable[[typer.Typer], object]] = []

    def add(self, name: str, *fields: str, epilog: str = "") -> Callable[[Command], Command]:
        """Return a decorator that adds a command; see ``settings_command``."""

        def added(function: Command) -> Command:
            made = _calling(function) if inspect.iscoroutinefunction(function) else function
            self._added.append(
                lambda app: settings_command(app, name, *fields, epilog=epilog)(made)
            )
            return function

        return added

    def group(self, name: str, about: str) -> Self:
        """Return a subgroup of this group."""
        inner = type(self)(name, about)
        self._added.append(inner.register)
        return inner

    def register(self, app: typer.Typer) -> None:
        """Add the commands to an application."""
        if self._name:
            group = typer.Typer(rich_markup_mode=None, cls=self._cls or TyperGroup)
            group.callback()(
                lambda: None
            )  # otherwise typer collapses a group with a single command
            app.add_typer(group, name=self._name, help=self._about)
            app = group
        for add in self._added:
            add(app)
