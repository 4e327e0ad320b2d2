"""Many turns update a context's values at once: each update counts exactly once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from parley import Agent, BlockingTurn, Turn
from tests.engine.talk import Talk

pytestmark = pytest.mark.anyio

CALLS = 30


async def many(callers: list[Talk], count: int = CALLS, **options: Any) -> list[str]:
    """Have callers send at the same time, and return the texts of the replies."""
    options.setdefault("context_id", "c")
    sends = [callers[n % len(callers)].send("go", **options) for n in range(count)]
    return [reply.text for reply in await asyncio.gather(*sends)]


# -- many updates at the same time -------------------------------------------------------------


async def test_functions_in_threads_count_too(talk: Callable[..., Any]) -> None:
    agent, threads = Agent("Threads"), set()

    @agent.skill(replies="message")
    def count(turn: BlockingTurn) -> str:
        here = threading.current_thread()

        def add(n: int) -> int:
            assert threading.current_thread() is here
            threads.add(here)
            return n + 1

        return str(turn.update("n", add, 0))

    async with talk(agent) as caller:
        assert sorted(map(int, await many([caller]))) == list(range(1, CALLS + 1))
    assert threading.main_thread() not in threads


# -- rules for the function that updates a value -----------------------------------------------


def in_turn(talk: Callable[..., Any]) -> Callable[..., Any]:
    """Return a runner: it calls a function in a turn, async or in a thread; raises its error."""

    async def run(function: Any) -> None:
        agent, raised = Agent("Once"), []

        async def work(turn: Turn) -> str:
            try:
                await function(turn)
            except BaseException as error:
                raised.append(error)
            return ""

        def blocking(turn: BlockingTurn) -> str:
            try:
                function(turn)
            except BaseException as error:
                raised.append(error)
            return ""

        agent.skill(work if asyncio.iscoroutinefunction(function) else blocking)
        async with talk(agent) as caller:
            await caller.send("go")
        for error in raised:
            raise error

    return run


async def test_the_result_is_kept_and_none_removes_it(talk: Callable[..., Any]) -> None:
    async def both(turn: Turn) -> None:
        assert await turn.update("k", lambda value: value) is None
        assert await turn.update("k", lambda value: {"was": value}, "default") == {"was": "default"}
        assert await turn.recall("k") == {"was": "default"}
        assert await turn.update("k", lambda value: [value], "ignored") == [{"was": "default"}]
        assert await turn.update("k", lambda value: None) is None
        assert await turn.recall("k", "gone") == "gone"
        await turn.remember("k", 1)
        assert await turn.update("k", lambda value: value + 1, 100) == 2
        assert await turn.update("k", lambda value: value) == 2

    await in_turn(talk)(both)


async def test_what_cannot_be_kept_is_refused_as_remember_refuses_it(
    talk: Callable[..., Any],
) -> None:
    async def refused(turn: Turn) -> None:
        for value in ({"a": ()}, b"x", object()):
            with pytest.raises(TypeError) as remembered:
                await turn.remember("k", value)
            with pytest.raises(TypeError) as updated:
                await turn.update("k", lambda _, value=value: value)
            assert str(updated.value) == str(remembered.value)
        with pytest.raises(TypeError, match="the default of 'k': the tuple"):
            await turn.update("k", lambda value: value, default=())
        for key in ("\x00", "k" * 10_000):
            with pytest.raises(ValueError, match="the key of a value") as named:
                await turn.remember(key, 1)
            with pytest.raises(ValueError, match="the key of a value") as given:
                await turn.update(key, lambda _: 1)
            assert str(given.value) == str(named.value)
        assert await turn.recall("k") is None

    await in_turn(talk)(refused)


async def test_a_coroutine_function_is_refused(talk: Callable[..., Any]) -> None:
    async def later(value: int) -> int:
        return value

    async def refused(turn: Turn) -> None:
        await turn.remember("k", 1)
        for function in (later, lambda value: later(value)):
            with pytest.raises(TypeError, match="the update of 'k' is a plain function"):
                await turn.update("k", function)
        assert await turn.recall("k") == 1

    await in_turn(talk)(refused)


async def test_a_function_in_a_thread_may_use_its_turn_but_not_update_the_same(
    talk: Callable[..., Any],
) -> None:
    def nested(turn: BlockingTurn) -> None:
        def add(value: int) -> int:
            assert turn.recall("n", 0) == 0
            with pytest.raises(RuntimeError, match="that updates 'n' updates 'n': return it"):
                turn.update("n", add, 0)
            return value + 1

        assert turn.update("n", add, 0) == 1
        assert turn.update("other", lambda value: value + 1, 5) == 6

    await in_turn(talk)(nested)


# -- later runs of a turn ----------------------------------------------------------------------


async def test_a_step_that_updates_counts_once_in_the_life_of_a_task(
    talk: Callable[..., Any],
) -> None:
    agent = Agent("Orders")

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        number = await turn.step("number", turn.update, "orders", lambda n: n + 1, default=0)
        runs = await turn.update("runs", lambda n: n + 1, default=0)
        size = await turn.ask("Large or small?")
        return f"{number} {runs} {size.text}"

    async with talk(agent) as caller:
        task = await caller.task("go", context_id="c")
        done = await caller.task("small", task_id=task.id)
        assert done.text == "1 2 small"
        task = await caller.task("go", context_id="c")
        assert (await caller.task("large", task_id=task.id)).text == "2 4 large"


async def test_a_step_that_updates_counts_once_for_a_plain_function_too(
    talk: Callable[..., Any],
) -> None:
    agent = Agent("Orders")

    @agent.skill(replies="task")
    def order(turn: BlockingTurn) -> str:
        number = turn.step("number", turn.update, "orders", lambda n: n + 1, default=0)
        return f"{number} {turn.ask('Large or small?').text}"

    async with talk(agent) as caller:
        for n in (1, 2):
            task = await caller.task("go", context_id="c")
            done = await caller.task("small", task_id=task.id)
            assert done.text == f"{n} small"


async def test_lists_grow_by_every_call(talk: Callable[..., Any]) -> None:
    agent = Agent("List")

    @agent.skill(replies="task")
    async def note(turn: Turn) -> str:
        def add(notes: list[str]) -> list[str]:
            notes.append(turn.task_id)
            return notes

        await turn.update("notes", add, default=[])
        return "noted"

    @agent.skill(replies="message")
    async def read(turn: Turn) -> list[str]:
        return list(await turn.recall("notes"))

    async with talk(agent) as caller:
        tasks = [caller.task("go", context_id="c", metadata={"skill": "note"}) for _ in range(10)]
        done = await asyncio.gather(*tasks)
        noted = await caller.send("go", context_id="c", metadata={"skill": "read"})
        assert sorted(noted.parts[0].data) == sorted(task.id for task in done)
