"""Server-sent events: the framing of streams (the EventSource part of the HTML standard)."""

from __future__ import annotations

from typing import NamedTuple

from parley.model.errors import InvalidAgentResponseError

KEEP_ALIVE = b":\n\n"
"""A comment, which readers skip: it shows that the stream is alive."""

MAX_EVENT = 64 * 1024 * 1024

_LF, _CR = b"\n\r"


def frame(data: bytes, id: int | None = None) -> bytes:
    """Return one event. ``id`` is its number in the task's log, which a reader resumes after."""
    if _LF in data or _CR in data:
        data = b"\ndata: ".join(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))
    if id is None:
        return b"data: %b\n\n" % data
    return b"id: %d\ndata: %b\n\n" % (id, data)


class SseEvent(NamedTuple):
    """One event: its own id (``None`` when it has none), its type, its data."""

    id: str | None
    event: str
    data: bytes


class SseParser:
    """Makes events of a stream's bytes, wherever they are cut.

    Takes any line ends, a byte order mark, comments, data of several lines. ``retry`` is what the
    stream last asked for, in milliseconds. An event without its closing empty line is never
    returned, and no event may hold more than ``max_event`` bytes in memory.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self.retry: int | None = None
        self._max_event = max_event
        self._at_start = True
        self._after_cr = False
        self._line = bytearray()
        self._id: str | None = None
        self._event = ""
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that ``chunk`` completes, in order.

        Raises ``InvalidAgentResponseError`` when an event is larger than the bound; the parser is
        of no use after that.
        """
        if self._after_cr and chunk.startswith(b"\n"):  # the second half of a CRLF
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        if _CR in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        events: list[SseEvent] = []
        if lines:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
            if self._at_start:
                self._at_start = False
                lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            for line in lines:
                if line:
                    self._take(line)
                elif self._held:
                    self._finish(events)
        self._line += rest
        self._check(len(self._line))
        return events

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not field:
            return  # a comment
        self._held += len(line)
        self._check(0)
        if field == b"data":
            self._data.append(value)
        elif field == b"id":
            if b"\0" not in value:
                self._id = value.decode(errors="replace")
        elif field == b"event":
            self._event = value.decode(errors="replace")
        elif field == b"retry" and value.isdigit() and len(value) < 10:
            self.retry = int(value)

    def _finish(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent(self._id, self._event or "message", b"\n".join(self._data)))
        self._id = None
        self._event = ""
        self._data = []
        self._held = 0

    def _check(self, more: int) -> None:
        if self._held + more > self._max_event:
            raise InvalidAgentResponseError(
                f"an event of the stream is larger than {self._max_event} bytes"
            )
