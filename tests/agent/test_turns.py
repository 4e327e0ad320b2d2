"""Turns: questions, steps, messages during a turn, contexts, cancellation, many callers at once."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parley import (
    Agent,
    BlockingFile,
    BlockingTurn,
    CallContext,
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
from parley.model.errors import TaskNotCancelableError, UnsupportedOperationError
from parley.model.operations import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from parley.model.service import StreamItem
from parley.model.tasks import TaskStatusUpdateEvent
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
            assert first.id
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
        """A coroutine that never runs."""

    thread = asyncio.run(made())
    with pytest.raises(RuntimeError, match="closed"):
        thread.run(asked())
    gc.collect()  # a coroutine that is never awaited would warn
