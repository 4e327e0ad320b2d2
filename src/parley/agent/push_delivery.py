"""Tells webhooks of tasks: a reader of the log with a durable cursor for each configuration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import msgspec
from msgspec.structs import replace

from parley.agent.push_post import Failure, Poster, notification_id
from parley.agent.push_queue import Call, Destination, PushQueue, Room
from parley.agent.push_reader import EventReader, Notice, TaskReader
from parley.log import jitter
from parley.log.events import LoggedEvent
from parley.log.hints import LocalHints
from parley.log.store import Place, PushRecord, PushState, StoreError, TaskStore
from parley.model.parts import Message
from parley.model.push import server_of
from parley.security.egress import Egress
from parley.wire import versions

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

log = logging.getLogger("parley.agent")

MESSAGES = 1000
"""How many direct replies are kept for webhooks that do not take them; there is no log of these."""

STORE_PAUSE = 5.0

ADOPT_BATCH = 1000
"""How many tasks with webhooks are taken over at once."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How patient delivery is. Times are in seconds.

    A try has ``timeout``. After one that failed there are others, up to ``attempts`` in a row:
    the first after ``first_delay``, each later one after twice as long, ``longest_delay`` at most.
    A webhook that takes longer than ``quick`` to answer gives way to others after each event.
    """

    timeout: float = 10.0
    attempts: int = 8
    first_delay: float = 1.0
    longest_delay: float = 60.0
    quick: float = 1.0


class _Webhook:
    """One configuration, as long as its task goes on: a place in the log, and no events.

    ``is_busy`` while it waits for its turn or is told something; ``has_news`` when the log may
    hold more than was read. ``stored`` is what the store knows of it.
    """

    __slots__ = (
        "call",
        "failures",
        "has_news",
        "is_busy",
        "is_known",
        "push",
        "reader",
        "stored",
        "task_id",
    )

    def __init__(self, task_id: str, push: PushRecord, reader: EventReader | TaskReader) -> None:
        self.task_id = task_id
        self.push = self.stored = push
        self.reader = reader
        self.call: Call
        self.is_busy = self.has_news = self.is_known = False
        self.failures = 0


class _Reply:
    """A direct reply that a webhook is to be told."""

    __slots__ = ("call", "failures", "message", "push")

    def __init__(self, push: PushRecord, message: Message) -> None:
        self.push = push
        self.message = message
        self.failures = 0
        self.call: Call


class PushDelivery:
    """Tells the webhooks of one server's tasks of everything that happens to them.

    Each configuration is told every event after its cursor, in order and at least once; the cursor
    is stored behind what was taken, so a process that starts goes on where one that died was. A
    webhook that does not answer is tried again for a while and then parked, in the store and
    visibly in the server's log. What is to be told waits in the task's log and nowhere else, and a
    slow webhook holds up nobody but itself and others on its host.
    """

    def __init__(
        self,
        store: TaskStore,
        *,
        egress: Egress,
        pace: Pace | None = None,
        room: Room | None = None,
        resolver: AbstractResolver | None = None,
        hints: LocalHints | None = None,
    ) -> None:
        self.egress = egress
        self._hints = hints
        self._agents: tuple[str, ...] = ()
        self._store = store
        self._pace = pace or Pace()
        self._room = room or Room()
        self._resolver = resolver
        self._begin()

    def _begin(self) -> None:
        self._poster = Poster(self.egress, timeout=self._pace.timeout, resolver=self._resolver)
        self._queue = PushQueue(self._room)
        # Of tasks with something to tell: their webhooks, or None before these were looked for.
        self._tasks: dict[str, dict[str, _Webhook] | None] = {}
        self._heard: dict[str, AbstractContextManager[None]] = {}
        self._to_look: dict[str, None] = {}
        self._wanted = asyncio.Event()
        self._looking = asyncio.Lock()
        self._looker: asyncio.Task[None] | None = None
        self._messages = 0

    # -- the life of a server --------------------------------------------------------------------

    async def start(self, agents: Iterable[str]) -> None:
        """Go on with what a process before this one left. Raises ``StoreError``."""
        self._agents = tuple(agents)
        await self.adopt()
        self._looker = asyncio.create_task(self._look_after())

    async def adopt(self) -> None:
        """Take over the webhooks that no living replica tells. Raises ``StoreError``.

        They are those of a task on which another replica may work, so it is listened to from here.
        """
        for agent in self._agents:
            while found := await self._store.adopt_pushes(agent, ADOPT_BATCH):
                for task_id, is_behind in found:
                    self._tasks.setdefault(task_id, None)
                    if is_behind or self._store.is_shared:
                        self._want(task_id)

    async def stop(self, grace: float) -> None:
        """Give what is to be told ``grace`` seconds. What is left is for the next process."""
        if self._looker is None:
            return
        if self._to_look and grace > 0:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(grace):
                    await self._look(*self._to_look)
        await self._queue.close(grace)
        self._looker.cancel()
        await asyncio.gather(self._looker, return_exceptions=True)
        await self._poster.close()
        for task_id in list(self._heard):
            self._stop_listening(task_id)
        self._begin()

    # -- what there is to tell -------------------------------------------------------------------

    def committed(self, records: Sequence[LoggedEvent]) -> None:
        """Take note of an append. Costs a look-up when its task has no webhooks."""
        if not records or (task_id := records[0].task_id) not in self._tasks:
            return
        if any([record.sub == 0 for record in records]):
            self._look_at(task_id)

    def _look_at(self, task_id: str) -> None:
        webhooks = self._tasks.get(task_id, {})
        if webhooks is None:
            self._want(task_id)
        else:
            for webhook in webhooks.values():
                self._has_news(webhook)

    def heard(self, record: LoggedEvent) -> None:
        """Take note that another replica works on a task: there may be more to tell."""
        self._look_at(record.task_id)

    def moved(self, place: Place) -> None:
        """Take note of where the store has the log of a task."""
        self._look_at(place.task_id)

    def _listen(self, task_id: str) -> None:
        if self._hints is not None and self._store.is_shared and task_id not in self._heard:
            listening = self._heard[task_id] = self._hints.listen(task_id, self)
            listening.__enter__()

    def _stop_listening(self, task_id: str) -> None:
        listening = self._heard.pop(task_id, None)
        if listening is not None:
            listening.__exit__(None, None, None)

    def watch(self, task_id: str) -> None:
        """Look for the configurations of a task: one was added, or replaced."""
        self._tasks.setdefault(task_id, None)
        self._want(task_id)

    async def forget(self, task_id: str, push_id: str) -> None:
        """Send nothing more for a configuration that was removed from the store."""
        async with self._looking:  # what was looked up before that must not bring it back
            webhook = (self._tasks.get(task_id) or {}).get(push_id)
            if webhook is not None:
                self._let_go(webhook)
                await self._queue.drop(webhook.call)

    def tell(self, push: PushRecord, message: Message) -> None:
        """Tell a webhook of a direct reply, which no log holds: while this process lives."""
        if self._messages >= MESSAGES:
            log.warning("a direct reply is not told to %s: too many wait", _where(push))
            return
        self._messages += 1
        reply = _Reply(push, message)
        reply.call = Call(self._destination(push), partial(self._tell_reply, reply))
        self._queue.put(reply.call)

    def _want(self, task_id: str) -> None:
        self._to_look[task_id] = None
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
                self._to_look.pop(task_id, None)
                try:
                    pushes = await self._store.pushes(task_id)
                except BaseException:
                    self._to_look[task_id] = None
                    raise
                await self._found(task_id, pushes)

    async def _found(self, task_id: str, pushes: Sequence[PushRecord]) -> None:
        """Take over what the store has of a task's configurations."""
        known = self._tasks.get(task_id) or {}
        current: dict[str, _Webhook] = {}
        for push in pushes:
            webhook = known.get(push.id)
            if push.state is not PushState.ACTIVE or push.holder != self._store.replica:
                continue
            if webhook is None or webhook.push.revision != push.revision:
                webhook = _Webhook(task_id, push, self._reader(task_id, push))
                webhook.call = Call(self._destination(push), partial(self._work, webhook))
            current[push.id] = webhook
        for push_id, webhook in list(known.items()):
            if current.get(push_id) is not webhook:
                await self._queue.drop(webhook.call)
        if not current:
            self._tasks.pop(task_id, None)
            self._stop_listening(task_id)
            return
        self._tasks[task_id] = current
        self._listen(task_id)
        for webhook in current.values():
            self._has_news(webhook)

    def _reader(self, task_id: str, push: PushRecord) -> EventReader | TaskReader:
        if versions.dialect(push.version).tells_tasks:
            return TaskReader(self._store, task_id, push.cursor)
        return EventReader(self._store, task_id)

    def _destination(self, push: PushRecord) -> Destination:
        return self._queue.destination(urlsplit(push.config.url).hostname or "")

    def _let_go(self, webhook: _Webhook) -> None:
        webhooks = self._tasks.get(webhook.task_id)
        if webhooks is not None and webhooks.get(webhook.push.id) is webhook:
            del webhooks[webhook.push.id]
            if not webhooks:
                del self._tasks[webhook.task_id]
                self._stop_listening(webhook.task_id)

    def _has_news(self, webhook: _Webhook) -> None:
        webhook.has_news = True
        if not webhook.is_busy:
            webhook.is_busy = True
            self._queue.put(webhook.call)

    # -- telling ---------------------------------------------------------------------------------

    async def _work(self, webhook: _Webhook) -> float | None:
        """Tell a webhook some of what is new; return in how many seconds to go on, if at all."""
        try:
            delay = await self._burst(webhook)
        except StoreError as error:
            log.error("%s waits: %s", _name(webhook), error)
            delay = STORE_PAUSE
        except Exception:
            log.exception("%s could not be told", _name(webhook))
            self._failed(webhook, Failure("the server failed; its log says why"))
            delay = STORE_PAUSE
        if webhook.call.is_over:
            self._let_go(webhook)
            return None
        if delay is None and webhook.has_news:
            return 0.0
        webhook.is_busy = delay is not None
        return delay

    async def _burst(self, webhook: _Webhook) -> float | None:
        webhook.has_news = False
        failure = None
        if webhook.push.state is PushState.ACTIVE:
            notices = await webhook.reader.after(webhook.push.cursor)
            if not notices:
                await self._found_nothing(webhook)
                return None
            try:
                failure = await self._tell(webhook, notices)
            finally:
                # Also when it is cancelled: what was taken is not to be sent again.
                await self._save(webhook)
        if webhook.push.state is not PushState.ACTIVE:
            await self._save(webhook)
            webhook.call.is_over = True
            return None
        return 0.0 if failure is None else self._delay(webhook.failures)

    async def _tell(self, webhook: _Webhook, notices: Sequence[Notice]) -> Failure | None:
        """Tell of events, one after another, until one is not taken or it takes too long."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for notice in notices:
            push = webhook.push
            body = versions.dialect(push.version).write_push(notice.event, notice.task)
            named = notification_id(webhook.task_id, push.id, notice.seq)
            failure = await self._post(webhook.call.destination, push, body, named)
            if failure is not None:
                self._failed(webhook, failure)
                return failure
            webhook.failures = 0
            webhook.reader.took(notice, len(body))
            state = PushState.DONE if notice.ends else PushState.ACTIVE
            webhook.push = replace(push, cursor=notice.seq, state=state)
            if loop.time() - begun > self._pace.quick:
                break
        return None

    async def _post(
        self, destination: Destination, push: PushRecord, body: bytes, named: str
    ) -> Failure | None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        failure = await self._poster.post(push, body, named)
        destination.is_quick = failure is None and loop.time() - begun <= self._pace.quick
        return failure

    def _failed(self, webhook: _Webhook, failure: Failure) -> None:
        """Count a failure, and park the webhook when there will be no further try."""
        webhook.failures += 1
        if not failure.is_final and webhook.failures < self._pace.attempts:
            log.info("%s will be tried again: %s", _name(webhook), failure.reason)
            return
        tries = f", {webhook.failures} times in a row" if webhook.failures > 1 else ""
        note = f"{failure.reason}{tries}"
        webhook.push = replace(webhook.push, state=PushState.PARKED, note=note)
        log.warning("%s is parked after event %d: %s", _name(webhook), webhook.push.cursor, note)

    async def _save(self, webhook: _Webhook) -> None:
        if webhook.push != webhook.stored:
            push = webhook.push
            if not await self._store.move_push(webhook.task_id, push):
                webhook.call.is_over = True  # another replica tells it by now, or it is gone
            webhook.stored = push

    def _delay(self, failures: int) -> float:
        doubled: float = self._pace.first_delay * 2 ** (failures - 1)
        return min(doubled, self._pace.longest_delay) * jitter.uniform(0.75, 1.25)

    async def _found_nothing(self, webhook: _Webhook) -> None:
        """See whether there will be anything: the task may have ended before, or be gone."""
        if webhook.is_known and not webhook.failures:
            return
        webhook.is_known = True
        record = await self._store.load(webhook.task_id)
        if record is None:
            webhook.call.is_over = True
        elif record.task.state.is_terminal and webhook.push.cursor >= record.seq:
            webhook.push = replace(webhook.push, state=PushState.DONE)
            await self._save(webhook)
            webhook.call.is_over = True

    async def _tell_reply(self, reply: _Reply) -> float | None:
        """Tell of a direct reply; return in how many seconds to try again, if at all."""
        push = reply.push
        try:
            body = versions.dialect(push.version).write_push(reply.message, None)
            named = quote(reply.message.message_id, safe="")
            failure = await self._post(reply.call.destination, push, body, named)
        except Exception:
            log.exception("a direct reply could not be told to %s", _where(push))
            failure = Failure("the server failed", is_final=True)
        if failure is not None:
            reply.failures += 1
            if not failure.is_final and reply.failures < self._pace.attempts:
                return self._delay(reply.failures)
            log.warning("a direct reply was not told to %s: %s", _where(push), failure.reason)
        self._messages -= 1
        return None


def _where(push: PushRecord) -> str:
    return f"the webhook {push.id or '(no id)'} at {server_of(push.config.url)}"


def _name(webhook: _Webhook) -> str:
    return f"task {webhook.task_id}: {_where(webhook.push)}"
