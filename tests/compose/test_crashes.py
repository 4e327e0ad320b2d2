"""Compositions and handoffs whose process dies: no question and no call is repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Execution, Task, TaskState, Turn
from parley.compose import (
    Composition,
    PartFailure,
    broadcast,
    fallback,
    handoff,
    map_reduce,
    part,
    quorum,
    retry,
    route,
)
from parley.server.run import serving
from parley.testing import ScriptedAgent, client
from tests.faults.conftest import Served
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


A, B, C = (f"https://{name}.example" for name in "abc")


class Heard:
    """Agents in other processes, and their received messages. Agent C fails the first time."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.agents = {A: self._agent("A"), B: self._agent("B"), C: self._agent("C")}

    def _agent(self, name: str) -> Agent:
        agent = Agent(name)

        @agent.skill(replies="task")
        async def answer(turn: Turn) -> str:
            """Answers, or fails the first time."""
            self.messages[name, turn.text] += 1
            if name == "C" and self.messages[name, turn.text] == 1:
                turn.fail("not today")
            await asyncio.sleep(0)
            return f"yes to {turn.text}"

        return agent


def words(text: str) -> list[str]:
    return text.split()


def second(text: str) -> str:
    return "b"


def failed(failure: PartFailure) -> bool:
    return failure.reason == "failed"


def named(address: str) -> Any:
    return part(address, name=address[8])


MADE: dict[str, tuple[Callable[[], Composition], dict[tuple[str, str], int]]] = {
    "route": (lambda: route(second, named(A), named(B)), {("B", "x y"): 1}),
    "broadcast": (
        lambda: broadcast(named(A), named(B), named(C)),
        {("A", "x y"): 1, ("B", "x y"): 1, ("C", "x y"): 1},
    ),
    "quorum": (
        lambda: quorum(named(A), named(B), named(C), need=2),
        {("A", "x y"): 1, ("B", "x y"): 1, ("C", "x y"): 1},
    ),
    "retry": (lambda: retry(named(C), backoff=0, when=failed), {("C", "x y"): 2}),
    "fallback": (lambda: fallback(named(C), named(A)), {("C", "x y"): 1, ("A", "x y"): 1}),
    "map_reduce": (lambda: map_reduce(words, named(A), limit=1), {("A", "x"): 1, ("A", "y"): 1}),
}


async def run(make: Callable[[], Composition], heard: Heard, dies_after: int) -> tuple[Task, int]:
    """Return a composition's task if its process dies after a commit, and its number of commits."""
    due, commits = asyncio.Event(), 0
    async with asyncio.timeout(10), client(make(), remotes=heard.agents) as remote:
        append = remote.store.append

        async def counted(*given: Any) -> Any:
            nonlocal commits
            done = await append(*given)
            commits += 1
            if commits == dies_after:
                due.set()
                await asyncio.Event().wait()  # the process is dead from here on
            return done

        remote.store.append = counted  # type: ignore[method-assign]
        sending = asyncio.create_task(remote.send("x y"))
        if dies_after:
            await due.wait()
            remote.store.append = append  # type: ignore[method-assign]
            await remote.crash()
        task = await sending
    assert task.id
    return task, commits


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
async def test_a_crash_after_any_commit_asks_nothing_again(kind: str) -> None:
    make, meant = MADE[kind]
    usual, commits = await run(make, Heard(), 0)
    assert commits > 5
    for dies_after in range(1, commits):
        heard = Heard()
        task, _ = await run(make, heard, dies_after)
        assert (task.state, task.text) == (usual.state, usual.text), dies_after
        for call, times in heard.messages.items():
            assert times == meant[call], (dies_after, call)


async def test_a_crash_after_a_late_part_was_canceled_leaves_it_late() -> None:
    slow = ScriptedAgent("Slow").on().takes(timedelta(hours=1)).replies("yes")
    late, dies = asyncio.Event(), True
    made = fallback(part(A, name="Slow", timeout=5), B, when=is_late)
    async with client(made, remotes={A: slow, B: Heard().agents[B]}) as remote:
        append = remote.store.append

        async def until_it_is_late(*given: Any) -> Any:
            if dies and "part:1-slow" in repr(given):
                late.set()
                await asyncio.Event().wait()
            return await append(*given)

        remote.store.append = until_it_is_late  # type: ignore[method-assign]
        sending = asyncio.create_task(remote.send("x y"))
        await until(lambda: slow.texts)
        await remote.advance(6)
        await late.wait()
        dies = False
        await remote.crash()
        assert (await sending).text == "yes to x y"


def is_late(failure: PartFailure) -> bool:
    return failure.reason == "timeout"


# -- an agent is killed after a handoff: the conversation stays handed over, exactly once ----------


HANDING = Path(__file__).with_name("handing.py")


@pytest.mark.slow
async def test_a_kill_loses_and_repeats_no_handoff(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    go = asyncio.Event()
    billing = Agent("Billing", execution=Execution(cancel_grace=0.2))

    @billing.skill(replies="task")
    async def bill(turn: Turn) -> object:
        """Waits, and hands back what is not about money."""
        if turn.number == 1:
            heard.append((turn.text, turn.handoff.note if turn.handoff else ""))
        await go.wait()
        return handoff(back=True) if turn.text == "weather" else f"Billing: {turn.text}"

    async with serving(parley.asgi(billing, drain=0.2)) as url:
        served = Served(tmp_path / "tasks.db", script=HANDING, args=[url])
        await served.start()
        try:
            async with parley.connect(served.url) as remote:
                first = await remote.send("money", return_immediately=True)
                assert first.id
                await until(lambda: heard == [("money", "a note")])
                back = await remote.send(
                    "weather", context_id=first.context_id, return_immediately=True
                )
                assert back.id
                await until(lambda: heard[-1] == ("weather", ""))
                await served.end()
                await served.start()
                go.set()
                assert (await remote.wait(first.id, timeout=30)).text == "Billing: money"
                done = await remote.wait(back.id, timeout=30)
                assert (done.state, done.text) == (TaskState.COMPLETED, "Reception: weather")
        finally:
            if served.process is not None and served.process.returncode is None:
                await served.end()
    assert [text for text, _ in heard] == ["money", "weather"]
