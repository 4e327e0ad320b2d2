"""``parley completion``: the script with which a shell completes commands and options."""

from __future__ import annotations

from typing import Annotated

import typer

from parley.cli.boundary import exit_status_of
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output, print_line
from parley.cli.settings.options import GroupedCommand
from parley.host.program import NAME

VARIABLE = f"_{NAME.upper()}_COMPLETE"
"""The environment variable by which a shell asks for completions."""

SHELLS = ("bash", "zsh", "fish", "powershell")

EPILOG = """\b
Install it:
  parley completion bash >> ~/.bashrc
  parley completion zsh >> ~/.zshrc          after compinit
  parley completion fish > ~/.config/fish/completions/parley.fish"""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("completion", cls=GroupedCommand, epilog=EPILOG)
    def completion(
        shell: Annotated[
            str,
            typer.Argument(
                metavar="|".join(SHELLS), help="The shell.", autocompletion=lambda: list(SHELLS)
            ),
        ],
    ) -> None:
        """Print the script with which a shell completes commands, options and their choices."""
        status = exit_status_of(Output(is_json=False), lambda: _print_script(shell))
        if status:
            raise typer.Exit(status)


def _print_script(shell: str) -> None:
    if shell not in SHELLS:
        raise UsageFailure(f"{shell!r} is not one of {', '.join(SHELLS)}")
    from typer._completion_shared import get_completion_script

    print_line(get_completion_script(prog_name=NAME, complete_var=VARIABLE, shell=shell))
