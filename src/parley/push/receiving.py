"""An ASGI app that takes push notifications, verifies them, and has them handled.

A delivery is read within limits, verified, looked up in the inbox, and queued. With
``acknowledge="before"`` it is answered then; with ``"after"`` when the handler has returned.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
import logging
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import uuid4

import msgspec

from parley.model.concurrency import end
from parley.model.errors import an
from parley.model.tasks import Task
from parley.push.verification import (
    DEFAULT_LIMITS,
    DeliveredRequest,
    NotificationRefused,
    PushNotification,
    ReceiverLimits,
    Verified,
    VerifyAll,
    WebhookVerification,
    challenge_token,
    check_age,
    checked_id,
    checked_verification,
    lane_of,
    number_of,
    read_event,
    task_id_of,
)
from parley.store.inbox import inbox_of
from parley.store.inbox.inbox import Inbox, InboxAnswer, InboxFailed

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import Message as AsgiMessage
    from starlette.types import Receive, Scope, Send

# -- lanes ------------------------------------------------------------------------------------


class Arrival:
    """A notification that waits or is handled.

    ``id`` and ``lane`` are the inbox's: of one length, and others for each sender.
    ``accepted`` says whether the inbox lets it be handled; ``done`` ends with the handler, with its
    error if it raised one.
    """

    __slots__ = ("accepted", "done", "id", "lane", "notification", "number", "prefix", "size")

    def __init__(
        self, notification: PushNotification, lane: str, size: int, *, sender: str = ""
    ) -> None:
        loop = asyncio.get_running_loop()
        self.notification = notification
        self.id = _key(sender, notification.id) if notification.id else ""
        self.lane = _key(sender, lane)
        self.size = size
        self.prefix, self.number = number_of(notification.id)
        self.accepted: asyncio.Future[bool] = loop.create_future()
        self.done: asyncio.Future[BaseException | None] = loop.create_future()


def _key(sender: str, name: str) -> str:
    text = f"{sender}\x1f{name}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


class Lane:
    """The notifications of one task. ``lock`` orders the questions to the inbox."""

    __slots__ = ("arrivals", "current", "is_scheduled", "lock")

    def __init__(self) -> None:
        self.arrivals: deque[Arrival] = deque()
        self.current: Arrival | None = None
        self.is_scheduled = False
        self.lock = asyncio.Lock()

    def add(self, arrival: Arrival) -> None:
        """Put a notification in its place."""
        index = len(self.arrivals)
        if arrival.number is not None:
            for at, other in enumerate(self.arrivals):
                if other.prefix == arrival.prefix and (other.number or 0) > arrival.number:
                    index = at
                    break
        self.arrivals.insert(index, arrival)

    def has_others(self, arrival: Arrival) -> bool:
        """Return whether there are other notifications that are not refused."""
        return any(
            each is not arrival and not (each.accepted.done() and not each.accepted.result())
            for each in (*self.arrivals, *([self.current] if self.current else ()))
        )


class Lanes:
    """Runs ``handle`` for notifications; ``concurrency`` of them at once, each of another lane."""

    def __init__(self, handle: Callable[[Arrival], Awaitable[None]], concurrency: int) -> None:
        self._handle = handle
        self._concurrency = concurrency
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[str] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopped = False
        self.count = 0
        self.bytes = 0

    @property
    def names(self) -> list[str]:
        """The lanes that have notifications."""
        return list(self._lanes)

    def lane(self, name: str) -> Lane:
        """Return a lane that has notifications."""
        return self._lanes[name]

    def put(self, arrival: Arrival) -> Lane:
        """Queue a notification. It is handled once ``accepted`` is true."""
        lane = self._lanes.get(arrival.lane)
        if lane is None:
            lane = self._lanes[arrival.lane] = Lane()
        lane.add(arrival)
        self.count += 1
        self.bytes += arrival.size
        self._idle.clear()
        self._schedule(arrival.lane, lane)
        return lane

    async def drain(self) -> None:
        """Wait until nothing is queued."""
        await self._idle.wait()

    async def stop(self) -> int:
        """Cancel what runs, drop what waits, and return how many notifications that were."""
        left, self._is_stopped = self.count, True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes.values():
            for arrival in lane.arrivals:
                arrival.done.cancel()
        self._lanes.clear()
        self._ready.clear()
        self.count = self.bytes = 0
        self._idle.set()
        return left

    def _schedule(self, name: str, lane: Lane) -> None:
        if not lane.is_scheduled and lane.arrivals:
            lane.is_scheduled = True
            self._ready.append(name)
        while self._ready and len(self._tasks) < self._concurrency and not self._is_stopped:
            following = self._ready.popleft()
            task = asyncio.create_task(self._run(following), name="parley-push-receiver")
            self._tasks.add(task)

    async def _run(self, name: str) -> None:
        """Handle the next notification of a lane, then let another lane run."""
        lane = self._lanes[name]
        arrival = lane.current = lane.arrivals.popleft()
        try:
            if await arrival.accepted:
                await self._handle(arrival)
        finally:
            if not arrival.done.done():
                arrival.done.cancel()
            lane.current = None
            lane.is_scheduled = False
            self.count -= 1
            self.bytes -= arrival.size
            current = asyncio.current_task()
            if current is not None:
                self._tasks.discard(current)
            if not lane.arrivals and self._lanes.get(name) is lane:
                del self._lanes[name]
            if not self._lanes:
                self._idle.set()
            self._schedule(name, lane)


# -- handling ---------------------------------------------------------------------------------


BUSY_SECONDS = 1
FULL_SECONDS = 2
FAILED_SECONDS = 5
"""The ``Retry-After`` of a refusal for now: the task is at another replica, the queue is
full, the inbox fails.
"""

Handler = Callable[[PushNotification], Awaitable[None] | None]


class TaskSource(Protocol):
    """Fetches tasks: a ``RemoteAgent`` is one."""

    async def get(self, task_id: str) -> Task:
        """Return a task."""
        ...


AgentOpener = Callable[[], AbstractAsyncContextManager[TaskSource]]


class NotificationHandling:
    """The queue of a receiver, its inbox, its handler, and the agent that it asks for tasks."""

    def __init__(
        self,
        handler: Handler,
        *,
        inbox: Inbox,
        open_agent: AgentOpener | None,
        acknowledges_first: bool,
        limits: ReceiverLimits,
    ) -> None:
        self._handler = handler
        self._is_async = _is_async(handler)
        self._open_agent = open_agent
        self._inbox = inbox
        self._acknowledges_first = acknowledges_first
        self._limits = limits
        self._holder = uuid4().hex
        self._lanes = Lanes(self._handle, limits.concurrency)
        self._opening: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._arrivals: dict[str, Arrival] = {}
        self._admitting: set[asyncio.Task[InboxAnswer | None]] = set()
        self._agent: TaskSource | None = None
        self._agent_lock = asyncio.Lock()
        self._agent_stack = AsyncExitStack()

    @property
    def bytes(self) -> int:
        """The bytes that are queued."""
        return self._lanes.bytes

    async def start(self) -> None:
        """Open the inbox once. Raises ``InboxFailed``, and the next call tries again."""
        if self._opening is None or (
            self._opening.done()
            and (self._opening.cancelled() or self._opening.exception() is not None)
        ):
            self._opening = asyncio.create_task(self._inbox.open(), name="parley-inbox-open")
        await asyncio.shield(self._opening)
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(), name="parley-inbox-renew")

    async def aclose(self) -> None:
        """Wait for the queue for ``limits.drain`` seconds, and disconnect."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.drain):
                await self._lanes.drain()
        names = self._lanes.names
        if left := await self._lanes.stop():
            log.warning("the receiver stops with %d notifications that were not handled", left)
        if self._admitting:  # else their lanes would be held after this
            await asyncio.wait(self._admitting)
        self._arrivals.clear()
        if self._opening is not None:
            with suppress(InboxFailed):  # else their leases end by themselves
                for name in names:
                    await self._inbox.release(name, self._holder)
        await end([each for each in (self._renewal, self._opening) if each is not None])
        if self._opening is not None:
            with suppress(InboxFailed):
                await self._inbox.close()
        self._renewal = self._opening = self._agent = None
        self._lanes = Lanes(self._handle, self._limits.concurrency)  # for another event loop
        self._agent_lock = asyncio.Lock()
        await self._agent_stack.aclose()

    async def _renew(self) -> None:
        """Hold the lanes that have notifications."""
        while True:
            await asyncio.sleep(self._limits.lease / 3)
            lanes = self._lanes.names
            if not lanes:
                continue
            try:
                await self._inbox.renew(lanes, self._holder, self._limits.lease)
            except InboxFailed as error:
                log.error("%s", error)

    def check_room(self) -> None:
        """Raise ``NotificationRefused`` while the queue is full."""
        if self._lanes.count >= self._limits.queue:
            raise NotificationRefused(503, "the queue is full", retry_after=FULL_SECONDS)

    async def take(self, arrival: Arrival) -> int:
        """Queue a notification unless it is known, and return the status of the answer."""
        id = arrival.id
        known = self._arrivals.get(id) if id else None
        if known is not None:  # it came again while it waits or is handled
            if not await asyncio.shield(known.accepted):
                raise _busy()
            return await self._answer(known)
        self.check_room()
        if id:
            self._arrivals[id] = arrival
        lane = self._lanes.put(arrival)
        # A sender that hangs up must not leave a notification that is admitted and never handled.
        admitting = asyncio.create_task(self._admit(arrival, lane), name="parley-inbox-admit")
        self._admitting.add(admitting)
        admitting.add_done_callback(self._admitting.discard)
        admission = await asyncio.shield(admitting)
        if admission is None:
            raise NotificationRefused(503, "the inbox fails", retry_after=FAILED_SECONDS)
        if admission is InboxAnswer.BUSY:
            raise _busy()
        if admission is InboxAnswer.HANDLED:
            return 200
        return await self._answer(arrival)

    async def _admit(self, arrival: Arrival, lane: Lane) -> InboxAnswer | None:
        """Ask the inbox, one notification of a lane after the other; ``None`` if it fails."""
        id, admission = arrival.id, None
        try:
            async with lane.lock:
                admission = await self._inbox.admit(
                    id, arrival.lane, self._holder, self._limits.lease
                )
                if admission is InboxAnswer.HANDLED and not lane.has_others(arrival):
                    await self._inbox.release(arrival.lane, self._holder)
            return admission
        except InboxFailed as error:
            log.error("%s", error)
            return None
        finally:
            if admission is not InboxAnswer.NEW:
                self._arrivals.pop(id, None)
            if not arrival.accepted.done():
                arrival.accepted.set_result(admission is InboxAnswer.NEW)

    async def _answer(self, arrival: Arrival) -> int:
        if arrival.done.cancelled():
            raise _stopped()
        if self._acknowledges_first:
            return 202
        try:
            error = await asyncio.shield(arrival.done)
        except asyncio.CancelledError:
            if not arrival.done.cancelled():
                raise
            raise _stopped() from None
        if error is not None:
            raise NotificationRefused(500, "the handler failed")
        return 200

    async def _handle(self, arrival: Arrival) -> None:
        """Call the handler, and remember the notification once it has returned."""
        notification, lane = arrival.notification, self._lanes.lane(arrival.lane)
        failure: BaseException | None = None
        try:
            await self._call(notification)
        except Exception as error:
            failure = error
            log.exception("the handler of %s failed", notification.id or "a notification")
        try:
            async with lane.lock:
                last = not lane.has_others(arrival)
                if failure is None:
                    await self._inbox.finish(
                        arrival.id,
                        arrival.lane,
                        self._holder,
                        keep=self._limits.remember,
                        last=last,
                    )
                elif last:
                    await self._inbox.release(arrival.lane, self._holder)
        except InboxFailed as error:
            log.error("%s; %s may be handled again", error, notification.id)
        finally:
            self._arrivals.pop(arrival.id, None)
            arrival.done.set_result(failure)

    async def _call(self, notification: PushNotification) -> None:
        if self._is_async:
            waiting = self._handler(notification)
            if waiting is not None:
                await waiting
        else:
            notification.bind(asyncio.get_running_loop())
            await asyncio.to_thread(self._handler, notification)

    async def fetch_task(self, task_id: str) -> Task:
        """Fetch a task from the agent, which is connected to when first asked."""
        if self._open_agent is None:
            raise ValueError(
                "the receiver knows no agent to fetch tasks from: give it "
                "agent=lambda: parley.connect(url, ...)"
            )
        async with self._agent_lock:
            if self._agent is None:
                self._agent = await self._agent_stack.enter_async_context(self._open_agent())
        return await self._agent.get(task_id)


def _is_async(handler: Any) -> bool:
    function = handler
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _stopped() -> NotificationRefused:
    return NotificationRefused(503, "the receiver stopped first", retry_after=FULL_SECONDS)


def _busy() -> NotificationRefused:
    return NotificationRefused(503, "another replica handles this task", retry_after=BUSY_SECONDS)


# -- bodies ------------------------------------------------------------------------------------


class BodyReads:
    """The bodies that arrive or are verified. With what is ``queued`` they have ``max_bytes``.

    Nobody is known before the body is there. So when there is no room, the largest incomplete body
    is refused: slow senders of large bodies do not keep out everybody else.
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
        """Note that a body is queued or refused."""
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


# -- challenge --------------------------------------------------------------------------------

CHALLENGE_HEADER = "a2a-webhook-challenge"
CHALLENGE_BYTES = 4096
_PREFIX = b"parley-webhook-challenge:v1:"
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{22,256}")


class _Challenge(msgspec.Struct):
    challenge: str


def answer_challenge(version: str, body: bytes, token: str) -> bytes:
    """Return the answer to a challenge, by the token of the configuration.

    Raises ``NotificationRefused``.
    """
    if version != "v1":
        raise NotificationRefused(400, f"a challenge of the version {version[:40]!r}")
    try:
        challenge = msgspec.json.decode(body, type=_Challenge).challenge
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotificationRefused(400, "a malformed challenge") from None
    if not _CHALLENGE.fullmatch(challenge):
        raise NotificationRefused(400, "a malformed challenge")
    digest = hmac.digest(token.encode(), _PREFIX + challenge.encode(), hashlib.sha256)
    response = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return msgspec.json.encode({"response": response})


# -- receiver ---------------------------------------------------------------------------------

log = logging.getLogger("parley.push.receiver")

MEDIA_TYPES = ("application/a2a+json", "application/json")


class Receiver:
    """Takes push notifications. Made by ``receiver``.

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
        self._token = challenge_token([verification])
        self._on_refused = on_refused
        self._limits = limits
        self._now: Callable[[], float] = time.time
        self._reads = BodyReads(limits.queue_bytes, lambda: handling.bytes)
        self._is_closed = False
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
        """Open the inbox, and drain the queue at the end: ``Starlette(lifespan=...)``."""
        async with self:
            yield

    async def aclose(self) -> None:
        """Refuse what comes, wait for the queue for ``limits.drain`` seconds, and disconnect."""
        self._is_closed = True
        await self._handling.aclose()
        if self._verification is not None:
            await self._verification.close()

    # -- where it is put -----------------------------------------------------------------------

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

        # FastAPI reads the annotations, which are no strings here.
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
        """Serve as an ASGI app."""
        if scope["type"] == "lifespan":
            await self._follow_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            from starlette.requests import Request

            response = await self.respond(Request(scope, receive))
            await response(scope, receive, send)

    async def _follow_lifespan(self, receive: Receive, send: Send) -> None:
        message: AsgiMessage = await receive()
        try:
            await self._handling.start()
        except InboxFailed as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        while message["type"] != "lifespan.shutdown":
            message = await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

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
        except InboxFailed as error:
            raise _inbox_failed(error) from None
        body = await self._read(request)
        try:
            delivered = DeliveredRequest.of(request.headers.raw, body, self._now())
            verified = await self._verify(delivered)
            arrival = _arrival_of(delivered, verified, self._handling.fetch_task)
        finally:
            self._reads.done(body)
        return await self._handling.take(arrival)

    async def _read(self, request: Request) -> bytes:
        """Return the body. Raises ``NotificationRefused``."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in MEDIA_TYPES:
            raise NotificationRefused(415, f"the content type {media_type[:100]!r}")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise NotificationRefused(415, "a compressed body")
        self._handling.check_room()
        return await self._reads.read(request, self._limits.max_bytes, self._limits.body_timeout)

    async def _verify(self, delivered: DeliveredRequest) -> Verified:
        verified = Verified("")
        if self._verification is not None:
            verified = await self._verification.verify(delivered, self._limits.max_age)
            if delivered.timestamp is not None:
                check_age(delivered.timestamp, delivered.now, self._limits.max_age)
        return verified

    # -- refusals ------------------------------------------------------------------------------

    def _note(self, refused: NotificationRefused) -> None:
        """Log a refusal: one a second, and how many more there were."""
        if self._on_refused is not None:
            self._on_refused(refused)
        now = time.monotonic()
        if now - self._logged_at < 1.0:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} more since)" if self._unlogged else ""
        self._logged_at, self._unlogged = now, 0
        log.warning("a notification is refused with %d: %s%s", refused.status, refused.reason, more)


def _arrival_of(
    delivered: DeliveredRequest, verified: Verified, fetch: Callable[[str], Awaitable[Task]]
) -> Arrival:
    """Return a delivery as a notification. Raises ``NotificationRefused``."""
    id, sent_at = checked_id(verified.id) or delivered.id, delivered.timestamp
    try:
        event, version = read_event(delivered.body)
    except ValueError as error:
        raise NotificationRefused(400, str(error)) from None
    if verified.task_id is not None and verified.task_id != task_id_of(event):
        raise NotificationRefused(401, "a JWT of another task")
    notification = PushNotification(
        event,
        id=id,
        version=version,
        sent_at=sent_at,
        verified_by=verified.scheme,
        body=delivered.body,
        fetch=fetch,
    )
    return Arrival(notification, lane_of(event, id), len(delivered.body), sender=verified.sender)


def _refusal(refused: NotificationRefused) -> Response:
    """Return the answer to a delivery that is refused: it says no reason."""
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
    405: "notifications are posted",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: f"the content type is not one of {', '.join(MEDIA_TYPES)}, without a content encoding",
    500: "the notification was not handled",
    503: "come again later",
}


def _inbox_failed(error: InboxFailed) -> NotificationRefused:
    return NotificationRefused(503, str(error), retry_after=FAILED_SECONDS)


def receiver(
    handler: Handler,
    *,
    verify: WebhookVerification | Sequence[WebhookVerification] | Literal[False],
    agent: AgentOpener | TaskSource | None = None,
    inbox: str | Inbox = "memory:",
    acknowledge: Literal["before", "after"] = "before",
    on_refused: Callable[[NotificationRefused], None] | None = None,
    limits: ReceiverLimits = DEFAULT_LIMITS,
) -> Receiver:
    """Return a receiver of push notifications that calls ``handler`` for each.

    ``handler`` is an ``async def`` or, in a thread, a plain function of a ``PushNotification``.
    ``verify`` is how senders prove who they are; a list must be proved altogether. ``verify=False``
    takes notifications from everyone: for tests, or behind something that verifies.

    ``agent`` is what ``await notification.task()`` asks: a connected agent, or a function that
    connects, such as ``lambda: parley.connect(url, bearer=...)``, called when first needed.

    ``inbox`` remembers what was handled: ``memory:``, ``sqlite:///inbox.db``,
    ``postgresql://...``, or an object with the methods of ``parley.store.inbox.inbox.Inbox``;
    replicas of a receiver share one.

    ``acknowledge="before"`` answers 202 when a notification is queued: a process that is killed
    loses its queue. ``"after"`` answers when the handler has returned, and 500 if it raised, so the
    sender comes again: each notification is handled at least once.

    Raises ``TypeError`` and ``ValueError``.
    """
    _check_handler(handler)
    if acknowledge not in ("before", "after"):
        raise ValueError(f'acknowledge is "before" or "after", not {acknowledge!r}')
    verification: WebhookVerification | None
    if verify is False:
        verification = None
    elif isinstance(verify, list | tuple):
        verification = VerifyAll(*verify)
    else:
        verification = checked_verification(verify)
    handling = NotificationHandling(
        handler,
        inbox=inbox_of(inbox) if isinstance(inbox, str) else inbox,
        open_agent=_opener(agent),
        acknowledges_first=acknowledge == "before",
        limits=limits,
    )
    return Receiver(handling, verification=verification, on_refused=on_refused, limits=limits)


def _check_handler(handler: Any) -> None:
    if not callable(handler):
        raise TypeError(f"a receiver calls a function of a notification, not {handler!r}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError("a handler returns when it is done; it yields nothing")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        raise TypeError("a handler takes one argument, the notification") from None
    except ValueError:  # a builtin without a signature
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
