"""Removing what was kept for long enough from PostgreSQL, beside everybody who writes.

On a connection of its own, which is there while there is something to remove. One replica at a time
does it, under a lock that is asked for with each piece and never waited for. What a piece locks is
tasks that ended, and numbers of tasks that no writer touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg

from parley.store.postgres.connection import Address, Link, explain
from parley.store.postgres.migrations import lock_number
from parley.store.postgres.writer import SLOTS
from parley.store.task_store import PrunedElsewhere

T = TypeVar("T")

PRUNED_AT_ONCE = 5000
"""How many records one transaction removes, about."""

CONTEXTS_AT_ONCE = 10
"""How many contexts one transaction removes: who uses one of them just then waits for it."""

PATIENCE = 600.0
"""How many seconds a piece may take. Nobody but this replica's next piece waits for it."""

LOCK_SECONDS = 2
"""How many seconds a piece waits for rows that others have locked; later is soon enough."""


class Pruner:
    """Where the thread that removes works. ``stop`` may be called by another thread."""

    def __init__(self, address: Address, sql: Mapping[str, str]) -> None:
        self.name = address.name
        self._address = address
        self._sql = sql
        self._link = Link(address, patience=PATIENCE)
        self._lock = lock_number(address, "pruning")

    def read(self, function: Callable[[Pruner], T], asked_at: float) -> T:
        """Return what a function makes of this.

        Raises ``StoreUnavailable``, and ``PrunedElsewhere``.
        """
        try:
            return function(self)
        except psycopg.Error as error:
            self._link.drop()
            raise explain(error, self._address) from None
        except PrunedElsewhere:
            self._link.drop()
            raise

    def remove(self, name: str, values: Mapping[str, Any]) -> int:
        """Do a query that removes a piece; return how many it says it removed.

        Raises ``PrunedElsewhere`` when another replica is at it, or has locked what is to go.
        """
        link = self._link
        link.execute("BEGIN")
        try:
            if not link.rows(self._sql["lock_pruning"], (self._lock,))[0][0]:
                raise PrunedElsewhere
            # A process that is stopped here must not hold up others for long.
            link.execute(self._sql["limit_locks"], (f"{LOCK_SECONDS}s",))
            [(count,)] = link.rows(self._sql[name], {**values, "slot": SLOTS})
            link.execute("COMMIT")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            link.roll_back()
            raise PrunedElsewhere from None
        except BaseException:
            link.roll_back()
            raise
        removed: int = count
        return removed

    def rest(self) -> None:
        """Let go of the connection: there is nothing more to remove."""
        self._link.drop()

    def stop(self) -> None:
        """Wait no longer for the piece that is under way, nor begin another."""
        self._link.stop()

    def close(self) -> None:
        """Let go of the connection."""
        self._link.drop()


def prune(pruner: Pruner, values: Mapping[str, Any], limit: int) -> int:
    """Remove a few ended tasks, up to ``limit``; return how many."""
    return pruner.remove("prune", {**values, "limit": limit, "records": PRUNED_AT_ONCE})


def prune_receipts(pruner: Pruner, values: Mapping[str, Any]) -> int:
    """Remove a few old receipts; return how many."""
    return pruner.remove("prune_receipts", {**values, "limit": PRUNED_AT_ONCE})


def prune_contexts(pruner: Pruner, values: Mapping[str, Any]) -> int:
    """Remove a few idle contexts; return how many."""
    count = pruner.remove("prune_contexts", {**values, "limit": CONTEXTS_AT_ONCE})
    if not count:
        pruner.rest()
    return count
