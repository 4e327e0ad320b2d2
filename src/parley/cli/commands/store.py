"""``parley store``: shows, migrates, moves and prunes a store, and resumes its webhooks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import typer

from parley.cli.commands.serve import STORE, STORE_VARIABLE
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.cli.store.acts import Record
    from parley.store.admin.admin import StoreAdmin

T = TypeVar("T")

MEMORY = ("memory:", "memory://")

EXITS = """\b
Exit status:
  0  done      1  failed      2  wrong usage"""
CHECKED = EXITS.replace("1  failed", "1  failed, or --check found something to do")
PASSWORDS = """\b
A password in --store can be seen by others in the process table. PARLEY_STORE does not
show it; a password file of PostgreSQL's (~/.pgpass) keeps it out of the URL."""
MOVING = """\b
Move a store, with all its history:
  parley store export tasks.jsonl --store sqlite:///parley.db
  parley store import tasks.jsonl --store postgresql://user@host/database"""


def store_option() -> str:
    """Return the option that names the store."""
    option: str = typer.Option(
        STORE,
        "--store",
        envvar=STORE_VARIABLE,
        metavar="URL",
        help="The store: sqlite:///PATH (sqlite:////PATH from the root) or "
        "postgresql://USER@HOST/DATABASE.",
    )
    return option


def audit_option(panel: str | None = None) -> str:
    """Return the option that names the store whose audit records an act on files."""
    option: str = typer.Option(
        "",
        "--store",
        envvar=STORE_VARIABLE,
        metavar="URL",
        help="Record it in the audit of this store: sqlite:///PATH or "
        "postgresql://USER@HOST/DATABASE.  [default: it is not recorded]",
        show_default=False,
        rich_help_panel=panel,
    )
    return option


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="store", help="Look after a store: migrate, move, prune, resume.")

    @settings_command(group, "status", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def status(settings: CommandSettings, output: Output, store: str = store_option()) -> None:
        """Show how a store stands: its tasks, the work that waits, who uses it, its size.

        Works while the store is in use, and changes nothing.
        """
        from parley.cli.store.status import show

        with_admin(store, lambda admin: show(output, admin))

    @settings_command(group, "migrate", "output", "debug", epilog=f"{CHECKED}\n\n{PASSWORDS}")
    def migrate(
        settings: CommandSettings,
        output: Output,
        store: str = store_option(),
        check: bool = typer.Option(
            False, "--check", help="Do nothing, but end with 1 if there is something to do."
        ),
        issuer: str = typer.Option(
            "",
            "--issuer",
            metavar="ISSUER",
            help="Give what belongs to callers without an issuer to those of this one.",
            show_default=False,
        ),
        agent: str = typer.Option(
            "",
            "--agent",
            metavar="KEY",
            help="With --issuer: only what is kept of this agent, by its key.",
            show_default=False,
        ),
        tenant: str = typer.Option(
            "",
            "--tenant",
            metavar="NAME",
            help="With --issuer: only what is kept of this tenant.",
            show_default=False,
        ),
    ) -> int:
        """Bring a store's schema up to date, or make it where there is none.

        parley serve does the same when it starts, unless it is given --no-migrate. Stop
        the processes of the version before first: a SQLite store must not be in use, and
        from version 2 of PostgreSQL's schema on they find their store unavailable.

        With --issuer, tasks, contexts and receipts of callers whose ids came without an
        issuer then belong to the callers of the same ids of that issuer. No process may
        use the store, PostgreSQL's either.
        """
        from parley.cli.store.status import migrate, owners_of

        owners = owners_of(issuer, agent=agent, tenant=tenant)
        return with_admin(
            store, lambda admin: migrate(output, admin, check_only=check, owners=owners)
        )

    @settings_command(group, "export", "output", "debug", epilog=f"{MOVING}\n\n{EXITS}")
    def export(
        settings: CommandSettings,
        output: Output,
        file: str = typer.Argument(
            "-", metavar="FILE", help="A new file, or - for standard output."
        ),
        agent: str = typer.Option(
            "", "--agent", metavar="KEY", help="Only what is kept of this agent, by its key."
        ),
        tenant: str = typer.Option(
            "", "--tenant", metavar="NAME", help="Only what is kept of this tenant."
        ),
        store: str = store_option(),
    ) -> None:
        """Write all that a store keeps, as of one moment, as lines of JSON.

        Tasks with their whole logs, what agents keep for contexts, receipts, webhooks with
        their credentials and how far they were told: keep the file as you keep the store.
        Works while the store is in use.
        """
        from parley.cli.store.maintenance import export

        with_admin(store, lambda admin: export(output, admin, file, agent=agent, tenant=tenant))

    @settings_command(group, "import", "output", "debug", epilog=f"{MOVING}\n\n{EXITS}")
    def import_(
        settings: CommandSettings,
        output: Output,
        file: str = typer.Argument(
            metavar="FILE", help="A file that export wrote, or - for standard input."
        ),
        store: str = store_option(),
    ) -> None:
        """Add what an export holds to a store, after all of it was checked.

        What the store has already stays as it is, so an import that was broken off goes on
        when it is done again. Turns that were under way are run again when a server has
        the store, streams go on from where they were, webhooks hear what they have not.
        A SQLite store must not be in use.
        """
        from parley.cli.store.maintenance import import_from

        with_admin(store, lambda admin: import_from(output, admin, file))

    @settings_command(group, "prune", "output", "debug", epilog=EXITS)
    def prune(
        settings: CommandSettings,
        output: Output,
        ended_before: str = typer.Option(
            "",
            "--ended-before",
            metavar="AGE",
            help="How long ago a task ended at least, such as 30d, 12h or 90m.",
            show_default=False,
        ),
        agent: str = typer.Option(
            "",
            "--agent",
            metavar="KEY",
            help="Only this agent's, by its key; parley store status shows them.",
            show_default=False,
        ),
        dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be removed."),
        rate: int = typer.Option(
            500,
            "--rate",
            metavar="N",
            min=1,
            max=100_000,
            help="Remove up to so many tasks a second, so that others can write.",
        ),
        store: str = store_option(),
    ) -> None:
        """Remove tasks that ended long ago, with their events, webhooks and receipts.

        What agents keep for contexts that have no tasks, and were not used since, goes with
        them. Tasks that have not ended stay, however old. Retention(tasks=...) has a server
        do this by itself. A SQLite store must not be in use.
        """
        from parley.cli.store.maintenance import parse_age, prune

        age = parse_age(ended_before)
        with_admin(
            store,
            lambda admin: prune(output, admin, age=age, agent=agent, dry_run=dry_run, rate=rate),
        )

    _register_webhooks(group)


def _register_webhooks(store_group: typer.Typer) -> None:
    """Add the commands for webhooks."""
    group = typer.Typer(rich_markup_mode=None)
    store_group.add_typer(group, name="webhooks", help="Show and resume suspended webhooks.")

    @settings_command(group, "list", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def list_(
        settings: CommandSettings,
        output: Output,
        id: str = _push_id(),
        task: str = _filter("--task", "ID", "Only those of this task."),
        agent: str = _filter("--agent", "KEY", "Only those of this agent, by its key."),
        tenant: str = _filter("--tenant", "NAME", "Only those of this tenant."),
        store: str = store_option(),
    ) -> None:
        """Show which webhooks are suspended, how far behind they are, and why.

        Of their URLs there is the server alone, and no credentials. Works while the store is
        in use, and changes nothing.
        """
        from parley.cli.store.maintenance import list_suspended
        from parley.store.protocols.webhooks import WebhookFilter

        which = WebhookFilter(agent=agent, tenant=tenant, task_id=task, id=id)
        with_admin(store, lambda admin: list_suspended(output, admin, which))

    @settings_command(group, "resume", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def resume_(
        settings: CommandSettings,
        output: Output,
        id: str = _push_id(),
        task: str = _filter("--task", "ID", "Those of this task."),
        agent: str = _filter("--agent", "KEY", "Those of this agent, by its key."),
        tenant: str = _filter("--tenant", "NAME", "Those of this tenant."),
        all: bool = typer.Option(False, "--all", help="All that are suspended."),
        store: str = store_option(),
    ) -> None:
        """Have suspended webhooks told again, each after the last event that it took.

        The servers that use the store go on with them within a second or so.
        """
        from parley.cli.store.maintenance import resume
        from parley.store.protocols.webhooks import WebhookFilter

        which = WebhookFilter(agent=agent, tenant=tenant, task_id=task, id=id)
        with_admin(store, lambda admin: resume(output, admin, which, all=all))


def _push_id() -> str:
    argument: str = typer.Argument(
        "", metavar="[ID]", help="The id of the configuration.", show_default=False
    )
    return argument


def _filter(name: str, metavar: str, text: str) -> str:
    option: str = typer.Option("", name, metavar=metavar, help=text, show_default=False)
    return option


def with_admin(url: str, action: Callable[[StoreAdmin], T]) -> T:
    """Return the result of ``action`` on a store; a store error becomes a ``CommandFailure``."""
    from parley.host.store_urls import open_admin
    from parley.store.protocols.errors import StoreError

    try:
        admin = open_admin(url)
    except ValueError as error:
        raise UsageFailure(f"--store: {error}") from error
    try:
        return action(admin)
    except StoreError as error:
        raise CommandFailure("PARLEY_ERR_STORE", str(error)) from error


def with_record(url: str, action: Callable[[Record], T]) -> T:
    """Return the result of ``action``, which gets what records acts in a store, if one is named.

    The store is looked at first, so that nothing is done that cannot be recorded.
    """
    from parley.cli.store.acts import not_recorded, recorder, require_current

    if not url or (url in MEMORY and os.environ.get(STORE_VARIABLE) == url):
        return action(not_recorded)  # a server's memory: has an audit of its own

    def recording(admin: StoreAdmin) -> T:
        require_current(admin)
        return action(recorder(admin))

    return with_admin(url, recording)
