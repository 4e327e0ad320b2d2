"""Removes old tasks, receipts, events and contexts from PostgreSQL, while others write.

It has a connection of its own while there is something to remove. One replica at a time does it,
under a lock that each piece asks for and never waits for. A piece locks only tasks that ended, and
a slot of the counts that no writer touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg

from parley.database.postgres.advisory_locks import advisory_lock_key
from parley.database.postgres.connection import Address, BoundedConnection, explain
from parley.store.postgres.writer import SLOTS
from parley.store.protocols.errors import PrunedElsewhere

T = TypeVar("T")

PRUNED_AT_ONCE = 5000
"""About how many records one transaction removes."""

CONTEXTS_AT_ONCE = 10
"""How many contexts one transaction removes: a user of one of them waits for it."""

TIMEOUT_SECONDS = 600.0
"""The time limit of a piece. Only this replica's next piece waits for it."""

LOCK_SECONDS = 2
"""How long a piece waits for rows that others have locked: later is soon enough."""


class Pruner:
    """The connection of the pruning thread. Any thread may call ``stop``."""

    def __init__(self, address: Address, sql: Mapping[str, str]) -> None:
        self.name = address.name
        self._address = address
        self._sql = sql
        self._connection = BoundedConnection(address, timeout=TIMEOUT_SECONDS)
        self._lock = advisory_lock_key(address, "pruning")

    def read(self, function: Callable[[Pruner], T], asked_at: float) -> T:
        """Call ``function`` with this; return its result.

        Raises ``StoreUnavailable`` and ``PrunedElsewhere``.
        """
        try:
            return function(self)
        except psycopg.Error as error:
            self._connection.disconnect()
            raise explain(error, self._address) from None
        except PrunedElsewhere:
            self._connection.disconnect()
            raise

    def remove(self, name: str, values: Mapping[str, Any]) -> int:
        """Remove a piece by a named statement; return the number that it returns.

        Raises ``PrunedElsewhere`` when another replica is pruning, or has locked the rows.
        """
        connection = self._connection
        connection.execute("BEGIN")
        try:
            if not connection.rows(self._sql["lock_pruning"], (self._lock,))[0][0]:
                raise PrunedElsewhere
            connection.execute(self._sql["limit_locks"], (f"{LOCK_SECONDS}s",))
            [(count,)] = connection.rows(self._sql[name], {**values, "slot": SLOTS})
            connection.execute("COMMIT")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            connection.roll_back()
            raise PrunedElsewhere from None
        except BaseException:
            connection.roll_back()
            raise
        removed: int = count
        return removed

    def stop(self) -> None:
        """Abort the piece under way, and begin no other."""
        self._connection.stop()

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()


def prune(pruner: Pruner, values: Mapping[str, Any], limit: int) -> int:
    """Remove a few ended tasks, up to ``limit``; return how many."""
    return pruner.remove("prune", {**values, "limit": limit, "records": PRUNED_AT_ONCE})


def prune_receipts(pruner: Pruner, values: Mapping[str, Any]) -> int:
    """Remove a few old receipts; return how many."""
    return pruner.remove("prune_receipts", {**values, "limit": PRUNED_AT_ONCE})


def prune_events(pruner: Pruner, values: Mapping[str, Any]) -> int:
    """Remove a few old events that no task waits for; return how many."""
    return pruner.remove("prune_events", {**values, "limit": PRUNED_AT_ONCE})


def prune_contexts(pruner: Pruner, values: Mapping[str, Any]) -> int:
    """Remove a few idle contexts; return how many."""
    count = pruner.remove("prune_contexts", {**values, "limit": CONTEXTS_AT_ONCE})
    if not count:
        pruner.close()
    return count
