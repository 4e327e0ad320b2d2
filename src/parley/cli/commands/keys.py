"""``parley keys``: creates, lists, revokes and rotates API keys, and hashes passwords."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from parley.cli.commands.store import EXITS, PASSWORDS, store_option, with_admin
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.store.admin.admin import StoreAdmin

EXAMPLES = """\b
Examples:
  parley keys create --owner ada --scope read --expires 90d --label laptop
  parley keys list --owner ada
  parley keys rotate k3v0q81zmd27ftx4 --overlap 7d
  parley keys revoke k3v0q81zmd27ftx4"""


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="keys", help="Look after API keys: create, list, revoke, rotate.")

    @settings_command(
        group, "create", "output", "debug", epilog=f"{EXAMPLES}\n\n{EXITS}\n\n{PASSWORDS}"
    )
    def create(
        settings: CommandSettings,
        output: Output,
        owner: str = typer.Option(
            "",
            "--owner",
            metavar="ID",
            help="Whose key it is: the id of the callers who have it.",
            show_default=False,
        ),
        scope: list[str] = typer.Option(  # noqa: B008
            [], "--scope", metavar="SCOPE", help="A scope that it carries; may be repeated."
        ),
        expires: str = typer.Option(
            "",
            "--expires",
            metavar="SPAN",
            help="How long it is valid, such as 90d or 12h.  [default: until it is revoked]",
            show_default=False,
        ),
        label: str = typer.Option(
            "",
            "--label",
            metavar="TEXT",
            help="What it is for, as the list shows it.",
            show_default=False,
        ),
        store: str = store_option(),
    ) -> None:
        """Create an API key in a store, and show it, once.

        The store has only a hash of it. Servers that use the store accept it from then on,
        from agents with security=ApiKey(). An owner may have several keys at once. Works
        while a server uses the store, and while none does.
        """
        from parley.cli.store.keys import create

        _with_admin(
            store,
            lambda admin: create(
                output, admin, owner=owner, scopes=scope, expires=expires, label=label
            ),
        )

    @settings_command(group, "list", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def list_(
        settings: CommandSettings,
        output: Output,
        owner: str = typer.Option(
            "", "--owner", metavar="ID", help="Only the keys of this owner.", show_default=False
        ),
        store: str = store_option(),
    ) -> None:
        """Show the keys of a store, without their secrets.

        Revoked and expired keys are listed for 30 days. Works while the store is in use.
        """
        from parley.cli.store.keys import show

        _with_admin(store, lambda admin: show(output, admin, owner))

    @settings_command(group, "revoke", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def revoke(
        settings: CommandSettings, output: Output, id: str = _key_id(), store: str = store_option()
    ) -> None:
        """Revoke a key: servers refuse it within seconds, that of a SQLite store at once."""
        from parley.cli.store.keys import revoke

        _with_admin(store, lambda admin: revoke(output, admin, id))

    @settings_command(group, "rotate", "output", "debug", epilog=f"{EXITS}\n\n{PASSWORDS}")
    def rotate(
        settings: CommandSettings,
        output: Output,
        id: str = _key_id(),
        overlap: str = typer.Option(
            "7d",
            "--overlap",
            metavar="SPAN",
            help="How long the old key stays valid beside the new one.",
        ),
        expires: str = typer.Option(
            "",
            "--expires",
            metavar="SPAN",
            help="How long the new key is valid.  [default: as long as the old one was to be]",
            show_default=False,
        ),
        store: str = store_option(),
    ) -> None:
        """Create a key for the owner, scopes and label of another, which then ends."""
        from parley.cli.store.keys import rotate

        _with_admin(
            store, lambda admin: rotate(output, admin, id, overlap=overlap, expires=expires)
        )

    @settings_command(group, "hash-password", "output", "debug", epilog=EXITS)
    def hash_password(settings: CommandSettings, output: Output) -> None:
        """Ask for a password, and show its hash for Basic(users={"ada": "scrypt$..."}).

        Without a terminal, the password is the first line of standard input.
        """
        from parley.cli.store.keys import hash_typed

        hash_typed(output)


def _key_id() -> str:
    argument: str = typer.Argument(
        metavar="ID", help="The id of the key; parley keys list shows it.", show_default=False
    )
    return argument


def _with_admin(url: str, action: Callable[[StoreAdmin], None]) -> None:
    if url in ("memory:", "memory://"):
        raise UsageFailure(
            "--store: keys need a store that other processes see, and memory: is seen by its own "
            "process alone",
            hint="serve the agent with sqlite:///PATH or postgresql://..., and name that one; or "
            "give ApiKey(keys=...) the hashes of keys that you keep yourself",
        )
    with_admin(url, action)
