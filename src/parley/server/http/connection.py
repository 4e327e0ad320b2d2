"""HTTP connections with limits: uvicorn's httptools protocol, bounded in time and memory.

``run.Server`` installs it. It overrides and reads internals of uvicorn, which pyproject.toml
therefore pins; ``tests/server/http/test_uvicorn_internals.py`` names each of them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from enum import Enum, auto
from typing import Any, ClassVar
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from parley.model.errors import OverloadedError
from parley.security.credentials.client_address import CONNECTION
from parley.server.limits.byte_budget import ByteReservation
from parley.server.limits.slow_readers import UnsentBytes
from parley.server.tls.extension import tls_extension
from parley.server.websocket.serving import Handed
from parley.server.websocket.upgrade import Upgrades

MAX_HEAD = 64 * 1024
"""The most bytes of a request before its body, after it, and between two chunks of it."""

MAX_HEADERS = 256
"""The most headers of a request that arrives in several reads."""

MIN_BODY_RATE = 4096
"""Bytes per second at which the body of a request never times out."""

# The bytes parsed at once where more than one request may begin in them.
_CHUNK = 4096
# The least cost of a parsed request that waits.
_REQUEST_OVERHEAD = 4096
# Beyond this backlog nothing is read, not even a disconnect.
_MAX_BACKLOG = 64 * 1024
# Beyond this many unsent bytes the app's writes pause.
_WRITE_BUFFER = 16 * 1024

_UPGRADE = b"upgrade"

_log = logging.getLogger("parley.server")


class ConnectionLimits(msgspec.Struct, frozen=True):
    """The limits of each connection, and the budgets that all share.

    ``head_timeout`` is in seconds from the first byte of a request to the end of its headers.
    ``body_timeout`` is for the body, extended by a second for every ``MIN_BODY_RATE`` bytes
    received, and for each pause in it. ``request_bytes`` bounds unanswered input, ``unsent_bytes``
    unread output. ``keeps_address``: proxy headers may change the address in a scope, so the
    connection's own is kept beside it. ``upgrades`` makes WebSockets of the requests that ask for
    one; without it nothing does.
    """

    connections: int
    head_timeout: float
    body_timeout: float
    request_bytes: ByteReservation
    unsent_bytes: UnsentBytes
    keeps_address: bool = False
    upgrades: Upgrades | None = None


class _Receiving(Enum):
    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class _Flow(FlowControl):
    """Flow control that does not read while there is a backlog to parse."""

    is_blocked = False

    def resume_reading(self) -> None:
        """Resume reading, unless it is blocked."""
        if self.read_paused and not self.is_blocked:
            self.read_paused = False
            self._transport.resume_reading()

    def block(self) -> None:
        """Stop reading until ``unblock``, even if uvicorn resumes it."""
        self.is_blocked = True
        self.pause_reading()

    def unblock(self) -> None:
        """Resume reading."""
        self.is_blocked = False
        self.resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a timeout for slow requests and bounds on what it buffers.

    The timeout runs only while the server waits for the client: not during a response, however
    long (streams), nor while the app does not read. uvicorn bounds the idle time between requests.

    Pipelined requests wait as unparsed bytes (the backlog) until the answer before them is sent and
    read; when the backlog is large, nothing is read meanwhile. So a connection holds one request,
    one answer and little else. A large backlog is dropped after the timeout of an idle connection.
    """

    limits: ClassVar[ConnectionLimits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(_WRITE_BUFFER)
        self.flow = self._flow = _Flow(transport)
        self._receiving = _Receiving.NOTHING
        self._started_at: float | None = None
        self._last_data_at = 0.0
        self._received = self._head_size = self._last_unsent = 0
        self._body_size = self._reserved = 0
        self._backlog = b""
        self._pipelined: list[RequestResponseCycle] = []
        self._has_buffered = self._is_next_deferred = self._is_reserve_scheduled = False
        self._ignores_input = self._asks_for_upgrade = self._is_handed_over = False
        self._head_end: int | None = None
        self._backlog_timer: asyncio.TimerHandle | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._extensions = self._scope_extensions(transport)
        if len(self.connections) > self.limits.connections:
            _log.debug("%s connections are all that this server accepts", self.limits.connections)
            self._respond_and_close(b"503 Service Unavailable", b"retry-after: 1\r\n")
            return
        self._start_idle_timer()

    def _scope_extensions(self, transport: asyncio.Transport) -> dict[str, Any]:
        """Return the extensions of the connection's scopes: its TLS, and its own address."""
        extensions: dict[str, Any] = {}
        encryption = transport.get_extra_info("ssl_object")
        if encryption is not None:
            extensions["tls"] = tls_extension(encryption)
        if self.limits.keeps_address and self.client is not None:
            extensions[CONNECTION] = {"client": self.client}
        return extensions

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers and release the buffers of the connection."""
        self._receiving = _Receiving.NOTHING
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
        self._unset_keepalive_if_required()
        if self._backlog_timer is not None:
            self._backlog_timer.cancel()
        self.limits.unsent_bytes.discard(self)
        for cycle in self._pipelined:  # uvicorn notifies only the last one
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        self._pipelined.clear()
        self.pipeline.clear()
        self._backlog = b""
        self._reserve(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, or append it to the backlog."""
        if self.transport.is_closing():
            return
        if len(data) <= _CHUNK and not self._backlog and not self._must_wait():
            self._parse(data)
        elif not self._ignores_input:
            self._backlog += data
            self._parse_backlog()

    def _must_wait(self) -> bool:
        """Return whether new data must wait for the answer to an earlier request."""
        cycle = self.cycle
        return cycle is not None and (
            (self._receiving is _Receiving.NOTHING and not cycle.response_complete)
            or self.flow.write_paused
            or bool(self.pipeline)
        )

    def _parse_backlog(self) -> None:
        """Parse the backlog as far as possible, and resume reading if it is small."""
        if self.transport.is_closing():
            return
        if self._backlog_timer is not None:
            self._backlog_timer.cancel()
            self._backlog_timer = None
        self._flow.unblock()
        while self._backlog and not self._must_wait():
            size = self._chunk_size()
            data, self._backlog = self._backlog[:size], self._backlog[size:]
            self._parse(data)
            if self.transport.is_closing():
                return
        if len(self._backlog) > _MAX_BACKLOG:
            self._flow.block()
            self._backlog_timer = self.loop.call_later(
                self.timeout_keep_alive, self._on_backlog_timeout
            )
        if self._backlog or self._reserved or self.pipeline or (self.cycle and self.cycle.body):
            self._reserve_soon()

    def _on_backlog_timeout(self) -> None:
        """Drop a large backlog: the response under way may take hours."""
        self._backlog_timer = None
        if len(self._backlog) > _MAX_BACKLOG and not self.flow.write_paused:
            self._refuse_buffered()

    def _chunk_size(self) -> int:
        """Return how many bytes to parse: the rest of a body, or a chunk that has few requests."""
        if self._receiving is _Receiving.BODY:
            headers = dict(self.headers)
            if b"transfer-encoding" not in headers:
                return int(headers.get(b"content-length", b"0")) - self._body_size or _CHUNK
        return _CHUNK

    def _reserve_soon(self) -> None:
        """Reserve room for the buffers, once the app had a chance to read them."""
        self._has_buffered = True
        if not self._is_reserve_scheduled:
            self._is_reserve_scheduled = True
            self.loop.call_soon(self._reserve_buffered)

    def _reserve_buffered(self) -> None:
        """Reserve room for the buffers that the app has not read; refuse them if there is none."""
        self._is_reserve_scheduled = False
        if self.transport.is_closing():
            return
        waiting = sum(_REQUEST_OVERHEAD + len(cycle.body) for cycle, _ in self.pipeline)
        body = len(self.cycle.body) if self.cycle is not None else 0
        head = self._head_size if self._receiving is _Receiving.HEAD else 0
        try:
            self._reserve(len(self._backlog) + waiting + body + head)
        except OverloadedError as error:
            _log.debug("%s: %s", self.client, error.message)
            self._refuse_buffered()

    def _refuse_buffered(self) -> None:
        """Refuse the request being received, or close after the response under way."""
        if self.transport.is_closing():
            return
        if not (self._backlog or self.pipeline):
            self._reject(b"503 Service Unavailable", b"retry-after: 1\r\n")
            return
        self._close_after_response()

    def _close_after_response(self) -> None:
        """Close after the response under way, and ignore all further input."""
        unanswered = [each for each in (*self._pipelined, self.cycle) if not each.response_complete]
        if not unanswered or self._is_next_deferred:
            self.transport.close()
            return
        self.cycle = unanswered[0]
        self.cycle.keep_alive = False
        self._receiving = _Receiving.NOTHING
        self._backlog = b""
        self._ignores_input = True
        self.pipeline.clear()
        self._pipelined.clear()
        self._flow.unblock()
        self._reserve_soon()

    def _reserve(self, size: int) -> None:
        """Set the bytes reserved for this connection. Raises ``OverloadedError``."""
        address = self.client[0] if self.client else ""
        if size > self._reserved:
            self.limits.request_bytes.reserve(address, size - self._reserved)
        elif size < self._reserved:
            self.limits.request_bytes.release(address, self._reserved - size)
        self._reserved = size

    def _parse(self, data: bytes) -> None:
        """Parse data, and start the timer for an incomplete request."""
        self._head_size += len(data)
        self._received += len(data)
        idle, cycle = self.timeout_keep_alive_task, self.cycle
        self._feed(data)
        if self._is_handed_over:
            return
        if self._receiving is _Receiving.NOTHING:
            self._head_size = 0
            is_over = self.cycle is None or self.cycle.response_complete
            if is_over and self.timeout_keep_alive_task is None:
                # The data began no request, or ended one that was answered before.
                deadline = idle.when() if idle is not None and self.cycle is cycle else None
                self._start_idle_timer(deadline)
        elif self._head_size > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            self._reject(b"431 Request Header Fields Too Large")
        else:
            self._start_request_timer()

    def _feed(self, data: bytes) -> None:
        """Feed the parser, and ignore ``Upgrade`` but to a WebSocket where one is taken.

        The parser stops after a head that asks for another protocol. The head is then parsed again
        without that, as RFC 9110 §7.8 allows: HTTP/2 clients ask for an upgrade at first.
        """
        super().data_received(data)
        while self._head_end is not None:
            rest = data[self._head_end :]
            self._head_end = None
            if self._becomes_socket(rest):
                return
            data = self._head_again(without_upgrade=True) + rest
            # The old parser may expect no further data: HTTP/1.0 and Connection: close.
            self.parser = _parser_for(self)
            super().data_received(data)

    def _becomes_socket(self, rest: bytes) -> bool:
        """Make this a WebSocket if the parsed head asks for one; ``rest`` came behind it.

        That waits for the answers to the requests before it.
        """
        upgrades = self.limits.upgrades
        scope = None if upgrades is None else self._complete_scope()
        if upgrades is None or scope is None or not upgrades.takes(scope):
            return False
        self._receiving = _Receiving.NOTHING
        if self._must_wait():
            self._backlog = self._head_again() + rest + self._backlog
            self.parser = _parser_for(self)
            self._reserve_soon()
            return True
        rest += self._backlog
        self._let_go()
        connections, tasks = self.connections, self.tasks
        handed = Handed(scope, rest, self.app, connections, tasks, self.access_log)
        upgrades.hand_over(self.transport, handed)
        return True

    def _complete_scope(self) -> dict[str, Any] | None:
        """Return the scope of the parsed head, as uvicorn completes it; nothing for a bad path."""
        try:
            url = httptools.parse_url(self.url)
            path = unquote(url.path.decode("ascii"))
        except (httptools.HttpParserError, UnicodeDecodeError, AttributeError):
            return None
        return {
            **self.scope,
            "path": self.root_path + path,
            "raw_path": self.root_path.encode("ascii") + url.path,
            "query_string": url.query or b"",
        }

    def _let_go(self) -> None:
        """Give the transport away: this is no HTTP connection any more."""
        self._is_handed_over = True
        for timer in (self._request_timer, self._backlog_timer):
            if timer is not None:
                timer.cancel()
        self._request_timer = self._backlog_timer = None
        self._unset_keepalive_if_required()
        self._flow.unblock()
        self.limits.unsent_bytes.discard(self)
        self._backlog = b""
        self._reserve(0)
        self._pipelined.clear()
        self.connections.discard(self)
        self.parser = self.cycle = None  # type: ignore[assignment]

    def _head_again(self, *, without_upgrade: bool = False) -> bytes:
        """Return the parsed head, also without its request for another protocol."""
        method, version = self.scope["method"], self.scope["http_version"]
        lines = [b"%b %b HTTP/%b\r\n" % (method.encode(), self.url, version.encode())]
        for name, value in self.headers:
            if without_upgrade and name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(each for each in options if each.lower() != _UPGRADE)
            if not (without_upgrade and name == _UPGRADE):
                lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join(lines) + b"\r\n"

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP; a complete request before it is answered first."""
        cycle = self.cycle
        is_complete = self._receiving is not _Receiving.BODY or bool(self.pipeline)
        if is_complete and cycle is not None and not cycle.response_complete:
            self._close_after_response()
        else:
            super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Note where in its data the parser stopped."""
        stopped = sys.exception()
        if self._asks_for_upgrade and isinstance(stopped, httptools.HttpParserUpgrade):
            self._head_end = stopped.args[0]

    def _start_request_timer(self) -> None:
        """Start the timer for the rest of a request, and note that data came."""
        self._last_data_at = self.loop.time()
        if self._started_at is None:
            self._started_at = self._last_data_at
            self._received = 0
            if self._request_timer is not None and self._request_timer.when() > self._deadline:
                self._request_timer.cancel()
                self._request_timer = None
            if self._request_timer is None:
                self._request_timer = self.loop.call_at(self._deadline, self._on_request_timer)
        self._reserve_soon()

    def on_message_begin(self) -> None:
        """Begin a request (parser callback)."""
        self._receiving, self._started_at = _Receiving.HEAD, None
        self._asks_for_upgrade = False
        super().on_message_begin()
        if self._extensions:
            self.scope["extensions"] = dict(self._extensions)

    def on_headers_complete(self) -> None:
        """Begin the response of a request (parser callback)."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._asks_for_upgrade = True
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self.scope["http_version"] = self.parser.get_http_version()
            return
        self._receiving, self._started_at = _Receiving.BODY, None
        self._body_size = 0
        before = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            self._pipelined.append(before)
            self._reserve_soon()

    def on_body(self, body: bytes) -> None:
        """Append to the body of a request (parser callback)."""
        self._head_size = 0
        self._body_size += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request (parser callback)."""
        if self._asks_for_upgrade:
            return
        self._receiving = _Receiving.NOTHING
        self._head_size = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin the next response, once the client has read enough of this one."""
        if self.pipeline and self.flow.write_paused and not self.transport.is_closing():
            self._is_next_deferred = True
            return
        super().on_response_complete()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._start_idle_timer()
        elif self._has_buffered:
            self._has_buffered = False
            if not self.pipeline:
                self._pipelined.clear()
            self._parse_backlog()

    def pause_writing(self) -> None:
        """Watch an answer whose reader is slow (transport callback)."""
        super().pause_writing()
        self.limits.unsent_bytes.add(self, self.timeout_keep_alive)

    def resume_writing(self) -> None:
        """Continue after the reader caught up (transport callback)."""
        super().resume_writing()
        self.limits.unsent_bytes.discard(self)
        if self._is_next_deferred:
            self._is_next_deferred = False
            self.on_response_complete()
        elif self._backlog:
            self._parse_backlog()

    def unsent(self) -> int:
        """Return how many bytes the client has not read."""
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Abort the connection of a client that does not read."""
        _log.debug("%s does not read what it asked for", self.client)
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is idle, or whose client does not read the answer."""
        unsent, before = self.transport.get_write_buffer_size(), self._last_unsent
        self._last_unsent = unsent
        if not unsent:
            super().timeout_keep_alive_handler()
        elif before and unsent >= before:
            self.transport.abort()
        else:
            self._start_idle_timer()

    def _start_idle_timer(self, deadline: float | None = None) -> None:
        """Close the connection if no request comes until ``deadline``."""
        if deadline is None:
            deadline = self.loop.time() + self.timeout_keep_alive
        self.timeout_keep_alive_task = self.loop.call_at(deadline, self.timeout_keep_alive_handler)

    @property
    def _deadline(self) -> float:
        assert self._started_at is not None
        if self._receiving is _Receiving.HEAD:
            return self._started_at + self.limits.head_timeout
        deadline = self._started_at + self._received / MIN_BODY_RATE
        return min(deadline, self._last_data_at) + self.limits.body_timeout

    def _on_request_timer(self) -> None:
        """Refuse a request that is past its deadline, or set the timer again."""
        self._request_timer = None
        if self._receiving is _Receiving.NOTHING or self.transport.is_closing():
            return
        now = self.loop.time()
        if self._started_at is None or self._is_client_blocked():
            self._started_at, self._last_data_at, self._received = now, now, 0
        if now < self._deadline:
            self._request_timer = self.loop.call_at(self._deadline, self._on_request_timer)
        else:
            self._reject(b"408 Request Timeout")

    def _is_client_blocked(self) -> bool:
        """Return whether the client has to wait for the server before it can send."""
        cycle = self.cycle
        if self.flow.read_paused:
            return True
        if cycle is None or cycle.response_complete:
            return False
        return self._receiving is _Receiving.HEAD or cycle.response_started

    def _reject(self, status: bytes, headers: bytes = b"") -> None:
        """Refuse the request being received with a status, or abort where none can be sent."""
        if self.transport.is_closing():
            return  # it was refused already: an address that no parser takes
        cycle = self.cycle
        if self._receiving is _Receiving.HEAD:
            may_answer = cycle is None or cycle.response_complete
        else:
            may_answer = not (cycle.response_started or self.pipeline)
        _log.debug("%s: %s", self.client, status.decode())
        if may_answer:
            self._respond_and_close(status, headers)
        else:
            self.transport.abort()

    def _respond_and_close(self, status: bytes, headers: bytes = b"") -> None:
        self.transport.write(
            b"HTTP/1.1 %s\r\n%scontent-length: 0\r\nconnection: close\r\n\r\n" % (status, headers)
        )
        self.transport.close()


def _parser_for(protocol: BoundedProtocol) -> httptools.HttpRequestParser:
    """Return a parser configured as uvicorn's: it ignores data after the last request."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def protocol_with(limits: ConnectionLimits) -> type[BoundedProtocol]:
    """Return the protocol class of connections with these limits."""
    return type("Connection", (BoundedProtocol,), {"limits": limits})
