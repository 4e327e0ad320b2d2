"""Checks before work on a store, and the record of the work in its audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from parley import __version__
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.store.admin.admin import SchemaStatus, StoreAdmin
from parley.store.audit.recorder import user_act
from parley.store.audit.trail import AuditEntry
from parley.store.protocols.errors import StoreError


def require_store(admin: StoreAdmin) -> SchemaStatus:
    """Return a store's schema. Raises ``CommandFailure`` without a store."""
    schema = admin.schema()
    if not schema.version:
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"there is no store at {admin.name}",
            hint="name another with --store; parley serve and parley store migrate make one",
        )
    return schema


def require_current(admin: StoreAdmin) -> None:
    """Raise ``CommandFailure`` unless there is a store with the latest schema."""
    schema = require_store(admin)
    if schema.missing:
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"{admin.name} has schema version {schema.version}, and this version of Parley needs "
            f"{schema.missing[-1].version}",
            hint="parley store migrate brings it up to date",
        )


def require_agent(admin: StoreAdmin, agent: str) -> None:
    """Raise ``UsageFailure`` unless a store has data of an agent."""
    agents = admin.agents()
    if agent not in agents:
        known = ", ".join(agents) or "none"
        raise UsageFailure(f"--agent: the store keeps nothing of {agent!r}; it knows {known}")


act = partial(user_act, client=f"parley-cli/{__version__}")
"""Returns an act of the user who runs this command."""

Record = Callable[[str, str, Mapping[str, Any]], None]
"""Records an act: its kind, its subject, and details without secrets."""


def record_act(admin: StoreAdmin, entry: AuditEntry) -> None:
    """Record an act that was done, durably. Raises ``CommandFailure``."""
    try:
        admin.append_audit([entry])
    except StoreError as error:
        raise CommandFailure(
            "PARLEY_ERR_AUDIT",
            f"it was done, and could not be recorded in the audit: {error}",
            hint="parley audit shows what is recorded",
        ) from error


def recorder(admin: StoreAdmin) -> Record:
    """Return what records acts in the audit of a store."""

    def record(kind: str, subject: str, details: Mapping[str, Any]) -> None:
        record_act(admin, act(kind, subject=subject, details=details))

    return record


def not_recorded(kind: str, subject: str, details: Mapping[str, Any]) -> None:
    """Record nothing: no store is named."""
