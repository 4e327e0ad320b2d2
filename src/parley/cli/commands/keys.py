"""``parley keys``: API keys of callers, the keys that a server signs with, hashes of passwords."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from parley.cli.commands.serve import STORE, STORE_VARIABLE
from parley.cli.commands.store import (
    EXITS,
    MEMORY,
    PASSWORDS,
    audit_option,
    store_option,
    with_admin,
    with_record,
)
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.store.admin.admin import StoreAdmin

SIGNING_EXAMPLES = """\b
Examples:
  parley keys generate signing-keys.json
  parley keys generate signing-keys.json --alg ES256 --alg EdDSA
  parley keys rotate signing-keys.json
  parley serve agent.py --signing-keys signing-keys.json --url https://agents.example.com"""


TWO_KINDS = """\b
Two kinds of keys:
  API keys     callers prove who they are: create, list, revoke, rotate ID.
               They are in the store of a server, by their hashes.
  signing keys a server proves what it says, by signing cards and webhooks:
               generate, show, rotate FILE. They are in a private file."""

EXAMPLES = """\b
Examples:
  parley keys create --owner ada --scope read --expires 90d --label laptop
  parley keys list --owner ada
  parley keys rotate k3v0q81zmd27ftx4 --overlap 7d
  parley keys revoke k3v0q81zmd27ftx4"""


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(
        group, name="keys", help="Look after API keys of callers, and signing keys of a server."
    )

    @settings_command(
        group,
        "create",
        "output",
        "debug",
        epilog=f"{EXAMPLES}\n\n{TWO_KINDS}\n\n{EXITS}\n\n{PASSWORDS}",
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

    @settings_command(
        group, "rotate", "output", "debug", epilog=f"{TWO_KINDS}\n\n{EXITS}\n\n{PASSWORDS}"
    )
    def rotate(
        settings: CommandSettings,
        output: Output,
        id: str = typer.Argument(
            metavar="ID|FILE",
            help="The id of an API key (parley keys list), or a file of signing keys, which has a "
            "dot or a slash in its name.",
            show_default=False,
        ),
        overlap: str = typer.Option(
            "",
            "--overlap",
            metavar="SPAN",
            help="How long an old API key stays valid beside the new one, or an old signing key "
            "stays published.  [default: 7d for an API key, 24h for signing keys]",
            show_default=False,
        ),
        expires: str = typer.Option(
            "",
            "--expires",
            metavar="SPAN",
            help="How long the new API key is valid.  [default: as long as the old one was to be]",
            show_default=False,
        ),
        store: str = typer.Option(
            "",
            "--store",
            envvar=STORE_VARIABLE,
            metavar="URL",
            help="The store with the API key; of signing keys, the store whose audit records the "
            f"rotation.  [default: {STORE} for an API key; none for signing keys]",
            show_default=False,
        ),
    ) -> None:
        """Put new keys in place of old ones, which go on for a while.

        With the ID of an API key: create a key for its owner, scopes and label; the old one then
        ends. With a FILE of signing keys: the next key signs, the current one is published until
        the overlap is over, and there is a new next key. Servers read the file again by themselves.
        """
        if any(each in id for each in "./\\"):
            from parley.cli.signing_keys import rotate as rotate_file

            if expires:
                raise UsageFailure("--expires is for API keys: signing keys end by rotation")
            with_record(store, lambda record: rotate_file(output, id, overlap or "24h", record))
            return
        from parley.cli.store.keys import rotate

        _with_admin(
            store or STORE,
            lambda admin: rotate(output, admin, id, overlap=overlap or "7d", expires=expires),
        )

    @settings_command(
        group, "generate", "output", "debug", epilog=f"{SIGNING_EXAMPLES}\n\n{TWO_KINDS}\n\n{EXITS}"
    )
    def generate(
        settings: CommandSettings,
        output: Output,
        file: str = key_file_argument(),
        alg: list[str] = algorithms_option(),  # noqa: B008
        store: str = audit_option(),
    ) -> None:
        """Make a file of signing keys, which a server signs cards and webhooks with.

        For each algorithm it has a current key, and the next one. Only its owner can read it; all
        replicas of a server need the same. It is no API key: parley keys create makes those.
        """
        from parley.cli.signing_keys import generate

        with_record(store, lambda record: generate(output, file, alg, record))

    @settings_command(group, "show", "output", "debug", epilog=f"{TWO_KINDS}\n\n{EXITS}")
    def show(
        settings: CommandSettings, output: Output, file: str = key_file_argument(made=True)
    ) -> None:
        """Show the ids and states of the signing keys in a file, without their private halves."""
        from parley.cli.signing_keys import show

        show(output, file)

    @settings_command(group, "hash-password", "output", "debug", epilog=EXITS)
    def hash_password(settings: CommandSettings, output: Output) -> None:
        """Ask for a password, and show its hash for Basic(users={"ada": "scrypt$..."}).

        Without a terminal, the password is the first line of standard input.
        """
        from parley.cli.store.keys import hash_typed

        hash_typed(output)


def key_file_argument(*, made: bool = False) -> str:
    """Return the argument for a file of signing keys."""
    words = "The file." if made else "The file to make; - writes the keys to standard output."
    argument: str = typer.Argument("signing-keys.json", metavar="FILE", help=words)
    return argument


def algorithms_option() -> list[str]:
    """Return the option for the algorithms of signing keys."""
    option: list[str] = typer.Option(
        [],
        "--alg",
        metavar="ALG",
        help="ES256, RS256 or EdDSA (Ed25519); may be repeated: cards then have a signature of "
        "each, and webhooks one of the first.  [default: ES256]",
        show_default=False,
    )
    return option


def _key_id() -> str:
    argument: str = typer.Argument(
        metavar="ID", help="The id of the key; parley keys list shows it.", show_default=False
    )
    return argument


def _with_admin(url: str, action: Callable[[StoreAdmin], None]) -> None:
    if url in MEMORY:
        raise UsageFailure(
            "--store: keys need a store that other processes see, and memory: is seen by its own "
            "process alone",
            hint="serve the agent with sqlite:///PATH or postgresql://..., and name that one; or "
            "give ApiKey(keys=...) the hashes of keys that you keep yourself",
        )
    with_admin(url, action)
