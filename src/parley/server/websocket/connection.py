"""A WebSocket connection: moves the bytes of websockets' Sans-I/O protocol, within limits.

``websockets`` frames, unmasks and validates. This module has the transport, the messages from and
to the ASGI app, the limits on buffers, and the end of a connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Scope
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from parley.model.errors import OverloadedError
from parley.security.networks import network_of
from parley.server.log import log_request
from parley.server.websocket.admission import DENIAL, SERVICE_RESTART, SHUTTING_DOWN, short
from parley.server.websocket.serving import (
    BadHandshake,
    Handed,
    SocketServing,
    read_handshake,
    socket_scope,
)

# -- answers to handshakes --------------------------------------------------------------------

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


def checked(headers: Iterable[Any]) -> list[tuple[bytes, bytes]]:
    """Return headers of the app. Raises ``RuntimeError`` for an invalid header."""
    found = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    for name, value in found:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise RuntimeError(f"{name!r} is no header with this value, or none at all")
        if name.startswith(b"sec-websocket-") and name != b"sec-websocket-version":
            raise RuntimeError(f"{name.decode()} is the server's own header")
    return found


def head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the head of an answer."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode())]
    lines += [b"%b: %b\r\n" % header for header in headers]
    return b"".join(lines) + b"\r\n"


# -- unread messages --------------------------------------------------------------------------

# The limits on messages, and bytes of them, above which nothing more is read.
_MAX_MESSAGES = 32
_MAX_BYTES = 64 * 1024
# The cost of a message besides its bytes.
_OVERHEAD = 256


class UnreadMessages:
    """A queue between a connection and its app, with a bound; it uses little memory while idle."""

    __slots__ = ("_bytes", "_messages", "_reader", "is_discarding")

    def __init__(self) -> None:
        self._messages: deque[str | bytes] | None = None
        self._bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self.is_discarding = False

    @property
    def is_full(self) -> bool:
        """True if the client has to wait."""
        messages = self._messages
        return messages is not None and (
            len(messages) >= _MAX_MESSAGES or self._bytes >= _MAX_BYTES
        )

    @property
    def size(self) -> int:
        """The number of buffered bytes."""
        return 0 if self._messages is None else self._bytes + len(self._messages) * _OVERHEAD

    def put(self, message: str | bytes) -> None:
        """Add a message, unless the app has ended."""
        if self.is_discarding:
            return
        if self._messages is None:
            self._messages = deque()
        self._messages.append(message)
        self._bytes += len(message)
        self.wake()

    def get(self) -> str | bytes | None:
        """Remove and return the first message; ``None`` if there is none."""
        if self._messages is None:
            return None
        message = self._messages.popleft()
        self._bytes -= len(message)
        if not self._messages:
            self._messages = None
        return message

    def discard(self) -> None:
        """Drop all messages, and later ones too."""
        self.is_discarding = True
        self._messages, self._bytes = None, 0

    async def changed(self) -> None:
        """Wait for a message, or to be woken."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def wake(self) -> None:
        """Wake the app, if it waits."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


# -- connection -------------------------------------------------------------------------------


# The number of bytes parsed at once: a frame may have as few as six.
_CHUNK = 4096
# Beyond this many unsent bytes the app's writes pause.
_WRITE_BUFFER = 16 * 1024
# Bytes per second at which a message never times out.
_MIN_MESSAGE_RATE = 4096

_PING = b"\x89\x00"
_PONG = 0x8A
_CLOSED = b"\x88"

_NORMAL = 1000
_ABNORMAL = 1006
_INVALID_DATA = 1007
_POLICY_VIOLATION = 1008
_INTERNAL_ERROR = 1011
_TRY_AGAIN_LATER = 1013

_log = logging.getLogger("parley.server")
# websockets logs the end of each connection; the relevant part is logged here.
_frames_log = logging.getLogger("parley.server.frames")
_frames_log.setLevel(logging.ERROR)


class SocketDisconnected(ConnectionError):
    """The client of a WebSocket has left."""


class SocketConnection(asyncio.Protocol):
    """One WebSocket: the protocol of its transport, and ``receive`` and ``send`` of its app.

    Nothing is read from the transport while messages wait for the app, or before it has accepted.
    Unread bytes of both sides count in the budgets of the server; a client that does not read is
    disconnected, as for HTTP answers. All timeouts are shared (``SocketServing``).
    """

    __slots__ = (
        "_accept", "_address", "_backlog", "_connections", "_denial", "_disconnect", "_frames",
        "_is_closed", "_is_connect_received", "_is_heard", "_is_reading_paused", "_is_text",
        "_is_write_paused", "_logged", "_message", "_partial", "_pong", "_received", "_reserved",
        "_serving", "_subprotocols", "_task", "_transport", "_unread", "_writers", "network",
    )  # fmt: skip

    is_idle = False
    """Always false: a WebSocket is never closed to make room for another connection."""

    def __init__(self, serving: SocketServing, transport: asyncio.Transport) -> None:
        self._serving = serving
        self._transport = transport
        self._accept = b""
        self._address = self.network = ""
        self._subprotocols: tuple[str, ...] = ()
        self._connections: Any = None
        self._task: asyncio.Task[None] | None = None
        self._logged: Scope | None = None
        # None until the app accepts.
        self._frames: ServerProtocol | None = None
        # The status and headers of a rejection, until its body arrives.
        self._denial: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._is_closed = self._is_connect_received = False
        self._is_reading_paused = self._is_write_paused = False
        self._is_heard = True
        # Input: unparsed bytes, an incomplete frame, a message in fragments.
        self._backlog = b""
        self._partial = self._received = self._reserved = 0
        self._message: bytearray | None = None
        self._is_text = True
        self._unread = UnreadMessages()
        self._disconnect: tuple[int, str] | None = None
        # Output: a waiter until the client reads, and the pong for its last ping meanwhile.
        self._writers: asyncio.Future[None] | None = None
        self._pong = b""

    # -- the beginning -------------------------------------------------------------------------

    def begin(self, handed: Handed) -> None:
        """Shake hands, and call the app."""
        transport = self._transport
        transport.set_protocol(self)
        transport.set_write_buffer_limits(_WRITE_BUFFER)
        client = transport.get_extra_info("peername")
        self._address = client[0] if isinstance(client, tuple) else ""
        self.network = network_of(self._address)
        self._connections = handed.connections
        self._connections.add(self)
        if handed.logs_access:
            self._logged = handed.scope
        try:
            handshake = read_handshake(handed.scope)
        except BadHandshake as error:
            body = msgspec.json.encode({"error": str(error)})
            headers = [(b"content-type", b"application/json"), *error.headers]
            self._write_denial(error.status, headers, body)
            return
        self._accept = handshake.accept
        self._subprotocols = handshake.subprotocols
        self._backlog = handed.rest
        self._pause_reading()
        self._reserve()
        scope = socket_scope(handed.scope, handshake)
        self._task = asyncio.get_running_loop().create_task(self._run(handed.app, scope))
        handed.tasks.add(self._task)
        self._task.add_done_callback(handed.tasks.discard)

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        """Call the app, and end the socket with it."""
        try:
            await app(scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._end(SERVICE_RESTART, SHUTTING_DOWN, status=503)
            self._transport.close()
            raise
        except Exception as error:
            # The app was notified that the client has left, and may not catch that exception.
            if not isinstance(error, OSError) or self._disconnect is None:
                _log.exception("the app failed at a WebSocket")
            self._end(_INTERNAL_ERROR, "the server failed; its log says why", status=500)
        else:
            if self._frames is None and self._denial is None and not self._is_closed:
                _log.error("the app neither accepted nor rejected a WebSocket")
            self._end(_NORMAL, "", status=500)
        finally:
            self._task = None
            self._unread.discard()
            self._read_on()
            self._reserve()

    def _end(self, code: int, reason: str, *, status: int) -> None:
        """End everything that the app left open."""
        if self._is_closed or self._transport.is_closing():
            return
        if self._frames is None:
            self._write_denial(status, [], b"")
        else:
            self._close(code, reason)

    # -- ASGI ----------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next message for the app (ASGI)."""
        if not self._is_connect_received:
            self._is_connect_received = True
            return {"type": "websocket.connect"}
        while (message := self._unread.get()) is None:
            if self._disconnect is not None:
                code, reason = self._disconnect
                return {"type": "websocket.disconnect", "code": code, "reason": reason}
            await self._unread.changed()
        self._read_on()
        return {
            "type": "websocket.receive",
            "text" if isinstance(message, str) else "bytes": message,
        }

    async def send(self, message: Any) -> None:
        """Accept a message of the app (ASGI). Raises ``OSError`` when the client has left."""
        kind = message["type"]
        if self._disconnect is not None and not (self._is_closed and self._frames is None):
            raise SocketDisconnected("the client has closed the WebSocket")
        if self._is_closed:
            raise RuntimeError(f"{kind} came after the WebSocket was closed")
        if self._frames is None:
            self._answer(kind, message)
        elif kind == "websocket.send":
            await self._send(message)
        elif kind == "websocket.close":
            self._close(message.get("code") or _NORMAL, message.get("reason") or "")
        else:
            raise RuntimeError(f"{kind} came where the WebSocket was open already")

    def _answer(self, kind: str, message: Any) -> None:
        """Process the app's answer to the handshake."""
        if kind == "websocket.accept" and self._denial is None:
            self._write_accept(message.get("subprotocol"), message.get("headers") or ())
        elif kind == "websocket.close" and self._denial is None:
            self._write_denial(403, [], b"")
        elif kind == f"{DENIAL}.start" and self._denial is None:
            self._denial = message["status"], checked(message.get("headers") or ())
        elif kind == f"{DENIAL}.body" and self._denial is not None:
            status, headers = self._denial
            body, has_more = message.get("body") or b"", bool(message.get("more_body"))
            if status:
                self._denial = 0, []
                self._write_denial(status, headers, body, has_more=has_more)
            else:
                self._transport.write(body)
                if not has_more:
                    self._finish()
        else:
            raise RuntimeError(f"{kind} came before the WebSocket was accepted")

    async def _send(self, message: Any) -> None:
        while self._is_write_paused:
            await self._written()
        frames = self._frames
        if self._disconnect is not None or frames is None:
            raise SocketDisconnected("the client has closed the WebSocket")
        if frames.state is not State.OPEN:
            return  # closed in the meantime, by the client or by another task of the app
        text = message.get("text")
        if text is not None:
            frames.send_text(text.encode())
        else:
            frames.send_binary(message["bytes"])
        self._flush()
        if self._is_write_paused:
            await self._written()

    async def _written(self) -> None:
        """Wait until the client has read enough, or has left."""
        if self._writers is None:
            self._writers = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._writers)

    # -- the handshake -------------------------------------------------------------------------

    def _write_accept(
        self, subprotocol: str | None, headers: Iterable[tuple[bytes, bytes]]
    ) -> None:
        lines = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", self._accept),
        ]
        if subprotocol is not None:
            if subprotocol not in self._subprotocols:
                raise RuntimeError(f"the client does not offer the subprotocol {subprotocol!r}")
            lines.append((b"sec-websocket-protocol", subprotocol.encode()))
        lines += checked(headers)
        self._transport.write(head(101, lines))
        self._log_answer(101)
        serving = self._serving
        self._frames = ServerProtocol(
            state=State.OPEN, max_size=serving.max_message, logger=_frames_log
        )
        self._accept, self._subprotocols, self._logged = b"", (), None
        serving.pings.set(self)
        self._read_on()

    def _write_denial(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        *,
        has_more: bool = False,
    ) -> None:
        names = {name.lower() for name, _ in headers}
        if b"content-length" not in names and not has_more:
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        if b"connection" not in names:
            headers = [*headers, (b"connection", b"close")]
        self._transport.write(head(status, headers) + body)
        self._log_answer(status)
        if not has_more:
            self._finish()

    def _finish(self) -> None:
        """End a connection that becomes no socket, once the client has its answer."""
        self._is_closed = True
        self._disconnected(_ABNORMAL)
        self._linger()

    def _log_answer(self, status: int) -> None:
        if self._logged is not None:
            log_request(self._logged, status)

    # -- input ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse data, unless messages wait for the app (transport callback)."""
        self._is_heard = True
        if self._has_ended:
            if data.startswith(_CLOSED):
                self.end_lingering()  # the client has read the reason, and confirms it
            return
        if self._backlog or self._frames is None or self._unread.is_full:
            self._backlog += data
            self._pause_reading()
        else:
            self._parse(data)
        self._reserve()

    @property
    def _has_ended(self) -> bool:
        """True if further input is not read."""
        frames = self._frames
        return self._transport.is_closing() or (
            self._is_closed if frames is None else frames.eof_sent
        )

    def _read_on(self) -> None:
        """Parse the buffered data, and resume reading if there is room."""
        if self._frames is None and not self._is_closed:
            return
        data, self._backlog = self._backlog, b""
        if data and not self._has_ended:
            self._parse(data)
        if self._is_reading_paused and (
            self._has_ended or not (self._backlog or self._unread.is_full)
        ):
            self._is_reading_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        self._reserve()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _parse(self, data: bytes) -> None:
        """Parse data while there is room for its messages; the rest becomes the backlog."""
        frames = self._frames
        assert frames is not None
        begin, end = 0, len(data)
        while begin < end:
            if self._unread.is_full:
                self._backlog = data[begin:]
                self._pause_reading()
                break
            chunk = data if end <= _CHUNK else data[begin : begin + _CHUNK]
            begin += len(chunk)
            self._received += len(chunk)
            self._partial += len(chunk)
            frames.receive_data(chunk)
            for frame in frames.events_received():
                self._partial = 0
                if isinstance(frame, Frame):
                    self._on_frame(frame)
            self._flush()
            if frames.parser_exc is not None:
                self._failed()
            if self._has_ended:
                break
        if (self._partial or self._message is not None) and not self._has_ended:
            if self not in self._serving.messages:
                self._received = 0
                self._serving.messages.set(self)
        else:
            self._serving.messages.clear(self)

    def _on_frame(self, frame: Frame) -> None:
        kind = frame.opcode
        if kind is Opcode.TEXT or kind is Opcode.BINARY:
            self._is_text = kind is Opcode.TEXT
            if frame.fin:
                self._on_message(frame.data)
            else:
                self._message = bytearray(frame.data)
        elif kind is Opcode.CONT and self._message is not None:
            self._message += frame.data
            if frame.fin:
                message, self._message = self._message, None
                self._on_message(message)
        elif kind is Opcode.CLOSE:
            received = self._frames.close_rcvd if self._frames is not None else None
            if received is not None:
                self._disconnected(received.code, received.reason)

    def _on_message(self, data: Any) -> None:
        message: str | bytes
        try:
            message = str(data, "utf-8") if self._is_text else bytes(data)
        except UnicodeDecodeError:
            self._fail(_INVALID_DATA, "a message of text is not valid UTF-8")
            return
        self._unread.put(message)

    def _fail(self, code: int, reason: str) -> None:
        """Fail the socket: send the reason, and stop reading."""
        frames = self._frames
        if frames is not None and not frames.eof_sent:
            frames.fail(code, short(reason))
            self._disconnected(code, reason)
            self._flush()

    def _failed(self) -> None:
        """Record a violation by the client."""
        frames = self._frames
        if frames is not None and self._disconnect is None:
            sent = frames.close_sent
            _log.debug("%s: a WebSocket failed: %s", self._address, frames.parser_exc)
            self._disconnected(sent.code if sent is not None else _ABNORMAL)

    def _reserve(self) -> None:
        """Reserve room for unread messages; fail the socket if there is none."""
        size = len(self._backlog) + self._partial + self._unread.size
        if self._message is not None:
            size += len(self._message)
        if size <= _CHUNK:
            size = 0  # counting small messages would cost more than their memory
        if size == self._reserved:
            return
        if size < self._reserved:
            self._serving.request_bytes.release(self._address, self._reserved - size)
        else:
            try:
                self._serving.request_bytes.reserve(self._address, size - self._reserved)
            except OverloadedError as error:
                _log.debug("%s: %s", self._address, error.message)
                self._backlog, self._partial, self._message = b"", 0, None
                if self._frames is None:
                    self._transport.abort()
                else:
                    self._fail(_TRY_AGAIN_LATER, error.message)
                return
        self._reserved = size

    # -- output --------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write the protocol's output, and end the connection if the protocol has ended."""
        frames = self._frames
        assert frames is not None
        for data in frames.data_to_send():
            if not data:
                self._linger()
            elif self._is_write_paused and data[0] == _PONG:
                self._pong = data  # the answer to the last ping suffices (RFC 6455 §5.5.3)
            else:
                self._transport.write(data)

    def pause_writing(self) -> None:
        """Watch a socket whose client does not read (transport callback)."""
        self._is_write_paused = True
        self._serving.unsent_bytes.add(self, self._serving.unread_timeout)

    def resume_writing(self) -> None:
        """Continue after the client has read (transport callback)."""
        self._is_write_paused = False
        self._serving.unsent_bytes.discard(self)
        self._wake_writers()
        pong, self._pong = self._pong, b""
        if pong and not self._has_ended:
            self._transport.write(pong)

    def unsent(self) -> int:
        """Return the number of bytes that the client has not read."""
        return self._transport.get_write_buffer_size()

    # -- timeouts ------------------------------------------------------------------------------

    def ping(self) -> None:
        """Ping the client, if it could answer."""
        frames = self._frames
        if frames is None or frames.state is not State.OPEN or self._transport.is_closing():
            return
        self._serving.pings.set(self)
        if self._is_write_paused or self._is_reading_paused:
            return  # the client has to read first, or the app
        self._transport.write(_PING)
        if self not in self._serving.pongs:
            self._is_heard = False
            self._serving.pongs.set(self)

    def expect_pong(self) -> None:
        """Disconnect a client that has sent nothing since the ping."""
        if not (self._is_heard or self._is_reading_paused or self._is_write_paused):
            _log.debug("%s: a WebSocket does not answer pings", self._address)
            self.abort()

    def expect_message(self) -> None:
        """Disconnect a client whose message takes too long."""
        if self._partial or self._message is not None:
            least = _MIN_MESSAGE_RATE * self._serving.message_timeout
            if not self._is_reading_paused and self._received < least:
                self._fail(_POLICY_VIOLATION, "a message did not arrive in time")
            else:
                self._received = 0
                self._serving.messages.set(self)

    # -- the end -------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close the socket when the server ends, unless the app does it (called by the server)."""
        if self._serving.closes and self._frames is not None:
            self._close(SERVICE_RESTART, SHUTTING_DOWN)

    def abort(self) -> None:
        """Abort the connection of a client that does not read, answer, or confirm the end."""
        self._transport.abort()

    def end_lingering(self) -> None:
        """Stop waiting for a client that continues to send."""
        if not self._transport.get_write_buffer_size():
            self._transport.close()

    def _close(self, code: int, reason: str) -> None:
        """Begin to close the socket, which the client confirms."""
        self._is_closed = True
        frames = self._frames
        if frames is not None and frames.state is State.OPEN:
            frames.send_close(code, short(reason))
            self._flush()
            self._unread.discard()
            self._serving.closings.set(self)
            self._read_on()

    def _linger(self) -> None:
        """End the connection once the client has read everything.

        Its further input is dropped: closing at once could reset the connection, and the client
        would not see the reason.
        """
        frames, transport = self._frames, self._transport
        if transport.is_closing():
            return
        self._serving.closings.set(self)
        if frames is not None and frames.close_rcvd is not None:
            transport.close()
            return
        if transport.can_write_eof():
            transport.write_eof()
        self._serving.lingering.set(self)
        if self._is_reading_paused:
            self._is_reading_paused = False
            transport.resume_reading()

    def eof_received(self) -> bool:
        """End a connection that the client has ended (transport callback)."""
        frames = self._frames
        if frames is not None and not frames.eof_sent:
            frames.receive_eof()
            frames.data_to_send()
        self._disconnected(_ABNORMAL)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything (transport callback)."""
        serving = self._serving
        for timeouts in (
            serving.pings, serving.pongs, serving.messages, serving.closings, serving.lingering
        ):  # fmt: skip
            timeouts.clear(self)
        serving.unsent_bytes.discard(self)
        self._connections.discard(self)
        self._disconnected(_ABNORMAL)
        self._is_write_paused = False
        self._wake_writers()
        self._backlog, self._partial, self._message = b"", 0, None
        self._reserve()

    def _disconnected(self, code: int, reason: str = "") -> None:
        """Record the end of the socket, and notify the app."""
        if self._disconnect is None:
            self._disconnect = code, reason
        self._unread.wake()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, None
        if writers is not None and not writers.done():
            writers.set_result(None)
