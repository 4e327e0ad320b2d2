"""Answers as values, questions until the answer fits, calls and failures as adapters name them."""

from __future__ import annotations

import pytest

from parley import Agent, Message, Part, TaskState, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.integrations.answers import DoesNotFit, ask_until, said_in, text_in
from parley.integrations.serving import MAX_REMEMBERED_BYTES, CallKeys, json_value, remembered
from parley.model.parts import Role
from parley.store.memory import MemoryTaskStore
from tests.engine.talk import Talk


def answer(*parts: Part) -> Message:
    return Message(message_id="1", role=Role.USER, parts=parts)


def test_an_answer_is_its_data_or_its_text():
    both = answer(Part(text="yes"), Part(data={"a": 1}))
    assert (said_in(both), text_in(both)) == ({"a": 1}, "yes")
    assert (said_in(answer(Part(text="yes"))), text_in(answer(Part(data=None)))) == ("yes", "null")


@pytest.mark.anyio
async def test_a_question_is_asked_until_its_answer_fits():
    agent = Agent("Asks")

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        def number(message: Message) -> int:
            try:
                return int(message.text)
            except ValueError:
                raise DoesNotFit(f"{message.text} is no number.") from None

        found = await ask_until(turn, lambda why: f"{why} How many?".strip(), number, key="many")
        return str(found + 1)

    host = Host(placed(agent), MemoryTaskStore(), ServerOptions(drain=0))
    await host.start()
    try:
        caller, asked = Talk(host.services[""], host), []
        task = await caller.task("go")
        for said in ("some", "more", "3"):
            asked.append(task.text)
            task = await caller.task(said, task_id=task.id)
    finally:
        await host.stop()
    assert asked == ["How many?", "some is no number. How many?", "more is no number. How many?"]
    assert (task.state, task.text) == (TaskState.COMPLETED, "4")


def test_calls_that_ask_the_same_are_told_apart_by_their_order():
    first, second = CallKeys(), CallKeys()
    asked = [("tool", {"b": 1, "a": 2}), ("tool", {"a": 2, "b": 1}), ("model", {"a": 2, "b": 1})]
    keys = [first.key(*each) for each in asked]
    assert len(set(keys)) == 3
    assert keys == [second.key(*each) for each in asked]


def test_what_is_too_long_or_no_json_is_not_remembered():
    assert remembered({"a": (1,)}) == {"a": [1]}
    assert remembered("x" * MAX_REMEMBERED_BYTES) is None
    assert (json_value({1: 2}), json_value(object())) == ({"value": {"1": 2}}, None)
