"""A TCP line between two programs, with the faults that lines have."""

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
    """Passes connections on to a server, on a port that stays the same over all faults.

    ``delay`` holds every piece back for so many seconds, each way. ``rate`` is how many bytes a
    second a connection passes each way. ``drop_after`` cuts connections that are made from now on
    after so many bytes of the answer. All three may be set at any time; ``None`` and 0 end them.
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
        """How many connections there are."""
        return len(self._pairs)

    async def accept(self) -> None:
        """Take connections; what there is at the beginning."""
        if self._listener is None:
            held, self._held = self._held or _bound(self.port), None
            self.port = held.getsockname()[1]
            self._listener = await asyncio.start_server(self._serve, sock=held)

    def refuse(self) -> None:
        """Refuse new connections; those that there are stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            # The port is kept: nobody else gets it, and nobody is let in.
            self._held = _bound(self.port)

    def cut(self) -> None:
        """Break all connections off, both ends of each."""
        for near, far in list(self._pairs):
            for writer in (near, far):
                _reset(writer)

    def freeze(self) -> None:
        """Let nothing pass any more, and close nothing: a network that swallows everything."""
        self._passing.clear()

    def thaw(self) -> None:
        """Let what waits pass, and what comes."""
        self._passing.set()

    def hold(self, is_held: Callable[[], bool]) -> None:
        """Let nothing pass some ways of some connections any more, and close nothing.

        ``is_held`` says it of each way of each. New connections are as good as ever, so what is
        held may come long after what was said later.
        """
        for ways in self._pairs.values():
            for way in ways:
                if is_held():
                    way.clear()

    def release(self) -> None:
        """Let all that is held pass."""
        for ways in self._pairs.values():
            for way in ways:
                way.set()

    def half_close(self) -> None:
        """Tell every client that its server has said all, while its server still listens."""
        for near, _ in list(self._pairs):
            with contextlib.suppress(OSError, RuntimeError):
                near.write_eof()

    def heal(self) -> None:
        """End every fault but that of refusing."""
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
            # A frozen line takes a connection, as the system's backlog would, and then is silent.
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
        """Pass on what one side says until it has said all; raises when the line is cut."""
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
    """End a connection at once, so that the other side hears of it as of a broken line."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def line(port: int, host: str = "127.0.0.1") -> AsyncIterator[FaultyProxy]:
    """A line to a port, for as long as the context lasts."""
    made = FaultyProxy(host, port)
    await made.accept()
    try:
        yield made
    finally:
        await made.close()
