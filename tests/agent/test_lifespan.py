"""``Agent(lifespan=...)``: what an agent opens before its turns run, and closes after them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import parley
from parley import Agent, BlockingTurn, Execution, Task, TaskState, Turn
from parley.agent import lifespan as lifespans
from parley.agent.lifespan import LifespanFailed
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from parley.store.task_store import TaskStore
from tests.engine.fleet import Fleet
from tests.engine.talk import Talk
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def noting(told: list[str], name: str = "Keeper", **options: Any) -> Agent:
    """An agent with a lifespan, which says when it is entered and left."""

    @asynccontextmanager
    async def life(agent: Agent) -> AsyncIterator[dict[str, str]]:
        told.append(f"{agent.name} in")
        try:
            yield {"of": agent.name}
        finally:
            told.append(f"{agent.name} out")

    return Agent(name, lifespan=life, **options)


async def test_its_value_is_the_state_of_every_turn(talk: Any) -> None:
    told: list[str] = []
    agent = noting(told)

    @agent.skill(default=True)
    async def ask(turn: Turn) -> str:
        before = turn.state["of"]
        await turn.ask("Go on?")
        return before + turn.state["of"]

    @agent.skill
    def block(turn: BlockingTurn) -> str:
        return str(turn.state["of"])

    async with talk(agent) as caller:
        assert told == ["Keeper in"]
        task = await caller.task("go")
        assert (await caller.task("on", task_id=task.id)).text == "KeeperKeeper"
        assert (await caller.send("go", metadata={"skill": "block"})).text == "Keeper"
        assert told == ["Keeper in"]
    assert told == ["Keeper in", "Keeper out"]


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


async def test_an_agent_of_several_tenants_and_paths_has_one() -> None:
    told: list[str] = []
    one, other = noting(told, "One"), noting(told, "Other")
    for agent in (one, other):

        @agent.skill
        async def whose(turn: Turn) -> str:
            return str(turn.state["of"])

    app = parley.asgi({"/a": one, "/b": other}, tenants={"acme": one, "initech": one})
    async with serving(app) as url:
        for path, name in (("/a", "One"), ("/b", "Other")):
            async with parley.connect(url + path) as remote:
                assert (await remote.send("who?")).text == name
        assert told == ["One in", "Other in"]
    assert told == ["One in", "Other in", "Other out", "One out"]


async def test_workers_have_it(fleet: Fleet) -> None:
    told: list[str] = []
    agent = noting(told)

    @agent.skill(replies="task")
    async def whose(turn: Turn) -> str:
        return str(turn.state["of"])

    front = await fleet.add(agent, role="api")
    await fleet.add(agent, role="worker")
    task = await asyncio.wait_for(front.task("go"), 20)
    assert task.text == "Keeper"


async def test_a_server_that_starts_again_enters_it_again(talk: Any) -> None:
    told: list[str] = []
    agent = noting(told)

    @agent.skill
    async def whose(turn: Turn) -> str:
        return str(turn.state["of"])

    host = Host(placed(agent), MemoryTaskStore())
    for _ in range(2):
        await host.start()
        assert (await Talk(host.services[""], host).send("go")).text == "Keeper"
        await host.stop()
    assert told == ["Keeper in", "Keeper out"] * 2


# -- failures --------------------------------------------------------------------------------------


def failing(error: Exception, *, when: str = "in", told: list[str] | None = None) -> Agent:
    @asynccontextmanager
    async def life(agent: Agent) -> AsyncIterator[None]:
        if when == "in":
            raise error
        yield
        if told is not None:
            told.append("leaving")
        raise error

    agent = Agent("Broken", lifespan=life)

    @agent.skill
    async def say(text: str) -> str:
        return text

    return agent


async def test_one_that_cannot_be_entered_stops_the_start_and_undoes_it(
    new_store: Callable[[], TaskStore],
) -> None:
    told: list[str] = []
    first, broken = noting(told, "First"), failing(OSError("no database at db:5432"))

    @first.skill
    async def say(text: str) -> str:
        return text

    host = Host({"/a": first, "/b": broken}, new_store())
    with pytest.raises(LifespanFailed) as caught:
        await host.start()
    said = r"the agent 'Broken' cannot start: its lifespan function \w+ \(\S+test_lifespan.py, "
    assert re.fullmatch(
        said + r"line \d+\) failed: OSError: no database at db:5432", str(caught.value)
    )
    assert isinstance(caught.value.__cause__, OSError)
    assert told == ["First in", "First out"]
    await host.stop()
    host = Host(placed(first), new_store())  # nothing holds the store
    await host.start()
    await host.stop()


async def test_asgi_servers_are_told_why_the_start_failed() -> None:
    app = parley.asgi(failing(OSError("no database at db:5432")))
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    [message] = sent
    assert message["type"] == "lifespan.startup.failed"
    assert "failed: OSError: no database at db:5432" in message["message"]


async def test_one_that_cannot_be_left_is_reported_and_the_rest_is_stopped(
    new_store: Callable[[], TaskStore], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    first, broken = noting(told, "First"), failing(OSError("gone"), when="out", told=told)

    @first.skill
    async def say(text: str) -> str:
        return text

    host = Host({"/a": first, "/b": broken}, new_store())
    await host.start()
    with caplog.at_level(logging.ERROR), pytest.raises(LifespanFailed, match="OSError: gone"):
        await host.stop()
    assert told == ["First in", "leaving", "First out"]
    assert "stopping a lifespan failed" in caplog.text


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


async def test_what_only_its_own_task_may_close_may_be_opened_there(talk: Any) -> None:
    """A task group of anyio, as clients of other protocols have them."""
    told: list[str] = []

    @asynccontextmanager
    async def life(agent: Agent) -> AsyncIterator[Any]:
        async with anyio.create_task_group() as group:
            yield group
            group.cancel_scope.cancel()
        told.append("closed")

    agent = Agent("Grouped", lifespan=life)

    @agent.skill(replies="task")
    async def say(turn: Turn) -> str:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await anyio.sleep_forever()

        turn.state.start_soon(work)
        await begun.wait()
        return "begun"

    async with talk(agent) as caller:
        assert (await caller.task("go")).text == "begun"
    assert told == ["closed"]


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


async def test_one_without_a_yield_is_said_in_plain_words() -> None:
    @asynccontextmanager
    async def empty(agent: Agent) -> AsyncIterator[None]:
        for nothing in ():
            yield nothing

    agent = Agent("Empty", lifespan=empty)

    @agent.skill
    async def say(text: str) -> str:
        return text

    with pytest.raises(LifespanFailed, match=r"function empty \(.*\) failed: it ended without a y"):
        await Host(placed(agent), MemoryTaskStore()).start()


async def test_without_one_a_turn_has_no_state(talk: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent("Plain")

    @agent.skill(replies="task")
    async def look(turn: Turn) -> str:
        return str(turn.state)

    async with talk(agent) as caller:
        task = await caller.task("go")
    assert isinstance(task, Task)
    assert task.state is TaskState.FAILED
    assert "give it one: Agent(..., lifespan=...)" in caplog.text
