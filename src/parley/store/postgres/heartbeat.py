"""Says that a replica is alive, and buries those that are not.

On a thread and a connection of its own: an event loop that is held up, or a writer with much to do,
must not cost the replica its tasks. All moments that count are those of the database's clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import psycopg

from parley.store.lease import Lease, LivenessGate
from parley.store.postgres.connection import Address, Link, explain
from parley.store.postgres.migrations import lock_number

logger = logging.getLogger(__name__)


MOMENT = 2.0
"""How many seconds longer than two beats the database may be silent before that is trouble."""


class Heartbeat:
    """Beats from ``start`` to ``stop``. ``offset`` is how many ms the database's clock is ahead."""

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
        self._link = Link(address, patience=max(1.0, lease.time_to_live / 2))
        self._address = address
        self._sql = sql
        self._replica = replica
        self._lease = lease
        self._clock = clock
        self._touch = LivenessGate(lease)
        self._is_over = threading.Event()
        self._is_away = False
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="parley-heart", daemon=True)

    @property
    def silence(self) -> float:
        """For how many seconds nothing was heard of the database, 0 if that is as it should be."""
        silence = time.monotonic() - self._heard
        return silence if silence > 2 * self._lease.beat + MOMENT else 0

    def set_clock(self) -> None:
        """Learn the database's time. Raises ``psycopg.Error``."""
        before = self._clock()
        [(there,)] = self._link.rows(self._sql["now"])
        self._compare(before, there)

    def _compare(self, before: int, there: int) -> None:
        """Correct the offset as far as a round trip that began ``before`` proves it to be wrong.

        Half of a round trip is no better a guess when the machine is busy, and replicas that guess
        differently put the tasks of one caller in the wrong order.
        """
        least, most = there - self._clock() - 1, there - before + 1
        self.offset = min(max(self.offset, least), most)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """End it; waits until it has."""
        self._is_over.set()
        self._thread.join()
        self.drop()

    def drop(self) -> None:
        """Let go of the connection."""
        self._link.drop()

    def _run(self) -> None:
        while True:
            try:
                self._beat()
                if self._is_away:
                    logger.info("%s: the database is there again", self._address.name)
                    self._is_away = False
            except psycopg.Error as error:
                self._touch.lost()
                self._link.drop()
                if isinstance(error, psycopg.errors.DiskFull):
                    self._heard = time.monotonic()  # it is there, and can be read
                if not self._is_away:
                    logger.warning("%s", explain(error, self._address))
                    self._is_away = True
            except Exception:
                logger.exception("%s: looking after leases failed", self._address.name)
                self._link.drop()
            if self._is_over.wait(self._lease.beat):
                return

    def _beat(self) -> None:
        before = self._clock()
        rows = self._link.rows(self._sql["beat"], (self._replica,))
        self._heard = time.monotonic()
        if rows:
            there, is_buried = rows[0]
            known = self.offset
            self._compare(before, there)
            if abs(self.offset - known) > self._lease.time_to_live * 1000 / 4:
                # Others look dead, or alive, until they have beaten by the clock as it is now.
                self._touch.lost()
            if is_buried:
                logger.warning(
                    "%s: this replica was not heard of for so long that others took its tasks",
                    self._address.name,
                )
                self._link.execute(self._sql["rejoin"], (self._replica,))
        else:  # it was buried so long ago that it is forgotten
            values = {"replica": self._replica, "lives_for": round(self._lease.time_to_live * 1000)}
            self._link.execute(self._sql["register"], values)
        if self._touch.felt(time.monotonic()):
            for (replica,) in self._link.rows(self._sql["expire"]):
                logger.warning(
                    "%s: the replica %s was not heard of: its tasks are free",
                    self._address.name,
                    replica,
                )
            lock = lock_number(self._address, "burial")
            [(buried, _)] = self._link.rows(self._sql["release_expired"], {"lock": lock})
            if buried:
                self._link.execute(self._sql["delete_expired"])
