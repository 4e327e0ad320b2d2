"""Server-sent events: the framing of streams (the EventSource part of the HTML standard)."""

from __future__ import annotations

from typing import NamedTuple

from parley.model.errors import InvalidAgentResponseError

KEEP_ALIVE = b":\n\n"
"""A comment, which readers ignore: it shows that the stream is alive."""

MAX_EVENT = 64 * 1024 * 1024

_LF, _CR = b"\n\r"


def frame(data: bytes, id: int | None = None, before: bytes = b"", after: bytes = b"") -> bytes:
    """Return one event. A reader resumes after its ``id``, the number in the task's log.

    Its data is ``data`` between ``before`` and ``after``, which have no line breaks.
    """
    if _LF in data or _CR in data:
        data = b"\ndata: ".join(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))
    if id is None:
        return b"data: %b%b%b\n\n" % (before, data, after)
    return b"id: %d\ndata: %b%b%b\n\n" % (id, before, data, after)


class SseEvent(NamedTuple):
    """One event: its own id (``None`` when it has none), its type, its data."""

    id: str | None
    event: str
    data: bytes


def _end_of_event(chunk: bytes, *, at_line: bool) -> int:
    """Return where an event ends that began before, or the end of the chunk; ``at_line``: a line
    begins with the chunk.
    """
    if at_line and chunk.startswith(b"\n"):
        return 1
    end = chunk.find(b"\n\n")
    return len(chunk) if end < 0 else end + 2


class SseParser:
    """Parses the bytes of a stream into events, independent of the chunking.

    Accepts all line endings, a byte order mark, comments, and data of several lines. ``retry`` is
    the last reconnection time of the stream, in milliseconds. An event without its closing empty
    line is never returned. An event takes at most ``max_event`` bytes of memory.
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
        self._size = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that ``chunk`` completes, in order.

        Raises ``InvalidAgentResponseError`` when an event is too large; then the parser cannot be
        used any more.
        """
        if self._after_cr and chunk.startswith(b"\n"):  # the second half of a CRLF
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        if _CR in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[SseEvent] = []
        begin = 0
        if self._line or self._size or self._at_start:
            begin = _end_of_event(chunk, at_line=not self._line)
            self._feed_lines(chunk[:begin], events)
        begin = self._feed_events(chunk, begin, events)
        if begin < len(chunk):
            self._feed_lines(chunk[begin:], events)
        return events

    def _feed_events(self, chunk: bytes, begin: int, events: list[SseEvent]) -> int:
        """Read the complete events from ``begin`` on. Return the end of the last one.

        Most events are one line of data, perhaps after a line with an id: these are sliced
        directly. The lines of any other event are parsed one by one, as for an event in several
        chunks.
        """
        find, starts = chunk.find, chunk.startswith
        while (end := find(b"\n\n", begin)) >= 0:
            line, id = begin, None
            if starts(b"id: ", begin):
                line = find(b"\n", begin, end) + 1
                id = chunk[begin + 4 : line - 1] if line else b"\0"
            if (
                starts(b"data: ", line)
                and find(b"\n", line, end) < 0
                and (id is None or b"\0" not in id)
            ):
                self._check_size(end - begin - (id is not None))
                text = None if id is None else id.decode(errors="replace")
                events.append(SseEvent(text, "message", chunk[line + 6 : end]))
            else:
                self._feed_lines(chunk[begin : end + 2], events)
            begin = end + 2
        return begin

    def _feed_lines(self, chunk: bytes, events: list[SseEvent]) -> None:
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
            if self._at_start:
                self._at_start = False
                lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            for line in lines:
                if line:
                    self._parse_line(line)
                elif self._size:
                    self._finish(events)
        self._line += rest
        self._check_size(len(self._line))

    def _parse_line(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not field:
            return  # a comment
        self._size += len(line)
        self._check_size(0)
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
        self._size = 0

    def _check_size(self, more: int) -> None:
        if self._size + more > self._max_event:
            raise InvalidAgentResponseError(
                f"an event of the stream is larger than {self._max_event} bytes"
            )
