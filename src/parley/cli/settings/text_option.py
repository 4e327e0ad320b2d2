"""An option of one command that takes text, and has no setting for all commands."""

from __future__ import annotations

import typer


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
