"""Delivers a task's log to one webhook: a batch at a time, at least once, behind a durable cursor.

The task's log is the outbox and the stored cursor says how far it is delivered. ``PushDispatcher``
creates the deliveries and ``PushScheduler`` runs them; nothing here decides when.
"""

from __future__ import annotations

import logging
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from parley.model import backoff
from parley.model.operations import PushEvents, server_of
from parley.push.http_sender import (
    Challenges,
    DeliveryFailure,
    HttpSender,
    WebhookAnswer,
    notification_id,
)
from parley.push.reader import EventReader, Notification, SignificantReader, TaskReader
from parley.push.scheduler import CallRequests, DeliveryJob, PushScheduler
from parley.store.events import now_ms
from parley.store.protocols.errors import StoreError
from parley.store.protocols.webhooks import DeliveryAttempt, PushRecord, PushState
from parley.store.task_store import TaskStore
from parley.wire import versions

log = logging.getLogger("parley.push")

Reader = EventReader | TaskReader | SignificantReader

STORE_PAUSE = 5.0
"""How many seconds to wait before the store is asked again after it failed."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Timeout, backoff and limits of the attempts to deliver. Times are in seconds.

    An attempt has ``timeout``. After a failure, retries follow with exponential backoff from
    ``first_delay`` up to ``longest_delay``. After a refusal (a 4xx other than 408, 425 and 429, or
    a redirect) they follow from ``first_refused_delay`` up to ``longest_refused_delay``. A
    ``Retry-After`` postpones the next attempt by up to ``max_retry_after``.
    A webhook whose attempts have failed for ``gives_up_after`` is suspended at the next failure.
    Direct replies, which are held in memory, are dropped after ``gives_up_replies_after``.
    A webhook that takes longer than ``quick`` to answer yields to others after each notification.

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
        """Return the backoff in seconds after ``failures`` in a row, the last being ``failure``."""
        first, longest = self.first_delay, self.longest_delay
        if failure.is_refusal:
            first, longest = self.first_refused_delay, self.longest_refused_delay
        delay = backoff.Backoff(first, longest, jitter=(0.75, 1.25)).delay(failures)
        # Jitter: webhooks that got the same Retry-After do not all return at once.
        asked = min(failure.retry_after or 0.0, self.max_retry_after) * backoff.uniform(1.0, 1.1)
        return max(delay, asked)


class Webhook:
    """The delivery state of one push notification configuration. Holds no events.

    ``is_scheduled``: its job is queued, running or in backoff. ``has_more``: the log may hold more
    than was read. ``is_task_known``: the store was asked whether the task has ended.
    ``is_claim_known``: the store confirmed since it was loaded that this replica delivers to it.
    ``is_blocked``: the circuit of its destination is open, and its history says so.
    ``stored`` is the configuration as the store has it, ``push`` as it is after the last attempt,
    ``attempt`` the last one until it is stored.
    """

    __slots__ = (
        "attempt", "failed_first", "failures", "has_more", "is_blocked", "is_claim_known",
        "is_scheduled", "is_task_known", "job", "push", "reader", "stored", "task_id",
    )  # fmt: skip

    def __init__(self, task_id: str, push: PushRecord, reader: Reader) -> None:
        self.task_id = task_id
        self.push = self.stored = push
        self.reader = reader
        self.job: DeliveryJob
        self.is_scheduled = self.has_more = self.is_task_known = self.is_claim_known = False
        self.is_blocked = False
        self.attempt: DeliveryAttempt | None = None
        self.failures = 0
        self.failed_first = 0.0  # by the loop's clock; the first failure or block in a row

    def __str__(self) -> str:
        return f"task {self.task_id}: {label(self.push)}"


class Sent(NamedTuple):
    """An attempt to send, and how it went. Times are in ms, ``at`` since 1970.

    ``is_held_back``: nothing was sent, because the destination got as much as it may.
    """

    failure: DeliveryFailure | None
    at: int = 0
    duration: int = 0
    status: int = 0
    is_held_back: bool = False


class WebhookDelivery:
    """Delivers to webhooks, a batch at a time.

    Before the first notification, and on a shared store before each batch, it asks the store
    whether this replica still delivers to the webhook. Each notification waits until the cursor is
    stored behind the one before. So a replica that stops, dies or loses the store repeats at most
    one notification; of ``significant`` ones also the unfinished artifacts before a state.
    With ``challenges`` a receiver has to confirm that it wants notifications.
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
        self._retry_policy = retry_policy
        self._scheduler = scheduler
        self._caps = scheduler.caps
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
        """Deliver a batch. Return the seconds until the next one, ``None`` if nothing is left.

        The webhook's job is finished when this replica delivers nothing more to it.
        """
        try:
            return await self._deliver_batch(webhook)
        except StoreError as error:
            log.error("%s waits: %s", webhook, error)
        except Exception:
            log.exception("delivery to %s failed", webhook)
            failure = DeliveryFailure("the server failed; its log says why")
            return self._count_failure(webhook, Sent(failure, now_ms()))
        finally:
            webhook.job.destination.circuit.released(webhook.job)
        return STORE_PAUSE

    async def post(
        self, job: DeliveryJob, push: PushRecord, body: bytes, notification_id: str
    ) -> Sent:
        """Send a notification, and record how its destination answers."""
        return await self._send(job, push, partial(self._sender.post, push, body, notification_id))

    def circuit_wait(self, job: DeliveryJob) -> float:
        """Return how many seconds a job has to wait for the circuit of its destination."""
        now = get_running_loop().time()
        return job.destination.circuit.wait(job, now, self._retry_policy.timeout)

    def needs_challenge(self, job: DeliveryJob, push: PushRecord) -> bool:
        """Return whether a receiver has to confirm before it is sent anything."""
        challenges = self._challenges
        return challenges is not None and not challenges.is_confirmed(job.destination.caller, push)

    async def challenge(self, job: DeliveryJob, push: PushRecord) -> Sent:
        """Ask a receiver for its confirmation."""
        assert self._challenges is not None
        return await self._send(job, push, partial(self._challenges.ask, push))

    async def _send(
        self,
        job: DeliveryJob,
        push: PushRecord,
        send: Callable[[CallRequests], Awaitable[WebhookAnswer | DeliveryFailure]],
    ) -> Sent:
        loop = get_running_loop()
        begun, at = loop.time(), now_ms()
        destination = job.destination
        with self._scheduler.calling(job) as requests:
            answer = await send(requests)
        duration = round((loop.time() - begun) * 1000)
        failure = answer if isinstance(answer, DeliveryFailure) else None
        if failure is not None and failure.is_held_back:
            self._caps.give_back(job)
            return Sent(None, at, duration, is_held_back=True)
        if failure is None or not failure.is_local:
            is_well = failure is None or failure.is_refusal
            is_quick = loop.time() - begun <= self._retry_policy.quick
            destination.answered(well=is_well and is_quick)
            if answer.status or not (failure is not None and failure.is_final):
                answers = failure is None or failure.is_refusal or failure.is_final
                self._judge(job, push, None if answers else failure)
        return Sent(failure, at, duration, answer.status)

    def _judge(self, job: DeliveryJob, push: PushRecord, failure: DeliveryFailure | None) -> None:
        """Open or close the circuit of a destination, after an answer or none."""
        destination, circuit = job.destination, job.destination.circuit
        if failure is None:
            if circuit.succeeded():
                destination.has_recovered = True
                log.warning("the circuit of %s is closed: it answers", server_of(push.config.url))
        elif circuit.failed(job, failure.reason):
            # A webhook that asks for a day must not hold up the others for that long.
            asked = min(failure.retry_after or 0.0, self._retry_policy.longest_delay)
            delay = self._retry_policy.delay(circuit.opened, failure._replace(retry_after=asked))
            circuit.until = get_running_loop().time() + delay
            log.log(
                logging.WARNING if circuit.opened == 1 else logging.INFO,
                "the circuit of %s is open for %.3g s, after %d failures in a row: %s",
                server_of(push.config.url), delay, circuit.failures, failure.reason,
            )  # fmt: skip

    async def _deliver_batch(self, webhook: Webhook) -> float | None:
        webhook.has_more = False
        if not await self._save(webhook):  # a cursor that could not be stored before
            return None
        loop, job = get_running_loop(), webhook.job
        if webhook.is_blocked and (wait := self.circuit_wait(job)):
            return await self._block(webhook, wait)
        notifications = await webhook.reader.after(webhook.push.cursor)
        if not notifications:
            await self._check_ended(webhook)
            return None
        if self._store.is_shared or not webhook.is_claim_known:
            before = webhook.push
            if not await self._confirm_claim(webhook):
                return None
            if webhook.push is not before:
                return 0.0
        if wait := self.circuit_wait(job):
            return await self._block(webhook, wait)
        if self.needs_challenge(job, webhook.push):
            if not self._caps.permit(job):
                return 0.0
            return await self._attempt(webhook, self.challenge(job, webhook.push), None)
        begun = loop.time()
        for notification in notifications:
            if not self._caps.permit(job):
                return 0.0
            delay = await self._attempt(webhook, self._post(webhook, notification), notification)
            if delay != 0.0:
                return delay
            if loop.time() - begun > self._retry_policy.quick:
                break
        return 0.0

    async def _post(self, webhook: Webhook, notification: Notification) -> Sent:
        push = webhook.push
        dialect = versions.dialect(push.version)
        body = dialect.write_push(notification.event, notification.task, notification.json)
        sent = await self.post(webhook.job, push, body, _id_of(webhook, notification))
        if sent.failure is None and not sent.is_held_back:
            webhook.reader.delivered(notification, len(body))
        return sent

    async def _attempt(
        self, webhook: Webhook, sending: Awaitable[Sent], notification: Notification | None
    ) -> float | None:
        """Send a notification, or a challenge, and save how it went.

        Return the seconds until the next attempt, ``None`` if this replica makes none.
        """
        sent = await sending
        if sent.is_held_back:
            return 0.0
        failure = sent.failure
        if failure is not None and failure.is_local:
            log.warning("%s waits: %s", webhook, failure.reason)
            return STORE_PAUSE
        named = _id_of(webhook, notification) if notification is not None else ""
        delay = 0.0
        if failure is not None:
            delay = self._count_failure(webhook, sent, named)
        elif notification is None:
            webhook.push = replace(webhook.push, confirmed=True, note="")
            self._add_attempt(webhook, sent)
        else:
            webhook.failures = 0
            webhook.job.retried_early = webhook.is_blocked = False
            state = PushState.DONE if notification.is_last else PushState.ACTIVE
            cursor = max(webhook.push.cursor, notification.seq)
            webhook.push = replace(webhook.push, cursor=cursor, state=state, note="")
            self._add_attempt(webhook, sent, delivery_id=named)
        return delay if await self._save(webhook) else None

    def _count_failure(self, webhook: Webhook, sent: Sent, delivery_id: str = "") -> float:
        """Count a failure, and suspend the webhook when it gets no retry.

        Return the backoff. It may end early, once in a row of failures, when the destination
        answers another job: other webhooks there may be well while this one is not.
        """
        failure = sent.failure
        assert failure is not None
        job, now = webhook.job, get_running_loop().time()
        webhook.failures += 1
        if webhook.failures == 1 and not webhook.is_blocked:
            webhook.failed_first = now
        job.may_retry_early = not (failure.is_refusal or failure.retry_after or job.retried_early)
        delay = self._retry_policy.delay(webhook.failures, failure)
        delay = max(delay, job.destination.circuit.remaining(now))
        if not failure.is_final and now - webhook.failed_first < self._retry_policy.gives_up_after:
            log.info("%s will be tried again: %s", webhook, failure.reason)
            webhook.push = replace(webhook.push, note=failure.reason)
            next_at = now_ms() + round(delay * 1000)
        else:
            self._suspend(webhook, failure.reason)
            next_at = 0
        self._add_attempt(webhook, sent, failure.reason, next_at=next_at, delivery_id=delivery_id)
        return delay

    async def _block(self, webhook: Webhook, wait: float) -> float | None:
        """Have a webhook wait for the circuit of its destination; suspend it in the end."""
        now, circuit = get_running_loop().time(), webhook.job.destination.circuit
        webhook.job.may_retry_early = True
        reason = f"the circuit of its destination is open: {circuit.reason}"
        if not webhook.is_blocked:
            webhook.is_blocked = True
            if not webhook.failures:
                webhook.failed_first = now
            next_at = now_ms() + round(wait * 1000)
            webhook.push = replace(webhook.push, note=reason)
            self._add_attempt(webhook, Sent(None, now_ms()), f"not sent: {reason}", next_at=next_at)
        elif now - webhook.failed_first >= self._retry_policy.gives_up_after:
            self._suspend(webhook, reason)
        return wait if await self._save(webhook) else None

    def _suspend(self, webhook: Webhook, reason: str) -> None:
        tries = f", {webhook.failures} times in a row" if webhook.failures > 1 else ""
        note = f"{reason}{tries}"
        webhook.push = replace(webhook.push, state=PushState.SUSPENDED, note=note)
        log.warning("%s is suspended after event %d: %s", webhook, webhook.push.cursor, note)

    def _add_attempt(
        self,
        webhook: Webhook,
        sent: Sent,
        error: str = "",
        *,
        next_at: int = 0,
        delivery_id: str = "",
    ) -> None:
        """Add an attempt to a webhook's history, which is saved with its cursor."""
        number = webhook.push.attempts + 1
        webhook.push = replace(webhook.push, attempts=number)
        webhook.attempt = DeliveryAttempt(
            number=number,
            at=sent.at,
            duration=sent.duration,
            status=sent.status,
            error=error,
            next_at=next_at,
            delivery_id=delivery_id,
        )

    async def _confirm_claim(self, webhook: Webhook) -> bool:
        """Return whether this replica still delivers to a webhook, and take over its stored cursor.

        The configuration may be removed, replaced, or claimed by another replica, which may have
        delivered more than is known here.
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
        webhook.job.is_finished = True
        return False

    async def _save(self, webhook: Webhook) -> bool:
        """Store the cursor and the state. Return whether this replica continues."""
        push = webhook.push
        if push != webhook.stored:
            if not await self._store.save_delivery(webhook.task_id, push, webhook.attempt):
                webhook.job.is_finished = True  # removed, or claimed by another replica
            webhook.stored, webhook.attempt = push, None
        if push.state is not PushState.ACTIVE:
            webhook.job.is_finished = True
        return not webhook.job.is_finished

    async def _check_ended(self, webhook: Webhook) -> None:
        """Complete a webhook that is at the end of a log that has ended, or is removed."""
        if webhook.is_task_known and not webhook.failures:
            return
        webhook.is_task_known = True
        record = await self._store.load(webhook.task_id, history=0, artifacts=False)
        if record is None:
            webhook.job.is_finished = True
        elif record.state.is_terminal and webhook.push.cursor >= record.seq:
            webhook.push = replace(webhook.push, state=PushState.DONE)
            await self._save(webhook)


def _id_of(webhook: Webhook, notification: Notification) -> str:
    """Return the id of a notification, the same for every attempt."""
    seq = notification.name or str(notification.seq)
    return notification_id(webhook.task_id, webhook.push.id, seq)


def label(push: PushRecord) -> str:
    """Return the name of a webhook in the server's log."""
    return f"the webhook {push.id or '(no id)'} at {server_of(push.config.url)}"
