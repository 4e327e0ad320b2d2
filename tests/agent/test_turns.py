"""Turns: questions, steps, messages in passing, contexts, cancellation, crowds."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parley import (
    Agent,
    BlockingFile,
    BlockingTurn,
    CallContext,
    Caller,
    Execution,
    Message,
    Retention,
    Task,
    TaskState,
    Turn,
    TurnFile,
)
from parley.agent.artifact_stream import ArtifactStream, BlockingStream
from parley.agent.blocking_turn import TurnThread
from parley.agent.tools.turn_tools import BlockingTools, TurnTools
from parley.engine.turn.task_runner import ATTEMPT_KEY
from parley.model.errors import (
    InvalidParamsError,
    OverloadedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from parley.model.service import StreamItem
from parley.model.tasks import TaskStatusUpdateEvent
from parley.store.events import MessageReceived
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.task_log import Append
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio


def booking() -> Agent:
    agent = Agent("Booking")

    @agent.skill
    async def book(turn: Turn) -> str:
        origin = (await turn.ask("From where?")).text
        target = (await turn.ask("To where?")).text
        return f"{turn.text}: {origin} to {target}"

    return agent


async def cancel(caller: Any, task_id: str) -> Task:
    return await caller.service.cancel_task(CancelTaskRequest(id=task_id), caller.context)


async def get(caller: Any, task_id: str) -> Task:
    return await caller.service.get_task(GetTaskRequest(id=task_id), caller.context)


async def only_task(caller: Any) -> str:
    async with asyncio.timeout(5):
        while True:
            page = await caller.service.list_tasks(ListTasksRequest(), caller.context)
            if page.tasks:
                return str(page.tasks[0].id)
            await let_time_pass(0.001)


async def collect(items: AsyncIterator[StreamItem]) -> list[StreamItem]:
    return [item async for item in items]


async def test_questions_are_asked_one_after_the_other(talk: Any) -> None:
    async with talk(booking()) as caller:
        task = await caller.task("Book")
        assert task.state is TaskState.INPUT_REQUIRED
        assert task.status.message is not None
        assert task.status.message.text == "From where?"
        await until(lambda: caller.executor.running == 0)  # parked: a row, no coroutine
        task = await caller.task("Rome", task_id=task.id)
        assert task.status.message is not None
        assert task.status.message.text == "To where?"
        task = await caller.task("Oslo", task_id=task.id)
        assert task.state is TaskState.COMPLETED
        assert task.text == "Book: Rome to Oslo"
        assert [m.text for m in task.history] == [
            "Book",
            "From where?",
            "Rome",
            "To where?",
            "Oslo",
        ]


async def test_a_parked_task_survives_a_restart(talk: Any, new_store: Any) -> None:
    store = new_store()
    if type(store).__name__ == "MemoryTaskStore":
        pytest.skip("a store in memory survives nothing")
    async with talk(booking()) as caller:
        task = await caller.task("Book")
        task = await caller.task("Rome", task_id=task.id)
    async with talk(booking()) as caller:
        task = await caller.task("Oslo", task_id=task.id)
        assert task.text == "Book: Rome to Oslo"


@pytest.mark.E2
async def test_five_senders_to_one_parked_task_each_get_their_own_reply(talk: Any) -> None:
    agent = Agent("Counter")

    @agent.skill
    async def count(turn: Turn) -> str:
        answers = [(await turn.ask(f"Number {n}?")).text for n in range(3)]
        return " ".join(answers)

    async with talk(agent) as caller:
        task = await caller.task("go")
        replies = await asyncio.gather(
            *(caller.task(f"answer {n}", task_id=task.id) for n in range(5)), return_exceptions=True
        )
        tasks = [r for r in replies if isinstance(r, Task)]
        refused = [r for r in replies if not isinstance(r, Task)]
        assert len(tasks) == 3
        assert all(isinstance(r, UnsupportedOperationError) for r in refused)
        asked = sorted(t.status.message.text if t.status.message else "done" for t in tasks)
        assert asked == ["Number 1?", "Number 2?", "done"]
        final = await get(caller, task.id)
        assert final.state is TaskState.COMPLETED
        users = [m.text for m in final.history if m.text.startswith("answer")]
        assert len(users) == 3
        assert final.text == " ".join(users)


async def test_a_step_is_done_once_in_the_life_of_a_task(talk: Any) -> None:
    agent = Agent("Stepper")
    done: list[str] = []

    def price(city: str) -> int:
        done.append(city)
        return 100

    async def tax() -> dict[str, float]:
        done.append("tax")
        return {"tax": 0.5}

    @agent.skill
    async def shop(turn: Turn) -> str:
        cost = await turn.step("price", price, "Rome")
        rate = await turn.step("tax", tax)
        await turn.ask("Buy?")
        return f"{cost} {rate['tax']}"

    async with talk(agent) as caller:
        task = await caller.task("go")
        task = await caller.task("yes", task_id=task.id)
        assert task.text == "100 0.5"
        assert done == ["Rome", "tax"]


async def test_a_step_that_raises_is_not_remembered_and_a_key_serves_once(talk: Any) -> None:
    agent = Agent("Flaky")
    tries = 0

    def flaky() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ConnectionError("no")
        return "yes"

    @agent.skill
    async def retry(turn: Turn) -> str:
        try:
            await turn.step("a", flaky)
        except ConnectionError:
            await turn.ask("Again?")
        with pytest.raises(ValueError, match="used twice"):
            await turn.step("a", flaky)
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go")
        assert task.state is TaskState.INPUT_REQUIRED
        assert tries == 1
        task = await caller.task("ok", task_id=task.id)
        assert tries == 2


@pytest.mark.E2
async def test_messages_in_passing_belong_to_the_running_turn(talk: Any) -> None:
    agent = Agent("Listener")
    heard: list[str] = []

    @agent.skill
    async def listen(turn: Turn) -> str:
        await turn.working("listening")
        async for message in turn.messages():
            heard.append(message.text)
            if message.text == "stop":
                break
        return " ".join(heard)

    async with talk(agent) as caller:
        first = asyncio.create_task(caller.task("go"))
        task_id = await only_task(caller)
        more = asyncio.create_task(caller.task("more", task_id=task_id))
        await until(lambda: heard == ["more"])
        stop = asyncio.create_task(caller.task("stop", task_id=task_id))
        results = await asyncio.wait_for(asyncio.gather(first, more, stop), 5)
        assert {r.text for r in results} == {"more stop"}
        final = await get(caller, task_id)
        assert [m.text for m in final.history] == ["go", "listening", "more", "stop"]


async def test_messages_that_wait_when_the_task_ends_are_refused_and_leave_no_trace(
    talk: Any,
) -> None:
    agent = Agent("Deaf")
    go_on = asyncio.Event()

    @agent.skill(replies="task")
    async def deaf(turn: Turn) -> str:
        await go_on.wait()
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go", return_immediately=True)
        late = asyncio.create_task(caller.task("hello?", task_id=task.id))
        await until(lambda: bool(caller.executor._runners[task.id].waiters.pending))
        go_on.set()
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await asyncio.wait_for(late, 5)
        final = await get(caller, task.id)
        assert [m.text for m in final.history] == ["go"]


async def test_an_immediate_return_gives_a_task_that_is_in_the_log(talk: Any) -> None:
    agent = Agent("Slow")
    go_on = asyncio.Event()

    @agent.skill
    async def slow(turn: Turn) -> str:
        await go_on.wait()
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go", return_immediately=True)
        assert task.state in (TaskState.SUBMITTED, TaskState.WORKING)
        stream = caller.service.subscribe_to_task(
            SubscribeToTaskRequest(id=task.id), caller.context
        )
        first = await anext(stream)
        assert isinstance(first.event, Task)
        go_on.set()
        rest = await collect(stream)
        assert isinstance(rest[-1].event, TaskStatusUpdateEvent)
        assert rest[-1].event.status.state is TaskState.COMPLETED


async def test_a_blocking_send_answers_at_the_ceiling_with_the_task_as_it_stands(talk: Any) -> None:
    agent = Agent("Slow", execution=Execution(direct_reply_timeout=0.0, blocking_timeout=0.1))
    go_on = asyncio.Event()

    @agent.skill
    async def slow(turn: Turn) -> str:
        await go_on.wait()
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go")
        assert task.state is TaskState.WORKING
        go_on.set()


async def test_cancel_ends_a_running_function(talk: Any) -> None:
    agent = Agent("Endless")
    cleaned = asyncio.Event()
    begun = asyncio.Event()

    @agent.skill(replies="task")
    async def endless(turn: Turn) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await turn.working("cleaning up")
            cleaned.set()
        return "never"

    async with talk(agent) as caller:
        sender = asyncio.create_task(caller.task("go"))
        await asyncio.wait_for(begun.wait(), 5)
        task = await asyncio.wait_for(cancel(caller, await only_task(caller)), 5)
        assert task.state is TaskState.CANCELED
        assert cleaned.is_set()
        assert (await asyncio.wait_for(sender, 5)) == task
        assert (await cancel(caller, task.id)) == task  # once more is no error
        assert [m.text for m in task.history] == ["go", "cleaning up"]


@pytest.mark.E4
async def test_a_function_that_ignores_cancellation_does_not_hold_the_task(talk: Any) -> None:
    agent = Agent("Stubborn", execution=Execution(cancel_grace=0.1))
    begun, finish = asyncio.Event(), asyncio.Event()
    release = threading.Event()

    @agent.skill(replies="task")
    async def stubborn(turn: Turn) -> str:
        begun.set()
        while not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                continue
        return "I finished anyway"

    @agent.skill(replies="task")
    def stubborn_thread(turn: Any) -> str:
        begun.set()
        release.wait(5)
        return "I finished anyway"

    async with talk(agent) as caller:
        for skill in ("stubborn", "stubborn_thread"):
            begun.clear()
            task = await caller.task("go", return_immediately=True, metadata={"skill": skill})
            await asyncio.wait_for(begun.wait(), 5)
            canceled = await asyncio.wait_for(cancel(caller, task.id), 5)
            assert canceled.state is TaskState.CANCELED
            (finish if skill == "stubborn" else release).set()
            await until(lambda: not caller.executor.running)
            assert await get(caller, task.id) == canceled


async def test_parked_tasks_can_be_canceled_and_ended_ones_cannot(talk: Any) -> None:
    async with talk(booking()) as caller:
        task = await caller.task("Book")
        assert (await cancel(caller, task.id)).state is TaskState.CANCELED
        with pytest.raises(UnsupportedOperationError):
            await caller.task("Rome", task_id=task.id)
        done = await caller.task("Book")
        for answer in ("Rome", "Oslo"):
            done = await caller.task(answer, task_id=done.id)
        with pytest.raises(TaskNotCancelableError, match="TASK_STATE_COMPLETED"):
            await cancel(caller, done.id)


async def test_queued_tasks_wait_their_turn_and_can_be_canceled(talk: Any) -> None:
    agent = Agent("Narrow", execution=Execution(max_running=1, max_queued=2))
    go_on = asyncio.Event()

    @agent.skill
    async def narrow(turn: Turn) -> str:
        await go_on.wait()
        return "done"

    @agent.skill(replies="message")
    async def quick(turn: Turn) -> str:
        return "hi"

    async with talk(agent) as caller:
        first = await caller.task("1", return_immediately=True)
        second = await caller.task("2", return_immediately=True)
        third = asyncio.create_task(caller.task("3"))
        await until(lambda: caller.executor.queue.backlog == 2)
        with pytest.raises(OverloadedError):
            await caller.task("4", return_immediately=True)
        with pytest.raises(OverloadedError):
            await caller.send("5", metadata={"skill": "quick"})
        assert second.state is TaskState.SUBMITTED
        assert (await asyncio.wait_for(cancel(caller, second.id), 5)).state is TaskState.CANCELED
        go_on.set()
        assert (await asyncio.wait_for(third, 5)).state is TaskState.COMPLETED
        assert (await get(caller, first.id)).state is TaskState.COMPLETED


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.E4
async def test_cancel_racing_completion_leaves_one_end_that_all_agree_on(
    talk: Any, steps: int
) -> None:
    agent = Agent("Racer")

    @agent.skill(replies="task")
    async def race(turn: Turn) -> str:
        for n in range(4):
            await turn.working(str(n))
            await asyncio.sleep(0)
        return "won"

    async with talk(agent) as caller:
        for round_ in range(8):
            stream = caller.stream("go")
            first = (await anext(stream)).event
            assert isinstance(first, Task)
            reader = asyncio.create_task(collect(stream))
            for _ in range(steps + round_):
                await asyncio.sleep(0)
            try:
                told = (await asyncio.wait_for(cancel(caller, first.id), 5)).state
            except TaskNotCancelableError:
                told = TaskState.COMPLETED
            items = await asyncio.wait_for(reader, 5)
            ends = [
                i.event.status.state
                for i in items
                if isinstance(i.event, TaskStatusUpdateEvent) and i.event.status.state.is_terminal
            ]
            assert ends == [told]
            assert (await get(caller, first.id)).state is told


async def test_callers_see_only_what_is_theirs(talk: Any) -> None:
    ada = CallContext(caller=Caller("ada", True))
    bob = CallContext(caller=Caller("bob", True))
    other_tenant = CallContext(caller=Caller("ada", True), tenant="t2")
    async with talk(booking()) as caller:
        task = await caller.task("Book", context=ada, context_id="shared")
        for stranger in (bob, other_tenant, CallContext()):
            with pytest.raises(TaskNotFoundError):
                await caller.service.get_task(GetTaskRequest(id=task.id), stranger)
            with pytest.raises(TaskNotFoundError):
                await caller.service.cancel_task(CancelTaskRequest(id=task.id), stranger)
            with pytest.raises(TaskNotFoundError):
                await caller.send("Rome", task_id=task.id, context=stranger)
            with pytest.raises(TaskNotFoundError):
                await anext(
                    caller.service.subscribe_to_task(SubscribeToTaskRequest(id=task.id), stranger)
                )
            page = await caller.service.list_tasks(ListTasksRequest(), stranger)
            assert (page.tasks, page.total_size) == ((), 0)
        assert (await caller.service.get_task(GetTaskRequest(id=task.id), ada)).id == task.id


async def test_context_rules(talk: Any) -> None:
    async with talk(booking()) as caller:
        task = await caller.task("Book", context_id="c1")
        assert task.context_id == "c1"
        with pytest.raises(InvalidParamsError, match="contextId"):
            await caller.task("Rome", task_id=task.id, context_id="c2")
        with pytest.raises(TaskNotFoundError):
            await caller.task("Rome", task_id="no-such-task")
        task = await caller.task("Rome", task_id=task.id, context_id="c1")
        assert task.history[-1].context_id == "c1"


async def test_a_context_remembers_across_tasks_and_restarts(talk: Any, new_store: Any) -> None:
    def remembering() -> Agent:
        agent = Agent("Rememberer", retention=Retention(history=True))

        @agent.skill
        async def count(turn: Turn) -> dict[str, Any]:
            seen = await turn.recall("seen", 0)
            await turn.remember("seen", seen + 1)
            return {"seen": seen, "history": [m.text for m in await turn.history()]}

        @agent.skill
        async def work(turn: Turn) -> str:
            await turn.working()
            return "worked"

        return agent

    def data(reply: Task | Message) -> Any:
        assert isinstance(reply, Message)
        return reply.parts[0].data

    async with talk(remembering()) as caller:
        assert data(await caller.send("a", context_id="c")) == {"seen": 0, "history": []}
        await caller.task("b", context_id="c", metadata={"skill": "work"})
        third = data(await caller.send("c", context_id="c"))
        assert third["seen"] == 1
        assert third["history"][0] == "a"
        assert third["history"][-2:] == ["b", "worked"]
        assert data(await caller.send("x", context_id="other"))["seen"] == 0
    if type(new_store()).__name__ == "MemoryTaskStore":
        return
    async with talk(remembering()) as caller:
        again = data(await caller.send("d", context_id="c"))
        assert again["seen"] == 2
        assert again["history"][-2] == "c"


async def test_references_are_given_to_the_function_if_they_are_the_callers(talk: Any) -> None:
    agent = Agent("Referrer")

    @agent.skill
    async def make(turn: Turn) -> str:
        await turn.working()
        return "boat"

    @agent.skill
    async def refer(turn: Turn) -> str:
        return ",".join(task.artifacts[0].text for task in await turn.references())

    async with talk(agent) as caller:
        task = await caller.task("make")
        refer_to = {"reference_task_ids": (task.id, "unknown"), "metadata": {"skill": "refer"}}
        assert (await caller.send("again", **refer_to)).text == "boat"
        stranger = CallContext(caller=Caller("eve", True))
        assert (await caller.send("again", context=stranger, **refer_to)).text == ""


async def test_a_repeated_message_is_answered_once_for_callers_that_ask(
    talk: Any, new_store: Any
) -> None:
    agent = Agent("Once")
    runs: list[str] = []

    @agent.skill
    async def direct(turn: Turn) -> str:
        runs.append(turn.text)
        return f"direct {len(runs)}"

    @agent.skill(replies="task")
    async def tasked(turn: Turn) -> str:
        runs.append(turn.text)
        await asyncio.sleep(0.02)
        return f"task {len(runs)}"

    asked = CallContext(extensions=frozenset({IDEMPOTENT_SEND}))
    async with talk(agent) as caller:
        one = await caller.send("hi", message_id="m1", context=asked)
        two = await caller.send("hi", message_id="m1", context=asked)
        assert one == two
        # Some bindings cannot say that there is no configuration.
        bare = {"return_immediately": False}
        assert await caller.send("hi", message_id="m1", context=asked, **bare) == one
        assert runs == ["hi"]
        with pytest.raises(InvalidParamsError, match="messageId"):
            await caller.send("other", message_id="m1", context=asked)
        together = await asyncio.gather(
            *(
                caller.send("go", message_id="m2", context=asked, metadata={"skill": "tasked"})
                for _ in range(4)
            )
        )
        assert {task.id for task in together} == {together[0].id}
        assert {task.state for task in together} == {TaskState.COMPLETED}
        assert runs == ["hi", "go"]
        replay = await collect(
            caller.stream("go", message_id="m2", context=asked, metadata={"skill": "tasked"})
        )
        assert [item.seq for item in replay] == [1, 2, 3, 4]
        plain = [await caller.send("hi", message_id="m1") for _ in range(2)]
        assert plain[0] != plain[1]
        assert len(runs) == 4
    if type(new_store()).__name__ != "MemoryTaskStore":
        async with talk(agent) as caller:
            assert await caller.send("hi", message_id="m1", context=asked) == one


async def test_lists_are_paged_filtered_and_counted(talk: Any) -> None:
    agent = Agent("Lister")

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        if turn.text == "ask":
            await turn.ask("?")
        return turn.text

    async def listed(caller: Any, **options: Any) -> Any:
        return await caller.service.list_tasks(ListTasksRequest(**options), caller.context)

    async with talk(agent) as caller:
        made = [
            (await caller.task("ask" if n % 2 else f"t{n}", context_id=f"c{n % 3}")).id
            for n in range(12)
        ]
        page = await listed(caller, page_size=5)
        assert (page.total_size, page.page_size, len(page.tasks)) == (12, 5, 5)
        seen = [t.id for t in page.tasks]
        while page.next_page_token:
            page = await listed(caller, page_size=5, page_token=page.next_page_token)
            seen += [t.id for t in page.tasks]
        assert seen == made[::-1]
        assert page.next_page_token == ""
        waiting = await listed(caller, status=TaskState.INPUT_REQUIRED)
        assert waiting.total_size == 6
        assert {t.id for t in waiting.tasks} == set(made[1::2])
        assert (await listed(caller, context_id="c1")).total_size == 4
        first = (await listed(caller)).tasks[0]
        assert first.artifacts == ()
        assert len(first.history) >= 1
        assert (await listed(caller, history_length=0)).tasks[0].history == ()
        full = await listed(caller, include_artifacts=True, status=TaskState.COMPLETED)
        assert full.tasks[0].artifacts[0].text == "t10"
        exact = full.tasks[0].status.timestamp
        assert made[10] in {
            t.id for t in (await listed(caller, status_timestamp_after=exact)).tasks
        }
        for bad in (
            {"page_size": -1},
            {"page_size": 101},
            {"page_token": "x!"},
            {"history_length": -1},
        ):
            with pytest.raises(InvalidParamsError):
                await listed(caller, **bad)


async def test_a_place_in_a_stream_is_checked_and_kept(talk: Any) -> None:
    agent = Agent("Streamer")

    @agent.skill
    async def tell(turn: Turn) -> Any:
        for n in range(5):
            yield str(n)

    async with talk(agent) as caller:
        items = await collect(caller.stream("go"))
        task_id = items[0].event.id
        request = SubscribeToTaskRequest(id=task_id)

        async def after(place: str) -> list[StreamItem]:
            context = CallContext(last_event_id=place)
            return await collect(caller.service.subscribe_to_task(request, context))

        assert await after("0") == items
        assert await after("3") == items[3:]
        assert await after(str(len(items))) == []
        for wrong in ("x", "-1", "", "1.5", str(len(items) + 1)):
            with pytest.raises(InvalidParamsError, match="Last-Event-ID"):
                await after(wrong)
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await collect(caller.service.subscribe_to_task(request, CallContext()))


async def test_auth_required_keeps_the_stream_open_and_may_clear_by_itself(talk: Any) -> None:
    agent = Agent("Guarded")
    granted = asyncio.Event()

    @agent.skill
    async def guarded(turn: Turn) -> str:
        await turn.require_auth("Sign in at https://example.com", until=granted.wait())
        return "secret"

    async with talk(agent) as caller:
        stream = caller.stream("go")
        states = []
        async for item in stream:
            event = item.event
            if isinstance(event, TaskStatusUpdateEvent):
                states.append(event.status.state)
                if event.status.state is TaskState.AUTH_REQUIRED:
                    granted.set()
        assert states == [TaskState.AUTH_REQUIRED, TaskState.WORKING, TaskState.COMPLETED]


@pytest.mark.E3
async def test_what_a_dead_process_left_open_is_run_again(talk: Any, new_store: Any) -> None:
    if type(new_store()).__name__ == "MemoryTaskStore":
        pytest.skip("a store in memory survives nothing")
    agent = Agent("Phoenix")
    begun = asyncio.Event()
    attempts: list[int] = []
    go_on = asyncio.Event()

    @agent.skill(replies="task")
    async def rise(turn: Turn) -> Any:
        attempts.append(turn.attempt)
        for n in range(3):
            yield f"{n} "
        begun.set()
        await go_on.wait()
        yield "end"

    async with talk(agent) as caller:
        task = await caller.task("go", return_immediately=True)
        await asyncio.wait_for(begun.wait(), 5)
    go_on.set()
    async with talk(agent) as caller:
        stream = caller.service.subscribe_to_task(
            SubscribeToTaskRequest(id=task.id), CallContext(last_event_id="0")
        )
        items = await asyncio.wait_for(collect(stream), 5)
        assert [i.seq for i in items] == list(range(1, len(items) + 1))
        assert sum(isinstance(i.event, Task) for i in items) == 1
        assert attempts == [1, 2]
        again = [
            i.event.metadata
            for i in items
            if isinstance(i.event, TaskStatusUpdateEvent) and i.event.metadata
        ]
        assert again == [{ATTEMPT_KEY: 2}]
        final = await get(caller, task.id)
        assert final.state is TaskState.COMPLETED
        assert [a.text for a in final.artifacts] == ["0 1 2 end"]


async def test_what_ended_is_removed_and_what_nobody_answers_is_canceled_in_time(
    talk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.engine.maintenance.SWEEP_SECONDS", 0.01)
    monkeypatch.setattr("parley.engine.maintenance.PRUNE_SECONDS", 0.01)
    agent = Agent(
        "Forgetful",
        execution=Execution(input_timeout=timedelta(milliseconds=1)),
        retention=Retention(tasks=timedelta(seconds=1)),
    )

    @agent.skill
    async def ask(turn: Turn) -> str:
        return (await turn.ask("?")).text

    async with talk(agent) as caller:
        stream = caller.stream("go")
        task_id = (await anext(stream)).event.id
        whole = caller.service.subscribe_to_task(
            SubscribeToTaskRequest(id=task_id), CallContext(last_event_id="0")
        )
        items = await asyncio.wait_for(collect(whole), 10)
        states = [i.event.status.state for i in items if isinstance(i.event, TaskStatusUpdateEvent)]
        assert states[-2:] == [TaskState.INPUT_REQUIRED, TaskState.CANCELED]
        async with asyncio.timeout(10):
            while await caller.store.load(task_id) is not None:
                await let_time_pass(0.01)
        page = await caller.service.list_tasks(ListTasksRequest(), caller.context)
        assert page.total_size == 0


async def test_a_sender_that_hears_late_of_its_message_still_gets_its_own_reply(talk: Any) -> None:
    class LateStore(MemoryTaskStore):
        """Tells senders of their messages only when a turn has had the time to take them."""

        def append(self, append: Append) -> Any:
            done = super().append(append)
            return self._late(done) if isinstance(append.events[0], MessageReceived) else done

        async def _late(self, done: Any) -> int:
            head = await done
            for _ in range(100):
                await asyncio.sleep(0)
            return int(head)

    agent = Agent("Quiz")

    @agent.skill
    async def quiz(turn: Turn) -> str:
        return " ".join([(await turn.ask(f"Question {n}?")).text for n in range(3)])

    async with talk(agent, LateStore()) as caller:
        task = await caller.task("go")
        replies = await asyncio.wait_for(
            asyncio.gather(*(caller.task(f"a{n}", task_id=task.id) for n in range(3))), 5
        )
        said = [r.status.message.text if r.status.message else r.text for r in replies]
        assert {text for text in said if text.endswith("?")} == {"Question 1?", "Question 2?"}
        (answers,) = [text for text in said if not text.endswith("?")]
        assert sorted(answers.split()) == ["a0", "a1", "a2"]


async def test_what_a_sender_began_goes_on_when_the_sender_goes_away(talk: Any) -> None:
    async with talk(booking()) as caller:
        task = await caller.task("Book")
        sender = asyncio.create_task(caller.task("Rome", task_id=task.id))
        executor = caller.executor
        async with asyncio.timeout(5):
            while not executor.arriving:
                await asyncio.sleep(0)
        sender.cancel()  # the message is on its way into the log
        async with asyncio.timeout(5):
            while len((await get(caller, task.id)).history) < 3:
                await let_time_pass(0.001)
        canceler = asyncio.create_task(cancel(caller, task.id))
        async with asyncio.timeout(5):
            while not executor._background:
                await asyncio.sleep(0)
        canceler.cancel()
        async with asyncio.timeout(5):
            while (await get(caller, task.id)).state is not TaskState.CANCELED:
                await let_time_pass(0.001)


async def test_a_server_that_ends_gives_senders_in_line_the_task_that_was_logged(talk: Any) -> None:
    agent = Agent("Narrow", execution=Execution(max_running=1, cancel_grace=0.1))

    @agent.skill(replies="task")
    async def narrow(turn: Turn) -> None:
        await asyncio.Event().wait()

    async with talk(agent) as caller:
        running = asyncio.create_task(caller.task("1"))
        in_line = asyncio.create_task(caller.task("2"))
        await until(lambda: caller.executor.queue.backlog == 1)
    assert (await asyncio.wait_for(running, 5)).history[0].text == "1"
    task = await asyncio.wait_for(in_line, 5)
    assert (task.state, task.history[0].text) == (TaskState.SUBMITTED, "2")


TWINS = [
    (Turn, BlockingTurn, ("update", "shared")),
    (ArtifactStream, BlockingStream, ("close", "finish", "put", "write_buffered")),
    (TurnFile, BlockingFile, ("of",)),
    (TurnTools, BlockingTools, ("open", "close", "next_key")),
]


@pytest.mark.parametrize(("original", "twin", "others"), TWINS)
def test_a_thread_has_the_methods_of_the_loop_with_their_signatures(
    original: type, twin: type, others: tuple[str, ...]
) -> None:
    for name, member in vars(original).items():
        if name[0] == "_" or name in (*others, "aclose") or not inspect.isfunction(member):
            continue
        blocking = getattr(twin, name)
        if name != "file":
            assert inspect.signature(blocking) == inspect.signature(member)
        assert not inspect.iscoroutinefunction(blocking)
        assert "await " not in blocking.__doc__
        assert "async with" not in blocking.__doc__


@pytest.mark.filterwarnings("error")
def test_a_thread_that_outlives_its_loop_is_told_so() -> None:
    async def made() -> TurnThread:
        return TurnThread(cast("Any", SimpleNamespace(finished=False, calls=frozenset())))

    async def asked() -> None:
        """Is never run."""

    thread = asyncio.run(made())
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(asked())
    gc.collect()  # a coroutine that nobody awaits would warn
