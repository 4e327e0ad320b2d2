"""Tells webhooks of tasks: a reader of the log with a durable cursor for each configuration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec.structs import replace

from parley.model.parts import Message
from parley.push.delivery import STORE_PAUSE, RetryPolicy, Webhook, WebhookDelivery, where
from parley.push.http_sender import DeliveryFailure, HttpSender
from parley.push.scheduler import DeliveryJob, DeliveryLimits, Destination, PushScheduler
from parley.security.egress import Egress, origin_of
from parley.store.bus.subscriptions import LocalHints
from parley.store.ending import end
from parley.store.events import LoggedEvent
from parley.store.task_store import PushRecord, PushState, Scope, StoreError, TaskStore
from parley.wire import versions

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

log = logging.getLogger("parley.agent")

MESSAGES = 1000
"""How many direct replies are kept for webhooks that do not take them; there is no log of these."""

ADOPT_BATCH = 1000
"""How many tasks with webhooks are taken over at once."""

LOOK_BATCH = 500
"""Of how many webhooks the store is asked at once whether they are known here."""


class _Reply:
    """A direct reply that a webhook is to be told."""

    __slots__ = ("begun", "call", "failures", "message", "push")

    def __init__(self, push: PushRecord, message: Message) -> None:
        self.push = push
        self.message = message
        self.begun = asyncio.get_running_loop().time()
        self.failures = 0
        self.call: DeliveryJob


class PushDispatcher:
    """Tells the webhooks of one server's tasks of everything that happens to them.

    Each configuration is told every event after its cursor, in order and at least once; the cursor
    is stored behind what was taken, so a process that starts goes on where one that died was. A
    webhook that does not answer is tried again for a day and then suspended, in the store and
    visibly in the server's log. What is to be told waits in the task's log and nowhere else, and a
    slow webhook holds up nobody but others of its caller's at its origin (see ``DeliveryLimits``).
    """

    def __init__(
        self,
        store: TaskStore,
        *,
        egress: Egress,
        pace: RetryPolicy | None = None,
        room: DeliveryLimits | None = None,
        resolver: AbstractResolver | None = None,
        hints: LocalHints | None = None,
    ) -> None:
        self.egress = egress
        self._hints = hints
        self._agents: tuple[str, ...] = ()
        self._store = store
        self._pace = pace or RetryPolicy()
        self._room = room or DeliveryLimits()
        self._resolver = resolver
        self._begin()

    def _begin(self) -> None:
        self._poster = HttpSender(self.egress, timeout=self._pace.timeout, resolver=self._resolver)
        self._teller = WebhookDelivery(self._store, self._poster, self._pace)
        self._queue = PushScheduler(self._room)
        # Of tasks with something to tell: their webhooks, or None before these were looked for.
        self._tasks: dict[str, tuple[Webhook, ...] | None] = {}
        self._to_look: dict[str, Scope | None] = {}  # and whose they are, where that is known
        self._wanted = asyncio.Event()
        self._looking = asyncio.Lock()
        self._looker: asyncio.Task[None] | None = None
        self._messages: Counter[str] = Counter()  # by caller
        self._place = 0  # how far it was looked for webhooks that are told from here

    # -- the life of a server --------------------------------------------------------------------

    async def start(self, agents: Iterable[str]) -> None:
        """Go on with what a process before this one left. Raises ``StoreError``."""
        self._agents = tuple(agents)
        await self.claim_batch()
        self._looker = asyncio.create_task(self._look_after())

    async def claim_batch(self) -> None:
        """Take over the webhooks that no living replica tells. Raises ``StoreError``.

        They are those of a task on which another replica may work, so it is listened to from here.
        """
        for agent in self._agents:
            while found := await self._store.claim_pushes(agent, ADOPT_BATCH):
                for task_id, is_behind in found:
                    has_others = self._tasks.setdefault(task_id, None) is not None
                    if is_behind or has_others or self._store.is_shared:
                        self._want(task_id)

    async def look(self) -> None:
        """Look for webhooks that nobody tells: those that a dead replica told, and those of which
        the store says that this one tells them, and it was never told so. Raises ``StoreError``.

        One question to the store, which is flat: so many webhooks each time, and then the next.
        """
        if not self._agents:
            return
        undelivered = await self._store.undelivered(self._agents, self._place, LOOK_BATCH)
        self._place = undelivered.next
        for task_id, revision in undelivered.held:
            webhooks = self._tasks.get(task_id, ())
            if webhooks is not None and not any(
                [webhook.push.revision == revision for webhook in webhooks]
            ):
                self._want(task_id)
        if undelivered.free:
            await self.claim_batch()

    async def stop(self, grace: float) -> None:
        """Give what is to be told ``grace`` seconds. What is left is for the next process."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._begin)
            stack.callback(self._unfollow_all)
            stack.push_async_callback(self._poster.close)
            stack.push_async_callback(self._queue.close, 0)
            if self._looker is not None:
                stack.push_async_callback(end, [self._looker])
            if grace <= 0:
                return
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(grace):
                    await self._look(*self._to_look)
            await self._queue.close(grace)

    def _unfollow_all(self) -> None:
        for task_id in list(self._tasks):
            self._unfollow(task_id)

    # -- what there is to tell -------------------------------------------------------------------

    def committed(self, records: Sequence[LoggedEvent]) -> None:
        """Take note of an append. Costs a look-up when its task has no webhooks."""
        if not records or (task_id := records[0].task_id) not in self._tasks:
            return
        if any([record.sub == 0 for record in records]):
            self.on_new_events(task_id)

    def on_new_events(self, task_id: str) -> None:
        """Take note that there may be more to tell of a task, on which another replica may work."""
        webhooks = self._tasks.get(task_id, ())
        if webhooks is None:
            self._want(task_id)
        else:
            for webhook in webhooks:
                self._has_news(webhook)

    def _unfollow(self, task_id: str) -> None:
        if self._hints is not None:
            self._hints.unfollow(task_id)

    def watch(self, task_id: str, scope: Scope | None = None) -> None:
        """Look for the configurations of a task: one was added, or replaced.

        ``scope`` is the task's, where that is known; else the store is asked.
        """
        self._tasks.setdefault(task_id, None)
        self._want(task_id, scope)

    async def forget(self, task_id: str, push_id: str) -> None:
        """Send nothing more for a configuration that was removed from the store."""
        async with self._looking:  # what was looked up before that must not bring it back
            for webhook in self._tasks.get(task_id) or ():
                if webhook.push.id == push_id:
                    self._let_go(webhook)
                    await self._queue.drop(webhook.call)

    def tell(self, push: PushRecord, message: Message, scope: Scope) -> None:
        """Tell a webhook of a direct reply, which no log holds: while this process lives.

        A caller has room for as many as it leaves to others.
        """
        caller = _caller_of(scope)
        if self._messages[caller] >= MESSAGES - self._messages.total():
            log.warning("a direct reply is not told to %s: too many wait", where(push))
            return
        self._messages[caller] += 1
        reply = _Reply(push, message)
        reply.call = DeliveryJob(self._destination(push, caller), partial(self._tell_reply, reply))
        self._queue.put(reply.call)

    def _want(self, task_id: str, scope: Scope | None = None) -> None:
        self._to_look[task_id] = scope or self._to_look.get(task_id)
        self._wanted.set()

    async def _look_after(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._look(*self._to_look)
            except StoreError as error:
                log.error("webhooks could not be looked up: %s", error)
                await asyncio.sleep(STORE_PAUSE)
                self._wanted.set()
            except Exception:
                log.exception("looking up webhooks failed")
                await asyncio.sleep(STORE_PAUSE)
                self._wanted.set()

    async def _look(self, *task_ids: str) -> None:
        for task_id in task_ids:
            async with self._looking:
                scope = self._to_look.pop(task_id, None)
                try:
                    await self._found(task_id, await self._store.pushes(task_id), scope)
                except BaseException:
                    self._want(task_id, scope)
                    raise

    async def _found(self, task_id: str, pushes: Sequence[PushRecord], scope: Scope | None) -> None:
        """Take over what the store has of a task's configurations."""
        known = {webhook.push.revision: webhook for webhook in self._tasks.get(task_id) or ()}
        current: list[Webhook] = []
        for push in pushes:
            if push.state is not PushState.ACTIVE or push.lease_owner != self._store.replica:
                continue
            webhook = known.pop(push.revision, None)
            if webhook is None:
                if scope is None:
                    scope = await self._store.scope_of(task_id)
                    if scope is None:
                        break  # it was removed
                # Very many may wait at once: what they have in common they share.
                version = sys.intern(push.version)
                push = replace(push, version=version, lease_owner=self._store.replica)
                webhook = Webhook(task_id, push, self._teller.reader(task_id, push))
                destination = self._destination(push, _caller_of(scope))
                webhook.call = DeliveryJob(destination, partial(self._work, webhook))
            current.append(webhook)
        for webhook in known.values():
            await self._queue.drop(webhook.call)
        self._keep(task_id, [webhook for webhook in current if not webhook.call.is_over])
        for webhook in self._tasks.get(task_id) or ():
            self._has_news(webhook)

    def _keep(self, task_id: str, webhooks: Sequence[Webhook]) -> None:
        if webhooks:
            self._tasks[task_id] = tuple(webhooks)
            if self._hints is not None and self._store.is_shared:
                self._hints.follow(task_id, self)
        else:
            self._tasks.pop(task_id, None)
            self._unfollow(task_id)

    def _destination(self, push: PushRecord, caller: str) -> Destination:
        return self._queue.destination(caller, origin_of(push.config.url))

    def _let_go(self, webhook: Webhook) -> None:
        webhooks = self._tasks.get(webhook.task_id) or ()
        if webhook in webhooks:
            self._keep(webhook.task_id, [other for other in webhooks if other is not webhook])

    def _has_news(self, webhook: Webhook) -> None:
        webhook.has_news = True
        if not webhook.is_busy:
            webhook.is_busy = True
            self._queue.put(webhook.call)

    # -- telling ---------------------------------------------------------------------------------

    async def _work(self, webhook: Webhook) -> float | None:
        """Tell a webhook some of what is new; return in how many seconds to go on, if at all."""
        delay = await self._teller.tell(webhook)
        if webhook.call.is_over:
            self._let_go(webhook)
            return None
        if delay is None and webhook.has_news:
            return 0.0
        webhook.is_busy = delay is not None
        return delay

    async def _tell_reply(self, reply: _Reply) -> float | None:
        """Tell of a direct reply; return in how many seconds to try again, if at all."""
        push = reply.push
        try:
            body = versions.dialect(push.version).write_push(reply.message, None)
            named = quote(reply.message.message_id, safe="")
            failure = await self._teller.post(reply.call.destination, push, body, named)
        except Exception:
            log.exception("a direct reply could not be told to %s", where(push))
            failure = DeliveryFailure("the server failed", is_final=True)
        if failure is not None:
            reply.failures += 1
            now = asyncio.get_running_loop().time()
            if not failure.is_final and now - reply.begun < self._pace.gives_up_replies_after:
                return self._pace.delay(reply.failures, failure)
            log.warning("a direct reply was not told to %s: %s", where(push), failure.reason)
        caller = reply.call.destination.caller
        self._messages[caller] -= 1
        if not self._messages[caller]:
            del self._messages[caller]
        return None


def _caller_of(scope: Scope) -> str:
    """Return who shares the room for webhooks with nobody else."""
    return f"{scope.tenant}\0{scope.owner}"
