"""Webhook delivery for one server, at least once: the task log is the outbox.

A durable cursor per configuration is the number of the last delivered event. The engine and the
host call ``PushDispatcher``. Its parts: ``TaskReader`` and ``EventReader`` read the log,
``WebhookDelivery`` delivers and retries, ``PushScheduler`` schedules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address

from msgspec.structs import replace

from parley.model.concurrency import Periodic
from parley.model.operations import PushEvents
from parley.model.parts import Message
from parley.model.service import TraceContext
from parley.push.delivery import STORE_PAUSE, RetryPolicy, Webhook, WebhookDelivery
from parley.push.http_sender import Challenges, HttpSender, WebhookTransport
from parley.push.proofs import Proofs
from parley.push.reader import ReplyReader
from parley.push.scheduler import DeliveryLimits, Destination, DestinationCap, PushScheduler
from parley.security.egress import origin_of
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import LoggedEvent, Scope
from parley.store.protocols.errors import StoreError
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.push")

MAX_REPLIES = 1000
"""The maximum number of direct replies in memory for webhooks that reject them; no log has
these."""

CLAIM_BATCH = 1000
"""The number of tasks with webhooks in one claim."""

REPLICAS_COUNTED = 10.0
"""The interval in seconds between counts of the live replicas, which share caps."""

RECONCILE_BATCH = 500
"""The number of this replica's stored webhooks that are compared at once."""


class PushDispatcher:
    """Delivers all events of one server's tasks to their webhooks.

    Each configuration gets every event after its cursor, in order and at least once. The cursor is
    stored after each delivery, so a new process continues after the last delivered event. A webhook
    that keeps failing is retried with backoff (``RetryPolicy``) and then suspended, in the store
    and visibly in the log. Undelivered events wait only in the task's log. A slow webhook delays
    only other webhooks of its caller at its origin (``DeliveryLimits``).
    """

    def __init__(
        self,
        store: TaskStore,
        proofs: Proofs,
        *,
        retry_policy: RetryPolicy | None = None,
        limits: DeliveryLimits | None = None,
        hints: LocalHints | None = None,
        transport: WebhookTransport | None = None,
        cap: DestinationCap | None = None,
        challenges: bool = False,
    ) -> None:
        self.egress = proofs.egress
        self.proofs = proofs
        self._cap = cap or DestinationCap()
        self._challenges = challenges
        self._events: dict[str, PushEvents] = {}  # the defaults of agents, by their keys
        self._transport = transport
        self._hints = hints
        self._follower = self.on_new_events  # one bound method for all tasks, to save memory
        self._agents: tuple[str, ...] = ()
        self._store = store
        self._retry_policy = retry_policy or RetryPolicy()
        self._limits = limits or DeliveryLimits()
        self._loader = Periodic(
            "looking up webhooks", self._load_requests, STORE_PAUSE, log=log, expected=StoreError
        )
        self._reset()

    def _reset(self) -> None:
        self._sender = HttpSender(
            self.egress,
            timeout=self._retry_policy.timeout,
            transport=self._transport,
            proofs=self.proofs,
        )
        self._scheduler = PushScheduler(self._limits, self._cap, exempt=self._is_exempt)
        self._delivery = WebhookDelivery(
            self._store,
            self._sender,
            self._retry_policy,
            self._scheduler,
            challenges=Challenges(self._sender) if self._challenges else None,
        )
        # The webhooks of each task that has undelivered events; None until they are loaded.
        self._tasks: dict[str, tuple[Webhook, ...] | None] = {}
        self._to_load: dict[str, Scope | None] = {}  # with the task's scope, if known
        self._load_requested = asyncio.Event()
        self._load_lock = asyncio.Lock()
        self._reply_counts: Counter[str] = Counter()  # by caller
        self._counted = -REPLICAS_COUNTED  # the time of the last count of replicas, in loop time
        self._reconciled = 0  # the store's position up to which webhooks were compared

    # -- the life of a server --------------------------------------------------------------------

    async def start(
        self, agents: Iterable[str], events: Mapping[str, PushEvents] | None = None
    ) -> None:
        """Continue the work of an earlier process. Raises ``StoreError``.

        ``events`` has the default events of webhooks, by agent; ``all`` for the others.
        """
        self._agents = tuple(agents)
        self._events = dict(events or {})
        await self._share_cap()
        await self.claim_batch()
        self._loader.start()

    async def claim_batch(self) -> None:
        """Claim the webhooks that no living replica delivers to. Raises ``StoreError``.

        Other replicas may run their tasks, so this one subscribes to wake-up notifications about
        them.
        """
        for agent in self._agents:
            while found := await self._store.claim_pushes(agent, CLAIM_BATCH):
                for task_id, is_behind in found:
                    has_others = self._tasks.setdefault(task_id, None) is not None
                    if is_behind or has_others or self._store.is_shared:
                        self._request_load(task_id)

    async def reconcile(self) -> None:
        """Find webhooks without delivery: webhooks of dead replicas, and unloaded ones of this
        replica.

        Sends one bounded query to the store: a page of webhooks each time. Raises ``StoreError``.
        """
        await self._share_cap()
        if not self._agents:
            return
        active = await self._store.active_pushes(self._agents, self._reconciled, RECONCILE_BATCH)
        self._reconciled = active.next
        for task_id, revision in active.claimed:
            webhooks = self._tasks.get(task_id, ())
            if webhooks is not None and not any(
                [webhook.push.revision == revision for webhook in webhooks]
            ):
                self._request_load(task_id)
        if active.has_unclaimed:
            await self.claim_batch()

    async def _share_cap(self) -> None:
        """Set this replica's part of the cap of a destination."""
        now = asyncio.get_running_loop().time()
        if self._store.is_shared and now >= self._counted + REPLICAS_COUNTED:
            self._counted = now
            alive = [replica for replica in await self._store.replicas() if replica.alive]
            self._scheduler.caps.share(len(alive))

    def _is_exempt(self, host: str) -> bool:
        """Return whether the operator explicitly allows a host, or its network."""
        if self.egress.trusts(host):
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any([place.covers(address) for place in self.egress.allowed])

    async def stop(self, grace: float) -> None:
        """Deliver for ``grace`` seconds more. The rest is for the next process."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._reset)
            stack.callback(self._unfollow_all)
            stack.push_async_callback(self._sender.close)
            stack.push_async_callback(self._scheduler.close, 0)
            stack.push_async_callback(self._loader.stop)
            if grace <= 0:
                return
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(grace):
                    await self._load(*self._to_load)
            await self._scheduler.close(grace)

    def _unfollow_all(self) -> None:
        for task_id in list(self._tasks):
            self._unfollow(task_id)

    # -- undelivered events ----------------------------------------------------------------------

    def committed(self, records: Sequence[LoggedEvent]) -> None:
        """Process an append of this process. Costs one look-up for a task without webhooks."""
        if not records or (task_id := records[0].task_id) not in self._tasks:
            return
        if any([record.sub == 0 for record in records]):
            self.on_new_events(task_id)

    def on_new_events(self, task_id: str) -> None:
        """Process a wake-up notification: the log of a task may have more events."""
        webhooks = self._tasks.get(task_id, ())
        if webhooks is None:
            self._request_load(task_id)
        else:
            for webhook in webhooks:
                self._schedule(webhook)

    def _unfollow(self, task_id: str) -> None:
        if self._hints is not None:
            self._hints.unfollow(task_id)

    def watch(self, task_id: str, scope: Scope | None = None) -> None:
        """Load a task's configurations, after an addition or a replacement.

        ``scope`` is the task's, if known; otherwise the store is asked.
        """
        self._tasks.setdefault(task_id, None)
        self._request_load(task_id, scope)

    async def refresh(self, task_id: str) -> None:
        """Load a task's configurations at once, and cancel the delivery of a replaced one."""
        with contextlib.suppress(StoreError):  # the loader asks the store again
            await self._load(task_id)

    async def forget(self, task_id: str, push_id: str) -> None:
        """Stop delivery for a configuration that was removed from the store."""
        async with self._load_lock:  # an earlier load must not bring it back
            for webhook in self._tasks.get(task_id) or ():
                if webhook.push.id == push_id:
                    self._remove(webhook)
                    await self._scheduler.cancel(webhook)

    def counts(self) -> tuple[Mapping[str, int], float]:
        """Return the number of webhooks in each state, and how long the first failing one fails."""
        states = {"idle": 0, "waiting": 0, "failing": 0}
        now = first = asyncio.get_running_loop().time()
        for webhooks in self._tasks.values():
            for webhook in webhooks or ():
                if webhook.failures or webhook.is_blocked:
                    states["failing"] += 1
                    first = min(first, webhook.failed_first)
                else:
                    states["waiting" if webhook.is_scheduled else "idle"] += 1
        return states, now - first

    def deliver_reply(
        self, push: PushRecord, message: Message, scope: Scope, trace: TraceContext
    ) -> None:
        """Deliver a direct reply, which no log has, to a webhook while this process lives.

        A caller may have as many pending replies as there is room left for others.
        """
        destination = self._destination(push, scope)
        caller = destination.caller
        reply = Webhook("", push, ReplyReader(message), destination, self._run, trace)
        if self._reply_counts[caller] >= MAX_REPLIES - self._reply_counts.total():
            log.warning("%s is dropped: too many wait", reply)
            return
        self._reply_counts[caller] += 1
        self._schedule(reply)

    # -- loading webhooks ------------------------------------------------------------------------

    def _request_load(self, task_id: str, scope: Scope | None = None) -> None:
        self._to_load[task_id] = scope or self._to_load.get(task_id)
        self._load_requested.set()

    async def _load_requests(self) -> bool:
        await self._load_requested.wait()
        self._load_requested.clear()
        await self._load(*self._to_load)  # rescheduled by itself when it fails
        return True

    async def _load(self, *task_ids: str) -> None:
        for task_id in task_ids:
            async with self._load_lock:
                scope = self._to_load.pop(task_id, None)
                try:
                    await self._update(task_id, await self._store.pushes(task_id), scope)
                except BaseException:
                    self._request_load(task_id, scope)
                    raise

    async def _update(
        self, task_id: str, pushes: Sequence[PushRecord], scope: Scope | None
    ) -> None:
        """Bring a task's webhooks in line with the configurations that the store has."""
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
                        break  # the task was removed
                # There may be very many webhooks, so equal strings are shared.
                version = sys.intern(push.version)
                push = replace(push, version=version, lease_owner=self._store.replica)
                events = self._events.get(scope.agent, "all")
                reader = self._delivery.reader(task_id, push, events)
                destination = self._destination(push, scope)
                webhook = Webhook(task_id, push, reader, destination, self._run)
            current.append(webhook)
        for webhook in known.values():
            await self._scheduler.cancel(webhook)
        self._keep(task_id, [webhook for webhook in current if not webhook.is_finished])
        for webhook in self._tasks.get(task_id) or ():
            self._schedule(webhook)

    def _keep(self, task_id: str, webhooks: Sequence[Webhook]) -> None:
        if webhooks:
            self._tasks[task_id] = tuple(webhooks)
            if self._hints is not None and self._store.is_shared:
                self._hints.follow(task_id, self._follower)
        else:
            self._tasks.pop(task_id, None)
            self._unfollow(task_id)

    def _destination(self, push: PushRecord, scope: Scope) -> Destination:
        """Return the destination of a webhook: a caller's share slots and replies."""
        caller = f"{scope.tenant}\0{scope.owner}"
        return self._scheduler.destination(caller, origin_of(push.config.url))

    def _remove(self, webhook: Webhook) -> None:
        if not webhook.task_id:
            self._reply_counts -= Counter([webhook.destination.caller])
            return
        webhooks = self._tasks.get(webhook.task_id) or ()
        if webhook in webhooks:
            self._keep(webhook.task_id, [other for other in webhooks if other is not webhook])

    # -- delivery --------------------------------------------------------------------------------

    def _schedule(self, webhook: Webhook) -> None:
        webhook.has_more = True
        if not webhook.is_scheduled:
            webhook.is_scheduled = True
            self._scheduler.submit(webhook)

    async def _run(self, webhook: Webhook) -> float | None:
        """Deliver a batch. Return the seconds until the next one, ``None`` if nothing remains."""
        delay = await self._delivery.deliver(webhook)
        if webhook.is_finished:
            self._remove(webhook)
            return None
        if delay is None and webhook.has_more:
            return 0.0
        webhook.is_scheduled = delay is not None
        return delay
