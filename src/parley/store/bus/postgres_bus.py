"""The bus over PostgreSQL: LISTEN and NOTIFY, on two separate connections.

Writes do not notify, since commits that notify wait for one another in the whole database: the
commits of a few milliseconds share one NOTIFY, which also needs no disk write.

Small records are sent with the hint. Every replica gets all of them and skips the tasks that it
does not watch, which costs a few microseconds; each saves a query, which costs many times that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg

from parley.database.postgres.connection import HISTORY, NO_HISTORY, REPLACED, Address, is_read_only
from parley.model.concurrency import end
from parley.store.bus.frames import RECONNECT, FrameBus, reconnect
from parley.store.bus.subscriptions import LocalHints
from parley.store.sql import queries

Connection = psycopg.AsyncConnection[Any]
Session = Callable[[Connection], Awaitable[None]]

FRAME_BYTES = 7900
"""Bytes of one notification; PostgreSQL allows 7,999."""

TICK_SECONDS = 0.005
"""The least time between two notifications."""

HEARTBEAT_SECONDS = 3.0
SILENCE_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0
FLUSH_SECONDS = 1.0

_SQL = queries("postgres", "bus.sql")


class PostgresBus(FrameBus):
    """A ``Bus`` over a PostgreSQL database, which need not be the store's.

    ``url`` must be the server itself, not a pooler: notifications do not pass a pooler. The bus is
    up while this replica gets its own notifications back.
    """

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        super().__init__(self._address.name)
        self._channel = f"{self._address.schema}_hints"[-63:]
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: set[Connection] = set()
        self._wake = asyncio.Event()
        self._is_publishing = False
        self._is_closing = False
        self._is_up = False
        self._echo_at = 0.0
        self._heartbeat_at = 0.0

    @property
    def is_up(self) -> bool:
        """Return whether this replica gets all notifications, including its own."""
        return self._is_up

    async def open(self, hints: LocalHints, replica: str) -> None:
        """Begin to connect, and wait a few seconds for it; the reconnect loops continue to try."""
        self._begin(hints, replica)
        self._is_closing = False
        self._tasks = [
            asyncio.create_task(
                reconnect(partial(self._run, session), self._address.name), name="parley-bus"
            )
            for session in (self._subscriber, self._publisher)
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._tried.wait()

    def _can_send(self) -> bool:
        return self._is_publishing

    def _send_soon(self) -> None:
        self._wake.set()

    def watch(self, task_id: str, is_watched: bool) -> None:
        """Do nothing: every replica gets all notifications."""

    async def close(self) -> None:
        """Send the rest, for a second at most, and disconnect. Idempotent."""
        if not self._tasks:
            return
        self._is_closing = True
        self._wake.set()
        tasks, self._tasks = self._tasks, []
        try:
            await asyncio.wait(tasks[1:], timeout=FLUSH_SECONDS)
        finally:
            for connection in self._connections:
                _abort(connection)
            await end(tasks)
            self._is_up = self._is_publishing = False
            self._hints = self._reader = None
            self._buffer.clear()

    async def _run(self, session: Session) -> bool:
        """Connect and run a session; return whether the bus is closing."""
        if self._is_closing:
            return True
        try:
            for order in self._address.orders():
                connection = await psycopg.AsyncConnection.connect(
                    order, autocommit=True, prepare_threshold=None
                )
                self._connections.add(connection)
                try:
                    if not await self._was_replaced(connection):
                        await session(connection)
                        break
                finally:
                    self._connections.discard(connection)
                    # Not ``close``, which sends a message: the server may no longer answer.
                    connection.pgconn.finish()
            else:
                raise psycopg.OperationalError(REPLACED)
        except (psycopg.Error, OSError) as error:
            if not self._is_closing:
                self._failed(error)
        finally:
            self._tried.set()
        return self._is_closing

    async def _was_replaced(self, connection: Connection) -> bool:
        with suppress(*NO_HISTORY):
            cursor = await _in_time(connection, connection.execute(HISTORY))
            return self._address.was_replaced(await cursor.fetchone())
        return False

    # -- publishing ----------------------------------------------------------------------------

    async def _publisher(self, pub_connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._is_publishing = True
        self._heartbeat_at = 0.0
        try:
            while True:
                await self._wait(self._heartbeat_at)
                self._wake.clear()
                now = loop.time()
                frames = self._buffer.frames(FRAME_BYTES)
                if not frames and now >= self._heartbeat_at:
                    frames = [self._buffer.heartbeat()]
                if frames:
                    self._heartbeat_at = now + HEARTBEAT_SECONDS
                    values = [self._channel, b"\n".join(frames).decode()]
                    await _in_time(pub_connection, pub_connection.execute(_SQL["notify"], values))
                    if is_read_only(pub_connection) and loop.time() - began > RECONNECT.longest:
                        # The other replicas may use the server that replaced it.
                        raise psycopg.OperationalError("the server takes no writes")
                if not self._is_closing:
                    # Sent at once after a quiet tick, and together with later records in a busy
                    # tick.
                    await asyncio.sleep(max(0.0, now + TICK_SECONDS - loop.time()))
                elif not self._buffer:
                    return
        finally:
            self._is_publishing = False
            self._buffer.clear()

    async def _wait(self, until: float) -> None:
        """Wait until there are messages to send, or until a loop time."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wake.wait()

    # -- subscribing ---------------------------------------------------------------------------

    async def _subscriber(self, sub_connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        listen = _SQL["listen"].replace("{channel}", self._channel)
        await _in_time(sub_connection, sub_connection.execute(listen))
        lost: asyncio.Future[None] = loop.create_future()
        # A separate descriptor: a lost connection closes its own at once, and the number may belong
        # to another connection before the loop stops watching it.
        sock = socket.fromfd(sub_connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)

        def readable() -> None:
            try:
                self._read_notifications(sub_connection)
            except (psycopg.Error, OSError) as error:
                loop.remove_reader(sock)
                if not lost.done():
                    lost.set_exception(error)

        loop.add_reader(sock, readable)
        try:
            self._echo_at = loop.time()
            if self._hints is not None:
                self._hints.notify_lost()
            self._heartbeat_at = 0.0
            self._wake.set()
            readable()
            while True:
                await asyncio.wait([lost], timeout=HEARTBEAT_SECONDS)
                if lost.done():
                    lost.result()
                if loop.time() - self._echo_at > SILENCE_SECONDS:
                    if self._is_publishing:
                        raise psycopg.OperationalError(
                            "notifications are sent but not received; the address must be the "
                            "server itself, not a pooler"
                        )
                    self._is_up = False
        finally:
            self._is_up = False
            loop.remove_reader(sock)
            sock.close()
            if not lost.cancel():
                lost.exception()

    def _read_notifications(self, sub_connection: Connection) -> None:
        """Pass on notifications. Raises ``psycopg.Error`` when the connection is lost."""
        pgconn = sub_connection.pgconn
        pgconn.consume_input()
        while (notification := pgconn.notifies()) is not None:
            frame = notification.extra
            if self._buffer.is_own(frame):
                self._note_echo()
            elif self._reader is not None:
                self._reader.read(frame)

    def _note_echo(self) -> None:
        self._echo_at = asyncio.get_running_loop().time()
        if not self._is_up:
            self._is_up = True
            self._tried.set()
            self._works()


async def _in_time(connection: Connection, work: Coroutine[Any, Any, Any]) -> Any:
    """Wait for the server's answer; abort the connection after ``TIMEOUT_SECONDS``."""
    timer = asyncio.get_running_loop().call_later(TIMEOUT_SECONDS, _abort, connection)
    try:
        return await work
    finally:
        timer.cancel()


def _abort(connection: Connection) -> None:
    """Shut a connection down, so that all waits for its server raise an error."""
    with (
        suppress(OSError, psycopg.Error),
        socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as sock,
    ):
        sock.shutdown(socket.SHUT_RDWR)
