"""Delivers a task's log to one webhook: in batches, at least once, with a durable cursor.

The task's log is the outbox, and the stored cursor is the number of the last delivered event.
``PushDispatcher`` creates the deliveries and ``PushScheduler`` schedules them.
"""

from __future__ import annotations

import logging
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from parley.model import backoff
from parley.model.operations import PushEvents, server_of
from parley.model.service import NO_TRACE, TraceContext
from parley.observe import metrics, tracing
from parley.push.http_sender import (
    Challenges,
    DeliveryFailure,
    HttpSender,
    WebhookAnswer,
    notification_id,
    quoted,
)
from parley.push.reader import EventReader, Notification, ReplyReader, SignificantReader, TaskReader
from parley.push.scheduler import DeliveryJob, Destination, PushScheduler
from parley.store.events import RecordKind, TurnStarted, now_ms
from parley.store.protocols.errors import StoreError
from parley.store.protocols.webhooks import DeliveryAttempt, PushRecord, PushState
from parley.store.task_store import TaskStore
from parley.wire import versions

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = logging.getLogger("parley.push")

Reader = EventReader | TaskReader | SignificantReader | ReplyReader

STORE_PAUSE = 5.0
"""The pause in seconds before the store is queried again after a failure."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Timeout, backoff and limits of delivery attempts. Times are in seconds.

    An attempt has ``timeout``. After a failure, retries follow with exponential backoff from
    ``first_delay`` up to ``longest_delay``. After a rejection (a 4xx other than 408, 425 and 429,
    or a redirect) they follow from ``first_refused_delay`` up to ``longest_refused_delay``. A
    ``Retry-After`` postpones the next attempt by up to ``max_retry_after``. A webhook whose
    attempts have failed for ``gives_up_after`` is suspended at the next failure. Direct replies,
    which are kept in memory, are dropped after ``gives_up_replies_after``. A webhook that takes
    longer than ``quick`` to answer yields to others after each notification.

    Raises ``ValueError`` for a time that is out of range.
    """

    timeout: float = 10.0
    first_delay: float = 1.0
    longest_delay: float = 15 * 60.0
    first_refused_delay: float = 60.0
    longest_refused_delay: float = 60 * 60.0
    max_retry_after: float = 24 * 3600.0
    gives_up_after: float = 24 * 3600.0
    gives_up_replies_after: float = 120.0
    quick: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least = 0.0 if name.startswith("gives_up") else 0.001
            if not least <= value <= 366 * 86_400.0:
                raise ValueError(f"{name} is a number of seconds, {least:g} at least, not {value}")

    def delay(self, failures: int, failure: DeliveryFailure) -> float:
        """Return the backoff in seconds after this many consecutive failures, the last being
        ``failure``."""
        first, longest = self.first_delay, self.longest_delay
        if failure.is_refusal:
            first, longest = self.first_refused_delay, self.longest_refused_delay
        delay = backoff.Backoff(first, longest, jitter=(0.75, 1.25)).delay(failures)
        # Jitter, so that webhooks with the same Retry-After are not all retried at once.
        asked = min(failure.retry_after or 0.0, self.max_retry_after) * backoff.uniform(1.0, 1.1)
        return max(delay, asked)


class Webhook(DeliveryJob):
    """The delivery of notifications to one configuration. Holds no events, except a direct reply.

    ``is_scheduled``: it is queued, running or in backoff. ``has_more``: the log may have more than
    was read. ``is_task_known``: the store was asked whether the task has ended. ``is_claim_known``:
    since loading, the store has confirmed that this replica delivers to it. ``is_blocked``: the
    circuit of its destination is open, and its history shows that. ``stored`` is the configuration
    in the store, ``push`` the configuration after the last attempt, ``attempt`` the last attempt
    until it is stored. ``trace`` is the trace of its task, ``None`` until the log was read. A
    direct reply has no task and is not stored.
    """

    __slots__ = (
        "attempt", "failed_first", "failures", "has_more", "is_blocked", "is_claim_known",
        "is_scheduled", "is_task_known", "push", "reader", "stored", "task_id", "trace",
    )  # fmt: skip

    def __init__(
        self,
        task_id: str,
        push: PushRecord,
        reader: Reader,
        destination: Destination,
        run: Callable[[Webhook], Coroutine[Any, Any, float | None]],
        trace: TraceContext | None = None,
    ) -> None:
        super().__init__(destination, partial(run, self))
        self.task_id = task_id
        self.trace = trace
        self.push = self.stored = push
        self.reader = reader
        self.is_scheduled = self.has_more = self.is_task_known = self.is_claim_known = False
        self.is_blocked = False
        self.attempt: DeliveryAttempt | None = None
        self.failures = 0
        self.failed_first = 0.0  # the first of the consecutive failures or blocks, in loop time

    def __str__(self) -> str:
        what = f"task {self.task_id}" if self.task_id else "a direct reply"
        return f"{what}: the webhook {self.push.id or '(no id)'} at {self.server}"

    @property
    def server(self) -> str:
        """The server of the webhook, for logs."""
        return server_of(self.push.config.url)

    def id_of(self, notification: Notification) -> str:
        """Return the id of a notification, the same for every attempt."""
        if not self.task_id:
            return quoted(notification.name)
        seq = notification.name or notification.seq
        return notification_id(self.task_id, self.push.id, seq)


class Sent(NamedTuple):
    """An attempt to send, and its result. Times are in ms, ``at`` since 1970.

    ``delivery_id`` is the notification's, empty for a challenge.
    """

    failure: DeliveryFailure | None
    at: int = 0
    duration: int = 0
    status: int = 0
    delivery_id: str = ""


def _span_attributes(webhook: Webhook) -> dict[str, Any]:
    found = {
        "http.request.method": "POST",
        "server.address": webhook.server.partition("://")[2],
        "parley.attempt": webhook.push.attempts + 1,
    }
    return found | ({"a2a.task.id": webhook.task_id} if webhook.task_id else {})


@contextmanager
def _ending(
    span: Span | None, answer: Callable[[], WebhookAnswer | DeliveryFailure]
) -> Iterator[None]:
    """End the span of an attempt with its answer."""
    try:
        yield
    finally:
        if span is not None:
            found, error = answer(), None
            if found.status:
                span.set_attribute("http.response.status_code", found.status)
            if isinstance(found, DeliveryFailure):
                error = str(found.status or ("held_back" if found.is_held_back else "unreachable"))
            tracing.end(span, error)


class WebhookDelivery:
    """Delivers to webhooks in batches.

    Before the first notification, and on a shared store before each batch, it checks in the store
    whether this replica still delivers to the webhook. Each notification waits until the cursor of
    the previous one is stored. So a replica that stops, dies or loses the store repeats at most one
    notification; for ``significant`` events also the unfinished artifacts before a state. With
    ``challenges`` a receiver must confirm that it wants notifications.
    """

    def __init__(
        self,
        store: TaskStore,
        sender: HttpSender,
        retry_policy: RetryPolicy,
        scheduler: PushScheduler,
        *,
        challenges: Challenges | None = None,
    ) -> None:
        self._store = store
        self._sender = sender
        self._policy = retry_policy
        self._scheduler = scheduler
        self._challenges = challenges

    def reader(self, task_id: str, push: PushRecord, default: PushEvents) -> Reader:
        """Return the reader of a webhook's notifications, which starts after its cursor.

        ``default`` are the events of a webhook without a choice.
        """
        is_significant = (push.options.events or default) == "significant"
        if versions.dialect(push.version).pushes_tasks:
            return TaskReader(self._store, task_id, push.cursor, only_states=is_significant)
        if is_significant:
            return SignificantReader(self._store, task_id)
        return EventReader(self._store, task_id)

    async def deliver(self, webhook: Webhook) -> float | None:
        """Deliver a batch. Return the seconds until the next one, ``None`` if nothing remains.

        The webhook is finished when this replica has nothing more to deliver to it.
        """
        try:
            return await self._deliver(webhook)
        except StoreError as error:
            log.error("%s waits: %s", webhook, error)
        except Exception:
            log.exception("delivery to %s failed", webhook)
            failure = DeliveryFailure("the server failed; its log says why")
            return self._failed(webhook, Sent(failure, now_ms()), failure)
        finally:
            webhook.destination.released(webhook)
        return STORE_PAUSE

    async def _deliver(self, webhook: Webhook) -> float | None:
        webhook.has_more = False
        if not await self._save(webhook):  # a cursor that could not be stored earlier
            return None
        if webhook.is_blocked and (wait := self._circuit_wait(webhook)):
            return await self._block(webhook, wait)
        notifications = await webhook.reader.after(webhook.push.cursor)
        if not notifications:
            await self._check_ended(webhook)
            return None
        if webhook.task_id and (self._store.is_shared or not webhook.is_claim_known):
            before = webhook.push
            if not await self._confirm_claim(webhook):
                return None
            if webhook.push is not before:
                return 0.0
        if wait := self._circuit_wait(webhook):
            return await self._block(webhook, wait)
        if webhook.trace is None:
            webhook.trace = await self._trace_of(webhook.task_id)
        caller, challenges = webhook.destination.caller, self._challenges
        is_challenge = challenges is not None and not challenges.is_confirmed(caller, webhook.push)
        begun = get_running_loop().time()
        for notification in [None] if is_challenge else notifications:
            if not webhook.delivery.permit():
                break
            sent = await self._send(webhook, notification)
            if sent is None:
                break
            delay = self._note(webhook, notification, sent)
            if not await self._save(webhook):
                return None
            if delay or get_running_loop().time() - begun > self._policy.quick:
                return delay
        return 0.0

    async def _send(self, webhook: Webhook, notification: Notification | None) -> Sent | None:
        """Send a notification, or a challenge, and judge the destination by its answer.

        Returns ``None`` if nothing was sent, because the destination's limit of requests is
        reached.
        """
        push, clock = webhook.push, get_running_loop().time
        begun, at = clock(), now_ms()
        id = "" if notification is None else webhook.id_of(notification)
        body = b""
        trace = webhook.trace or NO_TRACE
        span = None
        if tracing.tracer is not None:
            span = tracing.begin("POST webhook", "client", trace, _span_attributes(webhook))
            trace = trace if span is None else tracing.position_of(span, trace.baggage)
        answer: WebhookAnswer | DeliveryFailure = DeliveryFailure("not sent")
        with self._scheduler.calling(webhook) as delivery, _ending(span, lambda: answer):
            if notification is None:
                assert self._challenges is not None
                answer = await self._challenges.ask(push, delivery)
            else:
                write = versions.dialect(push.version).write_push
                body = write(notification.event, notification.task, notification.json)
                answer = await self._sender.post(push, body, id, delivery, trace.headers)
        seconds = clock() - begun
        failure = answer if isinstance(answer, DeliveryFailure) else None
        if failure is not None and failure.is_held_back:
            delivery.has_request = True
            return None
        if failure is None or not failure.is_local:
            is_well = failure is None or failure.is_refusal
            webhook.destination.answered(well=is_well and seconds <= self._policy.quick)
            if answer.status or failure is None or not failure.is_final:
                self._judge(webhook, failure)
        if failure is None and notification is not None:
            webhook.reader.delivered(notification, len(body))
        return Sent(failure, at, round(seconds * 1000), answer.status, id)

    async def _trace_of(self, task_id: str) -> TraceContext:
        """Return the trace in the log of a task."""
        for record in await self._store.private_records(task_id, (RecordKind.TURN,), limit=1):
            if isinstance(record.event, TurnStarted) and record.event.trace is not None:
                return record.event.trace
        return NO_TRACE

    def _judge(self, webhook: Webhook, failure: DeliveryFailure | None) -> None:
        """Open or close the circuit of a destination, after an answer or none."""
        destination = webhook.destination
        if failure is None or failure.is_refusal or failure.is_final:
            if destination.succeeded():
                destination.has_recovered = True
                log.warning("the circuit of %s is closed: it answers", webhook.server)
        elif destination.failed(webhook, failure.reason):
            # A Retry-After of a day must not delay other webhooks that long.
            asked = min(failure.retry_after or 0.0, self._policy.longest_delay)
            delay = self._policy.delay(destination.opened, failure._replace(retry_after=asked))
            destination.until = get_running_loop().time() + delay
            log.log(
                logging.WARNING if destination.opened == 1 else logging.INFO,
                "the circuit of %s is open for %.3g s, after %d consecutive failures: %s",
                webhook.server, delay, destination.failures, failure.reason,
            )  # fmt: skip

    def _circuit_wait(self, webhook: Webhook) -> float:
        """Return the seconds that a webhook must wait for the circuit of its destination."""
        now = get_running_loop().time()
        return webhook.destination.wait(webhook, now, self._policy.timeout)

    def _note(self, webhook: Webhook, notification: Notification | None, sent: Sent) -> float:
        """Record the result of an attempt. Return the seconds until the next one."""
        if (failure := sent.failure) is not None:
            if failure.is_local:
                log.warning("%s waits: %s", webhook, failure.reason)
                return STORE_PAUSE
            return self._failed(webhook, sent, failure)
        if notification is None:
            webhook.push = replace(webhook.push, confirmed=True, note="")
        else:
            webhook.failures = 0
            webhook.retried_early = webhook.is_blocked = False
            state = PushState.DONE if notification.is_last else PushState.ACTIVE
            cursor = max(webhook.push.cursor, notification.seq)
            webhook.push = replace(webhook.push, cursor=cursor, state=state, note="")
        self._add_attempt(webhook, sent)
        return 0.0

    def _failed(self, webhook: Webhook, sent: Sent, failure: DeliveryFailure) -> float:
        """Count a failure, and suspend the webhook when it gets no retry.

        Return the backoff. It may end early, once per series of failures, when the destination
        answers another job: other webhooks there may work while this one fails.
        """
        now = get_running_loop().time()
        webhook.failures += 1
        if webhook.failures == 1 and not webhook.is_blocked:
            webhook.failed_first = now
        webhook.may_retry_early = not (
            failure.is_refusal or failure.retry_after or webhook.retried_early
        )
        delay = self._policy.delay(webhook.failures, failure)
        delay = max(delay, webhook.destination.remaining(now))
        if failure.is_final or self._gives_up(webhook):
            self._suspend(webhook, failure.reason)
            self._add_attempt(webhook, sent, failure.reason)
        else:
            log.info("%s will be tried again: %s", webhook, failure.reason)
            webhook.push = replace(webhook.push, note=failure.reason)
            self._add_attempt(webhook, sent, failure.reason, delay)
        return delay

    async def _block(self, webhook: Webhook, wait: float) -> float | None:
        """Let a webhook wait for the circuit of its destination; suspend it in the end."""
        webhook.may_retry_early = True
        reason = f"the circuit of its destination is open: {webhook.destination.reason}"
        if not webhook.is_blocked:
            webhook.is_blocked = True
            if not webhook.failures:
                webhook.failed_first = get_running_loop().time()
            webhook.push = replace(webhook.push, note=reason)
            self._add_attempt(webhook, Sent(None, now_ms()), f"not sent: {reason}", wait)
        elif self._gives_up(webhook):
            self._suspend(webhook, reason)
        return wait if await self._save(webhook) else None

    def _gives_up(self, webhook: Webhook) -> bool:
        policy = self._policy
        longest = policy.gives_up_after if webhook.task_id else policy.gives_up_replies_after
        return get_running_loop().time() - webhook.failed_first >= longest

    def _suspend(self, webhook: Webhook, reason: str) -> None:
        tries = f", {webhook.failures} times in a row" if webhook.failures > 1 else ""
        note = f"{reason}{tries}"
        webhook.push = replace(webhook.push, state=PushState.SUSPENDED, note=note)
        end = f"suspended after event {webhook.push.cursor}" if webhook.task_id else "given up"
        log.warning("%s is %s: %s", webhook, end, note)

    def _add_attempt(
        self, webhook: Webhook, sent: Sent, error: str = "", delay: float = 0.0
    ) -> None:
        """Add an attempt to a webhook's history, which is saved with its cursor."""
        if metrics.current is not None:
            is_over = webhook.push.state is PushState.SUSPENDED
            outcome = "suspended" if is_over else "failed" if error else "delivered"
            metrics.current.of("deliveries", outcome).observe(sent.duration / 1000)
        number = webhook.push.attempts + 1
        webhook.push = replace(webhook.push, attempts=number)
        webhook.attempt = DeliveryAttempt(
            number=number,
            at=sent.at,
            duration=sent.duration,
            status=sent.status,
            error=error,
            next_at=now_ms() + round(delay * 1000) if delay else 0,
            delivery_id=sent.delivery_id,
        )

    async def _confirm_claim(self, webhook: Webhook) -> bool:
        """Return whether this replica still delivers to a webhook, after reading its stored cursor.

        The configuration may have been removed, replaced, or claimed by another replica, which may
        have delivered more.
        """
        for stored in await self._store.pushes(webhook.task_id):
            if stored.revision == webhook.push.revision and stored.state is PushState.ACTIVE:
                if stored.lease_owner != self._store.replica:
                    break
                webhook.is_claim_known = True
                if stored.cursor > webhook.push.cursor:
                    webhook.push = webhook.stored = stored
                    webhook.is_task_known = False
                return True
        webhook.is_finished = True
        return False

    async def _save(self, webhook: Webhook) -> bool:
        """Store the cursor and the state. Return whether this replica continues."""
        push = webhook.push
        if push != webhook.stored:
            if webhook.task_id and not await self._store.save_delivery(
                webhook.task_id, push, webhook.attempt
            ):
                webhook.is_finished = True  # removed, or claimed by another replica
            webhook.stored, webhook.attempt = push, None
        if push.state is not PushState.ACTIVE:
            webhook.is_finished = True
        return not webhook.is_finished

    async def _check_ended(self, webhook: Webhook) -> None:
        """Complete a webhook that is at the end of a log that has ended, or is removed."""
        if webhook.is_task_known and not webhook.failures:
            return
        webhook.is_task_known = True
        record = await self._store.load(webhook.task_id, history=0, artifacts=False)
        if record is None:
            webhook.is_finished = True
        elif record.state.is_terminal and webhook.push.cursor >= record.seq:
            webhook.push = replace(webhook.push, state=PushState.DONE)
            await self._save(webhook)
