"""The audit: an append-only, hash-chained trail of what no task's log has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import msgspec

GENESIS = "0" * 64
"""What stands for the hash before the first line."""

PRUNED = "audit.pruned"
"""The kind of a checkpoint: lines before it were removed by retention."""

PAGE = 500
"""How many lines are read at once."""

PRUNED_AT_ONCE = 20_000
"""How many lines a prune removes at most, so that other writers do not wait for it."""

MAX_TEXT = 512
"""The length limit of each text of an entry."""

MAX_DETAILS = 8192
"""The length limit of the details of an entry, as JSON."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An act to record. It has no secrets and no contents of messages.

    ``at`` is in ms by the store's clock; 0 stands for the time of the append. ``actor`` is the id
    of who acted, ``issuer`` who vouches for it (``os`` for a user of an operating system),
    ``client`` the software. ``subject`` is what was acted on. ``id`` is unique: an append that is
    repeated because its answer was lost counts once.
    """

    kind: str
    at: int = 0
    issuer: str = ""
    actor: str = ""
    client: str = ""
    address: str = ""
    agent: str = ""
    tenant: str = ""
    subject: str = ""
    outcome: str = ""
    details: Mapping[str, Any] = {}
    id: str = msgspec.field(default_factory=lambda: uuid4().hex)


class AuditLine(AuditEntry, frozen=True, kw_only=True):
    """A recorded entry: its number, the hash of the line before it, and its own."""

    seq: int
    previous: str
    hash: str

    @property
    def anchor(self) -> str:
        """What to keep elsewhere: it shows later that no line up to this one was changed."""
        return f"{self.seq}:{self.hash}"


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines to read: empty fields select all. Times are in ms, ``until`` is excluded.

    ``kind`` selects a kind and those below it: ``key`` selects ``key.created``. ``actor`` is an id.
    """

    since: int | None = None
    until: int | None = None
    kind: str = ""
    actor: str = ""
    agent: str = ""
    task_id: str = ""


class AuditPrune(msgspec.Struct, frozen=True, kw_only=True):
    """What to remove: the lines before the first that is not older than ``before`` (ms).

    Lines after ``keep_after`` stay (``None``: none has to). ``by`` has who removes them.
    """

    before: int
    by: AuditEntry
    keep_after: int | None = None


class AuditTrail(Protocol):
    """The audit of a store: one chain over all replicas.

    The order is decided in the transaction that appends. Nothing changes a line, and only
    ``prune_audit`` removes some. Exports leave it out: a chain belongs to its store.
    """

    @property
    def migrated(self) -> Sequence[str]:
        """The migrations that ``open`` ran."""
        ...

    async def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries in order, all or none; durable when it returns."""
        ...

    async def read_audit(
        self, which: AuditFilter, *, after: int = 0, limit: int = PAGE, newest: bool = False
    ) -> Sequence[AuditLine]:
        """Return lines with a number above ``after``, in order; the ``newest`` ones at wish."""
        ...

    async def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines, and append a checkpoint with the hash of the last of them.

        Returns how many went, ``PRUNED_AT_ONCE`` at most: then call it again. Without any, nothing
        is appended.
        """
        ...

    async def claim_audit_cursor(self, destination: str, holder: str, until: int) -> int | None:
        """Claim the cursor of a destination until a time (ms), or keep it claimed.

        Returns the number of the last line that it was sent (0: none), or ``None`` while another
        holder has it claimed.
        """
        ...

    async def save_audit_cursor(self, destination: str, holder: str, seq: int, until: int) -> bool:
        """Move a cursor that is still claimed; ``until`` 0 releases it. Return whether it was."""
        ...
