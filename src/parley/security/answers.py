"""How much of an answer is read before it is known what the answer is.

An HTTP library parses whatever arrives at once, before anything else gets a turn: a server that
sends interim answers, headers or further answers without end would have this process read nothing
else. So what arrives is parsed a small piece at a time, and a connection on which more comes than
an answer needs is cut.
"""

from __future__ import annotations

import asyncio
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.client_proto import ResponseHandler

PIECE = 8 * 1024
"""How many bytes are parsed before it is looked at what came of them."""

HEAD_BYTES = 64 * 1024
"""How many bytes the head of an answer may take, interim answers before it included."""

INTERIM = 100
"""How many interim answers (1xx) there may be before an answer."""

IDLE_BYTES = 1024 * 1024
"""How many bytes may come for a body without being of it: chunk extensions, trailers."""


class AnswerTooLarge(OSError):
    """More came on a connection than an answer may take; the connection was cut."""

    def __init__(self) -> None:
        super().__init__("more came than an answer may take")


def bounded_connector(**options: Any) -> aiohttp.TCPConnector:
    """Return a connector, with the options of ``TCPConnector``, that reads bounded answers.

    A call whose answer goes beyond the bounds fails with ``AnswerTooLarge``, or with a
    ``ClientError`` that has it for a cause. Nothing may come on a connection that is kept for the
    next call. A body is for its reader to bound.
    """
    import aiohttp

    connector = aiohttp.TCPConnector(**options)
    # What reads from a connection is made here and nowhere else; there is no public way to it.
    connector._factory = partial(_reader(), loop=asyncio.get_running_loop())
    return connector


@cache
def _reader() -> type[ResponseHandler]:
    from aiohttp import StreamReader
    from aiohttp.client_proto import ResponseHandler

    class AnswerReader(ResponseHandler):
        """Reads the answers on one connection, one for each request."""

        _is_begun = _is_expected = _is_cut = False
        _head_bytes = _interim = _idle_bytes = _body_bytes = 0
        _body: StreamReader | None = None

        def set_response_params(self, **params: Any) -> None:
            """Expect an answer."""
            self._is_begun = self._is_expected = True
            self._head_bytes = self._interim = self._idle_bytes = self._body_bytes = 0
            self._body = None
            super().set_response_params(**params)

        def feed_data(self, data: Any, size: int = 0) -> None:
            """Take an answer whose head was parsed, if one is expected."""
            message, body = data
            if not self._is_expected or self._is_cut:
                self._cut()
                return
            super().feed_data(data, size)
            if 100 <= message.code < 200 and message.code != 101:
                self._interim += 1
                if self._interim > INTERIM:
                    self._cut()
            else:
                self._is_expected = False
                self._body = body

        def data_received(self, data: bytes) -> None:
            """Parse what came in, as far as it may be of an answer."""
            if not data:
                super().data_received(data)  # which parses what had to wait
            for begin in range(0, len(data), PIECE):
                if self._is_cut:
                    return
                self._take(data[begin : begin + PIECE])

        def _take(self, piece: bytes) -> None:
            if self._is_expected or not self._is_begun:
                self._head_bytes += len(piece)
                if self._head_bytes > HEAD_BYTES:
                    self._cut()
                    return
            elif self._body is None or self._body.is_eof():
                self._cut()
                return
            super().data_received(piece)
            body = self._body
            if body is not None:
                is_new = body.total_bytes != self._body_bytes
                self._body_bytes = body.total_bytes
                self._idle_bytes = 0 if is_new else self._idle_bytes + len(piece)
                if self._idle_bytes > IDLE_BYTES:
                    self._cut()

        def _cut(self) -> None:
            if self._is_cut:
                return
            self._is_cut = True
            if self._body is None:
                self.set_exception(AnswerTooLarge())
            elif not self._body.is_eof():
                self._body.set_exception(AnswerTooLarge())
            self.force_close()
            if self.transport is not None:
                self.transport.abort()

    return AnswerReader
