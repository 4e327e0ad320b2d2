"""Webhooks are told of everything that happens to a task, and hold nobody up."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from parley import Agent, Execution, Message, Task, Turn
from parley.model.operations import AuthenticationInfo, CancelTaskRequest, StreamResponse
from parley.model.struct import encode
from parley.push.delivery import RetryPolicy
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.webhooks import PushState
from parley.store.task_store import TaskStore
from tests.kit.waiting import let_time_pass, until
from tests.kit.webhooks import Told, Webhook, is_over, webhook
from tests.push.pushing import QUICK, Pushed, config, gated, of_version, pushing, writer

pytestmark = pytest.mark.anyio


async def logged(caller: Pushed, task_id: str, after: int = 0) -> list[bytes]:
    """Return all of a task's events after one, as a webhook is told them."""
    events = await caller.store.events(task_id, after, 10_000)
    return [encode(StreamResponse.of(event.event)) for event in events]  # type: ignore[arg-type]


def bodies(hook: Webhook) -> list[bytes]:
    return [told.body for told in hook.told]


async def test_a_webhook_is_told_every_event_from_the_first_task_on(
    new_store: Callable[[], TaskStore],
) -> None:
    async with webhook() as hook, pushing(writer(40), new_store()) as caller:
        task = await caller.task("go", hook.url)
        await hook.until_over()
        assert bodies(hook) == await logged(caller, task.id)
        assert "task" in hook.told[0].json
        assert hook.told[-1].json["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        push = await caller.settled(task.id, PushState.DONE)
        assert push.cursor == len(hook.told)
        assert (await caller.get(task.id, "default")).url == hook.url


async def test_a_notification_says_what_it_is_and_who_sends_it() -> None:
    agent, gate = gated()
    gate.set()
    authentication = AuthenticationInfo(scheme="Bearer", credentials="secret")
    async with webhook() as hook, pushing(agent) as caller:
        push = config(hook.url, id="my hook/1", token="token", authentication=authentication)
        task = await caller.task("go", push)
        await hook.until_over()
        for number, told in enumerate(hook.told, 1):
            assert told.headers["content-type"] == "application/a2a+json"
            assert told.headers["a2a-version"] == "1.0"
            assert told.headers["authorization"] == "Bearer secret"
            assert told.headers["x-a2a-notification-token"] == "token"
            assert told.headers["a2a-notification-id"] == f"{task.id}/my%20hook%2F1/{number}"


async def test_nothing_is_said_that_was_not_asked_for() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent) as caller:
        unsaid = AuthenticationInfo(scheme="Bearer")  # a scheme alone says nothing
        await caller.task("go", config(hook.url, authentication=unsaid))
        await hook.until_over()
        assert not {"authorization", "x-a2a-notification-token", "cookie"} & set(
            hook.told[0].headers
        )


async def test_a_configuration_that_is_created_later_is_told_what_happens_from_then_on(
    new_store: Callable[[], TaskStore],
) -> None:
    agent, gate = gated()
    async with webhook() as hook, pushing(agent, new_store()) as caller:
        task = await caller.task("go", return_immediately=True)
        await caller.create(task.id, hook.url)
        before = (await caller.store.pushes(task.id))[0].cursor
        gate.set()
        await hook.until_over()
        assert before > 0
        assert bodies(hook) == await logged(caller, task.id, after=before)


async def test_one_of_an_ended_task_is_told_nothing() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent) as caller:
        task = await caller.task("go")
        await caller.create(task.id, hook.url, id="late")
        await caller.settled(task.id, PushState.DONE, "late")
        # What happens to another task comes after anything that could have been told.
        await caller.task("go", hook.url)
        await hook.until_over()
        assert task.id not in "".join(told.headers["a2a-notification-id"] for told in hook.told)


async def test_one_that_comes_with_a_further_message_is_told_of_the_turn_of_that() -> None:
    agent = Agent("Asking")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return (await turn.ask("What?")).text

    async with webhook() as hook, pushing(agent) as caller:
        task = await caller.task("go")
        seen = len(await logged(caller, task.id))
        await caller.task("this", hook.url, task_id=task.id)
        await hook.until_over()
        assert bodies(hook) == await logged(caller, task.id, after=seen)


async def test_the_same_webhook_with_every_message_is_told_everything_once() -> None:
    agent = Agent("Asking")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return " ".join([(await turn.ask("What?")).text for _ in range(3)])

    async with webhook() as hook, pushing(agent) as caller:
        task = await caller.task("go", hook.url)
        for answer in "abc":
            await caller.task(answer, hook.url, task_id=task.id)
        await hook.until_over()
        assert bodies(hook) == await logged(caller, task.id)
        assert len(await caller.store.pushes(task.id)) == 1


async def test_several_webhooks_of_a_task_are_each_told_all() -> None:
    agent, gate = Agent("Writer"), asyncio.Event()

    @agent.skill(replies="task")
    async def write(turn: Turn) -> Any:
        await gate.wait()
        for n in range(20):
            yield f"{n} "

    async with webhook() as one, webhook() as two, pushing(agent) as caller:
        flaky = two.answer = Flaky(every=3)
        task = await caller.task("go", config(one.url, id="one"), return_immediately=True)
        await caller.create(task.id, two.url, id="two")
        gate.set()
        await one.until_over()
        await caller.settled(task.id, PushState.DONE, "two")
        whole = await logged(caller, task.id)
        assert bodies(one) == whole
        taken = flaky.taken(two.told)
        assert [told.body for told in taken] == whole[len(whole) - len(taken) :]
        assert flaky.refused


class Flaky:
    """Refuses one notification in so many."""

    def __init__(self, every: int, status: int = 503) -> None:
        self.count = 0
        self.every = every
        self.status = status
        self.refused: list[Told] = []

    def __call__(self, told: Told) -> int:
        self.count += 1
        if self.count % self.every:
            return 200
        self.refused.append(told)
        return self.status

    def taken(self, told: list[Told]) -> list[Told]:
        """Return what was not refused."""
        return [each for each in told if not any(each is one for one in self.refused)]


@pytest.mark.parametrize("status", [500, 503, 408, 429])
async def test_what_was_not_taken_is_sent_again_before_anything_else(status: int) -> None:
    async with webhook() as hook, pushing(writer(10)) as caller:
        flaky = hook.answer = Flaky(every=2, status=status)
        task = await caller.task("go", hook.url)
        await caller.settled(task.id, PushState.DONE)
        taken = flaky.taken(hook.told)
        assert [told.number for told in taken] == list(range(1, len(taken) + 1))
        assert [told.body for told in taken] == await logged(caller, task.id)
        ids = Counter(told.headers["a2a-notification-id"] for told in hook.told)
        assert {ids[told.headers["a2a-notification-id"]] for told in flaky.refused} == {2}


async def test_a_webhook_that_is_gone_is_suspended_at_once(
    caplog: pytest.LogCaptureFixture, new_store: Callable[[], TaskStore]
) -> None:
    agent, gate = gated()
    async with webhook() as hook, webhook() as other, pushing(agent, new_store()) as caller:
        hook.answer = lambda told: 410
        task = await caller.task("go", hook.url, return_immediately=True)
        push = await caller.settled(task.id, PushState.SUSPENDED)
        assert (push.cursor, push.note) == (0, "it answers with HTTP 410: it is gone")
        # A second webhook is told the end; by then the first could have been told more.
        await caller.create(task.id, other.url, id="other")
        gate.set()
        await other.until_over()
        assert len(hook.told) == 1
    assert "is suspended after event 0: it answers with HTTP 410" in caplog.text


async def test_a_webhook_that_never_answers_well_is_suspended_after_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent) as caller:
        hook.answer = lambda told: 500
        task = await caller.task("go", hook.url)
        push = await caller.settled(task.id, PushState.SUSPENDED)
        tries = len(hook.told)
        assert tries >= 3
        assert [told.number for told in hook.told] == [1] * tries
        assert push.note == f"it answers with HTTP 500, {tries} times in a row"
        assert (await caller.get(task.id, "default")).url == hook.url
    assert f"{tries} times in a row" in caplog.text


async def test_a_suspended_webhook_goes_on_when_it_is_created_again() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent) as caller:
        hook.answer = lambda told: 410
        task = await caller.task("go", hook.url)
        await caller.settled(task.id, PushState.SUSPENDED)
        hook.answer = lambda told: 200
        await caller.create(task.id, hook.url)
        await caller.settled(task.id, PushState.DONE)
        assert bodies(hook)[1:] == await logged(caller, task.id)


async def test_a_webhook_that_is_not_there_is_tried_again() -> None:
    agent, gate = gated()
    async with webhook() as gone:
        url = gone.url
    async with pushing(agent, retry_policy=RetryPolicy(first_delay=0.01)) as caller:
        task = await caller.task("go", url, return_immediately=True)
        gate.set()
        async with webhook(int(url.rsplit(":", 1)[1].split("/")[0])) as back:
            await back.until_over()
            assert bodies(back) == await logged(caller, task.id)


async def test_a_webhook_that_does_not_answer_in_time_is_given_up_on() -> None:
    agent, gate = gated()
    gate.set()
    retry_policy = replace(QUICK, timeout=0.05)
    async with webhook() as hook, pushing(agent, retry_policy=retry_policy) as caller:
        never = asyncio.Event()

        async def hang(told: Told) -> int:
            await never.wait()
            return 200

        hook.answer = hang
        task = await caller.task("go", hook.url)
        push = await caller.settled(task.id, PushState.SUSPENDED)
        assert push.note.startswith("no answer in 0.05 s")
        never.set()


async def test_an_answer_without_an_end_is_an_answer() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent) as caller:

        class Endless(web.StreamResponse):
            async def write_eof(self, data: bytes = b"") -> None:
                await asyncio.Event().wait()

        hook.answer = lambda told: Endless()
        task = await caller.task("go", hook.url)
        await caller.settled(task.id, PushState.DONE)
        assert bodies(hook) == await logged(caller, task.id)


async def test_a_removed_configuration_is_told_nothing_more() -> None:
    agent, gate = gated()
    async with webhook() as hook, webhook() as other, pushing(agent) as caller:
        task = await caller.task("go", config(hook.url, id="mine"), return_immediately=True)
        await hook.until(lambda told: len(told) >= 2)
        await caller.create(task.id, other.url, id="other")
        await caller.delete(task.id, "mine")
        told = len(hook.told)
        gate.set()
        await other.until_over()
        assert len(hook.told) == told


async def test_a_notification_under_way_is_given_up_when_its_configuration_is_removed() -> None:
    agent, _ = gated()
    async with webhook() as hook, pushing(agent) as caller:
        gone = asyncio.Event()

        async def hang(told: Told) -> int:
            try:
                await asyncio.Event().wait()
            finally:
                gone.set()
            return 200

        hook.answer = hang
        task = await caller.task("go", hook.url, return_immediately=True)
        await hook.until(bool)
        await caller.delete(task.id, "default")
        assert not caller.host.push._scheduler._running
        assert caller.host.push._tasks == {}


async def test_a_replaced_configuration_goes_on_at_its_new_address() -> None:
    agent, gate = gated()
    async with webhook() as one, webhook() as two, pushing(agent) as caller:
        task = await caller.task("go", config(one.url, id="mine"), return_immediately=True)
        await one.until(lambda told: len(told) >= 2)
        await caller.settled(task.id, PushState.ACTIVE, "mine")
        await caller.create(task.id, two.url, id="mine", token="new")
        gate.set()
        await two.until_over()
        numbers = {told.number for told in one.told} | {told.number for told in two.told}
        assert numbers == set(range(1, len(await logged(caller, task.id)) + 1))
        assert {told.headers.get("x-a2a-notification-token") for told in two.told} == {"new"}


async def test_a_slow_webhook_delays_no_stream_no_other_webhook_and_no_other_task() -> None:
    async with webhook() as slow, webhook() as quick, pushing(writer(50)) as caller:
        never = asyncio.Event()

        async def hang(told: Told) -> int:
            await never.wait()
            return 200

        slow.answer = hang
        request = caller.request("go", config(slow.url, id="slow"))
        async with asyncio.timeout(10):
            stream = caller.service.send_streaming_message(request, caller.context)
            streamed = [item.event async for item in stream]
        first = streamed[0]
        assert isinstance(first, Task)
        assert len(streamed) > 50
        # Another host (a name of this machine), another task.
        url = quick.url.replace("127.0.0.1", "localhost")
        second = await caller.task("go", config(url, id="quick"))
        await quick.until_over()
        assert bodies(quick) == await logged(caller, second.id)
        assert len(slow.told) == 1
        never.set()
        await caller.settled(first.id, PushState.DONE, "slow")
        assert bodies(slow) == await logged(caller, first.id)


async def test_what_waits_for_a_slow_webhook_waits_in_the_log_alone() -> None:
    async with webhook() as slow, pushing(writer(500)) as caller:
        never = asyncio.Event()

        async def hang(told: Told) -> int:
            await never.wait()
            return 200

        slow.answer = hang
        task = await caller.task("go", slow.url)
        await slow.until(bool)
        assert caller.host.hints.held == 0
        assert len(slow.told) == 1
        never.set()
        await caller.settled(task.id, PushState.DONE)
        assert bodies(slow) == await logged(caller, task.id)


async def test_a_direct_reply_is_told_as_one_message() -> None:
    agent = Agent("Direct")

    @agent.skill
    async def say(text: str) -> str:
        return f"You said {text}"

    async with webhook() as hook, pushing(agent) as caller:
        hook.answer = Flaky(every=1)
        reply = await caller.send("hello", config(hook.url, token="token"))
        assert isinstance(reply, Message)
        await hook.until(bool)
        hook.answer = lambda told: 200
        await hook.until(lambda told: len(told) == 2)
        assert set(bodies(hook)) == {encode(StreamResponse.of(reply))}
        assert hook.told[0].headers["a2a-notification-id"] == reply.message_id
        assert hook.told[0].headers["x-a2a-notification-token"] == "token"


async def test_direct_replies_that_nobody_takes_are_given_up() -> None:
    agent = Agent("Direct")

    @agent.skill
    async def say(text: str) -> str:
        return text

    async with webhook() as hook, pushing(agent) as caller:
        hook.answer = lambda told: 500
        await caller.send("hello", hook.url)
        await hook.until(lambda told: len(told) >= 3)
        async with asyncio.timeout(10):
            await until(lambda: not caller.host.push._reply_counts)


async def test_a_hybrid_skill_that_takes_longer_tells_of_its_task() -> None:
    agent = Agent("Hybrid", execution=Execution(direct_reply_timeout=0.01))
    gate = asyncio.Event()

    @agent.skill
    async def think(text: str) -> str:
        await gate.wait()
        return text

    async with webhook() as hook, pushing(agent) as caller:
        sending = asyncio.create_task(caller.send("hello", hook.url))
        await hook.until(bool)
        gate.set()
        task = await sending
        assert isinstance(task, Task)
        await hook.until_over()
        assert bodies(hook) == await logged(caller, task.id)


async def test_a_canceled_task_is_told_as_canceled() -> None:
    agent, _ = gated()
    async with webhook() as hook, pushing(agent) as caller:
        task = await caller.task("go", hook.url, return_immediately=True)
        await caller.service.cancel_task(CancelTaskRequest(id=task.id), caller.context)
        await hook.until_over()
        assert hook.told[-1].json["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_name_that_leads_to_a_private_address_is_told_nothing() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, allowed=False) as caller:
        host = caller.host

        class Names:
            async def resolve(self, name: str, port: int = 0, family: Any = 0) -> list[Any]:
                return [
                    {
                        "hostname": name, "host": "127.0.0.1", "port": port,
                        "family": socket.AF_INET, "proto": 0, "flags": socket.AI_NUMERICHOST,
                    }
                ]  # fmt: skip

        host.push._sender._resolver = Names()  # type: ignore[assignment]
        task = await caller.task("go", hook.url.replace("127.0.0.1", "rebinding.example.com"))
        push = await caller.settled(task.id, PushState.SUSPENDED)
        assert push.note == "it is at a loopback address"
        assert hook.told == []


async def test_hosts_on_the_list_are_told_wherever_they_are() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, allowed=["localhost"]) as caller:
        await caller.task("go", hook.url.replace("127.0.0.1", "localhost"))
        await hook.until_over()


async def test_a_proxy_from_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook, webhook() as proxy, pushing(agent) as caller:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        await caller.task("go", hook.url)
        await hook.until_over()
        assert proxy.told == []


# -- version 0.3 ---------------------------------------------------------------------------------


async def test_a_webhook_of_0_3_is_told_the_task_as_it_stands() -> None:
    agent, gate = gated()
    async with webhook() as hook, pushing(agent) as caller:
        old = of_version(caller.context, "0.3")
        task = await caller.task("go", hook.url, return_immediately=True, context=old)
        await hook.until(bool)
        gate.set()
        await hook.until_over()
        for told in hook.told:
            assert told.json["id"] == task.id
            assert told.json["kind"] == "task"
            assert told.headers["content-type"] == "application/json"
            assert told.headers["a2a-version"] == "0.3"
        assert hook.told[-1].json["status"]["state"] == "completed"
        numbers = [told.number for told in hook.told]
        assert numbers == sorted(set(numbers))


async def test_many_chunks_are_told_as_few_tasks() -> None:
    """What is sent grows with the artifact, not with its square."""
    agent = Agent("Writer")

    @agent.skill
    async def write(turn: Turn) -> Any:
        for n in range(1000):
            yield f"{n:09} "
            if n % 10 == 0:
                await asyncio.sleep(0)

    async with webhook() as hook, pushing(agent) as caller:
        old = of_version(caller.context, "0.3")
        await caller.task("go", hook.url, context=old)
        await hook.until_over()
        assert len(hook.told) < 30
        assert sum(len(told.body) for told in hook.told) < 10 * len(hook.told[-1].body)


# -- restarts ------------------------------------------------------------------------------------


async def test_delivery_goes_on_in_the_next_process(new_store: Callable[[], TaskStore]) -> None:
    agent, gate = gated()
    store = new_store()
    async with webhook() as hook:
        async with pushing(agent, store, retry_policy=RetryPolicy(first_delay=60)) as caller:
            hook.answer = lambda told: 503 if told.number > 2 else 200
            gate.set()
            task = await caller.task("go", hook.url)
            await hook.until(lambda told: any(each.number == 3 for each in told))
        hook.told.clear()
        hook.answer = lambda told: 200
        async with pushing(agent, store) as caller:
            await hook.until_over()
            assert bodies(hook) == await logged(caller, task.id, after=2)


async def test_a_task_that_goes_on_after_a_restart_is_told_of(
    new_store: Callable[[], TaskStore],
) -> None:
    agent = Agent("Asking")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return (await turn.ask("What?")).text

    store = new_store()
    async with webhook() as hook:
        async with pushing(agent, store) as caller:
            task = await caller.task("go", hook.url)
            seen = len(await logged(caller, task.id))
            await hook.until(lambda told: len(told) == seen)
            async with asyncio.timeout(10):
                while (await caller.store.pushes(task.id))[0].cursor < seen:
                    await let_time_pass(0.005)
        async with pushing(agent, store) as caller:
            await caller.task("this", task_id=task.id)
            await hook.until_over()
            assert bodies(hook) == await logged(caller, task.id)


async def test_a_server_that_stops_tells_what_there_is_to_tell() -> None:
    agent, gate = gated()
    gate.set()
    async with webhook() as hook:
        async with pushing(agent, drain=5.0) as caller:
            task = await caller.task("go", hook.url)
            count = len(await logged(caller, task.id))
        assert len(hook.told) == count
        assert is_over(hook.told[-1])


async def test_a_store_that_fails_for_a_while_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.push.dispatcher.STORE_PAUSE", 0.01)
    monkeypatch.setattr("parley.push.delivery.STORE_PAUSE", 0.01)

    class Failing(MemoryTaskStore):
        failures = 3

        async def pushes(self, task_id: str) -> Any:
            self._fail()
            return await super().pushes(task_id)

        async def save_delivery(self, task_id: str, push: Any, attempt: Any = None) -> bool:
            self._fail()
            return await super().save_delivery(task_id, push, attempt)

        def _fail(self) -> None:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("full")

    agent, gate = gated()
    gate.set()
    async with webhook() as hook, pushing(agent, Failing()) as caller:
        task = await caller.task("go", hook.url)
        await hook.until_over()
        push = await caller.settled(task.id, PushState.DONE)
        assert push.cursor == len(await logged(caller, task.id))
        assert sorted({told.number for told in hook.told}) == list(range(1, push.cursor + 1))


async def test_one_whose_maker_goes_away_meanwhile_is_told_all_the_same() -> None:
    class Slow(MemoryTaskStore):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.gate = asyncio.Event(), asyncio.Event()

        async def put_push(self, task_id: str, push: Any) -> Any:
            self.asked.set()
            await self.gate.wait()
            return await super().put_push(task_id, push)

    (agent, gate), store = gated(), Slow()
    async with webhook() as hook, pushing(agent, store) as caller:
        task = await caller.task("go", return_immediately=True)
        creating = asyncio.create_task(caller.create(task.id, hook.url))
        await store.asked.wait()
        creating.cancel()
        await asyncio.wait({creating})
        store.gate.set()
        await caller.settled(task.id, PushState.ACTIVE)
        gate.set()
        await hook.until_over()


async def test_what_was_looked_up_before_the_end_is_not_told_again() -> None:
    class Late(MemoryTaskStore):
        """One whose answer to a look comes when the webhook was told everything."""

        is_late = False

        async def pushes(self, task_id: str) -> Any:
            found = await super().pushes(task_id)
            if self.is_late:
                self.is_late = False
                looked.set()
                await told_all.wait()
            return found

    (agent, gate), store = gated(), Late()
    looked, told_all = asyncio.Event(), asyncio.Event()
    async with webhook() as hook, pushing(agent, store) as caller:
        task = await caller.task("go", hook.url, return_immediately=True)
        await hook.until(lambda told: len(told) == 2)
        store.is_late = True
        caller.host.push.watch(task.id)
        await looked.wait()
        gate.set()
        delivery = caller.host.push
        async with asyncio.timeout(10):
            while (await MemoryTaskStore.pushes(store, task.id))[0].state is not PushState.DONE:
                await let_time_pass(0.005)
            await until(lambda: not delivery._tasks)
            told_all.set()
            await delivery._load_lock.acquire()  # which is when that look has been dealt with
            delivery._load_lock.release()
            await until(lambda: not delivery._tasks)
        assert bodies(hook) == await logged(caller, task.id)
