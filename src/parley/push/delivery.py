"""Delivers a task's log to one webhook: a batch at a time, at least once, behind a durable cursor.

The task's log is the outbox and the stored cursor says how far it is delivered. ``PushDispatcher``
creates the deliveries and ``PushScheduler`` runs them; nothing here decides when.
"""

from __future__ import annotations

import logging
from asyncio import get_running_loop

import msgspec
from msgspec.structs import replace

from parley.model import backoff
from parley.model.push import server_of
from parley.push.http_sender import DeliveryFailure, HttpSender, notification_id
from parley.push.reader import EventReader, Notification, TaskReader
from parley.push.scheduler import DeliveryJob, Destination
from parley.security.egress import lookup_caller
from parley.store.protocols.errors import StoreError
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.task_store import TaskStore
from parley.wire import versions

log = logging.getLogger("parley.push")

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
    ``stored`` is the configuration as the store has it, ``push`` as it is after the last attempt.
    """

    __slots__ = (
        "failed_first", "failures", "has_more", "is_claim_known", "is_scheduled", "is_task_known",
        "job", "push", "reader", "stored", "task_id",
    )  # fmt: skip

    def __init__(self, task_id: str, push: PushRecord, reader: EventReader | TaskReader) -> None:
        self.task_id = task_id
        self.push = self.stored = push
        self.reader = reader
        self.job: DeliveryJob
        self.is_scheduled = self.has_more = self.is_task_known = self.is_claim_known = False
        self.failures = 0
        self.failed_first = 0.0  # by the loop's clock

    def __str__(self) -> str:
        return f"task {self.task_id}: {label(self.push)}"


class WebhookDelivery:
    """Delivers to webhooks, a batch at a time.

    Before the first notification, and on a shared store before each batch, it asks the store
    whether this replica still delivers to the webhook. Each notification waits until the cursor is
    stored behind the one before. So a replica that stops, dies or loses the store repeats at most
    one notification.
    """

    def __init__(self, store: TaskStore, sender: HttpSender, retry_policy: RetryPolicy) -> None:
        self._store = store
        self._sender = sender
        self._retry_policy = retry_policy

    def reader(self, task_id: str, push: PushRecord) -> EventReader | TaskReader:
        """Return the reader of a webhook's notifications, which starts after its cursor."""
        if versions.dialect(push.version).pushes_tasks:
            return TaskReader(self._store, task_id, push.cursor)
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
            self._count_failure(webhook, DeliveryFailure("the server failed; its log says why"))
            return self._retry_delay(webhook, DeliveryFailure(""))
        return STORE_PAUSE

    async def post(
        self, destination: Destination, push: PushRecord, body: bytes, notification_id: str
    ) -> DeliveryFailure | None:
        """Send a notification, and record how its destination answers."""
        loop = get_running_loop()
        begun = loop.time()
        lookup_caller.set(destination.caller)  # in this task, which runs one job
        failure = await self._sender.post(push, body, notification_id)
        if failure is None or not failure.is_local:
            is_well = failure is None or failure.is_refusal
            destination.answered(well=is_well and loop.time() - begun <= self._retry_policy.quick)
        return failure

    async def _deliver_batch(self, webhook: Webhook) -> float | None:
        webhook.has_more = False
        if not await self._save(webhook):  # a cursor that could not be stored before
            return None
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
        loop = get_running_loop()
        begun = loop.time()
        for notification in notifications:
            failure = await self._deliver_one(webhook, notification)
            if not await self._save(webhook):
                return None
            if failure is not None:
                return STORE_PAUSE if failure.is_local else self._retry_delay(webhook, failure)
            if loop.time() - begun > self._retry_policy.quick:
                break
        return 0.0

    async def _deliver_one(
        self, webhook: Webhook, notification: Notification
    ) -> DeliveryFailure | None:
        push = webhook.push
        body = versions.dialect(push.version).write_push(notification.event, notification.task)
        named = notification_id(webhook.task_id, push.id, notification.seq)
        failure = await self.post(webhook.job.destination, push, body, named)
        if failure is not None:
            self._count_failure(webhook, failure)
            return failure
        webhook.failures = 0
        webhook.job.retried_early = False
        webhook.reader.delivered(notification, len(body))
        state = PushState.DONE if notification.is_last else PushState.ACTIVE
        webhook.push = replace(push, cursor=notification.seq, state=state)
        return None

    def _count_failure(self, webhook: Webhook, failure: DeliveryFailure) -> None:
        """Count a failure, and suspend the webhook when it gets no retry."""
        if failure.is_local:
            log.warning("%s waits: %s", webhook, failure.reason)
            return
        now = get_running_loop().time()
        webhook.failures += 1
        if webhook.failures == 1:
            webhook.failed_first = now
        if not failure.is_final and now - webhook.failed_first < self._retry_policy.gives_up_after:
            log.info("%s will be tried again: %s", webhook, failure.reason)
            return
        tries = f", {webhook.failures} times in a row" if webhook.failures > 1 else ""
        note = f"{failure.reason}{tries}"
        webhook.push = replace(webhook.push, state=PushState.SUSPENDED, note=note)
        log.warning("%s is suspended after event %d: %s", webhook, webhook.push.cursor, note)

    def _retry_delay(self, webhook: Webhook, failure: DeliveryFailure) -> float:
        """Return the backoff after a failure. It may end early, once in a row of failures, when the
        destination answers another job: other webhooks there may be well while this one is not.
        """
        job = webhook.job
        job.may_retry_early = not (failure.is_refusal or failure.retry_after or job.retried_early)
        return self._retry_policy.delay(webhook.failures, failure)

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
        """Store the cursor and the state. Return whether this replica goes on delivering."""
        push = webhook.push
        if push != webhook.stored:
            if not await self._store.save_delivery(webhook.task_id, push):
                webhook.job.is_finished = True  # removed, or claimed by another replica
            webhook.stored = push
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
        elif record.task.state.is_terminal and webhook.push.cursor >= record.seq:
            webhook.push = replace(webhook.push, state=PushState.DONE)
            await self._save(webhook)


def label(push: PushRecord) -> str:
    """Return the name of a webhook in the server's log."""
    return f"the webhook {push.id or '(no id)'} at {server_of(push.config.url)}"
