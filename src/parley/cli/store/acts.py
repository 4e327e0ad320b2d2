"""Commands on a store: its selection, checks before the work, and records in its audit log."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from parley import __version__
from parley.cli.command import Commands
from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output
from parley.cli.settings.options import LOCAL_OPTIONS, Command, CommandFlag, CommandOption
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.store.admin.admin import SchemaStatus, StoreAdmin
    from parley.store.audit.trail import AuditEntry

T = TypeVar("T")

STORE = "sqlite:///parley.db"
STORE_VARIABLE = "PARLEY_STORE"
MEMORY = ("memory:", "memory://")

EXITS = """\b
Exit status:
  0  done      1  failed      2  wrong usage"""
PASSWORDS = """\b
A password in --store can be seen by others in the process table. PARLEY_STORE
does not show it; a password file of PostgreSQL's (~/.pgpass) keeps it out of
the URL."""

_RECORDED = CommandOption(
    "Record it in the audit log of this store: sqlite:///PATH or postgresql://USER@HOST/DATABASE.",
    "URL",
    variable=STORE_VARIABLE,
    default="not recorded",
)


class InStore(msgspec.Struct, frozen=True):
    """The option that names the store."""

    store: Annotated[
        str,
        CommandOption(
            "The store: sqlite:///PATH (sqlite:////PATH from the root) or "
            "postgresql://USER@HOST/DATABASE.",
            "URL",
            variable=STORE_VARIABLE,
        ),
    ] = STORE

    def admin(self, action: Callable[[StoreAdmin], T]) -> T:
        """Return the result of work on the store. Raises ``CommandFailure``."""
        return with_admin(self.store, action)


class InShared(InStore, frozen=True):
    """A store that other processes see; ``alone`` says why, and names an alternative."""

    alone: ClassVar[tuple[str, str]] = ("", "")

    def admin(self, action: Callable[[StoreAdmin], T]) -> T:
        """Return the result of work on the store. Raises ``CommandFailure``."""
        if self.store in MEMORY:
            what, instead = self.alone
            raise UsageFailure(
                f"--store: {what} that other processes see, but memory: is visible to its own "
                "process "
                "only",
                hint="serve the agent with sqlite:///PATH or postgresql://..., and name that store"
                + instead,
            )
        return with_admin(self.store, action)


class Recorded(msgspec.Struct, frozen=True):
    """The store whose audit log records an action on files."""

    store: Annotated[str, _RECORDED] = ""


class StoreCommands(Commands):
    """Commands that work on a store: functions of the output, the store and their options."""

    def work(self, name: str, *notes: str, exits: str = EXITS) -> Callable[[Command], Command]:
        """Return a decorator that adds a command; ``notes`` are printed below its help."""

        def added(function: Command) -> Command:
            @wraps(function)
            def run(settings: CommandSettings, output: Output, options: InStore) -> int | None:
                status: int | None = options.admin(lambda admin: function(output, admin, options))
                return status

            self.add(name, *LOCAL_OPTIONS, epilog="\n\n".join([*notes, exits, PASSWORDS]))(run)
            return function

        return added


AgentKey = Annotated[str, CommandOption("Only data of this agent, by its key.", "KEY")]
TenantName = Annotated[str, CommandOption("Only data of this tenant.", "NAME")]


def audit_option(panel: str | None = None) -> str:
    """Return the option that names the store whose audit log records an action on files."""
    option = msgspec.structs.replace(_RECORDED, panel=panel or "")
    default: str = CommandFlag("store", option, "").parameter().default
    return default


def with_admin(url: str, action: Callable[[StoreAdmin], T]) -> T:
    """Return the result of ``action`` on a store; a store error becomes a ``CommandFailure``."""
    from parley.host.store_urls import open_admin
    from parley.store.protocols.errors import StoreError

    with wrong_usage("--store: "):
        admin = open_admin(url)
    try:
        return action(admin)
    except StoreError as error:
        raise CommandFailure("PARLEY_ERR_STORE", str(error)) from error


def require_store(admin: StoreAdmin) -> SchemaStatus:
    """Return a store's schema. Raises ``CommandFailure`` without a store."""
    schema = admin.schema()
    if not schema.version:
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"there is no store at {admin.name}",
            hint="name another with --store; parley serve and parley store migrate create it",
        )
    return schema


def require_current(admin: StoreAdmin, agent: str = "") -> None:
    """Raise ``CommandFailure`` unless there is a store with the latest schema.

    Raises ``UsageFailure`` unless it has data of the ``agent``, if given.
    """
    schema = require_store(admin)
    if schema.missing:
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"{admin.name} has schema version {schema.version}, but this version of Parley needs "
            f"{schema.missing[-1].version}",
            hint="parley store migrate updates it",
        )
    if agent and agent not in (agents := admin.agents()):
        known = ", ".join(agents) or "none"
        raise UsageFailure(f"--agent: the store has no data of {agent!r}; it has {known}")


def act(kind: str, **about: Any) -> AuditEntry:
    """Return an audit entry for the user who runs this command."""
    from parley.store.audit.recorder import user_act

    return user_act(kind, client=f"parley-cli/{__version__}", **about)


Record = Callable[[str, str, Mapping[str, Any]], None]
"""Records an action: its kind, its subject, and details without secrets."""


def record_act(admin: StoreAdmin, entry: AuditEntry) -> None:
    """Record a completed action, durably. Raises ``CommandFailure``."""
    from parley.store.protocols.errors import StoreError

    try:
        admin.append_audit([entry])
    except StoreError as error:
        raise CommandFailure(
            "PARLEY_ERR_AUDIT",
            f"it was done, but could not be recorded in the audit log: {error}",
            hint="parley audit shows the recorded entries",
        ) from error


def with_record(url: str, action: Callable[[Record], T]) -> T:
    """Return the result of ``action``, which receives a function that records actions in the store.

    The store is checked first, so that no action is done that cannot be recorded.
    """
    if not url or (url in MEMORY and os.environ.get(STORE_VARIABLE) == url):
        return action(lambda kind, subject, details: None)  # without a store nothing is recorded

    def recording(admin: StoreAdmin) -> T:
        require_current(admin)
        return action(
            lambda kind, subject, details: record_act(
                admin, act(kind, subject=subject, details=details)
            )
        )

    return with_admin(url, recording)
