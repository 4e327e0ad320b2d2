"""The guarantees of the combinators, by their names in ``docs/reference/compositions.md``.

``tests/house/test_guarantees.py`` compares the tables of that page with the names of these tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from parley import Agent, Execution, Task, TaskState, Turn
from parley.compose import (
    Budget,
    Composition,
    broadcast,
    fallback,
    map_reduce,
    parallel,
    part,
    quorum,
    retry,
    route,
    sequence,
)
from parley.testing import client
from tests.kit.waiting import until

if TYPE_CHECKING:
    from parley.testing import TestedAgent

pytestmark = pytest.mark.anyio

SECONDS = 5.0
"""Seconds for which a part hangs. The test moves the clock."""


class Actor:
    """An agent with one behaviour; it counts its calls."""

    def __init__(self, name: str, behaviour: str = "answers") -> None:
        self.name = name
        self.heard: list[str] = []
        self.told: list[str] = []
        self.canceled = 0
        self.agent = Agent(name, execution=Execution(cancel_grace=0.2))
        self.behaviour = behaviour

        @self.agent.skill(replies="task")
        async def act(turn: Turn) -> str:
            """Acts."""
            if turn.number == 1 and turn.attempt == 1:
                self.heard.append(turn.text)
            try:
                return await self._act(turn)
            except asyncio.CancelledError:
                self.canceled += 1
                raise

    async def _act(self, turn: Turn) -> str:
        match self.behaviour:
            case "fails":
                turn.fail("out of paper")
            case "hangs":
                await turn.working("thinking")
                await asyncio.Event().wait()
            case "asks":
                self.told.append((await turn.ask("Which day?")).text)
                return self.told[-1]
            case "authorises":
                self.told.append((await turn.require_auth("Log in")).text)
                return self.told[-1]
            case "is canceled":
                executor: Any = turn._attempt.runner.executor  # type: ignore[attr-defined]
                canceling = asyncio.ensure_future(executor.cancel(turn.task_id))
                await asyncio.Event().wait()
                await canceling
        return f"yes from {self.name}" if self.behaviour == "names" else "yes"


@asynccontextmanager
async def talking(composition: Composition) -> AsyncIterator[TestedAgent]:
    async with client(composition) as remote:
        yield remote


async def told(composition: Composition, *answers: str, text: str = "go") -> Task:
    """Return a composition's task after some answers to its questions."""
    async with talking(composition) as remote:
        task = await remote.send(text)
        for answer in answers:
            assert task.id
            assert task.state.is_interrupted, task
            task = await remote.send(answer, task=task)
    assert task.id
    return task


async def after(composition: Composition, waits: Callable[[], object], span: float = 6.0) -> Task:
    """Return a composition's task after its parts have hung for a while."""
    async with talking(composition) as remote:
        begun = await remote.send("go", return_immediately=True)
        await until(waits)
        await remote.advance(timedelta(seconds=span))
        return await remote.wait(begun.id, timeout=10)


async def canceled(composition: Composition, *waiting: Actor) -> Task:
    """Return the task of a composition that the caller cancels while parts wait."""
    async with talking(composition) as remote:
        begun = await remote.send("go", return_immediately=True)
        await until(lambda: all(each.heard for each in waiting))
        await remote.settle()
        task = await remote.cancel(begun.id)
        await until(lambda: all(each.canceled for each in waiting))
    return task


def failed(task: Task, *says: str) -> None:
    assert task.state is TaskState.FAILED, task
    for text in says:
        assert text in task.text


def asked(task: Task, who: str) -> None:
    """Check that the composition asked its caller, naming the part."""
    questions = [m.text for m in task.history if m.text.startswith(f"{who}: ")]
    assert questions, task.history


def done(task: Task, text: str = "yes") -> None:
    assert task.state is TaskState.COMPLETED, task
    assert text in task.text, task.text


def hanging(actor: Actor) -> Any:
    return part(actor.agent, timeout=SECONDS)


# -- sequence ----------------------------------------------------------------------------------


def a_sequence(behaviour: str, **options: Any) -> tuple[Composition, Actor, Actor]:
    actor, last = Actor("Odd", behaviour), Actor("Last")
    odd = hanging(actor) if behaviour == "hangs" else actor.agent
    return sequence(Actor("First").agent, odd, last.agent, **options), actor, last


async def test_sequence_when_a_part_fails() -> None:
    composition, _, last = a_sequence("fails")
    failed(await told(composition), "Odd: out of paper")
    assert not last.heard


async def test_sequence_when_a_part_hangs() -> None:
    composition, odd, last = a_sequence("hangs")
    failed(await after(composition, lambda: odd.heard), "Odd", "within 5 s")
    assert odd.canceled
    assert not last.heard


async def test_sequence_when_a_part_asks() -> None:
    composition, odd, last = a_sequence("asks")
    task = await told(composition, "Monday")
    done(task)
    asked(task, "Odd")
    assert (odd.told, last.heard) == (["Monday"], ["Monday"])


async def test_sequence_when_a_part_needs_authorisation() -> None:
    composition, odd, last = a_sequence("authorises")
    done(await told(composition, "done"))
    assert (odd.told, last.heard) == (["done"], ["done"])


async def test_sequence_when_a_part_is_canceled() -> None:
    composition, _, last = a_sequence("is canceled")
    failed(await told(composition), "Odd")
    assert not last.heard


async def test_sequence_when_a_part_exceeds_its_budget() -> None:
    composition, odd, last = a_sequence("answers", budget=Budget(calls=2))
    failed(await told(composition), "Last: the budget of 2 calls is spent")
    assert odd.heard
    assert not last.heard


async def test_sequence_when_the_caller_cancels() -> None:
    composition, odd, last = a_sequence("hangs")
    assert (await canceled(composition, odd)).state is TaskState.CANCELED
    assert not last.heard


# -- parallel ----------------------------------------------------------------------------------


def side_by_side(
    combinator: Any, behaviour: str, others: str = "answers", **options: Any
) -> tuple[Composition, Actor, Actor]:
    actor, other = Actor("Odd", behaviour), Actor("Other", others)
    odd = hanging(actor) if behaviour == "hangs" else actor.agent
    return combinator(odd, other.agent, **options), actor, other


async def test_parallel_when_a_part_fails() -> None:
    composition, _, other = side_by_side(parallel, "fails", "hangs")
    failed(await told(composition), "Odd: out of paper")
    assert other.canceled
    composition, *_ = side_by_side(parallel, "fails", failures="partial")
    done(await told(composition), "Odd: out of paper")


async def test_parallel_when_a_part_hangs() -> None:
    composition, odd, _ = side_by_side(parallel, "hangs")
    failed(await after(composition, lambda: odd.heard), "within 5 s")
    assert odd.canceled


async def test_parallel_when_a_part_asks() -> None:
    composition, odd, other = side_by_side(parallel, "asks")
    task = await told(composition, "Monday")
    done(task, "Monday")
    asked(task, "Odd")
    assert (odd.told, other.heard) == (["Monday"], ["go"])


async def test_parallel_when_a_part_needs_authorisation() -> None:
    composition, odd, other = side_by_side(parallel, "authorises")
    done(await told(composition, "done"), "done")
    assert (odd.told, other.heard) == (["done"], ["go"])


async def test_parallel_when_a_part_is_canceled() -> None:
    composition, *_ = side_by_side(parallel, "is canceled")
    failed(await told(composition), "Odd")


async def test_parallel_when_a_part_exceeds_its_budget() -> None:
    composition, _, other = side_by_side(parallel, "answers", budget=Budget(calls=1))
    failed(await told(composition), "Other: the budget of 1 calls is spent")
    assert not other.heard


async def test_parallel_when_the_caller_cancels() -> None:
    composition, odd, other = side_by_side(parallel, "hangs", "hangs")
    assert (await canceled(composition, odd, other)).state is TaskState.CANCELED


# -- route -------------------------------------------------------------------------------------


def a_route(behaviour: str, **options: Any) -> tuple[Composition, Actor, Actor]:
    actor, other = Actor("Odd", behaviour), Actor("Other")
    odd = hanging(actor) if behaviour == "hangs" else actor.agent
    return route(lambda text: "odd", odd, other.agent, **options), actor, other


async def test_route_when_a_part_fails() -> None:
    composition, _, other = a_route("fails")
    failed(await told(composition), "Odd: out of paper")
    assert not other.heard


async def test_route_when_a_part_hangs() -> None:
    composition, odd, other = a_route("hangs")
    failed(await after(composition, lambda: odd.heard), "within 5 s")
    assert odd.canceled
    assert not other.heard


async def test_route_when_a_part_asks() -> None:
    composition, odd, _ = a_route("asks")
    task = await told(composition, "Monday")
    done(task, "Monday")
    asked(task, "Odd")
    assert odd.heard == ["go"]


async def test_route_when_a_part_needs_authorisation() -> None:
    composition, odd, _ = a_route("authorises")
    done(await told(composition, "done"), "done")
    assert odd.heard == ["go"]


async def test_route_when_a_part_is_canceled() -> None:
    composition, _, other = a_route("is canceled")
    failed(await told(composition), "Odd")
    assert not other.heard


async def test_route_when_a_part_exceeds_its_budget() -> None:
    chooser, actor = Actor("odd"), Actor("yes")
    composition = route(chooser.agent, actor.agent, budget=Budget(calls=1))
    failed(await told(composition), "the budget of 1 calls is spent")
    assert not actor.heard


async def test_route_when_the_caller_cancels() -> None:
    composition, odd, _ = a_route("hangs")
    assert (await canceled(composition, odd)).state is TaskState.CANCELED


# -- broadcast ---------------------------------------------------------------------------------


async def test_broadcast_when_a_part_fails() -> None:
    composition, *_ = side_by_side(broadcast, "fails")
    task = await told(composition)
    done(task, "Odd: out of paper")
    done(task, "Other: yes")


async def test_broadcast_when_a_part_hangs() -> None:
    composition, odd, _ = side_by_side(broadcast, "hangs")
    task = await after(composition, lambda: odd.heard)
    done(task, "within 5 s")
    done(task, "Other: yes")
    assert odd.canceled


async def test_broadcast_when_a_part_asks() -> None:
    composition, _, other = side_by_side(broadcast, "asks")
    task = await told(composition, "Monday")
    done(task, "Monday")
    asked(task, "Odd")
    assert other.heard == ["go"]


async def test_broadcast_when_a_part_needs_authorisation() -> None:
    composition, *_ = side_by_side(broadcast, "authorises")
    done(await told(composition, "done"), "done")


async def test_broadcast_when_a_part_is_canceled() -> None:
    composition, *_ = side_by_side(broadcast, "is canceled")
    done(await told(composition), "Odd: its task was canceled")


async def test_broadcast_when_a_part_exceeds_its_budget() -> None:
    composition, _, other = side_by_side(broadcast, "answers", budget=Budget(calls=1))
    task = await told(composition)
    done(task, "Odd: yes")
    done(task, "Other: the budget of 1 calls is spent")
    assert not other.heard


async def test_broadcast_when_the_caller_cancels() -> None:
    composition, odd, other = side_by_side(broadcast, "hangs", "hangs")
    assert (await canceled(composition, odd, other)).state is TaskState.CANCELED


# -- quorum ------------------------------------------------------------------------------------


def a_quorum(behaviour: str, need: int, **options: Any) -> tuple[Composition, Actor]:
    actor = Actor("Odd", behaviour)
    odd = hanging(actor) if behaviour == "hangs" else actor.agent
    others = [Actor("Ann").agent, Actor("Bob").agent]
    return quorum(odd, *others, need=need, **options), actor


async def test_quorum_when_a_part_fails() -> None:
    done(await told(a_quorum("fails", 2)[0]))
    failed(await told(a_quorum("fails", 3)[0]), "3 of 3 had to agree", "Odd: out of paper")


async def test_quorum_when_a_part_hangs() -> None:
    composition, odd = a_quorum("hangs", 2)
    done(await told(composition))  # the composition does not wait for the hanging part
    assert odd.canceled or not odd.heard
    composition, odd = a_quorum("hangs", 3)
    failed(await after(composition, lambda: odd.heard), "within 5 s")
    assert odd.canceled


async def test_quorum_when_a_part_asks() -> None:
    composition, odd = a_quorum("asks", 3)
    task = await told(composition, "Yes!")
    done(task, "Yes!")
    asked(task, "Odd")
    assert odd.told == ["Yes!"]


async def test_quorum_when_a_part_needs_authorisation() -> None:
    done(await told(a_quorum("authorises", 3)[0], "yes"))


async def test_quorum_when_a_part_is_canceled() -> None:
    done(await told(a_quorum("is canceled", 2)[0]))
    failed(await told(a_quorum("is canceled", 3)[0]), "Odd: its task was canceled")


async def test_quorum_when_a_part_exceeds_its_budget() -> None:
    composition, _ = a_quorum("answers", 3, budget=Budget(calls=2))
    failed(await told(composition), "the budget of 2 calls is spent")
    done(await told(a_quorum("answers", 2, budget=Budget(calls=2))[0]))


async def test_quorum_when_the_caller_cancels() -> None:
    composition, odd = a_quorum("hangs", 3)
    assert (await canceled(composition, odd)).state is TaskState.CANCELED


# -- retry -------------------------------------------------------------------------------------


def a_retry(behaviour: str, **options: Any) -> tuple[Composition, Actor]:
    actor = Actor("Odd", behaviour)
    odd = hanging(actor) if behaviour == "hangs" else actor.agent
    return retry(odd, attempts=2, backoff=0, **options), actor


async def test_retry_when_a_part_fails() -> None:
    composition, odd = a_retry("fails")
    failed(await told(composition), "Odd: out of paper")
    assert odd.heard == ["go"]  # a failed task counts as an answer
    composition, odd = a_retry("fails", when=lambda failure: failure.reason == "failed")
    failed(await told(composition), "Odd: out of paper")
    assert odd.heard == ["go", "go"]


async def test_retry_when_a_part_hangs() -> None:
    composition, odd = a_retry("hangs")
    async with talking(composition) as remote:
        begun = await remote.send("go", return_immediately=True)
        await until(lambda: odd.heard)
        odd.behaviour = "answers"
        await remote.advance(timedelta(seconds=6))
        done(await remote.wait(begun.id, timeout=10))
    assert (odd.canceled, odd.heard) == (1, ["go", "go"])


async def test_retry_when_a_part_asks() -> None:
    composition, odd = a_retry("asks")
    task = await told(composition, "Monday")
    done(task, "Monday")
    asked(task, "Odd")
    assert odd.heard == ["go"]


async def test_retry_when_a_part_needs_authorisation() -> None:
    composition, odd = a_retry("authorises")
    done(await told(composition, "done"), "done")
    assert odd.heard == ["go"]


async def test_retry_when_a_part_is_canceled() -> None:
    composition, odd = a_retry("is canceled")
    failed(await told(composition), "Odd")
    assert odd.heard == ["go"]


async def test_retry_when_a_part_exceeds_its_budget() -> None:
    always: Any = lambda failure: True  # noqa: E731
    composition, odd = a_retry("fails", when=always, budget=Budget(calls=1))
    failed(await told(composition), "the budget of 1 calls is spent")
    assert odd.heard == ["go"]


async def test_retry_when_the_caller_cancels() -> None:
    composition, odd = a_retry("hangs")
    assert (await canceled(composition, odd)).state is TaskState.CANCELED
    assert odd.heard == ["go"]


# -- fallback ----------------------------------------------------------------------------------


async def test_fallback_when_a_part_fails() -> None:
    composition, odd, other = side_by_side(fallback, "fails")
    done(await told(composition))
    assert (odd.heard, other.heard) == (["go"], ["go"])
    composition, *_ = side_by_side(fallback, "fails", "fails")
    failed(await told(composition), "Odd: out of paper; Other: out of paper")


async def test_fallback_when_a_part_hangs() -> None:
    composition, odd, other = side_by_side(fallback, "hangs")
    done(await after(composition, lambda: odd.heard))
    assert odd.canceled
    assert other.heard == ["go"]


async def test_fallback_when_a_part_asks() -> None:
    composition, odd, other = side_by_side(fallback, "asks")
    task = await told(composition, "Monday")
    done(task, "Monday")
    asked(task, "Odd")
    assert (odd.told, other.heard) == (["Monday"], [])


async def test_fallback_when_a_part_needs_authorisation() -> None:
    composition, _, other = side_by_side(fallback, "authorises")
    done(await told(composition, "done"), "done")
    assert not other.heard


async def test_fallback_when_a_part_is_canceled() -> None:
    composition, _, other = side_by_side(fallback, "is canceled")
    done(await told(composition))
    assert other.heard == ["go"]


async def test_fallback_when_a_part_exceeds_its_budget() -> None:
    composition, _, other = side_by_side(fallback, "fails", budget=Budget(calls=1))
    failed(await told(composition), "Odd: out of paper", "the budget of 1 calls is spent")
    assert not other.heard


async def test_fallback_when_the_caller_cancels() -> None:
    composition, odd, other = side_by_side(fallback, "hangs")
    assert (await canceled(composition, odd)).state is TaskState.CANCELED
    assert not other.heard


# -- map_reduce --------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    return text.split()


def a_map(behaviour: str, **options: Any) -> tuple[Composition, Actor]:
    actor = Actor("Odd", behaviour)
    odd = hanging(actor) if behaviour == "hangs" else actor.agent
    return map_reduce(words, odd, **{"limit": 1, **options}), actor


async def test_map_reduce_when_a_part_fails() -> None:
    composition, odd = a_map("fails")
    failed(await told(composition, text="a b c"), "Odd: out of paper")
    assert odd.heard == ["a"]
    composition, odd = a_map(
        "fails", failures="partial", at_least=0, reduce=lambda found: str(len(found))
    )
    done(await told(composition, text="a b c"), "3")
    assert odd.heard == ["a", "b", "c"]


async def test_map_reduce_when_a_part_hangs() -> None:
    composition, odd = a_map("hangs")
    failed(await after(composition, lambda: odd.heard), "within 5 s")
    assert odd.canceled


async def test_map_reduce_when_a_part_asks() -> None:
    composition, odd = a_map("asks")
    task = await told(composition, "Monday", "Friday", text="a b")
    done(task, "Monday")
    asked(task, "Odd")
    assert odd.told == ["Monday", "Friday"]
    assert odd.heard == ["a", "b"]


async def test_map_reduce_when_a_part_needs_authorisation() -> None:
    composition, odd = a_map("authorises")
    done(await told(composition, "done"), "done")
    assert odd.heard == ["go"]


async def test_map_reduce_when_a_part_is_canceled() -> None:
    composition, _ = a_map("is canceled")
    failed(await told(composition), "Odd")


async def test_map_reduce_when_a_part_exceeds_its_budget() -> None:
    composition, odd = a_map("answers", budget=Budget(calls=2))
    failed(await told(composition, text="a b c"), "the budget of 2 calls is spent")
    assert odd.heard == ["a", "b"]


async def test_map_reduce_when_the_caller_cancels() -> None:
    composition, odd = a_map("hangs", limit=8)
    assert (await canceled(composition, odd)).state is TaskState.CANCELED
