"""Tells one webhook what is next: only while it is told from here, noting each that was taken."""

from __future__ import annotations

import logging
from asyncio import get_running_loop

import msgspec
from msgspec.structs import replace

from parley.model import backoff
from parley.model.push import server_of
from parley.push.http_sender import DeliveryFailure, HttpSender, notification_id
from parley.push.reader import EventReader, Notice, TaskReader
from parley.push.scheduler import DeliveryJob, Destination
from parley.security.egress import lookup_caller
from parley.store.task_store import PushRecord, PushState, StoreError, TaskStore
from parley.wire import versions

log = logging.getLogger("parley.agent")

STORE_PAUSE = 5.0


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How patient delivery is. Times are in seconds.

    A try has ``timeout``. After one that failed there are others: the first after ``first_delay``,
    each later one after twice as long, ``longest_delay`` at most. One that the webhook refused (a
    4xx that does not ask to come again, a redirect) is followed by others after
    ``first_refused_delay``, up to ``longest_refused_delay``. When a webhook says in ``Retry-After``
    when to come again, the next try is not before that, or ``longest_wish``. The first failure that
    comes ``gives_up_after`` another, with no success between them, is the last: the webhook is
    suspended. For direct replies, which are held in memory, that is ``gives_up_replies_after``.
    A webhook that takes longer than ``quick`` to answer gives way to others after each event.

    Raises ``ValueError`` for times that are none.
    """

    timeout: float = 10.0
    first_delay: float = 1.0
    longest_delay: float = 15 * 60.0
    first_refused_delay: float = 60.0
    longest_refused_delay: float = 60 * 60.0
    longest_wish: float = 24 * 3600.0
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
        """Return how long to wait after so many failures in a row, of which this is the last."""
        first, longest = self.first_delay, self.longest_delay
        if failure.is_refusal:
            first, longest = self.first_refused_delay, self.longest_refused_delay
        delay = backoff.Backoff(first, longest, jitter=(0.75, 1.25)).delay(failures)
        # Those that were told the same do not all come back at the same moment.
        wish = min(failure.retry_after or 0.0, self.longest_wish) * backoff.uniform(1.0, 1.1)
        return max(delay, wish)


class Webhook:
    """One configuration, as long as its task goes on: a place in the log, and no events.

    ``is_busy`` while it waits for its turn or is told something; ``has_news`` when the log may
    hold more than was read. ``is_known`` is that the task goes on, ``is_sure`` that the webhook was
    looked up since it is here: it may come of a look from before it was told to the end. ``stored``
    is what the store knows of it.
    """

    __slots__ = (
        "call",
        "failed_first",
        "failures",
        "has_news",
        "is_busy",
        "is_known",
        "is_sure",
        "push",
        "reader",
        "stored",
        "task_id",
    )

    def __init__(self, task_id: str, push: PushRecord, reader: EventReader | TaskReader) -> None:
        self.task_id = task_id
        self.push = self.stored = push
        self.reader = reader
        self.call: DeliveryJob
        self.is_busy = self.has_news = self.is_known = self.is_sure = False
        self.failures = 0
        self.failed_first = 0.0  # when, by the loop's clock

    def __str__(self) -> str:
        return f"task {self.task_id}: {where(self.push)}"


class WebhookDelivery:
    """Tells webhooks, each a little at a time.

    The store is asked whether a webhook is still told from here: before the first event, and where
    others use the store too before the first of each burst. Each later one follows on the note that
    the one before was taken. So a replica that was stopped, or lost the store, or died, has one
    event repeated at most.
    """

    def __init__(self, store: TaskStore, poster: HttpSender, pace: RetryPolicy) -> None:
        self._store = store
        self._poster = poster
        self._pace = pace

    def reader(self, task_id: str, push: PushRecord) -> EventReader | TaskReader:
        """Return what reads what a webhook is to be told, after its cursor."""
        if versions.dialect(push.version).pushes_tasks:
            return TaskReader(self._store, task_id, push.cursor)
        return EventReader(self._store, task_id)

    async def tell(self, webhook: Webhook) -> float | None:
        """Tell a webhook some of what is new; return in how many seconds to go on, if at all.

        Its call is over when it is told nothing more from here.
        """
        try:
            return await self._burst(webhook)
        except StoreError as error:
            log.error("%s waits: %s", webhook, error)
        except Exception:
            log.exception("%s could not be told", webhook)
            self._failed(webhook, DeliveryFailure("the server failed; its log says why"))
            return self._delay(webhook, DeliveryFailure(""))
        return STORE_PAUSE

    async def post(
        self, destination: Destination, push: PushRecord, body: bytes, named: str
    ) -> DeliveryFailure | None:
        """Send a notification, and note how its destination answers."""
        loop = get_running_loop()
        begun = loop.time()
        lookup_caller.set(destination.caller)  # in this task, which is one call's
        failure = await self._poster.post(push, body, named)
        if failure is None or not failure.is_ours:
            is_well = failure is None or failure.is_refusal
            destination.answered(well=is_well and loop.time() - begun <= self._pace.quick)
        return failure

    async def _burst(self, webhook: Webhook) -> float | None:
        webhook.has_news = False
        if not await self._save(webhook):  # what an earlier try could not note
            return None
        notices = await webhook.reader.after(webhook.push.cursor)
        if not notices:
            await self._found_nothing(webhook)
            return None
        if self._store.is_shared or not webhook.is_sure:
            known = webhook.push
            if not await self._is_ours(webhook):
                return None
            if webhook.push is not known:
                return 0.0
        loop = get_running_loop()
        begun = loop.time()
        for notice in notices:
            failure = await self._tell(webhook, notice)
            if not await self._save(webhook):
                return None
            if failure is not None:
                return STORE_PAUSE if failure.is_ours else self._delay(webhook, failure)
            if loop.time() - begun > self._pace.quick:
                break
        return 0.0

    async def _tell(self, webhook: Webhook, notice: Notice) -> DeliveryFailure | None:
        """Tell of one event."""
        push = webhook.push
        body = versions.dialect(push.version).write_push(notice.event, notice.task)
        named = notification_id(webhook.task_id, push.id, notice.seq)
        failure = await self.post(webhook.call.destination, push, body, named)
        if failure is not None:
            self._failed(webhook, failure)
            return failure
        webhook.failures = 0
        webhook.call.was_woken = False
        webhook.reader.took(notice, len(body))
        state = PushState.DONE if notice.ends else PushState.ACTIVE
        webhook.push = replace(push, cursor=notice.seq, state=state)
        return None

    def _failed(self, webhook: Webhook, failure: DeliveryFailure) -> None:
        """Count a failure, and suspend the webhook when there will be no further try."""
        if failure.is_ours:
            log.warning("%s waits: %s", webhook, failure.reason)
            return
        now = get_running_loop().time()
        webhook.failures += 1
        if webhook.failures == 1:
            webhook.failed_first = now
        if not failure.is_final and now - webhook.failed_first < self._pace.gives_up_after:
            log.info("%s will be tried again: %s", webhook, failure.reason)
            return
        tries = f", {webhook.failures} times in a row" if webhook.failures > 1 else ""
        note = f"{failure.reason}{tries}"
        webhook.push = replace(webhook.push, state=PushState.PARKED, note=note)
        log.warning("%s is suspended after event %d: %s", webhook, webhook.push.cursor, note)

    def _delay(self, webhook: Webhook, failure: DeliveryFailure) -> float:
        """Return how long to wait after a failure, unless its destination answers sooner: that
        counts once, as other webhooks there may be well while this one is not.
        """
        call = webhook.call
        call.may_wake = not (failure.is_refusal or failure.retry_after or call.was_woken)
        return self._pace.delay(webhook.failures, failure)

    async def _is_ours(self, webhook: Webhook) -> bool:
        """Ask the store whether a webhook is told from here, and go on where it stands there.

        It may be removed, made anew, or another's; or it was another's for a while, who told it
        more than is known here.
        """
        for kept in await self._store.pushes(webhook.task_id):
            if kept.revision == webhook.push.revision and kept.state is PushState.ACTIVE:
                if kept.lease_owner != self._store.replica:
                    break
                webhook.is_sure = True
                if kept.cursor > webhook.push.cursor:
                    webhook.push = webhook.stored = kept
                    webhook.is_known = False
                return True
        webhook.call.is_over = True
        return False

    async def _save(self, webhook: Webhook) -> bool:
        """Note how far a webhook is. Return whether it is told more from here."""
        push = webhook.push
        if push != webhook.stored:
            if not await self._store.move_push(webhook.task_id, push):
                webhook.call.is_over = True  # another replica tells it by now, or it is gone
            webhook.stored = push
        if push.state is not PushState.ACTIVE:
            webhook.call.is_over = True
        return not webhook.call.is_over

    async def _found_nothing(self, webhook: Webhook) -> None:
        """See whether there will be anything: the task may have ended before, or be gone."""
        if webhook.is_known and not webhook.failures:
            return
        webhook.is_known = True
        record = await self._store.load(webhook.task_id, history=0, artifacts=False)
        if record is None:
            webhook.call.is_over = True
        elif record.task.state.is_terminal and webhook.push.cursor >= record.seq:
            webhook.push = replace(webhook.push, state=PushState.DONE)
            await self._save(webhook)


def where(push: PushRecord) -> str:
    """Return which webhook it is, as the server's log names it."""
    return f"the webhook {push.id or '(no id)'} at {server_of(push.config.url)}"
