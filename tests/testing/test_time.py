"""Time under a test's control: every timer fires, in order, without real waiting."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from parley import Agent, Execution, Retention, Turn
from parley.model.errors import TaskNotFoundError
from parley.testing import canceled, client, completed, failed, input_required, working
from parley.testing.loop import NotSettled

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)


async def test_a_function_that_sleeps_for_days_wakes_when_time_has_passed() -> None:
    agent = Agent("Sleeper", retention=Retention(tasks=None))
    woken: list[int] = []

    @agent.skill
    async def sleep(turn: Turn) -> str:
        await turn.working()
        for day in range(3):
            await asyncio.sleep(DAY.total_seconds())
            woken.append(day)
        return "awake"

    async with client(agent) as remote:
        task = await remote.send("Sleep", return_immediately=True)
        assert task.id
        await remote.advance(DAY - timedelta(minutes=1))
        assert woken == []
        await remote.advance(timedelta(minutes=1))
        assert woken == [0]
        await remote.advance(10 * DAY)
        assert woken == [0, 1, 2]
        assert await remote.get(task.id) == completed("awake")


async def test_what_is_due_happens_at_its_own_time_and_in_order() -> None:
    agent = Agent("Sleeper")
    seen: list[tuple[str, int]] = []
    begun = 0.0

    @agent.skill
    async def sleep(turn: Turn) -> None:
        nonlocal begun
        begun = begun or asyncio.get_running_loop().time()
        for _ in range(2):
            await asyncio.sleep(float(turn.text))
            seen.append((turn.text, round((asyncio.get_running_loop().time() - begun) / 60)))

    async with client(agent) as remote:
        for minutes in (60, 45, 30):
            await remote.send(str(minutes * 60), return_immediately=True)
        await remote.advance(timedelta(hours=3))
    assert seen == [
        ("1800", 30), ("2700", 45), ("3600", 60), ("1800", 60), ("2700", 90), ("3600", 120)
    ]  # fmt: skip


async def test_time_flows_by_itself_too() -> None:
    agent = Agent("Quick")

    @agent.skill
    async def nap(turn: Turn) -> str:
        async with asyncio.timeout(60):
            await asyncio.sleep(0.001)
        return "awake"

    async with client(agent) as remote:
        assert (await remote.send("?")).text == "awake"


async def test_the_time_of_the_test_itself_does_not_move() -> None:
    agent = Agent("Sleeper")

    @agent.skill
    async def sleep(turn: Turn) -> str:
        await turn.working()
        await asyncio.sleep(DAY.total_seconds())
        return "awake"

    async with client(agent) as remote:
        before = asyncio.get_running_loop().time()
        async with asyncio.timeout(3600):  # does not fire
            waiting = asyncio.create_task(remote.send("Sleep"))
            await remote.advance(2 * DAY)
            assert await waiting == completed("awake")
        assert asyncio.get_running_loop().time() - before < 3600


async def test_the_clock_of_the_store_moves() -> None:
    agent = Agent("Clock")

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.working()

    async with client(agent, start=datetime(2030, 1, 1, tzinfo=UTC)) as remote:
        await remote.time.advance_to(datetime(2030, 6, 1, tzinfo=UTC))
        task = await remote.send("?")
        assert task.id
        assert task.status.timestamp is not None
        assert task.status.timestamp.date().isoformat() == "2030-06-01"
        with pytest.raises(ValueError, match="time goes forward"):
            await remote.time.advance_to(datetime(2030, 1, 1, tzinfo=UTC))
        with pytest.raises(ValueError, match="time goes forward"):
            await remote.advance(-1)


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_deadlines_of_turns_and_tasks_pass(store: str, tmp_path) -> None:
    agent = Agent(
        "Slow", execution=Execution(turn_timeout=timedelta(hours=1), task_timeout=timedelta(days=3))
    )

    @agent.skill
    async def work(turn: Turn) -> None:
        if turn.text == "ask":
            await turn.ask("Well?")
        await turn.working()
        await asyncio.Event().wait()

    at = store if store == "memory:" else f"sqlite:///{tmp_path}/tasks.db"
    async with client(agent, store=at) as remote:
        works = await remote.send("work", return_immediately=True)
        asks = await remote.send("ask")
        assert works.id
        assert asks.id
        await remote.advance(timedelta(minutes=59))
        assert await remote.get(works.id) == working()
        await remote.advance(timedelta(minutes=2))
        assert await remote.get(works.id) == failed()
        assert await remote.get(asks.id) == input_required("Well?")
        await remote.advance(timedelta(days=3))
        assert await remote.get(asks.id) == failed()


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_a_task_without_an_answer_is_canceled_and_an_old_one_removed(
    store: str, tmp_path
) -> None:
    agent = Agent(
        "Asker",
        execution=Execution(input_timeout=timedelta(days=2)),
        retention=Retention(tasks=timedelta(days=5)),
    )

    @agent.skill
    async def ask(turn: Turn) -> str:
        return (await turn.ask("Well?")).text

    at = store if store == "memory:" else f"sqlite:///{tmp_path}/tasks.db"
    async with client(agent, store=at) as remote:
        task = await remote.send("?")
        assert task.id
        await remote.advance(timedelta(days=1))
        assert await remote.get(task.id) == input_required()
        await remote.advance(timedelta(days=1, seconds=1))
        assert await remote.get(task.id) == canceled()
        await remote.advance(timedelta(days=5, seconds=1))
        with pytest.raises(TaskNotFoundError):
            await remote.get(task.id)


async def test_two_days_cost_a_bounded_number_of_steps(monkeypatch) -> None:
    agent = Agent("Quiet")

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.working()
        await asyncio.sleep(2 * DAY.total_seconds())

    async with client(agent) as remote:
        await remote.send("?", return_immediately=True)
        moved = []
        real = type(remote.time._clock).move
        monkeypatch.setattr(
            type(remote.time._clock), "move", lambda self, s: (moved.append(s), real(self, s))
        )
        await remote.advance(2 * DAY)
        assert len(moved) <= 3
        assert sum(moved) == pytest.approx(2 * DAY.total_seconds(), abs=5)


@pytest.mark.slow
async def test_many_short_sleeps_are_told_apart() -> None:
    agent = Agent("Ticker")
    ticks = 0

    @agent.skill
    async def tick(turn: Turn) -> None:
        nonlocal ticks
        await turn.working()
        while True:
            await asyncio.sleep(1)
            ticks += 1

    async with client(agent) as remote:
        await remote.send("?", return_immediately=True)
        await remote.advance(timedelta(minutes=1))
        assert 59 <= ticks <= 61
        await remote.advance(2 * DAY)  # but not 172,800 of them
        assert 1000 <= ticks - 60 <= 2000


@pytest.mark.slow
async def test_an_agent_that_never_rests_is_named() -> None:
    agent = Agent("Restless")

    @agent.skill
    async def spin(turn: Turn) -> None:
        await turn.working()
        while True:
            await asyncio.sleep(0)

    async with client(agent) as remote:
        await remote.send("?", return_immediately=True)
        with pytest.raises(NotSettled, match=r"without ever waiting"):
            await remote.settle()


async def test_an_agent_cannot_move_its_own_time() -> None:
    agent = Agent("Meddler")
    refused: list[str] = []

    @agent.skill
    async def meddle(turn: Turn) -> None:
        for call in (remote.advance(1), remote.settle(), remote.crash()):
            try:
                await call
            except RuntimeError as error:
                refused.append(str(error))

    async with client(agent) as remote:
        await remote.send("?")
    assert [each.split()[0] for each in refused] == ["advance", "settle", "crash"]


async def test_the_machine_s_own_clock_stays() -> None:
    agent = Agent("Clock")

    @agent.skill
    async def work(turn: Turn) -> None:
        return None

    async with client(agent) as remote:
        before = time.time()
        await remote.advance(365 * DAY)
        assert time.time() - before < DAY.total_seconds()


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_a_turn_that_sleeps_wakes_each_day(store: str, tmp_path) -> None:
    agent = Agent("Daily", retention=Retention(tasks=None))
    woken: list[str] = []

    @agent.skill
    async def daily(turn: Turn) -> str:
        for day in range(3):
            await turn.sleep(DAY, key=f"day {day}")
            await turn.step(f"note {day}", note)
        return "rested"

    async def note() -> None:
        woken.append(f"{remote.time.now:%d %H:%M}")

    at = store if store == "memory:" else f"sqlite:///{tmp_path}/tasks.db"
    async with client(agent, store=at, start=datetime(2030, 1, 1, 12, tzinfo=UTC)) as remote:
        task = await remote.send("?", return_immediately=True)
        assert task.id
        await remote.advance(DAY - timedelta(minutes=1))
        assert woken == []
        await remote.advance(timedelta(minutes=2))
        assert woken == ["02 12:00"]
        await remote.crash(down_for=timedelta(hours=1))
        await remote.advance(timedelta(days=30))
        assert woken == ["02 12:00", "03 12:00", "04 12:00"]
        assert await remote.get(task.id) == completed("rested")


async def test_waiting_for_an_event_times_out_when_time_has_passed() -> None:
    agent = Agent("Shop")

    @agent.skill
    async def order(turn: Turn) -> str:
        try:
            return str(await turn.wait_event("payment:42", timeout=timedelta(days=3)))
        except TimeoutError:
            return "not paid"

    async with client(agent) as remote:
        task = await remote.send("?", return_immediately=True)
        assert task.id
        await remote.advance(timedelta(days=2))
        assert await remote.get(task.id) == working()
        await remote.advance(timedelta(days=2))
        assert await remote.get(task.id) == completed("not paid")
