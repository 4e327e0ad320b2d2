"""Inboxes: which notifications were received, shared by the replicas of a receiver."""

from __future__ import annotations

from parley.model.distribution import install_command
from parley.store.inbox.inbox import Inbox, MemoryInbox, SqliteInbox

FORMS = (
    "memory:, sqlite:///path/to/inbox.db (four slashes for an absolute path) or "
    "postgresql://host/database"
)


def inbox_of(url: str) -> Inbox:
    """Return the inbox that a URL names, not yet open. Raises ``ValueError`` without a password."""
    scheme = url.partition(":")[0].lower()
    if url in ("memory:", "memory://"):
        return MemoryInbox()
    path = url.removeprefix("sqlite:///")
    if path and path != url:
        return SqliteInbox(path)
    if scheme not in ("postgresql", "postgres"):
        raise ValueError(f"there is no inbox of the kind {scheme!r}; use {FORMS}")
    try:
        from parley.store.inbox.postgres import PostgresInbox
    except ModuleNotFoundError as error:
        raise ValueError(
            f"an inbox at {scheme}:// needs {error.name}: {install_command('postgres')}"
        ) from None
    return PostgresInbox(url)
