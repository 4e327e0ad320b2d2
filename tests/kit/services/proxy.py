"""A TCP line between two programs, with network faults."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.kit.waiting import let_time_pass

PIECE = 65536


class FaultyProxy:
    """Forwards connections to a server, on a port that survives all faults.

    ``delay`` delays every piece by that many seconds, each way. ``rate`` limits the bytes per
    second of a connection, each way. ``drop_after`` cuts new connections after that many bytes of
    the response. All three may be set at any time; ``None`` and 0 end them.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.delay = 0.0
        self.rate: float | None = None
        self.drop_after: int | None = None
        self.accepted = 0
        self._there = (host, port)
        self._listener: asyncio.Server | None = None
        self._held: socket.socket | None = None
        self._passing = asyncio.Event()
        self._passing.set()
        self._pairs: dict[
            tuple[asyncio.StreamWriter, asyncio.StreamWriter], tuple[asyncio.Event, asyncio.Event]
        ] = {}
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """Return the number of connections."""
        return len(self._pairs)

    async def accept(self) -> None:
        """Accept connections, which is the initial state."""
        if self._listener is None:
            held, self._held = self._held or _bound(self.port), None
            self.port = held.getsockname()[1]
            self._listener = await asyncio.start_server(self._serve, sock=held)

    def refuse(self) -> None:
        """Reject new connections; existing ones stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            # Keep the port: another process cannot take it, and no client can connect.
            self._held = _bound(self.port)

    def cut(self) -> None:
        """Break all connections, both ends of each."""
        for near, far in list(self._pairs):
            for writer in (near, far):
                _reset(writer)

    def freeze(self) -> None:
        """Stop all traffic without closing anything: a network that swallows everything."""
        self._passing.clear()

    def thaw(self) -> None:
        """Let waiting and new data pass."""
        self._passing.set()

    def hold(self, is_held: Callable[[], bool]) -> None:
        """Stop some directions of some connections, without closing anything.

        ``is_held`` decides for each direction of each connection. New connections are not affected,
        so held data may arrive long after later data.
        """
        for ways in self._pairs.values():
            for way in ways:
                if is_held():
                    way.clear()

    def release(self) -> None:
        """Let all held data pass."""
        for ways in self._pairs.values():
            for way in ways:
                way.set()

    def half_close(self) -> None:
        """Send every client the end of the server's data, while the server still listens."""
        for near, _ in list(self._pairs):
            with contextlib.suppress(OSError, RuntimeError):
                near.write_eof()

    def heal(self) -> None:
        """End every fault except rejecting."""
        self.delay, self.rate, self.drop_after = 0.0, None, None
        self.release()
        self.thaw()

    async def close(self) -> None:
        """End everything. Idempotent."""
        self.heal()
        for closing in (self._listener, self._held):
            if closing is not None:
                closing.close()
        self._listener = self._held = None
        self.cut()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.accepted += 1
        limit = self.drop_after
        try:
            # A frozen line accepts a connection, as the system's backlog would, and then is silent.
            await self._passing.wait()
            try:
                far_reader, far = await asyncio.open_connection(*self._there)
            except OSError:
                _reset(near)
                return
            pair = (near, far)
            there, back = self._pairs[pair] = (asyncio.Event(), asyncio.Event())
            there.set()
            back.set()
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, far, None, there))
                    both.create_task(self._pass(far_reader, near, limit, back))
            except* (OSError, RuntimeError):
                pass
            finally:
                del self._pairs[pair]
                for writer in pair:
                    _reset(writer)
        except asyncio.CancelledError:
            _reset(near)
        finally:
            self._serving.discard(task)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int | None,
        may_pass: asyncio.Event,
    ) -> None:
        """Forward one side's data until its end; raises when the line is cut."""
        while True:
            piece = await reader.read(PIECE if limit is None else min(PIECE, limit))
            await self._passing.wait()
            await may_pass.wait()
            if not piece:
                writer.write_eof()
                return
            if self.delay:
                await let_time_pass(self.delay)
            if self.rate:
                await let_time_pass(len(piece) / self.rate)
            await self._passing.wait()
            writer.write(piece)
            await writer.drain()
            if limit is not None:
                limit -= len(piece)
                if not limit:
                    raise ConnectionAbortedError("the line is cut here")


def _bound(port: int) -> socket.socket:
    sock = socket.socket(proto=socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection, so that the other side sees a broken line."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def line(port: int, host: str = "127.0.0.1") -> AsyncIterator[FaultyProxy]:
    """Open a line to a port within the context."""
    made = FaultyProxy(host, port)
    await made.accept()
    try:
        yield made
    finally:
        await made.close()
