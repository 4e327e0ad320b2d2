"""A task that ends without success cancels the tasks that it started at other agents."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Execution, TaskState, Turn
from parley.agent.remote.connections import MAX_IDLE_CONNECTIONS
from parley.server.run import serving
from parley.store.events import RecordKind
from parley.store.memory import MemoryTaskStore
from tests.kit.servers import served
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio


class Other:
    """An agent that waits or asks, and records how each of its tasks ended."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self.agent = Agent("Other", execution=Execution(cancel_grace=0.5))

        @self.agent.skill
        async def work(turn: Turn) -> str:
            """Waits to be canceled, or asks."""
            self.ended.setdefault(turn.text, "began")
            try:
                if turn.text.startswith("ask"):
                    await turn.ask("What?")
                await turn.working("waiting")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.ended[turn.text] = "cancelled"
                raise
            return "never"


async def state_of(url: str, text: str) -> TaskState | None:
    """Return the state of the task whose first message has this text."""
    async with parley.connect(url) as remote:
        async for task in remote.tasks():
            if task.history[0].text == text:
                return task.state
    return None


@pytest.mark.slow
async def test_a_failure_and_a_timeout_cancel_what_still_runs(serve: Any, talk_to: Any) -> None:
    other = Other()
    url = await serve(other.agent)
    planner = Agent(
        "Planner", execution=Execution(turn_timeout=timedelta(seconds=0.5), cancel_grace=0.1)
    )

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Fails while a call is under way, or takes too long."""
        call = turn.delegate(url, turn.text)
        if turn.text == "wait":
            return (await call).text
        async with turn.connect(url) as remote:
            await remote.send("another", return_immediately=True)
        call.close()
        raise ValueError("broken")

    remote = await talk_to(planner)
    for text, begun in (("wait", "wait"), ("fail", "another")):
        task = await remote.send(text)
        assert task.id
        assert task.state is TaskState.FAILED
        state = await state_of(url, begun)  # or the task has reached its deadline already
        assert state in (TaskState.CANCELED, TaskState.FAILED)


async def test_a_task_of_a_dead_process_cancels_its_calls_without_running(
    serve: Any, tmp_path: Path
) -> None:
    other = Other()
    url = await serve(other.agent)
    runs: list[int] = []

    def planner() -> Agent:
        agent = Agent("Planner", execution=Execution(on_crash="fail"))

        @agent.skill
        async def plan(turn: Turn) -> str:
            """Passes a question up."""
            runs.append(turn.number)
            return (await turn.delegate(url, "ask")).text

        return agent

    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with served(planner(), store=store) as remote:
        task = await remote.send("go")
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(serving(parley.asgi(planner(), store=store)))
        remote = await stack.enter_async_context(parley.connect(second))
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    assert runs == [1]
    assert await state_of(url, "ask") is TaskState.CANCELED


async def test_a_task_that_completes_leaves_what_it_began(serve: Any, talk_to: Any) -> None:
    other = Other()
    url = await serve(other.agent)
    planner = Agent("Planner")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Begins something, and leaves it."""
        async with turn.connect(url) as remote:
            await remote.send("wait", return_immediately=True)
        return "begun"

    assert (await (await talk_to(planner)).send("go")).text == "begun"
    assert await state_of(url, "wait") in (TaskState.SUBMITTED, TaskState.WORKING)


async def test_a_task_that_calls_nobody_reads_nothing_to_end(talk_to: Any) -> None:
    reads: list[Any] = []

    class Counting(MemoryTaskStore):
        async def private_records(self, *args: Any, **options: Any) -> Any:
            reads.append(args)
            return await super().private_records(*args, **options)

    planner = Agent("Planner", execution=Execution(cancel_grace=0.1))

    @planner.skill(replies="task")
    async def plan(turn: Turn) -> str:
        """Waits, or fails."""
        if turn.text == "fail":
            turn.fail("enough")
        await turn.working("waiting")
        await asyncio.Event().wait()
        return "never"

    remote = await talk_to(planner, store=Counting())
    await remote.send("fail")
    stream = remote.stream("wait")
    async for event in stream:
        if stream.state is TaskState.WORKING:
            break
        assert event is not None
    await remote.cancel(stream.task_id)
    kinds = [RecordKind.REMEMBERED]
    assert not [args for args in reads if kinds[0] in args[1]]


@pytest.mark.slow
async def test_a_cancellation_has_the_credentials_of_its_call_when_the_connection_is_a_new_one(
    serve: Any, talk_to: Any
) -> None:
    def who(scope: Any) -> Caller:
        return Caller(dict(scope["headers"]).get(b"authorization", b"").decode(), True)

    other = Other()
    url = await serve(other.agent, caller=who)
    planner = Agent("Planner")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Passes a question up, or opens more connections than are kept."""
        if turn.text == "others":
            for number in range(MAX_IDLE_CONNECTIONS + 1):
                await turn.connect(url, headers={"x-number": str(number)})
            return "opened"
        async with turn.connect(url, bearer="secret") as remote:
            return (await turn.delegate(remote, "ask")).text

    remote = await talk_to(planner)
    task = await remote.send("go")
    assert task.state is TaskState.INPUT_REQUIRED
    assert (await remote.send("others")).text == "opened"
    assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    async with parley.connect(url, bearer="secret") as same_caller:
        assert [each.state async for each in same_caller.tasks()] == [TaskState.CANCELED]


async def test_a_task_that_is_not_found_is_logged_as_not_canceled(
    serve: Any, talk_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, the caller's credentials were lost with its process."""
    other = Other()
    name = "one"
    url = await serve(other.agent, caller=lambda scope: Caller(name, True))
    planner = Agent("Planner")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Passes a question up."""
        return (await turn.delegate(url, "ask")).text

    remote = await talk_to(planner)
    task = await remote.send("go")
    assert task.state is TaskState.INPUT_REQUIRED
    name = "another"
    assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    assert "is not canceled: there is no task" in caplog.text


async def test_canceling_a_task_cancels_its_calls_unless_told_otherwise(
    serve: Any, talk_to: Any
) -> None:
    other = Other()
    url = await serve(other.agent)
    planner = Agent("Planner")

    @planner.skill(replies="task")
    async def plan(turn: Turn) -> str:
        """Calls two at once."""
        await asyncio.gather(
            turn.delegate(url, "wait"), turn.delegate(url, "goes on", cancel_remote=False)
        )
        return "never"

    remote = await talk_to(planner)
    task = await remote.send("go", return_immediately=True)
    await until(lambda: len(other.ended) == 2)
    assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    assert await state_of(url, "wait") is TaskState.CANCELED
    assert await state_of(url, "goes on") is TaskState.WORKING


async def test_a_call_that_was_just_begun_is_canceled_too(serve: Any, talk_to: Any) -> None:
    """The task's id is not known yet when the cancellation comes."""
    other = Other()
    url = await serve(other.agent)
    planner = Agent("Planner")

    @planner.skill(replies="task")
    async def plan(turn: Turn) -> str:
        """Cancels itself while it sends."""
        async with turn.connect(url) as remote:
            call = asyncio.ensure_future(remote.send(turn.text))
            if turn.text == "begun":
                await until(lambda: "begun" in other.ended)
            else:
                await let_time_pass(float(turn.text))
            call.cancel()
            await asyncio.wait([call])
        turn.fail("enough")

    remote = await talk_to(planner)
    for moment in ("0", "0.001", "0.003", "0.006", "0.01", "begun"):
        await remote.send(moment)
    async with parley.connect(url) as remote:
        states = {task.state async for task in remote.tasks()}
    assert states == {TaskState.CANCELED}


async def test_a_task_that_waits_for_an_answer_cancels_what_asked(serve: Any, talk_to: Any) -> None:
    other = Other()
    url = await serve(other.agent)
    planner = Agent("Planner")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Passes a question up."""
        return (await turn.delegate(url, "ask")).text

    remote = await talk_to(planner)
    task = await remote.send("go")
    assert task.state is TaskState.INPUT_REQUIRED
    assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    assert await state_of(url, "ask") is TaskState.CANCELED
