"""Keeps this replica alive in the database, and expires replicas that are silent.

It has a thread and a connection of its own: a blocked event loop or a busy writer must not cost the
replica its tasks. Every time that counts is by the database's clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import psycopg

from parley.database.postgres.advisory_locks import advisory_lock_key
from parley.database.postgres.connection import Address, BoundedConnection, explain
from parley.store.lease import Lease, LivenessGate

logger = logging.getLogger(__name__)


GRACE_SECONDS = 2.0
"""How long, beyond two beats, the database may be silent before it counts as unavailable."""


class Heartbeat:
    """Beats from ``start`` to ``stop``. ``offset`` is the database's clock minus ours, in ms."""

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
        """Correct the offset as far as a round trip that began ``before`` proves it wrong.

        Half of the round trip is no better a guess on a busy machine, and replicas that guess
        differently put a caller's tasks in the wrong order.
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
                    logger.info("%s: the database is there again", self._address.name)
                    self._is_unavailable = False
            except psycopg.Error as error:
                self._gate.lost()
                self._connection.disconnect()
                if isinstance(error, psycopg.errors.DiskFull):
                    self._answered_at = time.monotonic()  # it can still be read
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
                # Until the others have beaten by the new clock, they may wrongly look dead.
                self._gate.lost()
            if is_expired:
                logger.warning(
                    "%s: this replica was not heard of for so long that others took its tasks",
                    self._address.name,
                )
                self._connection.execute(self._sql["rejoin"], (self._replica,))
        else:  # it expired so long ago that its row was deleted
            values = {"replica": self._replica, "lives_for": round(self._lease.time_to_live * 1000)}
            self._connection.execute(self._sql["register"], values)
        if self._gate.felt(time.monotonic()):
            for (replica,) in self._connection.rows(self._sql["expire"]):
                logger.warning(
                    "%s: the replica %s was not heard of: its tasks are free",
                    self._address.name,
                    replica,
                )
            # The lock has its old name: replicas of the version before take it too.
            lock = advisory_lock_key(self._address, "burial")
            [(released, _)] = self._connection.rows(self._sql["release_expired"], {"lock": lock})
            if released:
                self._connection.execute(self._sql["delete_expired"])
