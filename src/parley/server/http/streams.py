"""Open streams: sends a service's events to one reader as server-sent events.

``Exchange`` passes a stream of events to ``Streams.serve``. The gRPC binding writes its own streams
and registers them with ``Streams``, which bounds all streams and drains them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Protocol, cast

import msgspec
from starlette.types import Receive, Send

from parley.model.errors import A2AError, OverloadedError, shutting_down
from parley.model.service import Batches, CallContext, ItemStream, StreamItem
from parley.model.struct import decode, encode
from parley.model.tasks import Event, Task, TaskArtifactUpdateEvent, TaskState
from parley.server.http.open_credentials import CredentialWatch, OpenCredentials
from parley.server.http.responses import Headers
from parley.server.limits import ConcurrencyLimiter
from parley.server.log import failure_of
from parley.server.settings import Settings
from parley.wire import sse

_HEADERS = ((b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"))
# After this many events a stream yields to other tasks, even if the service has more.
_BURST = 128
# This many items of a service without batches are buffered for their reader.
_GATHERED = 32


def is_input_required(event: Event | None) -> bool:
    """Return whether an event is a task in input-required.

    A stream that answers a message to such a task begins with it. A clean end there would look as
    if the agent had asked again, so a drained stream then ends with an error.
    """
    if isinstance(event, msgspec.Raw):  # a task in JSON form (``Codec.takes_json``)
        event = decode(event, Task)
    return isinstance(event, Task) and event.status.state is TaskState.INPUT_REQUIRED


class OpenStream:
    """An open response stream: the answer to a message, or a subscription.

    The request's own task takes a batch from the service, frames it, and sends it in chunks of
    about ``send_buffer`` bytes. While a slow reader does not read a chunk nothing more is taken
    from the service, so such a reader uses no more memory than that and delays no other. ``drain``
    and ``leave`` interrupt the wait for the service, and never a chunk that is being sent.
    """

    __slots__ = (
        "_answers_message", "_burst", "_comment", "_frames", "_headers", "_is_drained", "_is_gone",
        "_is_interrupted", "_is_waiting", "_keep_alive", "_last",
        "_last_sent", "_limit", "_loop", "_refusal", "_send", "_task", "_timer",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        send: Send,
        headers: Callable[[], Headers],
        *,
        answers_message: bool,
    ) -> None:
        self._answers_message = answers_message
        self._send = send
        self._headers: Callable[[], Headers] | None = headers
        self._limit = settings.send_buffer
        self._keep_alive = settings.keep_alive
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._last: Event | None = None
        self._frames: list[bytes] = []
        self._burst = 0
        self._is_waiting = self._is_interrupted = False
        self._is_drained = self._is_gone = False
        self._refusal: A2AError | None = None
        self._comment: asyncio.Task[None] | None = None
        self._last_sent = self._loop.time()
        self._timer = self._loop.call_later(self._keep_alive, self._on_keep_alive)

    def drain(self) -> None:
        """End the stream after the current piece, cleanly unless that would mislead."""
        self._is_drained = True
        self._interrupt()

    def refuse(self, error: A2AError) -> None:
        """End the stream with an error after the current piece."""
        self._refusal = error
        self.drain()

    def leave(self) -> None:
        """End the stream, because its reader has left."""
        self._is_gone = True
        self._interrupt()

    def _interrupt(self) -> None:
        """Have the task that waits for the service wait no more."""
        if self._is_waiting and not self._is_interrupted:
            assert self._task is not None
            self._is_interrupted = True
            self._task.cancel()

    async def run(
        self,
        batches: Batches,
        frame: Callable[[StreamItem], bytes],
        failed: Callable[[A2AError], bytes],
        ends: Callable[[Event], bool],
    ) -> A2AError | None:
        """Send the events of the service until it ends, or until an event ``ends`` the stream.

        Returns an error that came before anything was sent: it can still be sent as a plain
        response.
        """
        # All of it in one coroutine, because there are many idle streams.
        error: A2AError | None = None
        task = self._task
        assert task is not None
        try:
            try:
                self._is_waiting = not (self._is_drained or self._is_gone)
                if self._is_waiting:
                    async for batch in batches:
                        self._is_waiting = False
                        is_over = await self._send_batch(batch, frame, ends)
                        if is_over or self._is_drained or self._is_gone:
                            break
                        self._is_waiting = True
                    self._is_waiting = False
            finally:
                await batches.aclose()
        except asyncio.CancelledError:
            if task.cancelling() > int(self._is_interrupted):
                raise
            if not self._is_interrupted:  # a cancellation came from within the service
                self._is_drained = True
        except Exception as failure:
            error = failure_of(failure, "a stream")
        finally:
            self._is_waiting = False
            if self._is_interrupted:
                task.uncancel()
        ending = self._end(error, failed)
        error = None  # its traceback has this frame: a cycle
        return await ending

    async def _end(
        self, error: A2AError | None, failed: Callable[[A2AError], bytes]
    ) -> A2AError | None:
        """Send the rest, with the error that ended the stream; return an error that comes first."""
        if self._comment is not None:
            await self._comment
        if self._is_gone:
            return None
        if self._is_drained:
            misleads = self._answers_message and is_input_required(self._last)
            error = self._refusal or (shutting_down() if misleads else None)
        is_new = self._headers is not None and not self._frames
        if is_new and (error is not None or self._is_drained):
            return error or shutting_down()
        if self._refusal is not None:
            self._frames.clear()
        if error is not None:
            self._frames.append(failed(error))
        await self._write(self._taken_frames(), has_more=False)
        return None

    def close(self) -> None:
        """Cancel the operations in progress."""
        self._timer.cancel()
        self._task = None
        if self._comment is not None:
            self._comment.cancel()

    async def _send_batch(
        self,
        batch: Sequence[StreamItem],
        frame: Callable[[StreamItem], bytes],
        ends: Callable[[Event], bool],
    ) -> bool:
        """Send a batch. Return whether its last frame ends the stream, and is not sent yet."""
        frames, size, limit = self._frames, 0, self._limit
        for item in batch:
            data = frame(item)
            frames.append(data)
            size += len(data)
            event = self._last = item[0]
            if type(event) is not TaskArtifactUpdateEvent and ends(event):
                return True
            if size >= limit:
                size = 0
                await self._write(self._taken_frames())
                await asyncio.sleep(0)
                if self._is_drained or self._is_gone:
                    return False
        if size:
            await self._write(self._taken_frames())
        self._burst += len(batch)
        if self._burst >= _BURST:
            self._burst = 0
            await asyncio.sleep(0)
        return False

    def _taken_frames(self) -> bytes:
        """Return and drop the frames that were not sent."""
        frames = b"".join(self._frames)
        self._frames.clear()
        return frames

    async def _write(self, body: bytes, *, has_more: bool = True) -> None:
        """Send a chunk, after unsent headers, and after a comment that is being sent."""
        if self._comment is not None:
            await self._comment
        await self._send_piece(body, has_more)

    async def _send_piece(self, body: bytes, has_more: bool) -> None:
        self._last_sent = self._loop.time()
        try:
            if self._headers is not None:
                headers = [*_HEADERS, *self._headers()]
                self._headers = None
                start = {"type": "http.response.start", "status": 200, "headers": headers}
                await self._send(start)
            await self._send({"type": "http.response.body", "body": body, "more_body": has_more})
        except OSError:  # raised by ASGI servers for a lost connection
            self.leave()

    async def _send_comment(self) -> None:
        """Send a comment, while the request's own task waits for the service."""
        await self._send_piece(sse.KEEP_ALIVE, True)
        self._comment = None

    def _on_keep_alive(self) -> None:
        remaining = self._last_sent + self._keep_alive - self._loop.time()
        if remaining <= 0:
            remaining = self._keep_alive
            if self._is_waiting and self._comment is None:
                self._comment = self._loop.create_task(self._send_comment())
        self._timer = self._loop.call_later(remaining, self._on_keep_alive)


async def gathered(items: AsyncGenerator[StreamItem, None], limit: int) -> Batches:
    """Yield the items of a service without batches, in batches.

    A batch has up to ``_GATHERED`` items, and ends once their JSON has ``limit`` bytes. A task
    takes the items from the service, so that a reader gets simultaneous items in one chunk.
    """
    held: list[StreamItem] = []
    size = 0
    arrived, taken = asyncio.Event(), asyncio.Event()

    async def gather() -> None:
        nonlocal size
        try:
            async with aclosing(items):
                async for item in items:
                    data = encode(item.event) if item.json is None else item.json
                    held.append(item if item.json is data else item._replace(json=data))
                    size += len(data)
                    arrived.set()
                    if len(held) >= _GATHERED or size >= limit:
                        taken.clear()
                        await taken.wait()
        finally:
            arrived.set()

    gathering = asyncio.create_task(gather())
    try:
        while held or not gathering.done():
            await arrived.wait()
            arrived.clear()
            batch = held.copy()
            held.clear()
            size = 0
            taken.set()
            if batch:
                yield batch
        gathering.result()
    finally:
        gathering.cancel()
        await asyncio.wait((gathering,))


def batches_of(items: AsyncIterator[StreamItem], limit: int) -> Batches:
    """Return the items of a stream in batches; at most about ``limit`` bytes are gathered."""
    if isinstance(items, ItemStream):
        return items.batches
    return gathered(cast("AsyncGenerator[StreamItem, None]", items), limit)


def _watch(receive: Receive, on_gone: Callable[[], None]) -> asyncio.Task[None] | None:
    """Call back when the client disconnects. Return the task that waits for this, if there is one.

    Connections of this server report it without a task (``AsgiExchange.call_when_gone``).
    """
    call_when_gone = getattr(getattr(receive, "__self__", None), "call_when_gone", None)
    if call_when_gone is not None and call_when_gone(on_gone):
        return None

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_gone()

    return asyncio.create_task(watch())


class Drainable(Protocol):
    """A stream of any binding that can be drained."""

    def drain(self) -> None:
        """End it, without an error."""
        ...

    def refuse(self, error: A2AError) -> None:
        """End it with an error."""
        ...


class Streams:
    """The open streams of a server: limited in number, drained together, and ended when their
    credentials expire (``watch``).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limiter = ConcurrencyLimiter(
            "streams are open", settings.max_streams, settings.caller_share
        )
        self._open: set[Drainable] = set()
        self.watch = CredentialWatch()

    def drain(self) -> None:
        """End all streams, without an error: their readers resume on another replica."""
        for stream in list(self._open):
            stream.drain()

    def registered(
        self, stream: Drainable, context: CallContext, credentials: OpenCredentials | None = None
    ) -> AbstractContextManager[None]:
        """Register an open stream, of any binding, while the context lasts.

        ``credentials`` opened it. Entering raises ``OverloadedError`` when there are too many.
        """
        return _Registered(self, stream, context, credentials)

    def add(self, stream: Drainable, caller: tuple[str, str]) -> None:
        """Add an open stream of a caller. Raises ``OverloadedError``."""
        self._limiter.acquire(caller)
        self._open.add(stream)

    def remove(self, stream: Drainable, caller: tuple[str, str]) -> None:
        """Unregister a stream."""
        self._open.discard(stream)
        self._limiter.release(caller)

    async def serve(
        self,
        items: AsyncIterator[StreamItem],
        context: CallContext,
        *,
        credentials: OpenCredentials | None = None,
        frame: Callable[[StreamItem], bytes],
        failed: Callable[[A2AError], bytes],
        ends: Callable[[Event], bool],
        answers_message: bool,
        headers: Callable[[], Headers],
        receive: Receive,
        send: Send,
    ) -> A2AError | None:
        """Send the events of ``items`` until they end, the client leaves or the server drains.

        The ``headers`` are requested once, and sent with the first event, or with the first
        keep-alive comment. An earlier error is returned, and nothing is sent; a later one is the
        last frame. ``items`` is always closed; the items of an ``ItemStream`` are framed and sent
        in batches. ``answers_message`` distinguishes the answer to a message from a subscription.
        """
        stream = OpenStream(self._settings, send, headers, answers_message=answers_message)
        try:
            with self.registered(stream, context, credentials):
                watching = _watch(receive, stream.leave)
                try:
                    batches = batches_of(items, self._settings.send_buffer)
                    return await stream.run(batches, frame, failed, ends)
                finally:
                    if watching is not None:
                        watching.cancel()
                        await asyncio.wait((watching,))
        except OverloadedError as refusal:
            return refusal
        finally:
            stream.close()


class _Registered:
    """Keeps a stream registered as long as the context lasts."""

    __slots__ = ("_caller", "_credentials", "_observed", "_stream", "_streams")

    def __init__(
        self,
        streams: Streams,
        stream: Drainable,
        context: CallContext,
        credentials: OpenCredentials | None,
    ) -> None:
        self._streams = streams
        self._stream = stream
        self._caller = context.tenant, context.caller.owner
        self._observed = context.observed
        self._credentials = credentials

    def __enter__(self) -> None:
        try:
            self._streams.add(self._stream, self._caller)
        except OverloadedError as refusal:
            if self._observed is not None:
                self._observed.end(refusal)
            raise
        if self._credentials is not None:
            self._streams.watch.add(self._credentials, self._stream.refuse)

    def __exit__(self, *error: object) -> None:
        if self._credentials is not None:
            self._streams.watch.remove(self._credentials)
        self._streams.remove(self._stream, self._caller)
