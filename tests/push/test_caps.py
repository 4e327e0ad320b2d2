"""The limit of a destination: more callers, webhooks or names get no more deliveries through."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from parley import Agent, Turn
from parley.model.operations import TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.push.dispatcher import PushDispatcher
from parley.push.http_sender import DeliveryFailure, WebhookAnswer
from parley.push.proofs import Proofs, WebhookAttempt
from parley.push.scheduler import DeliveryCall, DestinationBusy, DestinationCap, DestinationCaps
from parley.security.egress import Egress, dialled
from parley.store.events import Scope
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import PushRecord
from tests.engine.fleet import Fleet
from tests.kit.records import creation, status
from tests.kit.waiting import Clock, let_time_pass, until
from tests.kit.webhooks import webhook
from tests.push.proofs.receiving import asking
from tests.push.pushing import PATIENT, pushing, writer

pytestmark = pytest.mark.anyio


class Victim:
    """Accepts and counts POST requests."""

    def __init__(self) -> None:
        self.taken = self.active = self.most_active = 0
        self.callers: Counter[str] = Counter()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        self.taken += 1
        self.callers[url.split("?")[1]] += 1
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.active -= 1
        return WebhookAnswer(200)


def record(url: str, push_id: str) -> PushRecord:
    return PushRecord(
        config=TaskPushNotificationConfig(id=push_id, url=url), version="1.0", revision=push_id
    )


async def aim(push: PushDispatcher, store: MemoryTaskStore, callers: int, webhooks: int) -> None:
    """Register webhooks of several callers at one victim."""
    for caller in range(callers):
        for n in range(webhooks // 20):
            task_id = f"{caller}-{n}"
            scope = Scope("agent", "", f"caller {caller}")
            pushes = tuple(
                record(f"https://victim.example.com/{caller}/{n}/{each}?{caller}", f"p{each}")
                for each in range(20)
            )
            made = creation(
                task_id, status(task_id, TaskState.COMPLETED), pushes=pushes, scope=scope
            )
            await store.append(made)
            push.watch(task_id, scope)


@pytest.mark.slow
async def test_ten_thousand_webhooks_of_a_hundred_callers_are_no_flood() -> None:
    store, victim = MemoryTaskStore(), Victim()
    await store.open(lambda records: None)
    cap = DestinationCap(per_minute=400, concurrent=16)
    push = PushDispatcher(
        store, Proofs(Egress()), transport=victim.post, cap=cap, retry_policy=PATIENT
    )
    await push.start(["agent"])
    try:
        await aim(push, store, callers=100, webhooks=100)
        async with asyncio.timeout(60):
            await until(lambda: victim.taken >= 100 and not push._to_load)
        await let_time_pass(0.5)
        assert 100 <= victim.taken <= 400
        assert victim.most_active <= 16
        # Callers take turns.
        assert max(victim.callers.values()) <= 16
        assert len(victim.callers) >= 50
    finally:
        await push.stop(0)
        await store.close()


@pytest.mark.slow
async def test_many_names_of_one_machine_have_one_cap() -> None:
    class Names:
        async def resolve(self, name: str, port: int = 0, family: Any = 0) -> list[Any]:
            return [
                {
                    "hostname": name, "host": "127.0.0.1", "port": port,
                    "family": socket.AF_INET, "proto": 0, "flags": socket.AI_NUMERICHOST,
                }
            ]  # fmt: skip

    agent = Agent("Steps")

    @agent.skill(replies="task")
    async def step(turn: Turn) -> None:
        await turn.working("1")

    async with webhook() as hook, pushing(agent, retry_policy=PATIENT) as pushed:
        push = pushed.host.push
        push._sender._resolver = Names()  # type: ignore[assignment]
        push._scheduler.caps._cap = DestinationCap(per_minute=40, concurrent=4)
        for n in range(40):
            await pushed.task("go", hook.url.replace("127.0.0.1", f"n{n}.example.com"))
        await hook.until(lambda told: len(told) >= 10)
        await let_time_pass(0.5)
        assert len(hook.told) <= 12
        # Waiting deliveries are no failures.
        for n in range(40):
            assert not (await pushed.store.pushes(await first_task(pushed, n)))[0].note


async def first_task(pushed: Any, n: int) -> str:
    return str(list(pushed.store._logs)[n])


# -- one limit, with its own clock ---------------------------------------------------------------


async def test_token_endpoints_have_a_part_of_the_cap_and_callers_a_part_of_it() -> None:
    clock = Clock(1000.0)
    caps = DestinationCaps(DestinationCap(per_minute=160), lambda d: None, clock=clock)

    def asked(caller: str, name: str) -> int:
        clock.now += 120.0
        taken = 0
        for _ in range(600):
            clock.now += 0.1
            with suppress(DestinationBusy), caps.token_request(caller, name):
                dialled("203.0.113.9")
                taken += 1
        return taken

    assert 7 <= asked("mallory", "id.example.net") <= 10
    clock.now += 120.0
    taken = 0
    for n in range(600):  # many callers, and many names of one address
        clock.now += 0.1
        with suppress(DestinationBusy), caps.token_request(f"{n}", f"n{n}.example.net"):
            dialled("203.0.113.9")
            taken += 1
    assert 30 <= taken <= 40
    caps.close()


class Renewing(Proofs):
    """Credentials that always have a newer proof."""

    def is_renewed(self, attempt: WebhookAttempt, sent: Mapping[str, str]) -> bool:
        return True


@pytest.mark.slow
async def test_an_attempt_that_is_repeated_with_a_newer_proof_counts_twice() -> None:
    async with webhook() as hook, pushing(writer(1), retry_policy=PATIENT) as pushed:
        hook.answer = lambda told: 401
        push = pushed.host.push
        push._sender.proofs = Renewing(push.egress)
        cap = push._scheduler.caps._cap = DestinationCap(per_minute=8)
        push._scheduler.caps._exempt = lambda host: False
        for _ in range(4):
            await pushed.task("go", asking(hook.url, "Renewing"))
        await hook.until(lambda told: len(told) >= 2)
        await let_time_pass(0.5)
        assert len(hook.told) == cap.per_minute // 4, "the burst limit"


async def test_what_a_destination_holds_back_is_sent_before_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with webhook() as hook, pushing(writer(5), retry_policy=PATIENT) as pushed:
        sender = pushed.host.push._sender
        post, ended, held = sender.post, asyncio.Event(), list[str]()

        async def busy_once(
            push: PushRecord, body: bytes, id: str, call: DeliveryCall, headers: Any
        ) -> Any:
            await ended.wait()  # so that the events are read immediately
            if id.endswith("/3") and not held:
                held.append(id)
                return DeliveryFailure("busy", is_held_back=True)
            return await post(push, body, id, call, headers)

        monkeypatch.setattr(sender, "post", busy_once)
        await pushed.task("go", hook.url)
        ended.set()
        await hook.until_over()
        assert held
        numbers = [int(told.headers["webhook-id"].rpartition("/")[2]) for told in hook.told]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_replicas_that_share_a_store_have_equal_parts(fleet: Fleet) -> None:
    agent = Agent("Steps")

    @agent.skill(replies="task")
    async def step(turn: Turn) -> None:
        await turn.working("1")

    for _ in range(3):
        await fleet.add(agent)
    for each in fleet.replicas:
        each.host.push._counted = -100.0
        await each.host.push.reconcile()
        part = each.host.push._scheduler.caps._cap
        assert part == DestinationCap(per_minute=2000, concurrent=42)
