"""What a webhook of significant events is told: states, and each artifact once, complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from parley import Agent, Execution, Turn
from parley.extensions import PushDelivery, PushOptions
from parley.model.errors import InvalidParamsError, TaskNotFoundError
from parley.model.extensions import PUSH_DELIVERY
from parley.model.parts import Artifact, Part
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState
from parley.push.reader import SignificantReader
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.task_store import TaskStore
from tests.kit.records import addition, creation, status
from tests.kit.webhooks import Told, webhook
from tests.push.pushing import Pushed, gated, of_version, pushing, writer

pytestmark = pytest.mark.anyio

SIGNIFICANT = PushDelivery.says(PushOptions(events="significant"))


async def send(
    pushed: Pushed, said: str, url: str, metadata: Any = SIGNIFICANT, **options: Any
) -> Any:
    context = options.pop("context", pushed.context)
    context = replace(context, extensions=frozenset({PUSH_DELIVERY}))
    request = replace(pushed.request(said, url, **options), metadata=metadata)
    return await pushed.service.send_message(request, context)


def kinds(told: list[Told]) -> list[str]:
    return [next(iter(each.json)) for each in told]


async def test_a_thousand_chunks_are_a_handful_of_notifications(
    new_store: Callable[[], TaskStore],
) -> None:
    async with webhook() as hook, pushing(writer(1000), new_store()) as pushed:
        task = await send(pushed, "go", hook.url)
        await hook.until_over(30)
        assert kinds(hook.told) == ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]
        update = hook.told[2].json["artifactUpdate"]
        [part] = update["artifact"]["parts"]
        assert part["text"] == "".join(f"{n} " for n in range(1000))
        assert "metadata" not in update
        assert update["lastChunk"] is True
        assert not update.get("append")
        numbers = [each.number for each in hook.told]
        assert numbers == sorted(set(numbers))
        kept = await pushed.settled(task.id, PushState.DONE)
        assert kept.attempts == 4
        assert len(await pushed.store.push_attempts(task.id, "default")) == 4


async def test_costs_do_not_grow_with_the_chunks() -> None:
    """Requests stay the same, and each chunk is read a fixed number of times."""

    class Counting(MemoryTaskStore):
        saves = read = 0

        async def save_delivery(self, *given: Any) -> bool:
            self.saves += 1
            return await super().save_delivery(*given)

        async def events(self, *given: Any) -> Any:
            found = await super().events(*given)
            self.read += len(found)
            return found

    costs = {}
    for chunks in (100, 400):
        store = Counting()
        async with webhook() as hook, pushing(writer(chunks), store) as pushed:
            await send(pushed, "go", hook.url)
            await hook.until_over(30)
            costs[chunks] = (len(hook.told), store.saves)
            assert store.read <= 3 * chunks + 50
    assert costs[100] == costs[400] == (4, costs[100][1])


async def test_the_default_is_the_agents_and_a_configuration_overrides_it() -> None:
    agent = Agent("Writer", execution=Execution(push_events="significant"))

    @agent.skill
    async def write(turn: Turn) -> Any:
        for n in range(20):
            yield f"{n} "

    async with webhook() as hook, pushing(agent) as pushed:
        await pushed.send("go", hook.url)
        await hook.until_over()
        assert len(hook.told) == 4
    async with webhook() as hook, pushing(agent) as pushed:
        await send(pushed, "go", hook.url, PushDelivery.says(PushOptions(events="all")))
        await hook.until_over()
        assert len(hook.told) > 20


async def test_options_that_are_not_activated_change_nothing() -> None:
    async with webhook() as hook, pushing(writer(20)) as pushed:
        request = replace(pushed.request("go", hook.url), metadata=SIGNIFICANT)
        await pushed.service.send_message(request, pushed.context)
        await hook.until_over()
        assert len(hook.told) > 20


@pytest.mark.parametrize("wrong", [{"events": "some"}, {"event": "all"}, "significant", 7])
async def test_wrong_options_are_refused_by_name(wrong: Any) -> None:
    async with pushing(writer(1)) as pushed:
        with pytest.raises(InvalidParamsError, match=PUSH_DELIVERY):
            await send(pushed, "go", "https://example.com/", {PUSH_DELIVERY: wrong})


def test_an_agent_with_a_wrong_default_is_refused() -> None:
    with pytest.raises(ValueError, match="push_events is 'all' or 'significant'"):
        Agent("Writer", execution=Execution(push_events="some"))  # type: ignore[arg-type]


async def test_0_3_is_told_its_states_as_tasks() -> None:
    async with webhook() as hook, pushing(writer(2000)) as pushed:
        await send(pushed, "go", hook.url, context=of_version(pushed.context, "0.3"))
        await hook.until_over(30)
        assert len(hook.told) <= 3
        [artifact] = hook.told[-1].json["artifacts"]
        [part] = artifact["parts"]
        assert part["text"] == "".join(f"{n} " for n in range(2000))


# -- the reader, event by event ------------------------------------------------------------------


def chunk(
    text: str, artifact: str = "a", *, append: bool = True, last: bool = False
) -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(
        task_id="t",
        context_id="c",
        artifact=Artifact(artifact_id=artifact, parts=(Part(text=text),)),
        append=append,
        last_chunk=last,
    )


async def told_of(store: TaskStore, *, restarts: bool, cursor: int = 0) -> list[tuple[str, str]]:
    """Return the names and texts of what a reader finds; it may be a new one for each."""
    found = []
    reader = SignificantReader(store, "t")
    while True:
        if restarts:
            reader = SignificantReader(store, "t")
        notifications = await reader.after(cursor)
        assert notifications == await reader.after(cursor), "a retry sends the same"
        if not notifications:
            return found
        [notification] = notifications
        event = notification.event
        text = (
            event.artifact.text
            if isinstance(event, TaskArtifactUpdateEvent)
            else event.status.state.name  # type: ignore[union-attr]
        )
        found.append((notification.name, text))
        if restarts and notification.seq == cursor:
            return found  # a new one repeats what is before a state
        cursor = notification.seq
        reader.delivered(notification, 0)


async def test_an_unfinished_artifact_is_sent_before_the_state_that_ends(
    new_store: Callable[[], TaskStore],
) -> None:
    store = new_store()
    await store.open(lambda records: None)
    try:
        await store.append(creation("t", status("t", TaskState.WORKING)))
        await store.append(
            addition("t", 2, chunk("1", append=False), chunk("x", "b", append=False))
        )
        await store.append(addition("t", 4, status("t", TaskState.WORKING), chunk("2")))
        await store.append(addition("t", 6, chunk("y", "b", last=True), chunk("3")))
        await store.append(addition("t", 8, status("t", TaskState.INPUT_REQUIRED)))
        await store.append(addition("t", 9, chunk("4"), status("t", TaskState.COMPLETED)))
        expected = [
            ("1", "SUBMITTED"),
            ("2", "WORKING"),
            ("5", "WORKING"),
            ("7", "xy"),
            ("9-1", "123"),
            ("9", "INPUT_REQUIRED"),
            ("11-1", "1234"),
            ("11", "COMPLETED"),
        ]
        assert await told_of(store, restarts=False) == expected
        assert await told_of(store, restarts=False, cursor=7) == expected[4:]
        assert (await told_of(store, restarts=True))[:5] == expected[:5]
    finally:
        await store.close()


async def test_an_artifact_that_is_replaced_is_sent_as_it_was_at_each_end() -> None:
    store = MemoryTaskStore()
    await store.open(lambda records: None)
    await store.append(creation("t", chunk("old", append=False, last=True)))
    await store.append(addition("t", 2, chunk("n", append=False), chunk("ew", last=True)))
    await store.append(addition("t", 4, status("t", TaskState.COMPLETED)))
    assert [text for _, text in await told_of(store, restarts=False)] == [
        "SUBMITTED", "old", "new", "COMPLETED",
    ]  # fmt: skip
    await store.close()


async def test_a_receiver_that_fails_gets_the_same_artifact_again() -> None:
    async with webhook() as hook, pushing(writer(50)) as pushed:
        answers = iter([200, 200, 500, 500, 200])
        hook.answer = lambda told: next(answers, 200)
        await send(pushed, "go", hook.url)
        await hook.until_over()
        bodies = [each.body for each in hook.told if "artifactUpdate" in each.json]
        assert len(bodies) == 3
        assert len(set(bodies)) == 1
        ids = {each.headers["a2a-notification-id"] for each in hook.told[2:5]}
        assert len(ids) == 1


async def test_options_set_later_hold_from_the_next_event_on(new_store: Any) -> None:
    agent, gate = Agent("Slow"), asyncio.Event()

    @agent.skill(replies="task")
    async def write(turn: Turn) -> Any:
        yield "1 "
        yield "2 "
        await gate.wait()
        for n in range(30):
            yield f"{n} "

    from parley.extensions import SetPushOptionsRequest

    async with webhook() as hook, pushing(agent, new_store()) as pushed:
        task = await pushed.task("go", hook.url, return_immediately=True)
        await hook.until(lambda told: any(b'"2 "' in each.body for each in told))
        known = max(each.number for each in hook.told)
        asked = SetPushOptionsRequest(task_id=task.id, id="default", events="significant")
        answer = await pushed.service.set_push_options(asked, pushed.context)
        assert answer.events == "significant"
        gate.set()
        await hook.until_over()
        later = [each for each in hook.told if each.number > known]
        assert kinds(later) == ["artifactUpdate", "statusUpdate"]
        numbers = [each.number for each in hook.told]
        assert numbers == sorted(set(numbers))


async def test_the_same_choice_again_resumes_a_suspended_webhook() -> None:
    from parley.extensions import SetPushOptionsRequest

    async with webhook() as hook, pushing(writer(1)) as pushed:
        hook.answer = lambda told: 410
        task = await pushed.task("go", hook.url)
        asked = SetPushOptionsRequest(task_id=task.id, id="default", events="significant")
        await pushed.settled(task.id, PushState.SUSPENDED)
        await pushed.service.set_push_options(asked, pushed.context)  # a new one, refused too
        await pushed.settled(task.id, PushState.SUSPENDED)
        hook.answer = lambda told: 200
        await pushed.service.set_push_options(asked, pushed.context)
        await pushed.settled(task.id, PushState.DONE)


async def test_a_choice_brings_back_no_webhook_that_was_removed_or_replaced() -> None:
    """Another replica removes or replaces it while its options are set."""
    from parley.extensions import SetPushOptionsRequest

    class Meanwhile(MemoryTaskStore):
        acts: list[Any] = []

        async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
            if self.acts:
                await self.acts.pop()()
            return await super().put_push(task_id, push)

    store, (agent, gate) = Meanwhile(), gated()
    async with webhook() as hook, pushing(agent, store) as pushed:
        task = await pushed.task("go", hook.url, return_immediately=True)
        asked = SetPushOptionsRequest(task_id=task.id, id="default", events="significant")
        store.acts = [lambda: pushed.create(task.id, f"{hook.url}/new", id="default")]
        await pushed.service.set_push_options(asked, pushed.context)
        [push] = await store.pushes(task.id)
        assert (push.config.url, push.options.events) == (f"{hook.url}/new", "significant")
        store.acts = [lambda: store.remove_push(task.id, "default")]
        asked = SetPushOptionsRequest(task_id=task.id, id="default", events="all")
        with pytest.raises(TaskNotFoundError):
            await pushed.service.set_push_options(asked, pushed.context)
        assert not await store.pushes(task.id)
        gate.set()
