"""Checks before work on a store: it exists, its schema is current, it has the agent."""

from __future__ import annotations

from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.store.admin.admin import SchemaStatus, StoreAdmin


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
