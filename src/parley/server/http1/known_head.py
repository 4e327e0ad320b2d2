"""The head that a connection saw last: clients repeat theirs, but for the length of the body."""

from __future__ import annotations

import re

from parley.server.http.exchange import DirectRequests
from parley.server.http1.head import MAX_LENGTH_DIGITS, RequestHead

_MAX_KNOWN = 2048
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,%d})\r\n" % MAX_LENGTH_DIGITS, re.IGNORECASE)


class KnownHead:
    """The last head of a connection, and what answers the requests that have it.

    Data begins with the same head if it has the same bytes, but for the digits of Content-Length.
    ``read_head`` gives the same for it then: those digits say where the body ends, and nothing
    else. A head without such digits, as those of GET are, is the same if all of its bytes are.
    ``size`` is how long the head is in the data that was found to begin with it last. ``revision``
    is that of the app when it said what answers.
    """

    __slots__ = ("_begin", "_end", "_head", "_length", "requests", "revision", "size")

    def __init__(
        self,
        head: bytes,
        length: int,
        digits: tuple[int, int] | None,
        requests: DirectRequests,
        revision: int,
    ) -> None:
        """``length`` is that of the body, ``digits`` where the head says it, if it does."""
        self._head = head
        self._length = length
        self._begin, self._end = digits or (0, 0)
        self.requests = requests
        self.revision = revision
        self.size = len(head)

    @classmethod
    def of(
        cls, data: bytes, head: RequestHead, requests: DirectRequests, revision: int
    ) -> KnownHead | None:
        """Return a head that was read from ``data``; ``None`` for one that none should follow."""
        if len(data) > _MAX_KNOWN or head.is_expecting or head.is_upgrade or not head.keeps_alive:
            return None
        if head.length is None:
            return None  # in chunks, its body has no length, and each has to be read
        found = _LENGTH.search(data)
        return cls(data, head.length, found and found.span(1), requests, revision)

    def length_in(self, data: bytes) -> int:
        """Return the length of the body of a request that begins with this head; else -1."""
        known = self._head
        if data[: self.size] == known:  # most requests of a client are as long as the last one
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
