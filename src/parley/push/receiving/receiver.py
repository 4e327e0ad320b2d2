"""An ASGI app that takes push notifications, verifies them, and has them handled.

A delivery is read within limits, verified, looked up in the inbox, and queued. With
``acknowledge="before"`` it is answered then; with ``"after"`` when the handler has returned.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from parley.model.errors import an
from parley.model.tasks import Task
from parley.push.receiving.body import BodyReads
from parley.push.receiving.challenge import CHALLENGE_BYTES, CHALLENGE_HEADER, answer_challenge
from parley.push.receiving.handling import FAILED_SECONDS, FULL_SECONDS, NotificationHandling
from parley.push.receiving.lanes import Arrival
from parley.push.receiving.limits import ReceiverLimits
from parley.push.receiving.notification import PushNotification, lane_of, read_event, task_id_of
from parley.push.receiving.request import (
    DeliveredRequest,
    NotificationRefused,
    Verified,
    checked_id,
)
from parley.push.receiving.verification import WebhookVerification, challenge_token, check_age
from parley.store.inbox.inbox import InboxFailed

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import Message as AsgiMessage
    from starlette.types import Receive, Scope, Send

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
