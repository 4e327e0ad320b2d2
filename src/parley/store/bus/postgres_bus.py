"""Hints over PostgreSQL: LISTEN and NOTIFY, on two connections of their own.

Never inside a write, since commits that notify wait for one another in the whole database: what
was committed within a few milliseconds is told with one NOTIFY, which waits for no disk either.

Small records travel with the hint. Every replica gets everybody's, and skips what nobody there
cares about, which costs it a few microseconds; a reader elsewhere is spared a question to the
store for every hint, which costs the database many times that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from parley.store import jitter
from parley.store.bus.frames import FrameReader, Outbox
from parley.store.bus.subscriptions import LocalHints
from parley.store.ending import end
from parley.store.events import LoggedEvent
from parley.store.postgres.connection import Address, is_read_only
from parley.store.sql import queries

logger = logging.getLogger(__name__)

Connection = psycopg.AsyncConnection[Any]

FRAME = 7900
"""Bytes of one notification; PostgreSQL takes 7,999."""

TICK = 0.005
BEAT = 3.0
SILENCE = 10.0
PATIENCE = 5.0
LONGEST_PAUSE = 5.0
FLUSH = 1.0

_SQL = queries("postgres", "bus.sql")


class PostgresBus:
    """A ``Bus`` over a PostgreSQL database, which need not be the store's.

    ``url`` leads to the server itself, not through a pooler: behind one nothing arrives, which is
    noticed, as this replica then does not hear itself. The bus is up when it does.
    ``tick`` is how many seconds lie between two notifications at least.
    """

    def __init__(self, url: str, *, tick: float = TICK) -> None:
        self._address = Address.of(url)
        self._channel = f"{self._address.schema}_hints"[-63:]
        self._tick = tick
        self._hints: LocalHints | None = None
        self._outbox = Outbox("")
        self._reader: FrameReader | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: set[Connection] = set()
        self._wake = asyncio.Event()
        self._tried = asyncio.Event()
        self._is_speaking = False
        self._is_closing = False
        self._is_heard = False
        self._is_failing = False
        self._heard_at = 0.0
        self._beat_at = 0.0

    def __repr__(self) -> str:
        return f"<PostgresBus {self._address.name}>"

    @property
    def is_up(self) -> bool:
        """Whether this replica hears what is told, itself included."""
        return self._is_heard

    async def open(self, hints: LocalHints, replica: str) -> None:
        """Begin to connect, and wait a moment for it. A server that is not there is tried again."""
        self._hints = hints
        self._outbox = Outbox(replica)
        self._reader = FrameReader(hints)
        self._is_closing = False
        self._tried.clear()
        self._tasks = [
            asyncio.create_task(self._again_and_again(self._listen), name="parley-bus-listen"),
            asyncio.create_task(self._again_and_again(self._speak), name="parley-bus-speak"),
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._tried.wait()

    def tell(self, records: Sequence[LoggedEvent]) -> None:
        """Tell the other replicas of one append's records, a moment later."""
        if self._is_speaking and records and self._outbox.add(records):
            self._wake.set()

    def work(self, agent: str) -> None:
        """Tell the other replicas that there is unclaimed work of an agent."""
        if self._is_speaking and self._outbox.add_work(agent):
            self._wake.set()

    def watch(self, task_id: str, cares: bool) -> None:
        """Nothing to do: everybody is told everything."""

    async def close(self) -> None:
        """Tell what is left, for a second at most, and disconnect. Idempotent."""
        if not self._tasks:
            return
        self._is_closing = True
        self._wake.set()
        tasks, self._tasks = self._tasks, []
        try:
            await asyncio.wait(tasks[1:], timeout=FLUSH)
        finally:
            for connection in self._connections:
                _break(connection)
            await end(tasks)
            self._is_heard = self._is_speaking = False
            self._hints = self._reader = None
            self._outbox.clear()

    async def _again_and_again(self, live: Any) -> None:
        """Connect and go on with that, each time it ends, with growing pauses in between."""
        loop = asyncio.get_running_loop()
        pause = 0.1
        while not self._is_closing:
            began = loop.time()
            try:
                connection = await self._connect()
                self._connections.add(connection)
                try:
                    await live(connection)
                finally:
                    self._connections.discard(connection)
                    # Not what psycopg does to be nice: the server may no longer answer.
                    connection.pgconn.finish()
            except (psycopg.Error, OSError) as error:
                self._failed(error)
            except Exception:
                logger.exception("the bus at %s failed", self._address.name)
            self._tried.set()
            if self._is_closing:
                return
            if loop.time() - began > LONGEST_PAUSE:
                pause = 0.1
            await asyncio.sleep(pause * jitter.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self) -> Connection:
        connection = await psycopg.AsyncConnection.connect(self._address.conninfo, autocommit=True)
        connection.prepare_threshold = None
        return connection

    # -- speaking ------------------------------------------------------------------------------

    async def _speak(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._is_speaking = True
        self._beat_at = 0.0
        try:
            while True:
                await self._woken(self._beat_at)
                self._wake.clear()
                now = loop.time()
                frames = self._outbox.frames(FRAME)
                if not frames and now >= self._beat_at:
                    frames = [self._outbox.nothing()]
                if frames:
                    self._beat_at = now + BEAT
                    values = [self._channel, b"\n".join(frames).decode()]
                    await _in_time(connection, connection.execute(_SQL["notify"], values))
                    if is_read_only(connection) and loop.time() - began > LONGEST_PAUSE:
                        # Others may be at the server that took its place.
                        raise psycopg.OperationalError("the server takes no writes")
                if not self._is_closing:
                    # Told at once after a quiet moment; in a busy one with what comes meanwhile.
                    await asyncio.sleep(max(0.0, now + self._tick - loop.time()))
                elif not self._outbox:
                    return
        finally:
            self._is_speaking = False
            self._outbox.clear()

    async def _woken(self, until: float) -> None:
        """Wait until there is something to tell, or until a moment of the loop's clock."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wake.wait()

    # -- listening -----------------------------------------------------------------------------

    async def _listen(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        listen = _SQL["listen"].replace("{channel}", self._channel)
        await _in_time(connection, connection.execute(listen))
        lost: asyncio.Future[None] = loop.create_future()
        # A descriptor of our own: that of a connection that is lost is closed at once, and its
        # number may be another's before the loop is told to leave it alone.
        line = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)

        def readable() -> None:
            try:
                self._take_in(connection)
            except Exception as error:
                loop.remove_reader(line)
                if not lost.done():
                    lost.set_exception(error)

        loop.add_reader(line, readable)
        try:
            self._heard_at = loop.time()
            if self._hints is not None:
                self._hints.missed()
            self._beat_at = 0.0
            self._wake.set()
            readable()
            while True:
                await asyncio.wait([lost], timeout=BEAT)
                if lost.done():
                    lost.result()
                if loop.time() - self._heard_at > SILENCE:
                    if self._is_speaking:
                        raise psycopg.OperationalError(
                            "what is told is not heard; the address must lead to the server "
                            "itself, not through a pooler"
                        )
                    self._is_heard = False
        finally:
            self._is_heard = False
            loop.remove_reader(line)
            line.close()
            if not lost.cancel():
                lost.exception()

    def _take_in(self, connection: Connection) -> None:
        """Take in what has arrived. Raises ``psycopg.Error`` when the connection is lost."""
        pgconn = connection.pgconn
        pgconn.consume_input()
        while (notification := pgconn.notifies()) is not None:
            frame = notification.extra
            if self._outbox.is_own(frame):
                self._hear_itself()
            elif self._reader is not None:
                self._reader.read(frame)

    def _hear_itself(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if not self._is_heard:
            self._is_heard = True
            self._tried.set()
            if self._is_failing:
                self._is_failing = False
                logger.warning("the bus at %s works again", self._address.name)

    def _failed(self, error: Exception) -> None:
        if not self._is_failing and not self._is_closing:
            self._is_failing = True
            logger.warning(
                "the bus at %s does not work, hints come late until it does: %s",
                self._address.name,
                " ".join(str(error).split()),
            )


async def _in_time(connection: Connection, work: Coroutine[Any, Any, Any]) -> None:
    """Wait for the server's answer; after ``PATIENCE`` seconds the connection is broken off."""
    timer = asyncio.get_running_loop().call_later(PATIENCE, _break, connection)
    try:
        await work
    finally:
        timer.cancel()


def _break(connection: Connection) -> None:
    """Break a connection off, so that whoever waits for its server hears of it."""
    with (
        suppress(OSError, psycopg.Error),
        socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
