"""One HTTP/1.1 connection: bytes in, requests in order, answers out; limited in time and memory.

``data_received`` collects data, ``_read_on`` takes heads and bodies from it, and an exchange
answers: itself (``DirectExchange``), or with an ASGI app (``AsgiExchange``). There is at most one
request at a time. Later requests stay bytes until its answer was sent and read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Scope

from parley.model.errors import OverloadedError
from parley.security.networks import CONNECTION, network_of
from parley.server.http.exchange import AgentRequests
from parley.server.http1.asgi import AsgiExchange, DirectExchange, scope_of
from parley.server.http1.head import (
    MAX_HEAD,
    MAX_LENGTH_DIGITS,
    RequestHead,
    RequestRefused,
    check_beginning,
    date_line,
    read_head,
)
from parley.server.http1.serving import HttpServing
from parley.server.tls import tls_extension
from parley.server.websocket.serving import Handed

# -- chunks -----------------------------------------------------------------------------------

_MAX_SIZE_DIGITS = 16
# Extensions of chunks and trailers: their content is ignored.
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,%d})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?" % _MAX_SIZE_DIGITS)
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
_MAX_LINE = 4096


class ChunkedBody:
    """Decodes one body. ``is_complete`` once its last line was read."""

    __slots__ = ("_in_trailers", "_is_after_data", "_overhead", "_rest", "is_complete")

    def __init__(self) -> None:
        self._rest = 0  # of the data of a chunk
        self._is_after_data = self._in_trailers = False
        self._overhead = 0
        self.is_complete = False

    def decode(self, buffer: bytearray) -> bytes:
        """Remove the bytes of the body from the buffer, and return the data in them.

        Raises ``RequestRefused`` for malformed data.
        """
        pieces = []
        at, end = 0, len(buffer)
        while at < end and not self.is_complete:
            if self._rest:
                piece = bytes(buffer[at : at + self._rest])
                pieces.append(piece)
                at += len(piece)
                self._rest -= len(piece)
                self._is_after_data = not self._rest
                continue
            if self._is_after_data:
                if buffer[at] != 13 or (at + 1 < end and buffer[at + 1] != 10):
                    raise RequestRefused("a chunk is longer than its size")
                if at + 1 == end:
                    break
                self._is_after_data = False
                at += 2
                continue
            line_end = buffer.find(b"\n", at, at + _MAX_LINE)
            if line_end < 0:
                if end - at >= _MAX_LINE:
                    raise RequestRefused("a long line beside the chunks")
                break
            if line_end == at or buffer[line_end - 1] != 13:
                raise RequestRefused("a line beside the chunks ends without CR")
            self._take_line(bytes(buffer[at : line_end - 1]))
            at = line_end + 1
        del buffer[:at]
        return b"".join(pieces)

    def _take_line(self, line: bytes) -> None:
        if self._in_trailers:
            if not line:
                self.is_complete = True
                return
            if not _TRAILER.fullmatch(line):
                raise RequestRefused("a malformed trailer")
            self._overhead += len(line)
        else:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise RequestRefused("a malformed size of a chunk")
            self._rest = int(match[1], 16)
            self._in_trailers = not self._rest
            self._overhead += len(line) - len(match[1])
        if self._overhead > MAX_HEAD:
            raise RequestRefused("much beside the chunks", b"431 Request Header Fields Too Large")


# -- deadline ---------------------------------------------------------------------------------


class MovingDeadline:
    """Calls a function once a deadline has passed.

    The timer is set for the first deadline, and checks the current deadline when it fires: moving
    it to a later time only changes a number, without the event loop.
    """

    __slots__ = ("_at", "_expired", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Set the deadline, by the clock of the event loop."""
        self._at = at
        timer = self._timer
        if timer is None or timer.when() > at:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(at, self._fire)

    def forget(self) -> None:
        """Have no deadline."""
        self._at = None

    def rest(self) -> None:
        """Remove the timer too, unless there is a deadline, since none is expected for a long
        time."""
        if self._at is None and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Remove the deadline and the timer for good."""
        self._at = None
        self._expired = _nothing  # avoids a reference cycle with the owner
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        at = self._at
        if at is None:
            return
        if self._loop.time() < at:
            self._timer = self._loop.call_at(at, self._fire)
        else:
            self._at = None
            self._expired()


def _nothing() -> None:
    """Do nothing."""


# -- known head -------------------------------------------------------------------------------

_MAX_KNOWN = 2048
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,%d})\r\n" % MAX_LENGTH_DIGITS, re.IGNORECASE)


class KnownHead:
    """The last head of a connection, and the handler of requests with this head.

    Data begins with the same head if its bytes are equal, except for the digits of Content-Length:
    ``read_head`` would return the same fields, since these digits only determine the end of the
    body. A head without such digits, as of a GET, must be equal byte by byte. ``size`` is the
    length of the head in the data that was last found to begin with it. ``revision`` is the
    revision of the app when it returned the handler.
    """

    __slots__ = ("_begin", "_end", "_head", "_length", "requests", "revision", "size")

    def __init__(
        self,
        head: bytes,
        length: int,
        digits: tuple[int, int] | None,
        requests: AgentRequests,
        revision: int,
    ) -> None:
        """``length`` is the length of the body, ``digits`` the position of its number in the
        head."""
        self._head = head
        self._length = length
        self._begin, self._end = digits or (0, 0)
        self.requests = requests
        self.revision = revision
        self.size = len(head)

    @classmethod
    def of(
        cls, data: bytes, head: RequestHead, requests: AgentRequests, revision: int
    ) -> KnownHead | None:
        """Return a head that was read from ``data``; ``None`` if it must not be reused."""
        if len(data) > _MAX_KNOWN or head.is_expecting or head.is_upgrade or not head.keeps_alive:
            return None
        if head.length is None:
            return None  # in chunks, its body has no length, and each has to be read
        found = _LENGTH.search(data)
        return cls(data, head.length, found and found.span(1), requests, revision)

    def length_in(self, data: bytes) -> int:
        """Return the length of the body of a request that begins with this head; else -1."""
        known = self._head
        if data[: self.size] == known:  # most requests of a client have equally long bodies
            return self._length
        begin = self._begin
        if not begin or data[:begin] != known[:begin]:
            return -1
        end = data.find(b"\r", begin, begin + MAX_LENGTH_DIGITS + 1)
        digits, after = data[begin:end], known[self._end :]
        if end < 0 or not digits.isdigit() or not data.startswith(after, end):
            return -1
        self.size = end + len(after)
        self._head, self._end, self._length = data[: self.size], end, int(digits)
        return self._length


# -- connection -------------------------------------------------------------------------------


MIN_BODY_RATE = 4096
"""The number of bytes per second at which the body of a request never times out."""

# The limit on bytes after a request, and on bytes of its body that the app has not read.
_MAX_HELD = 64 * 1024
# The size up to which the body of a complete request is not counted.
_SMALL = 4096
# The time that a rejected client may still send, so that it can read the reason.
_LINGER = 2.0
_MAX_LINGER = 256 * 1024
# Beyond this many unsent bytes the app's writes pause.
_WRITE_BUFFER = 16 * 1024

_END_OF_HEAD = b"\r\n\r\n"
_TIMEOUT = b"408 Request Timeout"
_OVERLOADED = b"503 Service Unavailable"
_RETRY = b"retry-after: 1\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_log = logging.getLogger("parley.server")


class HttpConnection(asyncio.Protocol):
    """One connection.

    A request has a deadline only while the server waits for its client: not during an answer,
    however long (streams), nor while the app does not read.
    """

    __slots__ = (
        "_body", "_buffer", "_checked", "_deadline", "_exchange", "_extensions",
        "_ignores_input", "_is_ending", "_is_reading_paused", "_is_reserve_scheduled", "_known",
        "_last_data_at", "_last_unsent", "_loop", "_received", "_reserved", "_rest", "_scheme",
        "_server", "_serving", "_started_at", "_transport", "_writers", "client", "is_expecting",
        "is_write_paused", "keeps_alive", "logs_access", "network",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, serving: HttpServing, loop: asyncio.AbstractEventLoop) -> None:
        self._serving = serving
        self._loop = loop
        self.logs_access = serving.logs_access
        self.client: tuple[str, int] | None = None
        self.network = ""
        self._server: tuple[str, int | None] | None = None
        self._scheme = "http"
        self._extensions: dict[str, Any] | None = None
        # Input that is not yet a complete head or part of a body, and the length that was searched
        # for the end of a head.
        self._buffer = bytearray()
        self._checked = 0
        # The current request: the exchange that answers it, and the missing part of its body (a
        # number of bytes, or chunks).
        self._exchange: AsgiExchange | DirectExchange | None = None
        self._rest = 0
        self._body: ChunkedBody | None = None
        self._known: KnownHead | None = None
        self.keeps_alive = True
        self.is_expecting = False
        # The start of the current head or body, the time of the last data, and the amount since
        # then.
        self._started_at = self._last_data_at = 0.0
        self._received = 0
        self._deadline = MovingDeadline(loop, self._expire)
        self._reserved = self._last_unsent = 0
        self._is_reserve_scheduled = self._is_reading_paused = self.is_write_paused = False
        self._ignores_input = self._is_ending = False
        self._writers: list[asyncio.Future[None]] = []

    # -- the beginning and the end of a connection -----------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many (transport callback)."""
        self._transport = transport
        transport.set_write_buffer_limits(_WRITE_BUFFER)
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if isinstance(peer, tuple):
            self.client = (str(peer[0]), int(peer[1]))
        if isinstance(own, tuple):
            self._server = (str(own[0]), int(own[1]))
        elif isinstance(own, str):
            self._server = (own, None)
        encryption = transport.get_extra_info("ssl_object")
        serving = self._serving
        if encryption is not None:
            self._scheme = "https"
            self._extensions = {"tls": tls_extension(encryption)}
        if serving.proxies is not None and self.client is not None:
            # The address in a scope may come from a proxy's header, so the connection's is kept
            # separately.
            self._extensions = {**(self._extensions or {}), CONNECTION: {"client": self.client}}
        address = self.client[0] if self.client else ""
        self.network = network_of(address)
        has_room = serving.connections.make_room(address, self.network)
        serving.connections.add(self)
        self._become_idle()
        if not has_room:
            _log.debug("%s: no connection is free, and none is idle", self.client)
            self._refuse(_OVERLOADED, _RETRY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the app, and release everything (transport callback)."""
        self._is_ending = True
        self._deadline.close()
        exchange, self._exchange = self._exchange, None
        self._buffer.clear()
        self._body = None
        self.is_write_paused = False
        self._wake_writers()
        self._serving.unsent_bytes.discard(self)
        if exchange is not None:
            exchange.disconnect()
        self._reserve(0)
        self._serving.connections.discard(self)

    def eof_received(self) -> None:
        """Let the transport close, since the client has ended the connection (transport
        callback)."""

    @property
    def is_idle(self) -> bool:
        """True if the connection waits for a request, or for the rest of a head."""
        return self._exchange is None and not (
            self._is_in_body or self.is_write_paused or self._is_ending
        )

    def shutdown(self) -> None:
        """Close after the current answer, because the server ends."""
        if self._exchange is None:
            self.close()
        else:
            self.keeps_alive = False

    # -- input -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Receive data (transport callback)."""
        self._received += len(data)
        if self._ignores_input or self._is_ending or self._transport.is_closing():
            if self._is_ending and self._received > _MAX_LINGER:
                self._transport.close()
            return
        if self._exchange is None and not (
            self._buffer or self.is_write_paused or self._rest or self._body is not None
        ):
            # Most requests arrive in one piece, which need not be collected.
            if self._known is not None and self._repeat(self._known, data):
                return
            end = data.find(_END_OF_HEAD) + 4
            if end > 4:
                self._begin(data[:end], data[end:])
                return
        self._buffer += data
        self._read_on()

    def _read_on(self) -> None:
        """Process the data in the buffer as far as possible."""
        buffer = self._buffer
        while buffer and not (self._ignores_input or self._is_ending):
            if self._is_in_body:
                try:
                    self._take_body()
                except RequestRefused as refused:
                    self._fail(refused)
                    return
                if self._is_in_body:
                    break
                continue
            if self._exchange is not None or self.is_write_paused:
                break  # later requests wait for the answer
            head = self._take_head()
            if head is None or not self._begin(head, b""):
                break
        self._after_input()

    def _take_head(self) -> bytes | None:
        """Remove a head from the buffer, if it is complete."""
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):  # allowed between two requests
            del buffer[:2]
        if not buffer:
            self._checked = 0
            return None
        end = buffer.find(_END_OF_HEAD, max(0, self._checked - 3))
        if end < 0:
            if buffer != b"\r":
                try:
                    check_beginning(buffer, self._checked)
                except RequestRefused as refused:
                    self._fail(refused)
                    return None
            self._checked = len(buffer)
            return None
        head = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        self._checked = 0
        return head

    def _begin(self, data: bytes, rest: bytes) -> bool:
        """Begin the request of a head; ``rest`` came after it. Return whether to read on."""
        if data.startswith(b"\r\n"):
            self._buffer[:0] = data + rest
            self._read_on()
            return True
        try:
            head = read_head(data)
        except RequestRefused as refused:
            self._fail(refused)
            return False
        self._deadline.forget()
        if head.is_upgrade and self._becomes_socket(head, rest):
            return False
        self.keeps_alive = head.keeps_alive and not self._serving.is_ending
        scope, length = self._scope(head), head.length
        agents = self._serving.agents
        if agents is not None and length is not None and length <= len(rest):
            requests = agents.requests(scope)
            if requests is not None and requests.takes(length):
                self._known = KnownHead.of(data, head, requests, agents.revision) or self._known
                self._ask(requests, rest, length)
                return True
        exchange = AsgiExchange(self, scope)
        self._run(exchange, self._serving.app)
        if length is not None and length <= len(rest):
            if length:
                exchange.feed(rest[:length])
                rest = rest[length:]
            exchange.end_body()
            if length <= _SMALL and not rest:
                return True
        else:
            self.is_expecting = head.is_expecting
            if length is None:
                self._body = ChunkedBody()
            else:
                self._rest = length
            self._await_body()
        if rest:
            self._buffer[:0] = rest
            self._read_on()
        else:
            self._after_input()
        return True

    def _repeat(self, known: KnownHead, data: bytes) -> bool:
        """Begin a complete request with the same head as the last one; otherwise do nothing."""
        length, agents = known.length_in(data), self._serving.agents
        if agents is None or agents.revision != known.revision:
            return False
        if not (0 <= length <= len(data) - known.size and known.requests.takes(length)):
            return False
        self._deadline.forget()
        self._ask(known.requests, data[known.size :], length)
        return True

    def _ask(self, requests: AgentRequests, rest: bytes, length: int) -> None:
        """Begin a request that its exchange answers; ``rest`` begins with its body."""
        exchange = self._exchange = DirectExchange(self, requests)
        if length == len(rest):
            exchange.begin(rest)
            if exchange.held > _SMALL:
                self._after_input()
        else:
            self._buffer[:0] = rest[length:]
            exchange.begin(rest[:length])
            self._after_input()

    def _run(self, exchange: AsgiExchange, app: ASGIApp) -> None:
        """Answer a request with an ASGI app, in a task."""
        self._exchange = exchange
        self.run_task(exchange.run(app))

    def _take_body(self) -> None:
        """Pass on the body bytes in the buffer. Raises ``RequestRefused``."""
        buffer, exchange = self._buffer, self._exchange
        self.is_expecting = False
        if self._body is None:
            piece = bytes(buffer[: self._rest])
            del buffer[: len(piece)]
            self._rest -= len(piece)
            is_complete = not self._rest
        else:
            piece = self._body.decode(buffer)
            is_complete = self._body.is_complete
            if is_complete:
                self._body = None
        if exchange is not None:  # else it was already answered, and the rest is dropped
            if piece:
                exchange.feed(piece)
            if is_complete:
                self._deadline.forget()
                exchange.end_body()
        elif is_complete:
            self._become_idle()

    def _after_input(self) -> None:
        """Set the deadline for incomplete input, and limit and count the buffered bytes."""
        exchange = self._exchange
        if self._is_ending or self._ignores_input:
            return
        if self._is_in_body:
            self._last_data_at = self._loop.time()
            self._deadline.set(self._body_deadline())
        elif exchange is None and self._buffer and not (self.is_write_paused or self._started_at):
            self._started_at = self._loop.time()
            self._deadline.set(self._started_at + self._serving.head_timeout)
        held = len(self._buffer) if exchange is None else len(self._buffer) + exchange.held
        if held > _MAX_HELD and (exchange is not None or self.is_write_paused):
            self._pause_reading()
        if (held or self._reserved) and not self._is_reserve_scheduled:
            # After the app had a chance to read it.
            self._is_reserve_scheduled = True
            self._loop.call_soon(self._reserve_held)

    # -- callbacks of exchanges ------------------------------------------------------------------

    def go_on(self, app: ASGIApp, scope: Scope) -> None:
        """Continue the current request, whose body was read, in an ASGI app."""
        exchange = AsgiExchange(self, scope)
        exchange.take_body()
        self._run(exchange, app)
        if self._is_ending:
            exchange.disconnect()
            self._exchange = None

    def forget_head(self) -> None:
        """Drop the last head while this request streams.

        A request that repeats the head of this one is then read as a new one.
        """
        self._known = None
        self._deadline.rest()

    def run_task(self, answering: Coroutine[Any, Any, None]) -> None:
        """Run a part of the answer in a task, which the end of the server waits for."""
        tasks = self._serving.tasks
        task = self._loop.create_task(answering)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def wants_body(self) -> None:
        """Resume reading: the app has consumed the available body, or waits for it."""
        if self.is_expecting:
            self.is_expecting = False
            if not self._is_ending:
                self._transport.write(_CONTINUE)
        if len(self._buffer) <= _MAX_HELD:
            self._resume_reading()
        if self._reserved:
            self._reserve_held()

    def write(self, data: bytes) -> None:
        """Write a part of the answer."""
        if not self._is_ending:
            self._transport.write(data)

    async def writable(self) -> None:
        """Wait until the client has read enough, or has left."""
        while self.is_write_paused:
            writer = self._loop.create_future()
            self._writers.append(writer)
            await writer

    def answered(self) -> None:
        """Continue after a complete answer."""
        self._exchange = None
        if self._is_ending:
            return
        if not self.keeps_alive:
            self.close()
            return
        if self._is_reading_paused:
            self._resume_reading()
        if self._rest or self._body is not None:
            # The app did not read the whole body; the rest is dropped.
            self.is_expecting = False
            self._await_body()
        else:
            self._become_idle()
        if self._buffer:
            # Not from within the app, which may still be running.
            self._loop.call_soon(self._read_on_later)

    def _read_on_later(self) -> None:
        if not self._transport.is_closing():
            self._read_on()

    def give_up(self) -> None:
        """Answer requests without an answer, because the server ends now."""
        if self._exchange is not None and not self._is_ending:
            self.keeps_alive = False
            self._exchange.give_up()

    def abort(self) -> None:
        """Abort the connection, because a client does not read or an app failed."""
        self._transport.abort()

    # -- budgets and backpressure ----------------------------------------------------------------

    def unsent(self) -> int:
        """Return the number of bytes that the client has not read."""
        return self._transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """Watch an answer whose reader is slow (transport callback)."""
        self.is_write_paused = True
        self._serving.unsent_bytes.add(self, self._serving.idle_timeout)

    def resume_writing(self) -> None:
        """Continue after the reader caught up (transport callback)."""
        self.is_write_paused = False
        self._serving.unsent_bytes.discard(self)
        self._wake_writers()
        if self._exchange is None and self._buffer and not self._is_ending:
            self._resume_reading()
            self._read_on()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    def _pause_reading(self) -> None:
        if self._is_reading_paused or self._transport.is_closing():
            return
        self._is_reading_paused = True
        self._transport.pause_reading()
        if len(self._buffer) > _MAX_HELD and not self._is_in_body:
            # The current answer may take hours; input after it is not kept for so long.
            self._deadline.set(self._loop.time() + self._serving.idle_timeout)

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _reserve_held(self) -> None:
        """Reserve room for buffered bytes; reject the request if there is none."""
        self._is_reserve_scheduled = False
        if self._is_ending or self._transport.is_closing():
            return
        exchange = self._exchange
        try:
            self._reserve(len(self._buffer) + (0 if exchange is None else exchange.held))
        except OverloadedError as error:
            _log.debug("%s: %s", self.client, error.message)
            if exchange is not None and self._buffer and not self._is_in_body:
                self._close_after_answer()
            else:
                self._reject(_OVERLOADED, _RETRY)

    def _reserve(self, size: int) -> None:
        """Set the bytes reserved for this connection. Raises ``OverloadedError``."""
        address = self.client[0] if self.client else ""
        if size > self._reserved:
            self._serving.request_bytes.reserve(address, size - self._reserved)
        elif size < self._reserved:
            self._serving.request_bytes.release(address, self._reserved - size)
        self._reserved = size

    @property
    def _is_in_body(self) -> bool:
        return self._rest > 0 or self._body is not None

    # -- deadlines -------------------------------------------------------------------------------

    def _become_idle(self) -> None:
        """Wait for the next request."""
        self._started_at = 0.0
        self._last_unsent = 0
        self._deadline.set(self._loop.time() + self._serving.idle_timeout)
        self._serving.connections.rest(self)

    def _await_body(self) -> None:
        """Start the client's time limit for a body."""
        self._started_at = self._last_data_at = self._loop.time()
        self._received = 0
        self._deadline.set(self._body_deadline())

    def _body_deadline(self) -> float:
        bought = self._started_at + self._received / MIN_BODY_RATE
        return min(bought, self._last_data_at) + self._serving.body_timeout

    def _expire(self) -> None:
        """Act on a deadline that has passed (``MovingDeadline``)."""
        exchange = self._exchange
        if self._is_ending:
            self._expect_reader()
        elif self._is_in_body:
            if exchange is not None and (self._is_reading_paused or exchange.has_started):
                self._await_body()  # the client is not expected to send now
            else:
                self._reject(_TIMEOUT)
        elif exchange is not None:
            if len(self._buffer) > _MAX_HELD and not self.is_write_paused:
                self._close_after_answer()
        elif self._buffer and not self.is_write_paused:
            self._reject(_TIMEOUT)
        else:
            self._expect_reader()

    def _expect_reader(self) -> None:
        """Close an idle connection; wait for its last answer while the client reads that."""
        unsent, before = self._transport.get_write_buffer_size(), self._last_unsent
        self._last_unsent = unsent
        if not unsent:
            self._transport.close()
        elif before and unsent >= before:
            self._transport.abort()
        else:
            self._deadline.set(self._loop.time() + self._serving.idle_timeout)

    # -- rejecting and closing -------------------------------------------------------------------

    def _fail(self, refused: RequestRefused) -> None:
        """Reject malformed input: its end is unknown, so nothing more is read."""
        _log.debug("%s: %s", self.client, refused)
        if not self._is_in_body and self._exchange is not None:
            self._close_after_answer()
        else:
            self._reject(refused.status)

    def _reject(self, status: bytes, headers: bytes = b"") -> None:
        """Reject the request being received with a status, or abort if none can be sent."""
        if self._transport.is_closing():
            return
        exchange = self._exchange
        is_dropped = exchange is None and self._is_in_body
        _log.debug("%s: %s", self.client, status.decode())
        if is_dropped or (exchange is not None and exchange.has_started):
            self._transport.abort()
        elif exchange is not None and exchange.leave(partial(self._refuse, status, headers)):
            # The app may store the bytes that it has read, and its client asks for their number
            # later.
            self._ignores_input = True
            self._buffer.clear()
            self._reserve(0)
            self._resume_reading()
            self._deadline.set(self._loop.time() + _LINGER)
        else:
            self._refuse(status, headers)

    def _refuse(self, status: bytes, headers: bytes = b"") -> None:
        """Reject with a status, and let the client read it before the connection ends."""
        transport = self._transport
        if self._is_ending or transport.is_closing():
            return
        transport.write(
            b"HTTP/1.1 %b\r\n%b%bcontent-length: 0\r\nconnection: close\r\n\r\n"
            % (status, date_line(), headers)
        )
        if (self._exchange is None and self._received == 0) or not transport.can_write_eof():
            self.close()
            return
        # Closing at once could reset the connection, and the client would not see the reason.
        self._end_input()
        self._received = 0
        transport.write_eof()
        self._deadline.set(self._loop.time() + _LINGER)

    def _close_after_answer(self) -> None:
        """Close after the current answer, and ignore all further input."""
        if self._exchange is None:
            self.close()
            return
        self.keeps_alive = False
        self._ignores_input = True
        self._buffer.clear()
        self._checked = 0
        self._resume_reading()  # needed to notice that the client has left
        self._reserve_held()

    def close(self) -> None:
        """Close after the client has read the written data."""
        self._end_input()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._last_unsent = 0
            self._deadline.set(self._loop.time() + self._serving.idle_timeout)

    def _end_input(self) -> None:
        """Accept no more input, and no more answers."""
        self._is_ending = True
        self._buffer.clear()
        self._rest, self._body = 0, None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.disconnect()
        self._reserve(0)
        self._resume_reading()

    # -- scopes and upgrades ---------------------------------------------------------------------

    def _scope(self, head: RequestHead) -> dict[str, Any]:
        """Return the ASGI scope of a request."""
        client, scheme, serving = self.client, self._scheme, self._serving
        if serving.proxies is not None:
            client, scheme = serving.proxies.sender(head.headers, client, scheme)
        scope = scope_of(head, server=self._server, client=client, scheme=scheme)
        scope["state"] = serving.state.copy()
        if self._extensions is not None:
            scope["extensions"] = dict(self._extensions)
        return scope

    def _becomes_socket(self, head: RequestHead, rest: bytes) -> bool:
        """Hand the transport over if a request asks for a WebSocket that is accepted."""
        serving = self._serving
        if serving.upgrades is None:
            return False
        scope = self._scope(head)
        if not serving.upgrades.takes(scope):
            return False
        rest += bytes(self._buffer)
        self._is_ending = True
        self._deadline.close()
        self._buffer.clear()
        self._reserve(0)
        serving.unsent_bytes.discard(self)
        self._resume_reading()
        handed = Handed(
            scope, rest, serving.app, serving.connections, serving.tasks, serving.logs_access
        )
        serving.upgrades.hand_over(self._transport, handed)
        serving.connections.discard(self)
        return True
