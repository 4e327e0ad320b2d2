"""Open streams: sends a service's events to one reader as server-sent events.

``Exchange`` hands a stream of events to ``Streams.serve``. The gRPC binding writes its own streams
and registers them with ``Streams``, which bounds all and drains them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Protocol, cast

import msgspec
from starlette.types import Receive, Send

from parley.model.encoding import decode
from parley.model.errors import A2AError, OverloadedError
from parley.model.service import CallContext, StreamItem
from parley.model.tasks import Event, Task, TaskState
from parley.server.failures import log_unforeseen
from parley.server.http.responses import Headers
from parley.server.limits.concurrency_limiter import ConcurrencyLimiter
from parley.server.settings import Settings
from parley.wire import sse

_HEADERS = ((b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"))
# After so many events a pump yields to other tasks, even if the service has more.
_BURST = 128


def shutting_down() -> OverloadedError:
    """Return the error for a caller that another replica, or the next process, will serve."""
    return OverloadedError("the server is shutting down", retry_after=1)


def is_input_required(event: Event | None) -> bool:
    """Return whether an event is a task in input-required.

    A stream that answers a message to such a task begins with it. A clean end there would look as
    if the agent asked once more, so a drained stream then ends with an error.
    """
    if isinstance(event, msgspec.Raw):  # a task that is JSON already (``Codec.takes_json``)
        event = decode(event, Task)
    return isinstance(event, Task) and event.status.state is TaskState.INPUT_REQUIRED


class OpenStream:
    """One response under way: the answer to a message, or a subscription.

    A pump task takes events from the service and buffers their frames; the request's own task
    sends the buffer in one piece. The pump waits while the buffer has ``send_buffer`` bytes, so a
    slow reader costs no more than that and delays nobody else.
    """

    __slots__ = (
        "_answers_message", "_disconnected", "_drained", "_ended", "_error", "_frames",
        "_keep_alive", "_keep_alive_due", "_last", "_last_sent", "_limit", "_loop",
        "_reader_waiter", "_size", "_space_waiter", "_timer",
    )  # fmt: skip

    def __init__(self, settings: Settings, *, answers_message: bool) -> None:
        self._answers_message = answers_message
        self._last: Event | None = None
        self._limit = settings.send_buffer
        self._keep_alive = settings.keep_alive
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._size = 0
        self._reader_waiter: asyncio.Future[None] | None = None
        self._space_waiter: asyncio.Future[None] | None = None
        self._ended = self._drained = self._disconnected = self._keep_alive_due = False
        self._error: A2AError | None = None
        self._last_sent = self._loop.time()
        self._timer = self._loop.call_later(self._keep_alive, self._on_keep_alive)

    def drain(self) -> None:
        """End the stream after what is buffered, cleanly unless that would mislead."""
        self._drained = True
        misleads = self._answers_message and is_input_required(self._last)
        self._end(shutting_down() if misleads else None)

    async def pump(
        self,
        items: AsyncIterator[StreamItem],
        frame: Callable[[StreamItem], bytes],
        ends: Callable[[Event], bool],
    ) -> None:
        """Buffer events of the service until it ends, one ``ends`` the stream, or cancelled."""
        try:
            async with aclosing(cast("AsyncGenerator[StreamItem]", items)):
                async for item in items:
                    data = frame(item)
                    self._frames.append(data)
                    self._last = item[0]
                    self._size += len(data)
                    _wake(self._reader_waiter)
                    if ends(item[0]):
                        break
                    if self._size >= self._limit or len(self._frames) >= _BURST:
                        self._space_waiter = self._loop.create_future()
                        await self._space_waiter
        except A2AError as error:
            self._end(error)
        except asyncio.CancelledError:
            # By us, once nobody reads; or from within the service.
            self.drain()
            raise
        except Exception:
            self._end(log_unforeseen("a stream"))
        else:
            self._end(None)

    async def watch(self, receive: Receive) -> None:
        """Wait until the client disconnects."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._disconnected = True
        _wake(self._reader_waiter)

    async def deliver(
        self, send: Send, headers: Headers, failed: Callable[[A2AError], bytes]
    ) -> A2AError | None:
        """Send what is buffered until the stream ends or the client disconnects.

        Returns the error that came before anything was sent: a plain response can still carry it.
        Raises ``OSError`` when the server reports a lost connection.
        """
        started = False
        while not self._disconnected:
            if not (self._frames or self._ended or self._keep_alive_due):
                self._reader_waiter = self._loop.create_future()
                await self._reader_waiter
                continue
            ended, frames = self._ended, self._frames
            if not started:
                if ended and not frames and (self._error or self._drained):
                    return self._error or shutting_down()
                started = True
                head = {"type": "http.response.start", "status": 200}
                await send({**head, "headers": [*_HEADERS, *headers]})
            self._frames, self._size, self._keep_alive_due = [], 0, False
            _wake(self._space_waiter)
            if ended and self._error is not None:
                frames.append(failed(self._error))
            body = b"".join(frames) if frames or ended else sse.KEEP_ALIVE
            self._last_sent = self._loop.time()
            await send({"type": "http.response.body", "body": body, "more_body": not ended})
            if ended:
                break
        return None

    def close(self) -> None:
        """Cancel the timer, and release the error, whose traceback refers to this."""
        self._timer.cancel()
        self._error = None

    def _end(self, error: A2AError | None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            _wake(self._reader_waiter)

    def _on_keep_alive(self) -> None:
        remaining = self._last_sent + self._keep_alive - self._loop.time()
        if remaining <= 0:
            remaining = self._keep_alive
            self._keep_alive_due = True
            _wake(self._reader_waiter)
        self._timer = self._loop.call_later(remaining, self._on_keep_alive)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Drainable(Protocol):
    """A stream of any binding that can be drained."""

    def drain(self) -> None:
        """End it, without an error."""
        ...


class Streams:
    """The open streams of a server: bounded in number, and drained together."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limiter = ConcurrencyLimiter(
            "streams are open", settings.max_streams, settings.caller_share
        )
        self._open: set[Drainable] = set()

    def drain(self) -> None:
        """End all streams, without an error: their readers resume on another replica."""
        for stream in list(self._open):
            stream.drain()

    @contextmanager
    def registered(self, stream: Drainable, context: CallContext) -> Iterator[None]:
        """Register an open stream, of any binding, while the context lasts.

        Raises ``OverloadedError`` when there are too many.
        """
        with self._limiter.slot(context):
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
        answers_message: bool,
        headers: Headers,
        receive: Receive,
        send: Send,
    ) -> A2AError | None:
        """Send the events of ``items`` until they end, the client leaves or the server drains.

        The headers go out with the first event, or with the first keep-alive comment. An error
        before that is returned, and nothing is sent; a later one is the last frame. ``items`` is
        always closed. ``answers_message`` tells the answer to a message from a subscription.
        """
        stream = OpenStream(self._settings, answers_message=answers_message)
        try:
            with self.registered(stream, context):
                pump = asyncio.create_task(stream.pump(items, frame, ends))
                watch = asyncio.create_task(stream.watch(receive))
                try:
                    return await stream.deliver(send, headers, failed)
                finally:
                    pump.cancel()
                    watch.cancel()
                    await asyncio.wait((pump, watch))
        except OverloadedError as refusal:
            return refusal
        except OSError:  # how ASGI servers report a lost connection
            return None
        finally:
            stream.close()
