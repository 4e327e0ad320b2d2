"""HTTP connections whose clients cannot take forever to say what they want."""

from __future__ import annotations

import asyncio
import logging
import sys
from enum import Enum, auto
from typing import ClassVar

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from parley.model.errors import OverloadedError
from parley.server.byte_budget import ByteReservation
from parley.server.slow_readers import UnsentBytes

LONGEST_HEAD = 64 * 1024
"""How many bytes a request may have before its body, after it, and between two pieces of it."""

MOST_HEADERS = 256
"""How many headers a request may have that does not come at once."""

SLOWEST = 4096
"""With so many bytes of a body in a second nobody comes too late."""

# So much is parsed at once where more than one request may begin in it.
_PIECE = 4096
# What a request costs that is parsed and has to wait, at least.
_PARSED = 4096
# So much may come before it is its turn; after that nothing is read, not even that the client left.
_EARLY = 64 * 1024
# From so many bytes on that the system does not take, nothing more is written.
_UNREAD = 16 * 1024

# What asks for another protocol.
_UPGRADE = b"upgrade"

_log = logging.getLogger("parley.server")


class Limits(msgspec.Struct, frozen=True):
    """What one connection may take, and what all of them together.

    ``head`` is how many seconds a client has from the first byte of a request to the end of its
    headers. ``body`` is how many it has for the body, besides a second for every ``SLOWEST`` bytes
    that came, and how long none of it may come. ``held`` counts what came and cannot be answered
    yet, ``unsent`` what waits for its readers.
    """

    connections: int
    head: float
    body: float
    held: ByteReservation
    unsent: UnsentBytes


class _Receiving(Enum):
    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class _Flow(FlowControl):
    """Flow control under which nothing is read while there is something to be parsed still."""

    is_held = False

    def resume_reading(self) -> None:
        """Read on, if that was not for somebody else to say."""
        if self.read_paused and not self.is_held:
            self.read_paused = False
            self._transport.resume_reading()

    def hold(self) -> None:
        """Do not read, whoever wants to, until ``release``."""
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        """Read on."""
        self.is_held = False
        self.resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which gives up on a request that comes too slowly, or has no end.

    Only the time in which it is the client's turn counts: not that of a response that is under way,
    however long (streams), nor that in which the app does not read. Silence between requests is
    bounded by uvicorn.

    Requests that come before the one before them has its answer, or while that is not read, wait as
    they came; when they are many, nothing is read meanwhile. So a connection holds one request, one
    answer and little besides. What waits so for an idle connection's time is not answered.
    """

    limits: ClassVar[Limits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room for it."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(_UNREAD)
        self.flow = self._flow = _Flow(transport)
        self._receiving = _Receiving.NOTHING
        self._since: float | None = None
        self._heard = 0.0
        self._received = self._unread = self._unsent = 0
        self._body = self._counted = 0
        self._kept = b""
        self._early: list[RequestResponseCycle] = []
        self._is_loaded = self._is_to_go_on = self._is_to_count = self._is_deaf = False
        self._asks_for_more = False
        self._behind_head: int | None = None
        self._patience: asyncio.TimerHandle | None = None
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
        if self._patience is not None:
            self._patience.cancel()
        self.limits.unsent.discard(self)
        for cycle in self._early:  # uvicorn tells the last one only
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        self._early.clear()
        self.pipeline.clear()
        self._kept = b""
        self._count(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came: parse it, or keep it until it is its turn."""
        if self.transport.is_closing():
            return
        if len(data) <= _PIECE and not self._kept and not self._is_full():
            self._parse(data)
        elif not self._is_deaf:
            self._kept += data
            self._go_on()

    def _is_full(self) -> bool:
        """Whether there is a request under way that has to have its answer first."""
        cycle = self.cycle
        return cycle is not None and (
            (self._receiving is _Receiving.NOTHING and not cycle.response_complete)
            or self.flow.write_paused
            or bool(self.pipeline)
        )

    def _go_on(self) -> None:
        """Parse what was kept, as far as it is its turn, and read on if that was all."""
        if self.transport.is_closing():
            return
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._flow.release()
        while self._kept and not self._is_full():
            size = self._at_once()
            data, self._kept = self._kept[:size], self._kept[size:]
            self._parse(data)
            if self.transport.is_closing():
                return
        if len(self._kept) > _EARLY:
            self._flow.hold()
            until = self.timeout_keep_alive
            self._patience = self.loop.call_later(until, self._lose_patience)
        if self._kept or self._counted or self.pipeline or (self.cycle and self.cycle.body):
            self._count_soon()

    def _lose_patience(self) -> None:
        """Do not keep much for ever: what is under way may take hours."""
        self._patience = None
        if len(self._kept) > _EARLY and not self.flow.write_paused:
            self._refuse_what_is_here()

    def _at_once(self) -> int:
        """Return how much may be parsed: the rest of a body, or what can hold few requests."""
        if self._receiving is _Receiving.BODY:
            given = dict(self.headers)
            if b"transfer-encoding" not in given:
                return int(given.get(b"content-length", b"0")) - self._body or _PIECE
        return _PIECE

    def _count_soon(self) -> None:
        """Count what is here once the app has had the time to take it."""
        self._is_loaded = True
        if not self._is_to_count:
            self._is_to_count = True
            self.loop.call_soon(self._count_what_is_here)

    def _count_what_is_here(self) -> None:
        """Count what came and the app has not taken; refuse it if there is no room for it."""
        self._is_to_count = False
        if self.transport.is_closing():
            return
        waiting = sum(_PARSED + len(cycle.body) for cycle, _ in self.pipeline)
        body = len(self.cycle.body) if self.cycle is not None else 0
        head = self._unread if self._receiving is _Receiving.HEAD else 0
        try:
            self._count(len(self._kept) + waiting + body + head)
        except OverloadedError as error:
            _log.debug("%s: %s", self.client, error.message)
            self._refuse_what_is_here()

    def _refuse_what_is_here(self) -> None:
        """Refuse the request that comes, or close after the answer to the one under way."""
        if self.transport.is_closing():
            return
        if not (self._kept or self.pipeline):
            self._give_up(b"503 Service Unavailable", b"retry-after: 1\r\n")
            return
        self._end_with_this_answer()

    def _end_with_this_answer(self) -> None:
        """Close after the answer to the request under way, and look at nothing else."""
        under_way = [each for each in (*self._early, self.cycle) if not each.response_complete]
        if not under_way or self._is_to_go_on:
            self.transport.close()
            return
        self.cycle = under_way[0]
        self.cycle.keep_alive = False
        self._receiving = _Receiving.NOTHING
        self._kept = b""
        self._is_deaf = True
        self.pipeline.clear()
        self._early.clear()
        self._flow.release()
        self._count_soon()

    def _count(self, size: int) -> None:
        """Have so many bytes counted for this connection. Raises ``OverloadedError``."""
        address = self.client[0] if self.client else ""
        if size > self._counted:
            self.limits.held.take(address, size - self._counted)
        elif size < self._counted:
            self.limits.held.give_back(address, self._counted - size)
        self._counted = size

    def _parse(self, data: bytes) -> None:
        """Parse data, and watch out for what is not whole yet."""
        self._unread += len(data)
        self._received += len(data)
        idle, cycle = self.timeout_keep_alive_task, self.cycle
        self._feed(data)
        if self._receiving is _Receiving.NOTHING:
            self._unread = 0
            is_over = self.cycle is None or self.cycle.response_complete
            if is_over and self.timeout_keep_alive_task is None:
                # What came began no request, or was the end of one that had its answer before.
                until = idle.when() if idle is not None and self.cycle is cycle else None
                self._wait_for_more(until)
        elif self._unread > LONGEST_HEAD or len(self.headers) > MOST_HEADERS:
            self._give_up(b"431 Request Header Fields Too Large")
        else:
            self._watch_for_the_rest()

    def _feed(self, data: bytes) -> None:
        """Give data to the parser, which stops behind the head that asks for another protocol.

        There is none here, so the head is parsed again without that, and the request is one as any
        other (RFC 9110 §7.8): clients that know HTTP/2 ask for it with the first that they send.
        """
        super().data_received(data)
        while self._behind_head is not None:
            data = self._without_upgrade() + data[self._behind_head :]
            self._behind_head = None
            # The old one may be at the end of its connection: HTTP/1.0 and Connection: close.
            self.parser = _parser_for(self)
            super().data_received(data)

    def _without_upgrade(self) -> bytes:
        """Return the head that was parsed, as if it asked for no other protocol."""
        method, version = self.scope["method"], self.scope["http_version"]
        lines = [b"%b %b HTTP/%b\r\n" % (method.encode(), self.url, version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(each for each in options if each.lower() != _UPGRADE)
            if name != _UPGRADE:
                lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join(lines) + b"\r\n"

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, but for what comes behind a whole request: that is answered."""
        cycle = self.cycle
        is_whole = self._receiving is not _Receiving.BODY or bool(self.pipeline)
        if is_whole and cycle is not None and not cycle.response_complete:
            self._end_with_this_answer()
        else:
            super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Note where the parser stopped, in the data that it was given."""
        stopped = sys.exception()
        if self._asks_for_more and isinstance(stopped, httptools.HttpParserUpgrade):
            self._behind_head = stopped.args[0]

    def _watch_for_the_rest(self) -> None:
        """Have the rest of a request come in time."""
        self._heard = self.loop.time()
        if self._since is None:
            self._since = self._heard
            self._received = 0
            if self._timer is not None and self._timer.when() > self._due:
                self._timer.cancel()
                self._timer = None
            if self._timer is None:
                self._timer = self.loop.call_at(self._due, self._look)
        self._count_soon()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._receiving, self._since = _Receiving.HEAD, None
        self._asks_for_more = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin its response."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._asks_for_more = True
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            return
        self._receiving, self._since = _Receiving.BODY, None
        self._body = 0
        before = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            self._early.append(before)
            self._count_soon()

    def on_body(self, body: bytes) -> None:
        """Take a piece of its body."""
        self._unread = 0
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._asks_for_more:
            return
        self._receiving = _Receiving.NOTHING
        self._unread = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin what comes after a response, once there is room for an answer to it."""
        if self.pipeline and self.flow.write_paused and not self.transport.is_closing():
            self._is_to_go_on = True
            return
        super().on_response_complete()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._wait_for_more()
        elif self._is_loaded:
            self._is_loaded = False
            if not self.pipeline:
                self._early.clear()
            self._go_on()

    def pause_writing(self) -> None:
        """Notice that an answer waits for its reader."""
        super().pause_writing()
        self.limits.unsent.add(self, self.timeout_keep_alive)

    def resume_writing(self) -> None:
        """Notice that it has been read, all but a little."""
        super().resume_writing()
        self.limits.unsent.discard(self)
        if self._is_to_go_on:
            self._is_to_go_on = False
            self.on_response_complete()
        elif self._kept:
            self._go_on()

    def unsent(self) -> int:
        """How many bytes wait for the client to read."""
        return self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        """End the connection, whose client does not read."""
        _log.debug("%s does not read what it asked for", self.client)
        self.transport.abort()

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
        late = self._since + self._received / SLOWEST
        return min(late, self._heard) + self.limits.body

    def _look(self) -> None:
        """Give up on a request that is late; look again when it would be."""
        self._timer = None
        if self._receiving is _Receiving.NOTHING or self.transport.is_closing():
            return
        now = self.loop.time()
        if self._since is None or self._is_ours():
            self._since, self._heard, self._received = now, now, 0
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

    def _give_up(self, status: bytes, headers: bytes = b"") -> None:
        """End the connection, with an answer if there is room for one."""
        cycle = self.cycle
        if self._receiving is _Receiving.HEAD:
            may_answer = cycle is None or cycle.response_complete
        else:
            may_answer = not (cycle.response_started or self.pipeline)
        _log.debug("%s: %s", self.client, status.decode())
        if may_answer:
            self._refuse(status, headers)
        else:
            self.transport.abort()

    def _refuse(self, status: bytes, headers: bytes = b"") -> None:
        self.transport.write(
            b"HTTP/1.1 %s\r\n%scontent-length: 0\r\nconnection: close\r\n\r\n" % (status, headers)
        )
        self.transport.close()


def _parser_for(protocol: BoundedProtocol) -> httptools.HttpRequestParser:
    """Return a parser as uvicorn makes it: what follows a last request is passed over."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def protocol_with(limits: Limits) -> type[BoundedProtocol]:
    """Return the class of connections that keep these limits."""
    return type("Connection", (BoundedProtocol,), {"limits": limits})
