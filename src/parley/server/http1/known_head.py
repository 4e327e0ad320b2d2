"""The head that a connection saw last: clients repeat theirs, but for the length of the body."""

from __future__ import annotations

import re

from parley.server.http.exchange import DirectRequests
from parley.server.http1.head import MAX_LENGTH_DIGITS, RequestHead

_MAX_KNOWN = 2048
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,%d})\r\n" % MAX_LENGTH_DIGITS, re.IGNORECASE)


class KnownHead:
    """One head that was read, and what answers the requests that have it.

    Data begins with the same head if it has the same bytes, but for the digits of Content-Length.
    ``read_head`` gives the same for it then: those digits say where the body ends, and nothing
    else. A head without such digits, as those of GET are, is the same if all of its bytes are.
    ``size`` is how long the head is in the data that was looked at last. ``revision`` is that of
    the app when it said what answers.
    """

    __slots__ = ("_after", "_before", "_length", "requests", "revision", "size")

    def __init__(
        self,
        before: bytes,
        after: bytes,
        requests: DirectRequests,
        revision: int,
        length: int | None = None,
    ) -> None:
        """``length`` is that of each body, where nothing lies between ``before`` and ``after``."""
        self._before = before
        self._after = after
        self._length = length
        self.requests = requests
        self.revision = revision
        self.size = 0

    @classmethod
    def of(
        cls, data: bytes, head: RequestHead, requests: DirectRequests, revision: int
    ) -> KnownHead | None:
        """Return a head that was read from ``data``; ``None`` for one that none should follow."""
        if len(data) > _MAX_KNOWN or head.is_expecting or head.is_upgrade or not head.keeps_alive:
            return None
        found = _LENGTH.search(data)
        if found is None:
            # In chunks, its body has no length, and each has to be read.
            return None if head.length is None else cls(data, b"", requests, revision, head.length)
        return cls(data[: found.start(1)], data[found.end(1) :], requests, revision)

    def length_in(self, data: bytes) -> int:
        """Return the length of the body of a request that begins with this head; else -1."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return -1
        start = len(before)
        if self._length is not None:
            self.size = start
            return self._length
        end = data.find(b"\r", start, start + MAX_LENGTH_DIGITS + 1)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(after, end):
            return -1
        self.size = end + len(after)
        return int(digits)
