"""Server-sent events: a service's events on their way to one reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Protocol, cast

from starlette.types import Receive, Send

from parley.model.errors import A2AError, OverloadedError
from parley.model.service import CallContext, StreamItem
from parley.model.tasks import Event, Task, TaskState
from parley.server.concurrency_limiter import ConcurrencyLimiter
from parley.server.failures import log_unforeseen
from parley.server.http.responses import Headers
from parley.server.settings import Settings
from parley.wire import sse

_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
)
# A service that always has a next event gives way to others after so many.
_BURST = 128


def shutting_down() -> OverloadedError:
    """Return what a caller is told whom another replica, or the next process, will serve."""
    return OverloadedError("the server is shutting down", retry_after=1)


def is_question(event: Event | None) -> bool:
    """Whether an event is a task that waits for its caller.

    A stream that answers a message begins with it when the message is for such a task. If it ended
    there, it would look as if the question were asked once more: so it is not ended cleanly there.
    """
    return isinstance(event, Task) and event.status.state is TaskState.INPUT_REQUIRED


class OpenStream:
    """One response under way. ``answers`` a message, or subscribes to a task.

    A pump takes events from the service and frames them; the request's own task sends all that
    has gathered in one piece. The pump waits while more than ``send_buffer`` bytes are gathered,
    so a slow reader costs no more than that, and holds up nobody else.
    """

    __slots__ = (
        "_answers",
        "_drained",
        "_ended",
        "_error",
        "_frames",
        "_gone",
        "_last",
        "_last_sent",
        "_limit",
        "_loop",
        "_news",
        "_room",
        "_silence",
        "_silent",
        "_size",
        "_timer",
    )

    def __init__(self, settings: Settings, *, answers: bool) -> None:
        self._answers = answers
        self._last: Event | None = None
        self._limit = settings.send_buffer
        self._silence = settings.keep_alive
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._size = 0
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._ended = self._drained = self._gone = self._silent = False
        self._error: A2AError | None = None
        self._last_sent = self._loop.time()
        self._timer = self._loop.call_later(self._silence, self._beat)

    def drain(self) -> None:
        """End the stream after what has gathered: as if nothing more came, unless that misleads."""
        self._drained = True
        self._end(shutting_down() if self._answers and is_question(self._last) else None)

    async def pump(
        self,
        items: AsyncIterator[StreamItem],
        frame: Callable[[StreamItem], bytes],
        ends: Callable[[Event], bool],
    ) -> None:
        """Take events from the service until it has no more, one ``ends``, or until cancelled."""
        try:
            async with aclosing(cast("AsyncGenerator[StreamItem]", items)):
                async for item in items:
                    data = frame(item)
                    self._frames.append(data)
                    self._last = item[0]
                    self._size += len(data)
                    _wake(self._news)
                    if ends(item[0]):
                        break
                    if self._size >= self._limit or len(self._frames) >= _BURST:
                        self._room = self._loop.create_future()
                        await self._room
        except A2AError as error:
            self._end(error)
        except asyncio.CancelledError:
            # By us, and nobody reads on; or from within the service, which is giving up.
            self.drain()
            raise
        except Exception:
            self._end(log_unforeseen("a stream"))
        else:
            self._end(None)

    async def watch(self, receive: Receive) -> None:
        """Notice that the client has gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        _wake(self._news)

    async def deliver(
        self, send: Send, headers: Headers, failed: Callable[[A2AError], bytes]
    ) -> A2AError | None:
        """Send what gathers until the stream has ended or the client has gone.

        Returns the error that came before anything was sent: a plain response can still carry it.
        """
        try:
            return await self._deliver(send, headers, failed)
        except OSError:  # how servers say that the connection is no more
            return None

    async def _deliver(
        self, send: Send, headers: Headers, failed: Callable[[A2AError], bytes]
    ) -> A2AError | None:
        started = False
        while not self._gone:
            if not (self._frames or self._ended or self._silent):
                self._news = self._loop.create_future()
                await self._news
                continue
            ended, frames = self._ended, self._frames
            if not started:
                if ended and not frames and (self._error or self._drained):
                    return self._error or shutting_down()
                started = True
                head = {"type": "http.response.start", "status": 200}
                await send({**head, "headers": [*_HEADERS, *headers]})
            self._frames, self._size, self._silent = [], 0, False
            _wake(self._room)
            if ended and self._error is not None:
                frames.append(failed(self._error))
            body = b"".join(frames) if frames or ended else sse.KEEP_ALIVE
            self._last_sent = self._loop.time()
            await send({"type": "http.response.body", "body": body, "more_body": not ended})
            if ended:
                break
        return None

    def close(self) -> None:
        """Let go of the timer, and of the error, whose traceback would keep this."""
        self._timer.cancel()
        self._error = None

    def _end(self, error: A2AError | None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            _wake(self._news)

    def _beat(self) -> None:
        rest = self._last_sent + self._silence - self._loop.time()
        if rest <= 0:
            rest = self._silence
            self._silent = True
            _wake(self._news)
        self._timer = self._loop.call_later(rest, self._beat)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Drained(Protocol):
    """A stream, of whatever binding, that can be ended."""

    def drain(self) -> None:
        """End it, without an error."""
        ...


class Streams:
    """The streams that are open on a server: bounded in number, and ended together."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._places = ConcurrencyLimiter(
            "streams are open", settings.max_streams, settings.caller_share
        )
        self._open: set[Drained] = set()

    def drain(self) -> None:
        """End all of them, without an error: their readers resume elsewhere."""
        for stream in list(self._open):
            stream.drain()

    @contextmanager
    def holding(self, stream: Drained, context: CallContext) -> Iterator[None]:
        """Count a stream of another binding among those that are open, while the context lasts.

        Raises ``OverloadedError`` when there is no room.
        """
        with self._places.one(context):
            self._open.add(stream)
            try:
                yield
            finally:
                self._open.discard(stream)

    async def serve(
        self,
        items: AsyncIterator[StreamItem],
        context: CallContext,
        *,
        frame: Callable[[StreamItem], bytes],
        failed: Callable[[A2AError], bytes],
        ends: Callable[[Event], bool],
        answers: bool,
        headers: Headers,
        receive: Receive,
        send: Send,
    ) -> A2AError | None:
        """Send the events of ``items`` until they end, the client goes or the server drains.

        The headers go out with the first event, or with the first keep-alive comment: an error
        before that is returned, and nothing was sent; a later one is the last frame.
        ``items`` is closed when this ends, whatever the reason; ``answers`` says that it is what a
        message is answered with.
        """
        stream = OpenStream(self._settings, answers=answers)
        try:
            with self.holding(stream, context):
                return await self._serve(stream, items, frame, failed, ends, headers, receive, send)
        except OverloadedError as refusal:
            return refusal

    async def _serve(
        self,
        stream: OpenStream,
        items: AsyncIterator[StreamItem],
        frame: Callable[[StreamItem], bytes],
        failed: Callable[[A2AError], bytes],
        ends: Callable[[Event], bool],
        headers: Headers,
        receive: Receive,
        send: Send,
    ) -> A2AError | None:
        pump = asyncio.create_task(stream.pump(items, frame, ends))
        watch = asyncio.create_task(stream.watch(receive))
        try:
            return await stream.deliver(send, headers, failed)
        finally:
            stream.close()
            pump.cancel()
            watch.cancel()
            await asyncio.wait((pump, watch))
