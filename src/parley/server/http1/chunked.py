"""Reads bodies in chunks (RFC 9112 §7.1), strictly: two readers never differ about their end."""

from __future__ import annotations

import re

from parley.server.http1.head import MAX_HEAD, RequestRefused

_MAX_SIZE_DIGITS = 16
# What is beside the data: extensions of chunks and trailers, whose content is ignored.
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
        """Take from the buffer what belongs to the body, and return the data in it.

        Raises ``RequestRefused`` for what is malformed.
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
