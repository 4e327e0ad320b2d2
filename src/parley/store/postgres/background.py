"""The work of a replica on separate threads and connections: heartbeats, and pruning."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg

from parley.database.database import ReadConnection
from parley.database.postgres.connection import (
    Address,
    BoundedConnection,
    advisory_lock_key,
    explain,
)
from parley.store.postgres.writer import SLOTS
from parley.store.protocols.claims import Lease, LivenessGate
from parley.store.protocols.errors import PrunedElsewhere

logger = logging.getLogger(__name__)


GRACE_SECONDS = 2.0
"""The time, beyond two beats, after which a silent database counts as unavailable."""


PRUNED_RECORDS = 5000
"""The approximate number of records that one transaction removes."""

PRUNED_CONTEXTS = 10
"""The number of contexts that one transaction removes: their users wait for it."""

PRUNE_SECONDS = 600.0
"""The time limit of one transaction. Only this replica's next one waits for it."""

LOCK_SECONDS = 2
"""The time that a transaction waits for locked rows: later is soon enough."""

T = TypeVar("T")


class Heartbeat:
    """Keeps this replica alive in the database, and expires silent replicas.

    It beats from ``start`` to ``stop``, on its own thread and connection: a blocked event loop or a
    busy writer must not cost the replica its tasks. All relevant times are by the database's clock;
    ``offset`` is that clock minus the local one, in ms.
    """

    def __init__(
        self,
        address: Address,
        sql: dict[str, str],
        *,
        replica: str,
        lease: Lease,
        clock: Callable[[], int],
    ) -> None:
        self.offset = 0
        self._connection = BoundedConnection(address, timeout=max(1.0, lease.time_to_live / 2))
        self._address = address
        self._sql = sql
        self._replica = replica
        self._lease = lease
        self._clock = clock
        self._gate = LivenessGate(lease)
        self._stopped = threading.Event()
        self._is_unavailable = False
        self._answered_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="parley-heartbeat", daemon=True)

    @property
    def silence(self) -> float:
        """The seconds since the database's last answer, 0 while that is within the limit."""
        silence = time.monotonic() - self._answered_at
        return silence if silence > 2 * self._lease.beat + GRACE_SECONDS else 0

    def set_clock(self) -> None:
        """Set ``offset``. Raises ``psycopg.Error``."""
        before = self._clock()
        [(database_time,)] = self._connection.rows(self._sql["now"])
        self._correct_offset(before, database_time)

    def _correct_offset(self, before: int, database_time: int) -> None:
        """Correct the offset as far as a round trip that began at ``before`` proves it wrong.

        Half of the round trip is not a better estimate on a busy machine, and replicas with
        different estimates would reorder a caller's tasks.
        """
        least, most = database_time - self._clock() - 1, database_time - before + 1
        self.offset = min(max(self.offset, least), most)

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; wait for the thread to end."""
        self._stopped.set()
        self._thread.join()
        self.disconnect()

    def disconnect(self) -> None:
        """Disconnect."""
        self._connection.disconnect()

    def _run(self) -> None:
        while True:
            try:
                self._beat()
                if self._is_unavailable:
                    logger.info("%s: the database is available again", self._address.name)
                    self._is_unavailable = False
            except psycopg.Error as error:
                self._gate.lost()
                self._connection.disconnect()
                if isinstance(error, psycopg.errors.DiskFull):
                    self._answered_at = time.monotonic()  # the database can still be read
                if not self._is_unavailable:
                    logger.warning("%s", explain(error, self._address))
                    self._is_unavailable = True
            except Exception:
                logger.exception("%s: the heartbeat failed", self._address.name)
                self._connection.disconnect()
            if self._stopped.wait(self._lease.beat):
                return

    def _beat(self) -> None:
        before = self._clock()
        rows = self._connection.rows(self._sql["beat"], (self._replica,))
        self._answered_at = time.monotonic()
        if rows:
            database_time, is_expired = rows[0]
            old_offset = self.offset
            self._correct_offset(before, database_time)
            if abs(self.offset - old_offset) > self._lease.time_to_live * 1000 / 4:
                # Until the others have beaten by the new clock, they may wrongly appear dead.
                self._gate.lost()
            if is_expired:
                logger.warning(
                    "%s: this replica was silent for so long that others claimed its tasks",
                    self._address.name,
                )
                self._connection.execute(self._sql["rejoin"], (self._replica,))
        else:  # it expired so long ago that its row was deleted
            values = {"replica": self._replica, "lives_for": round(self._lease.time_to_live * 1000)}
            self._connection.execute(self._sql["register"], values)
        if self._gate.felt(time.monotonic()):
            for (replica,) in self._connection.rows(self._sql["expire"]):
                logger.warning(
                    "%s: the replica %s is silent: its tasks are released",
                    self._address.name,
                    replica,
                )
            # The lock keeps its old name, because replicas of the previous version use it too.
            lock = advisory_lock_key(self._address, "burial")
            [(released, _)] = self._connection.rows(self._sql["release_expired"], {"lock": lock})
            if released:
                self._connection.execute(self._sql["delete_expired"])


class Pruner(ReadConnection["Pruner"]):
    """Removes old tasks, receipts, events and contexts while others write.

    It has a connection while there is something to remove, for one thread; ``stop`` is thread-safe.
    One replica at a time prunes, under a lock that each transaction tries without waiting. A
    transaction locks only ended tasks, and a slot of the counts that no writer uses.
    """

    def __init__(self, address: Address, sql: Mapping[str, str]) -> None:
        self.name = address.name
        self._address = address
        self._sql = sql
        self._connection = BoundedConnection(address, timeout=PRUNE_SECONDS)
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
        """Remove a batch by a named statement; return the number that it returns.

        Raises ``PrunedElsewhere`` when another replica is pruning, or has locked the rows.
        """
        connection = self._connection
        try:
            with connection.transaction():
                if not connection.rows(self._sql["lock_pruning"], (self._lock,))[0][0]:
                    raise PrunedElsewhere
                connection.execute(self._sql["limit_locks"], (f"{LOCK_SECONDS}s",))
                [(count,)] = connection.rows(
                    self._sql[name], {**values, "slot": SLOTS, "records": PRUNED_RECORDS}
                )
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            raise PrunedElsewhere from None
        removed: int = count
        return removed

    def stop(self) -> None:
        """Abort the current transaction, and begin no other."""
        self._connection.stop()

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()
