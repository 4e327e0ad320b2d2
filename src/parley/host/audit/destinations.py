"""Where the audit can be sent: a syslog, or a collector of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import SplitResult

from parley.store.audit.trail import AuditEntry


class DestinationFailed(Exception):
    """A destination did not take entries. The message has no credentials."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EntriesRejected(DestinationFailed):
    """A destination took entries and rejected some of them: the same would be rejected again."""


class AuditDestination(Protocol):
    """Takes entries, in order."""

    @property
    def name(self) -> str:
        """The address without credentials: cursors are kept under it."""
        ...

    async def send(self, entries: Sequence[AuditEntry]) -> None:
        """Send entries; all were taken when it returns.

        Raises ``DestinationFailed``; after ``EntriesRejected`` the entries are not sent again.
        """
        ...

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        ...


def shown(parts: SplitResult) -> str:
    """Return an address without credentials and options."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
