"""``sequence``: each part gets the answer of the part before it."""

from __future__ import annotations

from datetime import timedelta

import pytest

import parley
from parley import Agent, TaskState, Turn
from parley.compose import Composition, part, sequence
from parley.extensions.questions import InTaskAuthorization
from parley.testing import client
from tests.compose.parts import Worker

pytestmark = pytest.mark.anyio


async def shout(text: str) -> str:
    return text.upper()


async def test_each_part_gets_the_answer_of_the_one_before_it() -> None:
    one, two = Worker("One"), Worker("Two")
    async with client(sequence(one.agent, shout, two.agent, name="Line")) as remote:
        done = await remote.send("go")
        assert done.id
        assert done.text == "Two(ONE(GO))"
        assert [artifact.name for artifact in done.artifacts] == ["Do two"] or done.artifacts
        said = [message.text for message in done.history]
    assert "One: One(go)" in said  # a part's answer is progress, labelled with the part's name


async def test_a_function_that_fails_ends_it_without_its_words() -> None:
    async def broken(text: str) -> str:
        raise RuntimeError("the password is hunter2")

    async with client(sequence(broken)) as remote:
        done = await remote.send("go")
        assert done.state is TaskState.FAILED
        assert done.text.startswith("Broken: it failed. Reference: ")


async def test_a_part_that_hangs_is_canceled_when_its_seconds_are_over() -> None:
    slow = Worker("Slow", does="wait")
    agent = sequence(part(slow.agent, timeout=30), name="Line")
    async with client(agent) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.advance(31)
        done = await remote.wait(task.id)
        assert done.state is TaskState.FAILED
        assert "did not answer within 30 s" in done.text
        await remote.settle()
    assert slow.ended == ["cancelled"]


async def test_the_seconds_of_a_part_begin_again_when_its_question_is_answered() -> None:
    slow = Worker("Slow", does="ask wait")
    agent = sequence(part(slow.agent, timeout=30), name="Line")
    async with client(agent) as remote:
        task = await remote.send("go")
        await remote.advance(timedelta(minutes=10))
        await remote.send("Monday", task=task, return_immediately=True)
        await remote.advance(20)
        slow.go.set()
        assert (await remote.wait(task.id)).text == "Slow(go Monday)"
        slow.go.clear()
        late = await remote.send("go on")
        await remote.send("Monday", task=late, return_immediately=True)
        await remote.advance(31)
        assert "did not answer within 30 s" in (await remote.wait(late.id)).text


async def test_cancellation_reaches_the_part_at_work_through_a_nested_one() -> None:
    slow = Worker("Slow", does="wait")
    agent = sequence(shout, sequence(slow.agent, name="Inner"), name="Outer")
    async with client(agent) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.settle()
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED
        await remote.settle()
    assert slow.ended == ["cancelled"]


async def test_a_part_that_may_not_ask_fails_and_is_canceled() -> None:
    asks = Worker("Asks", does="ask")
    agent = sequence(part(asks.agent, pass_questions=False), name="Line")
    app = parley.asgi({"/line": agent, "/asks": asks.agent}, drain=0)
    async with parley.connect(app, path="/line") as remote:
        done = await remote.send("go")
        assert (done.state, done.text) == (TaskState.FAILED, "Asks: Which day?")
    async with parley.connect(app, path="/asks") as remote:
        assert [task.state async for task in remote.tasks()] == [TaskState.CANCELED]


async def test_a_credential_goes_to_the_part_that_needs_it_and_is_asked_for_by_name() -> None:
    inner = Agent("Mail")

    @inner.skill
    async def read(turn: Turn) -> str:
        """Needs a credential."""
        return (await turn.require_auth("May I?", scopes="mail.read")).token

    agent = sequence(sequence(inner, name="Inner"), name="Outer")
    async with client(agent, extensions=[InTaskAuthorization()]) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.settle()
        asked = await remote.get(task.id)
        assert (asked.state, asked.text) == (TaskState.AUTH_REQUIRED, "Inner: Mail: May I?")
        await remote.authorize(asked, "s3cret")
        await remote.advance(10)
        assert (await remote.wait(task.id)).text == "s3cret"


async def test_a_part_remembers_the_conversation_and_is_referred_to_its_own_tasks() -> None:
    worker, other = Worker("Worker", tokens=1), Worker("Other", tokens=1)
    agent = sequence(worker.agent, other.agent, name="Line")
    async with client(agent) as remote:
        first = await remote.send("one")
        await remote.send("two", task=first)
        elsewhere = await remote.send("three", references=[first])
        assert elsewhere.id
        contexts = [turn.context_id for turn in worker.turns]
        assert contexts[0] == contexts[1] != contexts[2]
        own = worker.turns[0].task_id
        assert [turn.message.reference_task_ids for turn in worker.turns] == [(), (own,), (own,)]
        # A part gets no reference to another agent's task.
        assert other.turns[0].message.reference_task_ids == ()
        assert [task.id for task in await worker.turns[2].references()] == [own]


async def test_a_part_is_referred_to_the_last_of_many_earlier_tasks() -> None:
    worker = Worker("One", tokens=1)
    async with client(sequence(worker.agent, name="Line")) as remote:
        earlier = [await remote.send(str(number)) for number in range(22)]
        asked = [turn.task_id for turn in worker.turns]
        await remote.send("and now", references=earlier)
        assert worker.turns[-1].message.reference_task_ids == tuple(asked[2:])


async def test_typed_values_and_turns_are_parts_too() -> None:
    async def add(a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

    async def confirm(turn: Turn) -> str:
        """Asks."""
        return f"{turn.text} {(await turn.ask('Sure?')).text}"

    agent = sequence(add, confirm, shout)
    assert isinstance(agent, Composition)
    async with client(agent) as remote:
        asked = await remote.send(data={"a": 1, "b": 2})
        assert asked.text == "Confirm: Sure?"
        assert (await remote.send("yes", task=asked)).text == "3 YES"


def test_what_can_be_no_part_is_refused() -> None:
    with pytest.raises(TypeError, match="a part of a composition is an Agent, an address"):
        sequence(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no parts"):
        sequence(name="Empty")
    with pytest.raises(TypeError, match="has no parameter, and a part gets a message"):
        sequence(lambda: "x")
    with pytest.raises(ValueError, match="so nothing connects to it: leave out bearer="):
        part(shout, bearer="x")
    with pytest.raises(ValueError, match="timeout is a positive number"):
        part(shout, timeout=0)
    with pytest.raises(TypeError, match="budget is a Budget"):
        sequence(shout, budget=3)
