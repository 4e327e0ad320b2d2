"""``parley usage``: what callers used, by day."""

from __future__ import annotations

import typer

from parley.cli.commands.store import EXITS, PASSWORDS, store_option, with_admin
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

EXAMPLES = """\b
Examples:
  parley usage --since 7d
  parley usage --caller ada --agent shop -o json
  parley usage --store postgresql://user@host/database --since 2026-11-01"""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @settings_command(
        app, "usage", "output", "debug", epilog=f"{EXAMPLES}\n\n{EXITS}\n\n{PASSWORDS}"
    )
    def usage(
        settings: CommandSettings,
        output: Output,
        caller: str = typer.Option(
            "",
            "--caller",
            metavar="ID",
            help="Only this caller; of an issuer's callers, ISSUER:ID.",
            show_default=False,
        ),
        agent: str = typer.Option(
            "", "--agent", metavar="KEY", help="Only this agent.", show_default=False
        ),
        since: str = typer.Option(
            "30d",
            "--since",
            metavar="DATE|SPAN",
            help="From this day of UTC on, or of the last days, such as 2026-11-01 or 7d.",
        ),
        store: str = store_option(),
    ) -> None:
        """Show what callers used of agents that count usage, by day, caller, agent and skill.

        Usage is counted by parley serve --usage, and where there are budgets or the usage
        extension. What is shown lags behind by about two seconds. Works while the store is in use.
        """
        from parley.cli.store.usage import show

        if store in ("memory:", "memory://"):
            raise UsageFailure(
                "--store: usage is read from a store that other processes see, and memory: is seen "
                "by its own process alone",
                hint="serve the agent with sqlite:///PATH or postgresql://..., and name that one",
            )
        with_admin(
            store, lambda admin: show(output, admin, caller=caller, agent=agent, since=since)
        )
