"""``Agent(lifespan=...)``: resources that an agent opens before its turns and closes at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from parley import Agent, Execution, TaskState, Turn
from parley.agent import lifespan as lifespans
from parley.agent.lifespan import LifespanFailed
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.store.memory import MemoryTaskStore
from parley.store.task_store import TaskStore
from tests.engine.talk import Talk
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def noting(told: list[str], name: str = "Keeper", **options: Any) -> Agent:
    """Return an agent whose lifespan records entry and exit."""

    @asynccontextmanager
    async def life(agent: Agent) -> AsyncIterator[dict[str, str]]:
        told.append(f"{agent.name} in")
        try:
            yield {"of": agent.name}
        finally:
            told.append(f"{agent.name} out")

    return Agent(name, lifespan=life, **options)


async def test_it_is_left_after_the_turns_have_ended(new_store: Callable[[], TaskStore]) -> None:
    told: list[str] = []
    agent = noting(told, execution=Execution(cancel_grace=5.0))
    begun = asyncio.Event()

    @agent.skill(replies="task")
    async def slow(turn: Turn) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append(f"the turn ends with {turn.state['of']}")
        return ""

    host = Host(placed(agent), new_store(), ServerOptions(drain=0.0))
    await host.start()
    await Talk(host.services[""], host).task("go", return_immediately=True)
    await begun.wait()
    await host.stop()
    assert told == ["Keeper in", "the turn ends with Keeper", "Keeper out"]


# -- failures --------------------------------------------------------------------------------------


async def test_a_start_that_is_cancelled_closes_what_the_lifespan_opened() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def life(agent: Agent) -> AsyncIterator[None]:
        told.append("open")
        try:
            await asyncio.Event().wait()
            yield
        finally:
            told.append("closed")

    agent = Agent("Slow", lifespan=life)

    @agent.skill
    async def say(text: str) -> str:
        return text

    host = Host(placed(agent), MemoryTaskStore())
    start = asyncio.create_task(host.start())
    await until(lambda: told)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert told == ["open", "closed"]


async def test_a_stop_that_is_cancelled_does_not_wait_for_it_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifespans, "CANCEL_SECONDS", 0.05)
    told: list[str] = []
    let_go = asyncio.Event()

    @asynccontextmanager
    async def life(agent: Agent) -> AsyncIterator[None]:
        yield
        while not let_go.is_set():
            told.append("closing")
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                told.append("cancelled")

    agent = Agent("Stubborn", lifespan=life)

    @agent.skill
    async def say(text: str) -> str:
        return text

    host = Host(placed(agent), MemoryTaskStore())
    await host.start()
    stop = asyncio.create_task(host.stop())
    await until(lambda: told)
    stop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stop
    assert "cancelled" in told
    assert "ignores its cancellation" in caplog.text
    let_go.set()
    await until(lambda: all(not each._task or each._task.done() for each in lives(host)))


def lives(host: Host) -> list[Any]:
    return list(host._lifespans.values())


async def test_one_that_ends_while_the_agent_is_served_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @asynccontextmanager
    async def life(agent: Agent) -> AsyncIterator[Any]:
        async with asyncio.TaskGroup() as group:
            yield group

    agent = Agent("Grouped", lifespan=life)

    @agent.skill(replies="task")
    async def fall(turn: Turn) -> str:
        async def work() -> None:
            raise OSError("the connection broke")

        turn.state.create_task(work())
        return "begun"

    host = Host(placed(agent), MemoryTaskStore())
    await host.start()
    caller = Talk(host.services[""], host)
    assert (await caller.task("go")).text == "begun"
    await until(lambda: "ended while the agent was served" in caplog.text)
    failed = await caller.task("again")
    assert failed.state is TaskState.FAILED
    assert "the lifespan of the agent 'Grouped' has ended" in caplog.text
    with pytest.raises(LifespanFailed):
        await host.stop()


# -- misuse ----------------------------------------------------------------------------------------


async def a_generator(agent: Agent) -> AsyncIterator[None]:
    yield


async def a_coroutine(agent: Agent) -> None: ...


@asynccontextmanager
async def without_agent() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (a_generator, "is a generator function; decorate .*asynccontextmanager"),
        (a_coroutine, "is a coroutine function, without a yield; decorate"),
        (without_agent, "without_agent takes one argument, the agent"),
        (without_agent(), "is a function that takes the agent"),
        ("pool", "is a function that takes the agent"),
    ],
)
def test_what_is_no_lifespan_is_refused_when_the_agent_is_made(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Agent("Wrong", lifespan=given)


async def test_what_is_no_context_manager_stops_the_start() -> None:
    def plain(agent: Agent) -> Any:
        return "a pool"

    agent = Agent("Wrong", lifespan=plain)

    @agent.skill
    async def say(text: str) -> str:
        return text

    said = r"its lifespan function plain \(.*\) failed: TypeError: it returned 'a pool', no async"
    with pytest.raises(LifespanFailed, match=said):
        await Host(placed(agent), MemoryTaskStore()).start()
