"""Budgets and deadlines: limits for a composition, and the shares of its parts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from parley import Message, Part, Role, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.compose import Budget, Composition, Outcome, Spent, fallback, parallel, part, sequence
from parley.compose.outcome import Spending
from parley.extensions import CallChain, Chain, Usage
from parley.extensions.usage import spent_on
from parley.model.errors import InvalidParamsError
from parley.model.extensions import CALL_CHAIN
from parley.testing import client
from tests.compose.parts import Worker
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def given(worker: Worker, index: int = 0) -> Any:
    """Return the chain that arrived with a message to a worker."""
    chain = worker.turns[index]._attempt.request.chain
    assert chain is not None
    return chain


async def test_tokens_and_costs_that_parts_report_are_subtracted() -> None:
    workers = [Worker(name, tokens=100) for name in ("One", "Two", "Three")]
    agent = sequence(*[each.agent for each in workers], budget=Budget(tokens=150), name="Line")
    async with client(agent) as remote:
        done = await remote.send("go")
        assert done.text == "Three: the budget of 150 tokens is spent"
    assert [given(each).budget.tokens for each in workers[:2]] == [150, 50]


async def test_parts_at_the_same_time_share_what_is_left() -> None:
    workers = [Worker(name, does="wait") for name in ("One", "Two", "Three")]
    agent = parallel(*[each.agent for each in workers], budget=Budget(calls=8, tokens=90))
    async with client(agent) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.settle()
        budgets = [given(each).budget for each in workers]
        # Each call counts against the worker's share, so the shares never exceed the budget.
        assert [each.calls for each in budgets] == [1, 2, 2]
        assert [each.tokens for each in budgets] == [30, 30, 30]
        for each in workers:
            each.go.set()
        assert (await remote.wait(task.id)).state is TaskState.COMPLETED


async def test_the_callers_budget_holds_within_the_compositions_own() -> None:
    worker = Worker("One")
    agent = sequence(worker.agent, budget=Budget(calls=9), name="Line")
    async with client(agent, extensions=[CallChain()]) as remote:
        said = CallChain.says(Chain(budget=Budget(calls=3, cost=0.5)))
        await remote.send("go", metadata=said)
        assert given(worker).budget == Budget(calls=2, cost=0.5)
        said = CallChain.says(Chain(budget=Budget(calls=0)))
        done = await remote.send("go", metadata=said)
        assert done.text == "One: the budget of 0 calls is spent"


async def test_deadlines_shrink_down_the_chain() -> None:
    worker, other = Worker("One", does="wait"), Worker("Two", does="wait")
    inner = sequence(part(worker.agent, timeout=10), name="Inner")
    slow = sequence(part(other.agent, timeout=100), name="Slow")
    agent = parallel(part(inner, timeout=60), part(slow, timeout=60), failures="partial")
    async with client(agent) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.settle()
        now = remote.time.now.timestamp() * 1000
        left = [round((given(each).deadline.milliseconds - now) / 1000) for each in (worker, other)]
        assert left == [10, 60]
        await remote.advance(61)
        done = await remote.wait(task.id)
        assert done.state is TaskState.FAILED
    assert worker.ended == other.ended == ["cancelled"]


@pytest.mark.parametrize("said", [-1, "many", True, None, [1], math.inf, 2**60])
def test_what_no_part_can_have_spent_counts_as_nothing(said: Any) -> None:
    metadata = {Usage.uri: {"tokens": said, "cost": said, "calls": 1}}
    message = Message(message_id="1", role=Role.AGENT, parts=(Part(text=""),), metadata=metadata)
    assert spent_on(message) == Spent(calls=1)


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ([], "budget"),
        ({"calls": -1}, "budget.calls"),
        ({"tokens": 1.5}, "budget.tokens"),
        ({"cost": "1"}, "budget.cost"),
        ({"calls": True}, "budget.calls"),
    ],
)
def test_a_budget_of_another_form_is_refused_with_its_member(said: Any, where: str) -> None:
    with pytest.raises(InvalidParamsError, match=where):
        CallChain.read({"budget": said})


def test_a_chain_is_read_as_it_was_said() -> None:
    chain = Chain(hops=1, budget=Budget(calls=0, tokens=7, cost=0.25))
    assert CallChain.read(CallChain.says(chain)[CALL_CHAIN]) == chain


def test_a_budget_is_no_negative_number() -> None:
    with pytest.raises(ValueError, match="calls of a budget is 0 or more"):
        Budget(calls=-1)
    with pytest.raises(TypeError, match="tokens of a budget is a whole number"):
        Budget(tokens=1.5)  # type: ignore[arg-type]
    assert isinstance(sequence(Worker("One").agent), Composition)


async def test_a_function_costs_nothing() -> None:
    worker = Worker("One")

    def polite(text: str) -> str:
        return f"Dear caller, {text}"

    async with client(sequence(worker.agent, polite, budget=Budget(calls=1))) as remote:
        assert (await remote.send("go")).text == "Dear caller, One(go)"


async def test_what_a_part_that_failed_has_spent_counts_also_after_a_crash() -> None:
    one, two = Worker("One", tokens=60), Worker("Two", does="fail")
    last = Worker("Last", does="wait")
    inner = sequence(one.agent, two.agent, name="Inner")
    agent = fallback(inner, last.agent, budget=Budget(calls=6, tokens=100), name="Either")
    async with client(agent) as remote:
        task = await remote.send("go", return_immediately=True)
        await until(lambda: last.turns)
        await remote.crash()
        last.go.set()
        assert spent_on(await remote.wait(task.id)) == Spent(calls=4, tokens=60)
    assert given(last).budget == Budget(calls=2, tokens=40)
    assert one.began == ["go"]


def test_a_call_returns_its_reserve_when_its_cost_is_known() -> None:
    spending = Spending(Budget(calls=9, tokens=90, cost=0.75))
    given = [spending.set_aside(share) for share in (3, 2, 1)]
    assert given == [Budget(calls=3, tokens=30, cost=0.25)] * 3
    assert spending.left == Budget(calls=2, tokens=30, cost=0.25)
    costs = []
    for share, each in zip((3, 2, 1), given, strict=True):
        spending.account(each, share, Outcome(part="A", spent=Spent(calls=1, tokens=29)))
        costs.append(spending.left.cost)
    assert costs == [0.5, 0.75, 0.75]
    spending.add(Outcome(part="A", spent=Spent(tokens=2)))
    assert (spending.left, spending.exhausted) == (Budget(calls=6, tokens=1, cost=0.75), "")
    assert spending.set_aside(12) == Budget(calls=1, tokens=1, cost=0.0625)


async def test_the_artifact_of_a_limited_composition_states_the_whole_cost() -> None:
    workers = [Worker(name, tokens=60) for name in ("One", "Two")]
    async with client(sequence(*[w.agent for w in workers], budget=Budget(calls=2))) as remote:
        events = [event async for event in remote.stream("go")]
    [shown] = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    assert shown.artifact.metadata == Usage.says(Spent(calls=2, tokens=120, cost=0.0))
    assert shown.last_chunk
    said = [e.status.message for e in events if isinstance(e, TaskStatusUpdateEvent)]
    assert [message.text for message in said if message] == ["One: One(go)"]  # progress, no result
