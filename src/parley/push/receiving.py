"""An ASGI app that receives push notifications, verifies them, and calls a handler.

A delivery is read within limits, verified, compared with the handled ids, and queued after the
other notifications of its task. With ``acknowledge="before"`` it is answered then; with ``"after"``
when the handler has returned.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import uuid4

import msgspec

from parley.model.bounded import Bounded
from parley.model.concurrency import Periodic, end, see_through
from parley.model.distribution import install_command
from parley.model.errors import InternalError, an, author_code
from parley.model.tasks import Task
from parley.push.http_sender import CHALLENGE_HEADER, CHALLENGE_VERSION, response_to
from parley.push.verification import (
    DEFAULT_LIMITS,
    NotificationRefused,
    PushNotification,
    ReceiverLimits,
    Verify,
    WebhookVerification,
    lane_of,
    number_of,
    verification_of,
)
from parley.push.verification import verify as verify_request
from parley.store.protocols.errors import StoreError
from parley.store.tables import SmallTables

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from parley.store.postgres.store import PostgresTaskStore
    from parley.store.sqlite.store import SqliteTaskStore

log = logging.getLogger("parley.push.receiver")

# -- handled ids ----------------------------------------------------------------------------------

FirstTime = Callable[[str], Awaitable[bool]]
"""Records an id. Returns whether that was the first time."""

IDS_KEPT = 100_000
"""The number of handled ids that a process remembers."""

NAMESPACE, HANDLED, LANES = "parley_receiver", "handled", "lanes"


class SeenAnswer(Enum):
    """The answer about a notification that arrived."""

    NEW = "new"
    HANDLED = "handled"
    BUSY = "busy"
    """Another replica handles the task."""
    FAILED = "failed"


class HandledIds:
    """The handled ids, and the replica that handles each task (the task's *lane*).

    They are in memory, or in tables of a store: there a lane is held for ``lease`` seconds from its
    last renewal. Raises ``StoreError``.
    """

    def __init__(self, seen: str | SmallTables | FirstTime, limits: ReceiverLimits) -> None:
        self._limits = limits
        self._holder = uuid4().hex.encode()
        self._handled: Bounded[str, float] = Bounded(IDS_KEPT)
        self._held: set[str] = set()
        self._own: SqliteTaskStore | PostgresTaskStore | None = None
        self._store: SmallTables | None = None
        self._first_time: FirstTime | None = None
        if isinstance(seen, str):
            self._store = self._own = _store_of(seen)
        elif isinstance(seen, SmallTables):
            self._store = seen
        elif inspect.iscoroutinefunction(seen):
            self._first_time = seen
        else:
            raise TypeError(
                "seen= is the URL of a store, an open store, or an async def of an id that returns "
                f"whether it is new, not {seen!r}"
            )
        self._tables = None if self._store is None else self._store.tables(NAMESPACE)

    @property
    def is_of_user(self) -> bool:
        """True if a function of the user records ids, when their notifications arrive."""
        return self._first_time is not None

    async def open(self) -> None:
        """Open the store, if it is this receiver's own."""
        if self._own is not None:
            await self._own.open(lambda records: None)

    async def close(self) -> None:
        """Release all lanes, which otherwise expire, and close the store."""
        with suppress(StoreError):
            for lane in list(self._held):
                await self.release(lane)
        self._held.clear()
        if self._own is not None:
            with suppress(StoreError):
                await self._own.close()

    async def admit(self, id: str, lane: str) -> SeenAnswer:
        """Return whether a notification is new, and hold its lane if so; without an id it is
        new."""
        if id and self._handled.get(id, 0.0) > time.monotonic():
            return SeenAnswer.HANDLED
        if self._first_time is not None:
            return SeenAnswer.NEW if not id or await self._first_time(id) else SeenAnswer.HANDLED
        if await self._was_handled(id):
            return SeenAnswer.HANDLED
        if not await self._hold(lane):
            return SeenAnswer.BUSY
        # The previous holder of the lane may have finished this notification in between.
        return SeenAnswer.HANDLED if await self._was_handled(id) else SeenAnswer.NEW

    async def finish(self, id: str) -> None:
        """Remember an id as handled."""
        if id:
            self._handled[id] = time.monotonic() + self._limits.remember
        if id and self._tables is not None:
            expires_at = self._in(self._limits.remember)
            await self._tables.put(HANDLED, id, b"", expires_at=expires_at)

    async def release(self, lane: str) -> None:
        """Release a lane, unless another replica holds it now."""
        if lane in self._held and self._tables is not None:
            self._held.discard(lane)
            await self._tables.remove(LANES, lane, expected=self._holder)

    async def renew(self) -> None:
        """Extend the leases of the lanes, unless another replica holds them now."""
        await asyncio.gather(*[self._put_lane(lane, self._holder) for lane in self._held])

    async def _was_handled(self, id: str) -> bool:
        tables = self._tables
        return bool(id) and tables is not None and await tables.get(HANDLED, id) is not None

    async def _hold(self, lane: str) -> bool:
        is_held = lane in self._held and await self._put_lane(lane, self._holder)
        if not is_held and not await self._put_lane(lane, None):
            return False
        self._held.add(lane)
        return True

    async def _put_lane(self, lane: str, expected: bytes | None) -> bool:
        if self._tables is None:
            return True
        expires_at = self._in(self._limits.lease)
        return await self._tables.put(
            LANES, lane, self._holder, expected=expected, expires_at=expires_at
        )

    def _in(self, seconds: float) -> int:
        assert self._store is not None
        return self._store.now() + round(seconds * 1000)


def _store_of(url: str) -> SqliteTaskStore | PostgresTaskStore | None:
    """Return the store of a URL, not yet open; ``None`` for memory.

    Raises ``ValueError``, without a password.
    """
    if url in ("memory:", "memory://"):
        return None
    path, scheme = url.removeprefix("sqlite:///"), url.partition(":")[0].lower()
    if path and path != url:
        from parley.store.sqlite.store import SqliteTaskStore

        return SqliteTaskStore(path)
    if scheme not in ("postgresql", "postgres"):
        raise ValueError(
            f"there is no store of the kind {scheme!r} for seen ids; use memory:, "
            "sqlite:///path/to/seen.db (four slashes for an absolute path) or "
            "postgresql://host/database"
        )
    try:
        from parley.store.postgres.store import PostgresTaskStore
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a store at {scheme}:// needs {error.name}: {install_command('postgres')}"
        ) from None
    if "schema=" not in url:  # the receiver must not share a schema with servers
        url += f"{'&' if '?' in url else '?'}schema={NAMESPACE}"
    return PostgresTaskStore(url)


# -- handling -----------------------------------------------------------------------------------

BUSY_SECONDS = 1
FULL_SECONDS = 2
FAILED_SECONDS = 5
"""The ``Retry-After`` of a temporary rejection: another replica handles the task, the queue is
full, or the store fails.
"""

Handler = Callable[[PushNotification], Awaitable[None] | None]


class TaskSource(Protocol):
    """Fetches tasks, as ``RemoteAgent`` does."""

    def get(self, task_id: str) -> Awaitable[Task]:
        """Return a task."""
        ...


AgentOpener = Callable[[], AbstractAsyncContextManager[TaskSource]]


class Arrival:
    """A notification that waits or is handled.

    ``id`` and ``lane`` have a fixed length, and are different for each sender. ``admission`` is
    known after the check of handled ids, ``status`` (200, 500, or 503) at the end.
    """

    __slots__ = ("admission", "id", "lane", "notification", "number", "prefix", "status")

    def __init__(self, notification: PushNotification) -> None:
        loop = asyncio.get_running_loop()
        id, sender = notification.id, notification.sender
        self.notification = notification
        self.id = _key(sender, id) if id else ""
        self.lane = _key(sender, lane_of(notification.event, id))
        self.prefix, self.number = number_of(id)
        self.admission: asyncio.Future[SeenAnswer] = loop.create_future()
        self.status: asyncio.Future[int] = loop.create_future()


def _key(sender: str, name: str) -> str:
    text = f"{sender}\x1f{name}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


class Lane:
    """The notifications of one task. ``lock`` orders the checks of their ids."""

    __slots__ = ("is_worked", "lock", "pending", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Arrival] = []
        self.pending = 0
        self.is_worked = False
        self.lock = asyncio.Lock()

    def add(self, arrival: Arrival) -> None:
        """Add a notification after earlier and before later ones of its task."""
        index = len(self.waiting)
        if arrival.number is not None:
            for at, other in enumerate(self.waiting):
                if other.prefix == arrival.prefix and (other.number or 0) > arrival.number:
                    index = at
                    break
        self.waiting.insert(index, arrival)


class NotificationHandling:
    """The queue of a receiver: a lane for each task, and ``concurrency`` lanes at once."""

    def __init__(
        self,
        handler: Handler,
        *,
        seen: HandledIds,
        open_agent: AgentOpener | None,
        acknowledges_first: bool,
        limits: ReceiverLimits,
    ) -> None:
        self._handler = handler
        self._is_async = _is_async(handler)
        self._open_agent = open_agent
        self._seen = seen
        self._acknowledges_first = acknowledges_first
        self._limits = limits
        self._renewal = Periodic(
            "the renewal of a receiver's lanes", seen.renew, limits.lease / 3,
            log=log, expected=StoreError, waits_first=True,
        )  # fmt: skip
        self._reset()

    def _reset(self) -> None:
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(self._limits.concurrency)
        self._lanes: dict[str, Lane] = {}
        self._known: dict[str, Arrival] = {}
        self._arrivals: set[Arrival] = set()
        self._admitting: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._agent: TaskSource | None = None
        self._agent_stack = AsyncExitStack()
        self.bytes = 0

    async def start(self) -> None:
        """Open the store once. Raises ``StoreError``, and the next call tries again."""
        if self._renewal.is_running:
            return
        async with self._lock:
            if not self._renewal.is_running:
                await see_through(self._seen.open())
                self._renewal.start()

    async def aclose(self) -> None:
        """Wait for the queue for ``limits.drain`` seconds, and disconnect."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.drain):
                while tasks := self._admitting | self._working:
                    await asyncio.wait(tasks)
        self._is_stopped = True
        if left := len(self._arrivals):
            log.warning("the receiver stops with %d notifications that were not handled", left)
        await end(self._working)
        if self._admitting:  # otherwise their lanes would be acquired after this
            await asyncio.wait(self._admitting)
        for arrival in self._arrivals:
            if not arrival.status.done():
                arrival.status.set_result(503)
        await self._renewal.stop()
        await self._seen.close()
        await self._agent_stack.aclose()
        self._reset()  # for another event loop

    def check_room(self) -> None:
        """Raise ``NotificationRefused`` while the queue is full."""
        if len(self._arrivals) >= self._limits.queue:
            raise NotificationRefused(503, "the queue is full", retry_after=FULL_SECONDS)

    async def take(self, notification: PushNotification) -> int:
        """Queue a notification unless it was handled, and return the status of the answer."""
        new = Arrival(notification)
        arrival = self._known.get(new.id) if new.id else None
        if arrival is None:  # not a repeat of one that waits or is handled
            self.check_room()
            arrival = new
            self._arrivals.add(arrival)
            self.bytes += len(notification.body)
            if arrival.id:
                self._known[arrival.id] = arrival
            lane = self._lanes.setdefault(arrival.lane, Lane())
            lane.pending += 1
            # If the sender disconnects, an admitted notification is handled anyway.
            _spawn(self._admit(arrival, lane), self._admitting)
        admission = await asyncio.shield(arrival.admission)
        if admission is SeenAnswer.FAILED:
            raise failed()
        if admission is SeenAnswer.BUSY:
            reason = "another replica handles this task"
            raise NotificationRefused(503, reason, retry_after=BUSY_SECONDS)
        if admission is SeenAnswer.HANDLED:
            return 200
        if self._acknowledges_first and not arrival.status.done():
            return 202
        status = await asyncio.shield(arrival.status)
        if status == 503:
            raise NotificationRefused(503, "the receiver stopped first", retry_after=FULL_SECONDS)
        if self._acknowledges_first:
            return 202
        if status == 500:
            raise NotificationRefused(500, "the handler failed")
        return status

    async def _admit(self, arrival: Arrival, lane: Lane) -> None:
        """Check whether a notification is new, after its lane's earlier ones, and queue it if
        so."""
        admission = SeenAnswer.FAILED
        what = f"the look-up of {arrival.notification.id}"
        try:
            with suppress(InternalError), author_code(log, what, "", passes=StoreError):
                async with lane.lock:
                    admission = await self._seen.admit(arrival.id, arrival.lane)
        except StoreError as error:
            log.error("%s", error)
        if admission is SeenAnswer.NEW and not self._is_stopped:
            lane.add(arrival)
            if not lane.is_worked:
                lane.is_worked = True
                _spawn(self._work(lane), self._working)
        else:
            await self._end(arrival, lane, 503)
        arrival.admission.set_result(admission)

    async def _work(self, lane: Lane) -> None:
        """Handle the notifications of a lane, taking turns with other lanes."""
        while lane.waiting:
            async with self._slots:
                await self._handle(lane.waiting.pop(0), lane)
        lane.is_worked = False

    async def _handle(self, arrival: Arrival, lane: Lane) -> None:
        """Call the handler, and remember the notification once it has returned."""
        notification, status = arrival.notification, 200
        if self._open_agent is not None:
            notification.fetch = self._fetch_task
        what = f"the handler of {notification.id or 'a notification'}"
        try:
            with author_code(log, what, "", passes=()):
                if self._is_async:
                    if (waiting := self._handler(notification)) is not None:
                        await waiting
                else:
                    notification.loop = asyncio.get_running_loop()
                    await asyncio.to_thread(self._handler, notification)
        except InternalError:
            status = 500
        try:
            if status == 200:
                await self._seen.finish(arrival.id)
        except StoreError as error:
            log.error("%s; %s may be handled again", error, notification.id)
        await self._end(arrival, lane, status)

    async def _end(self, arrival: Arrival, lane: Lane, status: int) -> None:
        """Answer a notification, and release its lane after the last one."""
        self._known.pop(arrival.id, None)
        self._arrivals.discard(arrival)
        self.bytes -= len(arrival.notification.body)
        arrival.status.set_result(status)
        async with lane.lock:
            if lane.pending == 1:
                try:
                    await self._seen.release(arrival.lane)
                except StoreError as error:
                    log.error("%s", error)
            lane.pending -= 1
            if not lane.pending:
                self._lanes.pop(arrival.lane, None)

    async def _fetch_task(self, task_id: str) -> Task:
        """Fetch a task from the agent, connecting to it on first use."""
        assert self._open_agent is not None
        async with self._lock:
            if self._agent is None:
                self._agent = await self._agent_stack.enter_async_context(self._open_agent())
        return await self._agent.get(task_id)


def _spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    task = asyncio.create_task(work, name="parley-push-receiver")
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _is_async(handler: Any) -> bool:
    function = handler
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def failed(reason: str = "the store of handled ids fails") -> NotificationRefused:
    """Return the rejection while the store does not answer."""
    return NotificationRefused(503, reason, retry_after=FAILED_SECONDS)


# -- bodies ------------------------------------------------------------------------------------


class BodyReads:
    """The bodies that arrive or are verified. Together with ``queued`` they have ``max_bytes``.

    The sender is unknown before the body has arrived. So when there is no room, the largest
    incomplete body is rejected: slow senders of large bodies do not block others.
    """

    def __init__(self, max_bytes: int, queued: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._queued = queued
        self._incomplete: dict[asyncio.Timeout, int] = {}
        self.bytes = 0

    async def read(self, request: Request, max_bytes: int, seconds: float) -> bytes:
        """Return a body, which counts until ``done``. Raises ``NotificationRefused``."""
        from starlette.requests import ClientDisconnect

        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdecimal() and len(declared) < 19:
            _check_size(int(declared), max_bytes)
        chunks, reading = list[bytes](), asyncio.timeout(seconds)
        self._incomplete[reading] = 0
        is_complete = False
        try:
            async with reading:
                async for chunk in request.stream():
                    self._count(reading, len(chunk), max_bytes)
                    chunks.append(chunk)
            is_complete = reading in self._incomplete
        except TimeoutError:
            if reading in self._incomplete:
                raise NotificationRefused(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise NotificationRefused(400, "the sender hung up") from None
        finally:
            size = self._incomplete.pop(reading, 0)
            if not is_complete:
                self.bytes -= size
        if not is_complete:
            raise _full()
        return b"".join(chunks)

    def done(self, body: bytes) -> None:
        """Record that a body is queued or rejected."""
        self.bytes -= len(body)

    def _count(self, reading: asyncio.Timeout, more: int, max_bytes: int) -> None:
        """Count bytes that arrived. Raises ``NotificationRefused``."""
        if reading not in self._incomplete:
            raise _full()
        _check_size(self._incomplete[reading] + more, max_bytes)
        self._incomplete[reading] += more
        self.bytes += more
        while self.bytes + self._queued() > self._max_bytes:
            largest = max(self._incomplete, key=self._incomplete.__getitem__)
            if largest is reading:
                raise _full()
            self.bytes -= self._incomplete.pop(largest)
            if not largest.expired():
                largest.reschedule(asyncio.get_running_loop().time())


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise NotificationRefused(413, f"a body of more than {max_bytes} bytes")


def _full() -> NotificationRefused:
    return NotificationRefused(503, "the queue is full of bytes", retry_after=FULL_SECONDS)


# -- challenge ----------------------------------------------------------------------------------

CHALLENGE_BYTES = 4096
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{22,256}")


class _Challenge(msgspec.Struct):
    challenge: str


def answer_challenge(version: str, body: bytes, token: str) -> bytes:
    """Return the answer to a challenge, by the token of the configuration.

    Raises ``NotificationRefused``.
    """
    if version != CHALLENGE_VERSION:
        raise NotificationRefused(400, f"a challenge of the version {version[:40]!r}")
    try:
        challenge = msgspec.json.decode(body, type=_Challenge).challenge
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotificationRefused(400, "a malformed challenge") from None
    if not _CHALLENGE.fullmatch(challenge):
        raise NotificationRefused(400, "a malformed challenge")
    return msgspec.json.encode({"response": response_to(challenge, token)})


# -- receiver ---------------------------------------------------------------------------------

MEDIA_TYPES = ("application/a2a+json", "application/json")


class Receiver:
    """Receives push notifications. Made by ``receiver``.

    It is an ASGI app for any path: serve it, mount it, or use ``route`` (Starlette) or ``router``
    (FastAPI). ``lifespan`` drains its queue when the app stops. It belongs to the event loop that
    uses it, until it is closed.
    """

    def __init__(
        self,
        handling: NotificationHandling,
        *,
        verification: WebhookVerification | None,
        on_refused: Callable[[NotificationRefused], None] | None,
        limits: ReceiverLimits,
    ) -> None:
        self._handling = handling
        self._verification = verification
        self._token = verification.challenge_token if verification else ""
        self._on_refused = on_refused
        self._limits = limits
        self._now: Callable[[], float] = time.time
        self._reads = BodyReads(limits.queue_bytes, lambda: handling.bytes)
        self._is_closed = False
        self._app: Starlette | None = None
        self._logged_at = 0.0
        self._unlogged = 0

    # -- lifetime ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._is_closed = False
        await self._handling.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Open the store, and drain the queue at the end: ``Starlette(lifespan=...)``."""
        async with self:
            yield

    async def aclose(self) -> None:
        """Reject new deliveries, wait for the queue for ``limits.drain`` seconds, and
        disconnect."""
        self._is_closed = True
        await self._handling.aclose()
        if self._verification:
            await self._verification.close()

    # -- mounting ------------------------------------------------------------------------------

    def route(self, path: str = "/") -> Route:
        """Return a route for Starlette. Give the app ``lifespan=receiver.lifespan`` too."""
        from starlette.routing import Route

        return Route(path, self.respond, methods=["POST"], name="push_notifications")

    def router(self, path: str = "/") -> APIRouter:
        """Return a router for FastAPI, with the lifespan."""
        from fastapi import APIRouter
        from starlette.requests import Request
        from starlette.responses import Response

        async def receive_push_notification(request):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            return await self.respond(request)

        # FastAPI reads the annotations, which must not be strings here.
        receive_push_notification.__annotations__ = {"request": Request, "return": Response}
        router = APIRouter(lifespan=self.lifespan)
        router.add_api_route(
            path,
            receive_push_notification,
            methods=["POST"],
            response_class=Response,
            response_model=None,
            status_code=202,
            summary="Receive a push notification",
        )
        return router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI app, at any path."""
        if self._app is None:
            from starlette.applications import Starlette
            from starlette.routing import Route

            route = Route("/{path:path}", self.respond)
            route.methods = None  # other methods are rejected by the receiver
            self._app = Starlette(routes=[route], lifespan=self.lifespan)
        await self._app(scope, receive, send)

    # -- one delivery --------------------------------------------------------------------------

    async def respond(self, request: Request) -> Response:
        """Answer a request: for frameworks that call functions of a request."""
        from starlette.responses import Response

        try:
            if request.method == "POST" and CHALLENGE_HEADER in request.headers:
                seconds = self._limits.body_timeout
                body = await self._reads.read(request, CHALLENGE_BYTES, seconds)
                self._reads.done(body)
                answer = answer_challenge(request.headers[CHALLENGE_HEADER], body, self._token)
                return Response(answer, media_type="application/json")
            return Response(status_code=await self._receive(request))
        except NotificationRefused as refused:
            self._note(refused)
            return _refusal(refused)

    async def _receive(self, request: Request) -> int:
        if request.method != "POST":
            raise NotificationRefused(405, f"{an(request.method)}: notifications are posted")
        if self._is_closed:
            raise NotificationRefused(503, "the receiver stops", retry_after=FULL_SECONDS)
        try:
            await self._handling.start()
        except StoreError as error:
            raise failed(str(error)) from None
        body = await self._read(request)
        try:
            notification = await verify_request(
                request.headers.raw,
                body,
                self._verification or False,
                max_age=self._limits.max_age,
                now=self._now,
            )
        finally:
            self._reads.done(body)
        return await self._handling.take(notification)

    async def _read(self, request: Request) -> bytes:
        """Return the body. Raises ``NotificationRefused``."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in MEDIA_TYPES:
            raise NotificationRefused(415, f"the content type {media_type[:100]!r}")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise NotificationRefused(415, "a compressed body")
        self._handling.check_room()
        return await self._reads.read(request, self._limits.max_bytes, self._limits.body_timeout)

    # -- rejections ----------------------------------------------------------------------------

    def _note(self, refused: NotificationRefused) -> None:
        """Log one rejection per second, with the number of further ones."""
        if self._on_refused is not None:
            self._on_refused(refused)
        now = time.monotonic()
        if now - self._logged_at < 1.0:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} more since)" if self._unlogged else ""
        self._logged_at, self._unlogged = now, 0
        log.warning(
            "a notification is rejected with %d: %s%s", refused.status, refused.reason, more
        )


def _refusal(refused: NotificationRefused) -> Response:
    """Return the answer to a rejected delivery, without the reason."""
    from starlette.responses import Response

    headers = {}
    if refused.status == 405:
        headers["Allow"] = "POST"
    if refused.retry_after:
        headers["Retry-After"] = str(refused.retry_after)
    body = json.dumps({"error": _WORDS.get(refused.status, "the notification is not accepted")})
    return Response(
        body, status_code=refused.status, headers=headers, media_type="application/json"
    )


_WORDS = {
    400: "the request is malformed",
    405: "notifications must be sent with POST",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: f"the content type is not one of {', '.join(MEDIA_TYPES)}, without a content encoding",
    500: "the notification was not handled",
    503: "try again later",
}


def receiver(
    handler: Handler,
    *,
    verify: Verify | Literal[False],
    agent: AgentOpener | TaskSource | None = None,
    seen: str | SmallTables | FirstTime = "memory:",
    acknowledge: Literal["before", "after"] = "before",
    on_refused: Callable[[NotificationRefused], None] | None = None,
    limits: ReceiverLimits = DEFAULT_LIMITS,
) -> Receiver:
    """Return a receiver of push notifications that calls ``handler`` for each notification.

    ``handler`` is an ``async def`` or, in a thread, a plain function of a ``PushNotification``.
    ``verify`` is the authentication of senders; for a list, all must succeed. ``verify=False``
    accepts notifications from everyone: for tests, or behind a component that verifies.

    ``agent`` is used by ``await notification.task()``: a connected agent, or a function that
    connects, such as ``lambda: parley.connect(url, bearer=...)``, called on first use.

    ``seen`` is the storage of handled ids: ``memory:``, ``sqlite:///seen.db``,
    ``postgresql://...``, which replicas of a receiver share, or an open store. It may also be an
    ``async def first_time(id) -> bool`` that records ids when they arrive.

    ``acknowledge="before"`` answers 202 when a notification is queued: a process that is killed
    loses its queue. ``"after"`` answers when the handler has returned, and 500 if it raised, so
    that the sender repeats it: each notification is handled at least once.

    Raises ``TypeError`` and ``ValueError``.
    """
    _check_handler(handler)
    if acknowledge not in ("before", "after"):
        raise ValueError(f'acknowledge is "before" or "after", not {acknowledge!r}')
    ids = HandledIds(seen, limits)
    if ids.is_of_user and acknowledge == "after":
        raise ValueError(
            "a function for seen= records ids before they are handled, but with "
            'acknowledge="after" failed ones are sent again: use a store, or acknowledge="before"'
        )
    handling = NotificationHandling(
        handler,
        seen=ids,
        open_agent=_opener(agent),
        acknowledges_first=acknowledge == "before",
        limits=limits,
    )
    verification = None if verify is False else verification_of(verify)
    return Receiver(handling, verification=verification, on_refused=on_refused, limits=limits)


def _check_handler(handler: Any) -> None:
    if not callable(handler):
        raise TypeError(f"a receiver calls a function of a notification, not {handler!r}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError("a handler returns when it is done; it must not yield")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        raise TypeError("a handler takes one argument, the notification") from None
    except ValueError:  # a builtin has no signature
        pass


def _opener(agent: Any) -> AgentOpener | None:
    if agent is None:
        return None
    if callable(getattr(agent, "get", None)):

        @asynccontextmanager
        async def opened() -> AsyncGenerator[TaskSource]:
            yield agent

        return opened
    if not callable(agent):
        raise TypeError(
            "agent= is a function that connects, agent=lambda: parley.connect(url, ...), or a "
            f"connected agent, not {agent!r}"
        )
    opener: AgentOpener = agent
    return opener
