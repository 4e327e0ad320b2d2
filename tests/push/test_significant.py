"""Webhooks for significant events receive states, and each artifact once, complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from parley import Agent, Turn
from parley.extensions import PushDelivery, PushOptions
from parley.model.extensions import PUSH_DELIVERY
from parley.model.parts import Artifact, Part
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState
from parley.push.reader import SignificantReader
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import PushState
from parley.store.task_store import TaskStore
from tests.kit.records import addition, creation, status
from tests.kit.webhooks import Told, webhook
from tests.push.pushing import Pushed, pushing, writer

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
    """Return the names and texts of notifications; ``restarts`` uses a new reader for each."""
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
            return found  # a new reader repeats the events before a state
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
        await pushed.service.set_push_options(asked, pushed.context)  # a new reader, also rejected
        await pushed.settled(task.id, PushState.SUSPENDED)
        hook.answer = lambda told: 200
        await pushed.service.set_push_options(asked, pushed.context)
        await pushed.settled(task.id, PushState.DONE)


async def test_costs_do_not_grow_with_the_chunks() -> None:
    """The number of requests stays the same; each chunk is read a fixed number of times."""

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
