"""The protocol of a task store. Implementations: ``memory``, ``sqlite``, ``postgres``.

Each part of it is a protocol in ``protocols``; annotate with the narrowest that serves.
"""

from __future__ import annotations

from typing import Protocol

from parley.security.limits.usage import UsageStore
from parley.store.audit.trail import AuditTrail
from parley.store.protocols.claims import Claims
from parley.store.protocols.tables import ApiKeys, Contexts, Secrets, Timers
from parley.store.protocols.task_log import Committed, TaskLists, TaskLog
from parley.store.protocols.webhooks import Webhooks


class TaskStore(
    TaskLog,
    Claims,
    Timers,
    Webhooks,
    Contexts,
    TaskLists,
    Secrets,
    ApiKeys,
    UsageStore,
    AuditTrail,
    Protocol,
):
    """Stores task logs. All methods raise ``StoreUnavailable`` when the store cannot work.

    Guarantees L1-L7 of the architecture; each protocol states its part.
    """

    @property
    def reads_at_once(self) -> bool:
        """Whether reading a task waits for nothing."""
        ...

    @property
    def has_operators(self) -> bool:
        """Whether ``parley store`` can change the store while it is open."""
        ...

    @property
    def unavailable_reason(self) -> str:
        """Why the store cannot be reached now, empty while it can be.

        Costs no query, and names nothing that is confidential.
        """
        ...

    async def open(self, committed: Committed) -> None:
        """Make the store ready: lock it, migrate its schema, check that it is sound.

        Calls ``committed`` for every append once it is durable, private records included.
        """
        ...

    async def close(self) -> None:
        """Finish the work under way and disconnect. Idempotent."""
        ...

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a time (ms), with all their rows.

        Contexts without tasks and receipts that were last touched before it go too, and events
        that were completed before it and that no task waits for. Returns how many tasks went.
        Works in pieces, and never blocks writers. One replica prunes at a time: raises
        ``PrunedElsewhere`` when another does, and then removes nothing.
        """
        ...
