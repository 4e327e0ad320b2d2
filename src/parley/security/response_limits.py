"""Limits on HTTP responses, for connections to servers that are not trusted.

An HTTP library parses everything that has arrived before the event loop continues, so endless
interim responses, headers or further responses would block the process. Therefore data is parsed in
small chunks, and a connection that exceeds a limit is closed.
"""

from __future__ import annotations

import asyncio
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.client_proto import ResponseHandler

CHUNK_BYTES = 8 * 1024
"""The bytes that are parsed between two checks of the limits."""

MAX_HEAD_BYTES = 64 * 1024
"""The size of the head of a response, with the interim responses before it."""

MAX_INTERIM = 100
"""The number of interim responses (1xx) before a response."""

MAX_IDLE_BYTES = 1024 * 1024
"""The maximum number of bytes between parts of a body: chunk extensions and trailers."""


class ResponseLimitExceeded(OSError):
    """A response exceeded the limits. Its connection is closed."""

    def __init__(self) -> None:
        super().__init__("the response exceeds the limits")


def bounded_connector(**options: Any) -> aiohttp.TCPConnector:
    """Return a connector with options of ``TCPConnector`` that bounds responses.

    A call whose response exceeds the limits fails with ``ResponseLimitExceeded``, or with a
    ``ClientError`` whose cause it is. Data on an idle connection exceeds the limits too. The reader
    of a body must bound the body itself.
    """
    import aiohttp

    connector = aiohttp.TCPConnector(**options)
    # There is no public way to replace the reader of a connection.
    connector._factory = partial(_reader(), loop=asyncio.get_running_loop())
    return connector


@cache
def _reader() -> type[ResponseHandler]:
    from aiohttp import StreamReader
    from aiohttp.client_proto import ResponseHandler

    class ResponseReader(ResponseHandler):
        """Reads the responses on one connection, one for each request."""

        _is_begun = _is_expected = _is_aborted = False
        _is_upgraded = False
        _head_bytes = _interim = _idle_bytes = _body_bytes = 0
        _body: StreamReader | None = None

        def set_response_params(self, **params: Any) -> None:
            """Expect a response."""
            self._is_begun = self._is_expected = True
            self._head_bytes = self._interim = self._idle_bytes = self._body_bytes = 0
            self._body = None
            self._is_upgraded = False
            super().set_response_params(**params)

        def feed_data(self, data: Any, size: int = 0) -> None:
            """Handle a response whose head has been parsed."""
            message, body = data
            if not self._is_expected or self._is_aborted:
                self._abort()
                return
            super().feed_data(data, size)
            if 100 <= message.code < 200 and message.code != 101:
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    self._abort()
            else:
                self._is_expected = False
                self._is_upgraded = message.code == 101
                self._body = body

        def data_received(self, data: bytes) -> None:
            """Parse data in chunks, within the limits."""
            if not data:
                super().data_received(data)  # parses the buffered data
            if self._payload_parser is not None:  # WebSocket frames have limits of their own
                super().data_received(data)
                return
            for begin in range(0, len(data), CHUNK_BYTES):
                if self._is_aborted:
                    return
                self._parse(data[begin : begin + CHUNK_BYTES])

        def _parse(self, piece: bytes) -> None:
            if self._is_expected or not self._is_begun:
                self._head_bytes += len(piece)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._abort()
                    return
            elif self._is_upgraded:
                # Buffered until the parser of frames is set; without one, the data is never read.
                self._idle_bytes += len(piece)
                if self._idle_bytes > MAX_IDLE_BYTES:
                    self._abort()
                    return
            elif self._body is None or self._body.is_eof():
                self._abort()
                return
            super().data_received(piece)
            body = self._body
            if body is not None and not self._is_upgraded:
                is_new = body.total_bytes != self._body_bytes
                self._body_bytes = body.total_bytes
                self._idle_bytes = 0 if is_new else self._idle_bytes + len(piece)
                if self._idle_bytes > MAX_IDLE_BYTES:
                    self._abort()

        def _abort(self) -> None:
            if self._is_aborted:
                return
            self._is_aborted = True
            if self._body is None:
                self.set_exception(ResponseLimitExceeded())
            elif not self._is_upgraded and not self._body.is_eof():
                self._body.set_exception(ResponseLimitExceeded())
            self.force_close()
            if self.transport is not None:
                self.transport.abort()

    return ResponseReader
