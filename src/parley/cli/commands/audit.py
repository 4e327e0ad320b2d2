"""``parley audit``: shows, exports, verifies and prunes the audit of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from parley.cli.commands.store import EXITS, PASSWORDS, store_option, with_admin
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.cli.store.audit import Selection

EXAMPLES = """\b
Examples:
  parley audit                              the last 100 entries
  parley audit --since 7d --actor ada       what ada did within a week
  parley audit --task 01a1fba0193c72ae      who asked, answered and cancelled
  parley audit --kind auth --follow         refused credentials, as they happen
  parley audit export audit.jsonl           all of it, as lines of JSON
  parley audit verify --anchor 128:9f86...  whether anything was changed"""

DEFAULT = "list"


class AuditGroup(TyperGroup):
    """Runs ``list`` where no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command before its options."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None, cls=AuditGroup)
    app.add_typer(
        group, name="audit", help="Who did what: show, export, verify and prune the audit."
    )

    @settings_command(
        group, DEFAULT, "output", "debug", epilog=f"{EXAMPLES}\n\n{EXITS}\n\n{PASSWORDS}"
    )
    def list_(
        settings: CommandSettings,
        output: Output,
        since: str = _time("--since", "From this time on"),
        until: str = _time("--until", "Before this time"),
        actor: str = _option("--actor", "ID", "Only what this caller or user did."),
        task: str = _option("--task", "ID", "Only what is about this task."),
        agent: str = _option("--agent", "KEY", "Only what is about this agent, by its key."),
        kind: str = _option("--kind", "KIND", "Only this kind, such as task, key or auth.failed."),
        limit: int = typer.Option(
            100, "--limit", metavar="N", min=0, help="The last N entries; 0 for all."
        ),
        lines: bool = typer.Option(False, "--json", help="Print a JSON object for each entry."),
        content: bool = typer.Option(
            False, "--content", help="Show what messages say, as far as it is text."
        ),
        follow: bool = typer.Option(False, "--follow", help="Go on as entries are added."),
        store: str = store_option(),
    ) -> None:
        """Show who did what, the oldest first. This is what parley audit does by itself.

        What tasks say (who asked, answered and cancelled, attempts, decisions of policies)
        comes from their logs; refused credentials, acts of operators and starts of servers
        from the audit of the store. Works while the store is in use, and changes nothing.
        """
        from parley.cli.store.audit import show

        selection = _selection(since, until, actor, task, agent, kind)
        with_admin(
            store,
            lambda admin: show(
                output,
                admin,
                selection,
                limit=limit,
                lines=lines or output.is_json,
                content=content,
                follow=follow,
            ),
        )

    @settings_command(group, "export", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def export(
        settings: CommandSettings,
        output: Output,
        target: str = typer.Argument(
            "-", metavar="TARGET", help="A new file, or - for standard output."
        ),
        since: str = _time("--since", "From this time on"),
        until: str = _time("--until", "Before this time"),
        actor: str = _option("--actor", "ID", "Only what this caller or user did."),
        task: str = _option("--task", "ID", "Only what is about this task."),
        agent: str = _option("--agent", "KEY", "Only what is about this agent, by its key."),
        kind: str = _option("--kind", "KIND", "Only this kind, such as task, key or auth.failed."),
        content: bool = typer.Option(
            False, "--content", help="Add what messages say, as far as it is text."
        ),
        store: str = store_option(),
    ) -> None:
        """Write who did what as lines of JSON.

        Lines of the audit have a number and a hash, and parley audit verify FILE checks
        them; facts of tasks have none. Shows the anchor of the last line: keep it elsewhere.
        """
        from parley.cli.store.audit import export

        selection = _selection(since, until, actor, task, agent, kind)
        with_admin(store, lambda admin: export(output, admin, target, selection, content=content))

    @settings_command(group, "verify", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def verify(
        settings: CommandSettings,
        output: Output,
        file: str = typer.Argument(
            "", metavar="[FILE]", help="A file that export wrote, in place of the store."
        ),
        anchor: list[str] = typer.Option(  # noqa: B008
            [],
            "--anchor",
            metavar="ANCHOR",
            help="SEQ:HASH as noted earlier, or a file that has it last; may be repeated.",
        ),
        store: str = store_option(),
    ) -> int:
        """Check that no line of the audit was changed, removed or moved.

        Without an anchor it cannot show that lines at the end were removed, or that all of
        it was written anew: note the anchor that this command shows, away from the store.
        Ends with 1 if something is wrong, and says at which line.
        """
        from parley.cli.store.audit import verify, verify_file

        if file:
            return verify_file(output, file, anchor)
        return with_admin(store, lambda admin: verify(output, admin, anchor))

    @settings_command(group, "prune", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def prune(
        settings: CommandSettings,
        output: Output,
        before: str = _time("--before", "Remove what is older"),
        store: str = store_option(),
    ) -> None:
        """Remove old lines of the audit; a checkpoint accounts for them in the chain.

        Tasks and their logs stay: parley store prune removes these. audit_retention= has
        a server do this by itself.
        """
        from parley.cli.store.audit import prune

        with_admin(store, lambda admin: prune(output, admin, before))


def _selection(since: str, until: str, actor: str, task: str, agent: str, kind: str) -> Selection:
    from parley.cli.store.audit import Selection

    return Selection(since=since, until=until, actor=actor, task=task, agent=agent, kind=kind)


def _option(name: str, metavar: str, text: str) -> str:
    option: str = typer.Option("", name, metavar=metavar, help=text, show_default=False)
    return option


def _time(name: str, text: str) -> str:
    return _option(name, "TIME", f"{text}: 2026-11-23T14:00:00Z, or how long ago, such as 7d.")
