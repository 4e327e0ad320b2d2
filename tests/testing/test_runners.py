"""Whatever loop a test runs on, and however many agents are under test on it."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from datetime import timedelta

import pytest

import parley
from parley import Agent, Task, Turn
from parley.testing import client, completed, failed

DAY = timedelta(days=1)


def sleeper(name: str = "Sleeper") -> Agent:
    agent = Agent(name)

    @agent.skill
    async def sleep(turn: Turn) -> str:
        await turn.working()
        await asyncio.sleep(DAY.total_seconds())
        return f"attempt {turn.attempt}"

    return agent


async def sleeps_and_crashes() -> None:
    async with client(sleeper()) as remote:
        task = await remote.send("?", return_immediately=True)
        assert isinstance(task, Task)
        await remote.settle()
        await remote.crash()
        await remote.advance(2 * DAY)
        assert await remote.get(task.id) == completed("attempt 2")


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="uvloop is not here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_uvloop() -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(sleeps_and_crashes())


@pytest.mark.parametrize("debug", [False, True])
def test_asyncio_run(debug: bool) -> None:
    asyncio.run(sleeps_and_crashes(), debug=debug)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        await sleeps_and_crashes()

    asyncio.run(main())


def test_a_loop_that_runs_once_for_the_fixture_and_again_for_the_test() -> None:
    with asyncio.Runner() as runner:

        async def opened() -> parley.testing.TestedAgent:
            return await client(sleeper())

        remote = runner.run(opened())

        async def tested() -> None:
            task = await remote.send("?", return_immediately=True)
            assert isinstance(task, Task)
            await remote.crash()
            await remote.advance(2 * DAY)
            assert await remote.get(task.id) == completed()

        runner.run(tested())
        runner.run(remote.aclose())


def test_a_test_that_forgets_to_close_leaves_nothing_behind() -> None:
    async def main() -> None:
        remote = await client(sleeper())
        await remote.send("?", return_immediately=True)

    asyncio.run(main())
    asyncio.run(sleeps_and_crashes())


@pytest.mark.anyio
async def test_agents_of_several_clients_have_times_of_their_own() -> None:
    async with client(sleeper()) as one, client(sleeper()) as other:
        mine = await one.send("?", return_immediately=True)
        theirs = await other.send("?", return_immediately=True)
        assert isinstance(mine, Task)
        assert isinstance(theirs, Task)
        await one.advance(2 * DAY)
        assert await one.get(mine.id) == completed()
        assert not (await other.get(theirs.id)).state.is_terminal
        await one.crash()
        assert not (await other.get(theirs.id)).state.is_terminal


@pytest.mark.anyio
async def test_a_client_can_be_made_again_for_the_same_agent() -> None:
    agent = sleeper()
    for _ in range(3):
        async with client(agent) as remote:
            task = await remote.send("?", return_immediately=True)
            assert isinstance(task, Task)
            await remote.advance(2 * DAY)
            assert await remote.get(task.id) == completed("attempt 1")
    one = client(agent)
    async with one:
        with pytest.raises(RuntimeError, match="under test already"):
            await one


@pytest.mark.anyio
async def test_an_agent_that_does_not_start_says_why_and_leaves_nothing(tmp_path) -> None:
    before = set(vars(asyncio.get_running_loop()))
    (tmp_path / "tasks.db").write_text("no database, but long enough to be taken for one" * 10)
    with pytest.raises(Exception, match="database"):
        async with client(sleeper(), store=f"sqlite:///{tmp_path}/tasks.db"):
            pass
    assert set(vars(asyncio.get_running_loop())) == before
    async with client(sleeper()) as remote:
        assert await remote.send("?", timeout=5, return_immediately=True) != failed()
