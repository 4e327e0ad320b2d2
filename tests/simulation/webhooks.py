"""The webhooks of a simulation: each must get all of its notifications in order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from parley.push.http_sender import DeliveryFailure, WebhookAnswer
from parley.push.scheduler import DeliveryCall
from parley.store.protocols.webhooks import PushRecord, PushState
from tests.simulation.checks import LogChecker
from tests.simulation.world import World

URL = "https://hooks.example/told"


class Webhooks:
    """All receivers of notifications. ``told`` has the last delivered event, by task and id."""

    def __init__(self, world: World, checker: LogChecker) -> None:
        self._world = world
        self._checker = checker
        self.told: dict[tuple[str, str], int] = {}

    def sender(self, *_: Any, **__: Any) -> Sender:
        """Return a replica's sender of notifications."""
        return Sender(self._world, self)

    def receive(self, body: bytes, notification_id: str) -> None:
        """Check a notification: each event once it is in the log, in order, or repeated."""
        if notification_id.count("/") != 2:
            return  # of a direct reply, which is in no log
        task_id, push_id, number = (unquote(part) for part in notification_id.split("/"))
        name, seq = self._world.name("t", task_id), int(number)
        self._world.trace("webhook is told", name, seq)
        kept = self._checker.tasks.get(task_id)
        record = kept.event(seq) if kept is not None else None
        if record is None:
            self._world.violated("L2", name, f"its webhook is told of {seq}, not in the log")
            return
        said = next(iter(msgspec.json.decode(body).values()))
        if said != msgspec.json.decode(record.payload):
            self._world.violated("L4", name, f"its webhook is told of another {seq}")
        before = self.told.get((task_id, push_id), 0)
        if seq > before + 1:
            self._world.violated("L6", name, f"its webhook is told of {seq} after {before}")
        self.told[task_id, push_id] = max(before, seq)

    def at_rest(self) -> list[str]:
        """Return the webhooks with undelivered notifications."""
        behind = []
        for task_id, log in self._checker.logs.items():
            for push in log.pushes.values():
                told = self.told.get((task_id, push.id), 0)
                seq, done = log.head.seq, log.head.ended_at is not None
                state = PushState.DONE if done else PushState.ACTIVE
                if (told, push.cursor, push.state) != (seq, seq, state):
                    name = self._world.name("t", task_id)
                    behind.append(
                        f"{name}'s webhook was told {told} of {seq}, its cursor is "
                        f"{push.cursor}, {push.state.value}, held by {push.lease_owner or 'nobody'}"
                    )
        return behind


class Sender:
    """Sends notifications for one replica. Some fail; for some, only the response is lost."""

    def __init__(self, world: World, webhooks: Webhooks) -> None:
        self._world = world
        self._webhooks = webhooks

    async def post(
        self,
        push: PushRecord,
        body: bytes,
        notification_id: str,
        requests: DeliveryCall,
        trace_headers: Mapping[str, str],
    ) -> WebhookAnswer | DeliveryFailure:
        """Send a body to a webhook; return the response."""
        world, process = self._world, self._world.here
        assert process is not None
        future: asyncio.Future[WebhookAnswer | DeliveryFailure] = world.loop.create_future()

        def answer(answered: WebhookAnswer | DeliveryFailure) -> None:
            if not future.done():
                future.set_result(answered)

        def arrive() -> None:
            drawn = 1.0 if world.is_quiet else world.random.random()
            if drawn >= 0.05:
                self._webhooks.receive(body, notification_id)
            failure = DeliveryFailure("it does not answer") if drawn < 0.1 else WebhookAnswer(200)
            process.after(world.delay(world.plan.net_delay), answer, failure)

        world.loop.world.after(world.delay(world.plan.net_delay), arrive)
        return await future

    async def close(self) -> None:
        """Close nothing."""
