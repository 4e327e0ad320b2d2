"""HTTP connections whose clients cannot take forever to say what they want."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LONGEST_HEAD = 64 * 1024
"""How many bytes a request may have before its body, after it, and between two pieces of it."""

SLOWEST = 4096
"""With so many bytes of a body in a second nobody comes too late."""

_log = logging.getLogger("parley.server")


class Limits(msgspec.Struct, frozen=True):
    """What one connection may take, and how many there may be.

    ``head`` is how many seconds a client has from the first byte of a request to the end of its
    headers. ``body`` is how many it has for the body, besides a second for every ``SLOWEST`` bytes
    that came.
    """

    connections: int
    head: float
    body: float


class _Receiving(Enum):
    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which gives up on a request that comes too slowly, or has no end.

    Only the time in which it is the client's turn counts: not that of a response that is under way,
    however long (streams), nor that in which the app does not read. Silence between requests is
    bounded by uvicorn.
    """

    limits: ClassVar[Limits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room for it."""
        super().connection_made(transport)
        self._receiving = _Receiving.NOTHING
        self._since: float | None = None
        self._received = self._unread = self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.limits.connections:
            _log.debug("%s connections are all that this server takes", self.limits.connections)
            self._refuse(b"503 Service Unavailable", b"retry-after: 1\r\n")
            return
        self._wait_for_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._receiving = _Receiving.NOTHING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, and watch out for what is not whole yet."""
        if self.transport.is_closing():
            return
        self._unread += len(data)
        self._received += len(data)
        idle, cycle = self.timeout_keep_alive_task, self.cycle
        super().data_received(data)
        if self._receiving is _Receiving.NOTHING:
            self._unread = 0
            is_over = self.cycle is None or self.cycle.response_complete
            if is_over and self.timeout_keep_alive_task is None:
                # What came began no request, or was the end of one that had its answer before.
                until = idle.when() if idle is not None and self.cycle is cycle else None
                self._wait_for_more(until)
        elif self._unread > LONGEST_HEAD:
            self._give_up(b"431 Request Header Fields Too Large")
        elif self._since is None:
            self._since = self.loop.time()
            self._received = 0
            if self._timer is not None and self._timer.when() > self._due:
                self._timer.cancel()
                self._timer = None
            if self._timer is None:
                self._timer = self.loop.call_at(self._due, self._look)

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._receiving, self._since = _Receiving.HEAD, None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin its response."""
        self._receiving, self._since = _Receiving.BODY, None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of its body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._receiving = _Receiving.NOTHING
        self._unread = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin what comes after a response."""
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._wait_for_more()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that is idle, and one whose client does not read what it asked for."""
        unsent, before = self.transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if not unsent:
            super().timeout_keep_alive_handler()
        elif before and unsent >= before:
            self.transport.abort()
        else:
            self._wait_for_more()

    def _wait_for_more(self, until: float | None = None) -> None:
        """Wait for a request, as long as a connection may be idle."""
        if until is None:
            until = self.loop.time() + self.timeout_keep_alive
        self.timeout_keep_alive_task = self.loop.call_at(until, self.timeout_keep_alive_handler)

    @property
    def _due(self) -> float:
        assert self._since is not None
        if self._receiving is _Receiving.HEAD:
            return self._since + self.limits.head
        return self._since + self.limits.body + self._received / SLOWEST

    def _look(self) -> None:
        """Give up on a request that is late; look again when it would be."""
        self._timer = None
        if self._receiving is _Receiving.NOTHING or self.transport.is_closing():
            return
        now = self.loop.time()
        if self._since is None or self._is_ours():
            self._since, self._received = now, 0
        if now < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
        else:
            self._give_up(b"408 Request Timeout")

    def _is_ours(self) -> bool:
        """Whether the client has to wait for us before it is its turn."""
        cycle = self.cycle
        if self.flow.read_paused:
            return True
        if cycle is None or cycle.response_complete:
            return False
        return self._receiving is _Receiving.HEAD or cycle.response_started

    def _give_up(self, status: bytes) -> None:
        """End the connection, with an answer if there is room for one."""
        cycle = self.cycle
        if self._receiving is _Receiving.HEAD:
            may_answer = cycle is None or cycle.response_complete
        else:
            may_answer = not (cycle.response_started or self.pipeline)
        _log.debug("%s: %s", self.client, status.decode())
        if may_answer:
            self._refuse(status)
        else:
            self.transport.abort()

    def _refuse(self, status: bytes, headers: bytes = b"") -> None:
        self.transport.write(
            b"HTTP/1.1 %s\r\n%scontent-length: 0\r\nconnection: close\r\n\r\n" % (status, headers)
        )
        self.transport.close()


def protocol_with(limits: Limits) -> type[BoundedProtocol]:
    """Return the class of connections that keep these limits."""
    return type("Connection", (BoundedProtocol,), {"limits": limits})
