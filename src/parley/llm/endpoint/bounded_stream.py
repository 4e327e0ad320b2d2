"""The bytes of an answer of an endpoint, bounded: no line and no stream goes on for ever."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx2

from parley.llm.model import ModelFailed

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""How many bytes an event of a stream may have, and so a line of it."""

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""How many bytes an answer may have, with what is around its text: a token costs some hundred."""

_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_DATA = re.compile(rb"(?:^|[\r\n])data: *[^\s]")


class BoundedStream(httpx2.AsyncByteStream):
    """The body of an answer. Reading raises ``ModelFailed`` at what is too much of it.

    ``place`` names the endpoint. ``is_encoded``: the body is compressed, although it was asked for
    as it is; a few bytes of that could be any number. With ``has_events`` it is a stream of events;
    events without data, such as comments and pings, are left out.
    """

    def __init__(
        self, stream: httpx2.AsyncByteStream, place: str, *, is_encoded: bool, has_events: bool
    ) -> None:
        self._stream = stream
        self._place = place
        self._is_encoded = is_encoded
        self._has_events = has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_encoded:
            raise ModelFailed(
                f"{self._place} answered compressed, which it was asked not to "
                "(Accept-Encoding: identity); does a proxy in between compress?"
            )
        total, held = 0, bytearray()
        async for chunk in self._stream:
            total += len(chunk)
            if total > MAX_ANSWER_BYTES:
                raise ModelFailed(
                    f"the reply of {self._place} has more than {MAX_ANSWER_BYTES:,} bytes, so it "
                    "was cut off; max_reply_tokens= bounds replies"
                )
            if not self._has_events:
                yield chunk
                continue
            searched = max(0, len(held) - 3)
            held += chunk
            begin = 0
            for end in _END.finditer(held, searched):
                event = bytes(held[begin : end.end()])
                begin = end.end()
                if _DATA.search(event):
                    yield event
            del held[:begin]
            if len(held) > MAX_EVENT_BYTES:
                raise ModelFailed(
                    f"an event of the stream of {self._place} has more than {MAX_EVENT_BYTES:,} "
                    "bytes, so the reply was cut off"
                )
        yield bytes(held)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()
