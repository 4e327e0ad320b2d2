"""Records what a command does to a store in the store's audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from parley import __version__
from parley.cli.output.failures import CommandFailure
from parley.store.admin.admin import StoreAdmin
from parley.store.audit.recorder import user_act
from parley.store.audit.trail import AuditEntry
from parley.store.protocols.errors import StoreError

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
