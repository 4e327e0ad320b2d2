"""``crash``: the effects of SIGKILL on a process, and recovery in the next one."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import parley
from parley import Agent, Execution, Turn
from parley.model.struct import encode
from parley.model.tasks import Event
from parley.testing import (
    ScriptedAgent,
    assert_events,
    client,
    completed,
    containing,
    failed,
    input_required,
    submitted,
    working,
)
from tests.faults.conftest import Served
from tests.testing.crashing import crashing_agent

pytestmark = [pytest.mark.anyio, pytest.mark.E3]


@pytest.fixture(params=["memory:", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/tasks.db"


async def test_steps_that_were_done_are_not_done_again(store: str) -> None:
    agent = Agent("Payer")
    paid: list[int] = []

    async def pay() -> str:
        paid.append(1)
        return "paid"

    @agent.skill
    async def order(turn: Turn) -> str:
        receipt = await turn.step("pay", pay)
        await turn.working("Waiting for the parcel")
        await asyncio.sleep(3600)
        return f"{receipt} in attempt {turn.attempt}"

    async with client(agent, store=store) as remote:
        task = await remote.send("Order", return_immediately=True)
        assert task.id
        await remote.advance(60)
        await remote.crash()
        await remote.advance(timedelta(hours=2))
        assert await remote.get(task.id) == completed("paid in attempt 2")
        assert paid == [1]


async def test_nothing_of_the_dead_process_runs(store: str, caplog) -> None:
    agent = Agent("Tidy")
    ran: list[str] = []

    async def aside() -> None:
        try:
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        finally:
            ran.append("aside, finally")

    @agent.skill
    async def tidy(turn: Turn) -> str:
        await turn.working()
        if turn.attempt == 1:
            beside = asyncio.create_task(aside())
            try:
                await asyncio.sleep(60)
                ran.append("later")
            except BaseException as error:
                ran.append(repr(error))
                raise
            finally:
                ran.append("finally")
                beside.cancel()
        return "done"

    with caplog.at_level(logging.WARNING):
        async with client(agent, store=store) as remote:
            task = await remote.send("?", return_immediately=True)
            assert task.id
            await remote.settle()
            await remote.crash()
            await remote.advance(3600)
            assert await remote.get(task.id) == completed("done")
        assert not caplog.records
        gc.collect()
    assert ran == []
    # Garbage collection after all tests may take so long that the watchdogs of servers warn.
    assert not [record for record in caplog.records if record.name != "parley.engine"]


async def test_no_thread_of_the_dead_process_watches_the_loop(store: str) -> None:
    """The loop continues in the next process: the dead watchdog would report it as blocked."""
    agent = Agent("Watched")

    @agent.skill
    async def wait(turn: Turn) -> str:
        return await turn.ask("?")

    def watchdogs() -> int:
        return sum(thread.name == "parley-watchdog" for thread in threading.enumerate())

    before = watchdogs()
    async with client(agent, store=store) as remote:
        await remote.send("?")
        for _ in range(3):
            await remote.crash()
        assert watchdogs() == before + 1
    assert watchdogs() == before


async def test_a_send_that_waits_gets_its_answer_from_the_next_process(store: str) -> None:
    agent = Agent("Slow")

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.working()
        await asyncio.sleep(3600)
        return f"attempt {turn.attempt}"

    async with client(agent, store=store) as remote:
        sending = asyncio.create_task(remote.send("?"))
        await remote.settle()
        await remote.crash()
        await remote.advance(timedelta(hours=2))
        assert await sending == completed("attempt 2")


async def test_a_stream_goes_on_after_the_last_event_that_it_had(store: str) -> None:
    agent = Agent("Reporter")

    @agent.skill
    async def report(turn: Turn) -> str:
        await turn.working(f"attempt {turn.attempt}")
        await asyncio.sleep(3600)
        return "done"

    async with client(agent, store=store) as remote:
        stream = remote.stream("?")
        numbers, events = [], []
        async for event in stream:
            events.append(event)
            numbers.append(stream.seq)
            if event == working("attempt 1"):
                await remote.crash()
            if event == working("attempt 2"):
                await remote.advance(3600)
        assert_events(
            events, [submitted(), working("attempt 1"), working(), working("attempt 2"), ...]
        )
        assert events[-1] == completed()
        assert numbers == list(range(1, len(events) + 1))


async def test_questions_outlive_the_process(store: str) -> None:
    agent = Agent("Asker")

    @agent.skill
    async def ask(turn: Turn) -> str:
        answer = await turn.ask("Well?")
        return f"{answer.text} {answer.replayed}"

    async with client(agent, store=store) as remote:
        task = await remote.send("?")
        assert task.id
        assert task == input_required("Well?")
        await remote.crash(down_for=timedelta(days=1))
        assert await remote.send("Yes", task=task) == completed("Yes False")


async def test_each_crash_is_an_attempt_until_there_have_been_too_many(store: str) -> None:
    agent = Agent("Doomed", execution=Execution(max_attempts=3))

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.working(f"attempt {turn.attempt}")
        await asyncio.sleep(60)

    async with client(agent, store=store) as remote:
        task = await remote.send("?", return_immediately=True)
        assert task.id
        for _ in range(3):
            await remote.settle()
            await remote.crash()
        await remote.settle()
        assert await remote.get(task.id) == failed(containing("did not survive 3 attempts"))


async def test_time_can_pass_while_nothing_runs(store: str) -> None:
    agent = Agent("Slow", execution=Execution(turn_timeout=timedelta(hours=1)))

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.working()
        await asyncio.sleep(60)

    async with client(agent, store=store) as remote:
        task = await remote.send("?", return_immediately=True)
        assert task.id
        await remote.settle()
        await remote.crash(down_for=timedelta(hours=2))
        await remote.settle()
        assert (await remote.get(task.id)).text == containing("not finished in the time")


async def test_webhooks_go_on_in_the_next_process(store: str) -> None:
    agent = Agent("Notifier")

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.working()
        await asyncio.sleep(60)
        return "done"

    async with client(agent, store=store) as remote:
        remote.webhooks.fail(times=None)
        await remote.send("?", push=remote.webhook, return_immediately=True)
        await remote.settle()
        assert remote.webhooks
        assert not remote.webhooks.accepted
        await remote.crash()
        remote.webhooks.recover()
        await remote.advance(timedelta(hours=1))
        assert_events(remote.webhooks.accepted, [submitted(), working(), ..., completed()])


async def test_a_remote_agent_can_crash_alone() -> None:
    rates = ScriptedAgent("Rates").on("slow").works("Thinking").takes(3600).replies("97.20")
    agent = Agent("Caller")

    @agent.skill
    async def call(turn: Turn) -> str:
        await turn.working()
        async with turn.connect("https://rates.example") as there:
            return (await there.send("slow")).text

    async with client(agent, remotes={"https://rates.example": rates}) as remote:
        sending = asyncio.create_task(remote.send("?"))
        await remote.settle()
        await remote.crash("https://rates.example")
        await remote.advance(timedelta(hours=2))
        assert await sending == completed("97.20")
        with pytest.raises(ValueError, match=r"no agent is at https://other.example; .*rates"):
            await remote.crash("https://other.example")


@pytest.mark.slow
async def test_the_log_is_the_same_as_after_a_real_kill(tmp_path: Path) -> None:
    """The same agent, stopped at the same point by SIGKILL and by ``crash``."""
    script = Path(__file__).with_name("crashing.py")
    go = tmp_path / "killed.go"
    served = Served(tmp_path / "killed.db", script=script, args=[str(go)])
    try:
        await served.start()
        async with parley.connect(served.url) as remote:
            task = await remote.send("go", return_immediately=True)
            assert task.id
            async for event in remote.subscribe(task.id):
                if event == working("in the middle"):
                    break
            await served.end()
            go.touch()
            await served.start()
            await remote.wait(task.id)
            killed = [event async for event in remote.subscribe(task.id, after=0)]
    finally:
        await served.end()
    agent = crashing_agent(tmp_path / "crashed.go")
    async with client(agent, store=f"sqlite:///{tmp_path}/crashed.db") as remote:
        task = await remote.send("go", return_immediately=True)
        assert task.id
        async for event in remote.subscribe(task.id):
            if event == working("in the middle"):
                break
        (tmp_path / "crashed.go").touch()
        await remote.crash()
        await remote.wait(task.id)
        crashed = [event async for event in remote.subscribe(task.id, after=0)]
    assert [outline(event) for event in crashed] == [outline(event) for event in killed]
    assert (tmp_path / "crashed.acts").read_text() == (tmp_path / "killed.acts").read_text()


def outline(event: Event) -> object:
    """Return an event without task-specific data."""
    hidden = {"id", "taskId", "contextId", "messageId", "artifactId", "timestamp"}

    def without(value: object) -> object:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if key not in hidden}
        return [without(item) for item in value] if isinstance(value, list | tuple) else value

    return without(msgspec.json.decode(encode(event)))
