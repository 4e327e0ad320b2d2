"""The conversation of a context, to which concurrent tasks add."""

from __future__ import annotations

from typing import Any

import pytest

from parley import Agent, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.integrations.conversations import (
    ContextConversation,
    ContextState,
    TaskValue,
    added_to,
    merged_value,
)
from parley.store.memory import MemoryTaskStore
from tests.engine.talk import Talk

pytestmark = pytest.mark.anyio


async def in_one_context(*messages: str, **bounds: Any) -> list[list[str]]:
    """Start tasks that wait for a reply, then reply in turn; return the memory that each found."""
    agent, found = Agent("Speaks"), []

    @agent.skill(replies="task")
    async def speak(turn: Turn) -> str:
        said = turn.message.text
        conversation = ContextConversation(turn, "said", **bounds)
        earlier = await conversation.earlier(step="earlier")
        if said.endswith("?"):
            await turn.ask("Go on?")
        if said == "found":
            found.append(earlier)
        elif said.startswith("sum up"):
            await conversation.add([said], instead=["a summary"])
        elif said.startswith("memory"):
            await conversation.finish([*earlier[1:], said])
        else:
            await conversation.add([*said.split()])
        return "done"

    host = Host(placed(agent), MemoryTaskStore(), ServerOptions(drain=0))
    await host.start()
    try:
        caller, waiting = Talk(host.services[""], host), {}
        for said in messages:
            if said in waiting:
                await caller.task("yes", task_id=waiting.pop(said).id)
                continue
            task = await caller.task(said, context_id="c")
            if said.endswith("?"):
                waiting[said] = task
    finally:
        await host.stop()
    return found


async def test_what_tasks_at_once_say_is_kept_in_the_order_in_which_they_end():
    said = await in_one_context("zero", "one ?", "two", "found", "one ?", "found")
    assert said == [["zero", "two"], ["zero", "two", "one", "?"]]


async def test_a_summary_replaces_what_its_task_had_found_and_nothing_else():
    said = await in_one_context("zero", "sum up?", "two", "sum up?", "found")
    assert said == [["a summary", "two", "sum up?"]]


async def test_a_second_summary_of_the_same_takes_nothing_from_the_first():
    first, second = "sum up 1?", "sum up 2?"
    said = await in_one_context("zero", first, second, first, "two", second, "found")
    assert said == [["a summary", first, "two", second]]


async def test_what_a_memory_has_forgotten_stays_forgotten():
    assert await in_one_context("a b", "memory", "found") == [["b", "memory"]]


async def test_messages_that_each_conversation_begins_with_are_there_once():
    said = await in_one_context("a ?", "b", "a ?", "found", first=["x", "y"])
    assert said == [["x", "y", "b", "a", "?"]]
    said = await in_one_context("memory", "b", "found", first=["x", "y"])
    assert said == [["y", "memory", "b"]]


async def test_a_run_that_goes_on_from_a_checkpoint_adds_only_its_own():
    agent, found = Agent("Resumes"), []

    @agent.skill(replies="task")
    async def speak(turn: Turn) -> str:
        conversation = ContextConversation(turn, "said")
        memory, kept = await conversation.earlier(), TaskValue(turn, "run")
        found.append(list(memory))
        if (checkpoint := await kept.read()) is not None:
            memory = checkpoint["memory"]
            conversation.resume(checkpoint["mark"], memory)
        elif turn.message.text == "trim":
            memory = memory[1:]
        memory = [*memory, turn.message.text]
        await kept.write({"memory": memory, "mark": conversation.mark(memory)})
        if turn.message.text != "quick":
            await turn.ask("Go on?")
        await conversation.finish([*memory, "end"])
        return "done"

    host = Host(placed(agent), MemoryTaskStore(), ServerOptions(drain=0))
    await host.start()
    try:
        caller = Talk(host.services[""], host)
        await caller.task("quick", context_id="c")
        for said in ("grow", "trim"):
            task = await caller.task(said, context_id="c")
            await caller.task("quick", context_id="c")
            await caller.task("yes", task_id=task.id)
        await caller.task("quick", context_id="c")
    finally:
        await host.stop()
    quick, grown = ["quick", "end"], ["grow", "grow", "end"]
    before = [*quick, *quick, *grown]
    assert before in found
    assert found[-1] == [*before[1:], *quick, "trim", "trim", "end"]


async def test_the_oldest_tasks_go_first_when_there_are_too_many_messages_or_bytes():
    assert await in_one_context("a b", "c d", "e f", "found", max_messages=5) == [list("cdef")]
    large = "x" * 200
    said = await in_one_context("a b", large, "found", max_bytes=260)
    assert said == [[large]]
    assert await in_one_context("a", "b", "found", max_messages=0) == [[]]


async def test_a_task_that_is_too_large_alone_is_shortened_or_left_out():
    large = "x" * 300
    said = await in_one_context("a", large, "found", max_bytes=200, shorten=lambda _: ["(a file)"])
    assert said == [["a", "(a file)"]]
    assert await in_one_context("a", large, "b", "found", max_bytes=200) == [["a", "b"]]


@pytest.mark.parametrize(
    ("earlier", "messages", "instead", "own"),
    [
        ("abc", "abcde", None, "de"),
        ("", "ab", None, "ab"),
        ("abc", "bcde", "bc", "de"),
        ("abc", "Sbcde", "Sbc", "de"),
        ("abc", "Sde", "", "Sde"),
        ("aba", "ada", "a", "da"),
    ],
)
def test_what_a_run_added_is_told_from_what_a_memory_made_of_the_rest(
    earlier, messages, instead, own
):
    found = added_to(list(earlier), list(messages))
    assert found == (None if instead is None else list(instead), list(own))


@pytest.mark.parametrize(
    ("now", "before", "after", "merged"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, {"a": 3}, {"a": 3, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1, "c": 1}, {"a": 1, "d": 4}, {"a": 1, "b": 2, "d": 4}),
        ({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}),
        ({"l": [1, 2]}, {"l": [1]}, {"l": [1, 3]}, {"l": [1, 2, 3]}),
        ({"l": [1, 2]}, {"l": [1]}, {"l": [4]}, {"l": [4]}),
        ({"o": {"x": 1, "y": 2}}, {"o": {"x": 1}}, {"o": {"x": 5}}, {"o": {"x": 5, "y": 2}}),
        (
            {"l": [1], "o": {"x": 1}},
            {},
            {"l": [2], "o": {"y": 2}},
            {"l": [1, 2], "o": {"x": 1, "y": 2}},
        ),
        ({"a": 2}, {"a": 1}, {}, {}),
    ],
)
def test_a_state_gets_the_changes_of_a_task_alone(now, before, after, merged):
    assert merged_value(now, before, after) == merged


async def test_a_state_is_shortened_before_it_is_kept():
    agent, read = Agent("Grows"), []

    @agent.skill(replies="task")
    async def grow(turn: Turn) -> str:
        def newest(state: dict[str, Any]) -> dict[str, Any]:
            return {"said": state["said"][-2:]}

        state = ContextState(turn, "state", max_bytes=30, shorten=newest)
        before = await state.read()
        await state.write(before, {"said": [*before.get("said", []), turn.message.text]})
        read.append(await state.read())
        return "done"

    host = Host(placed(agent), MemoryTaskStore(), ServerOptions(drain=0))
    await host.start()
    try:
        for each in ("one", "two", "three"):
            await Talk(host.services[""], host).task(each, context_id="c")
    finally:
        await host.stop()
    assert read[-1] == {"said": ["two", "three"]}


async def test_a_state_is_changed_once_by_a_task_and_stays_within_its_bound():
    agent, read = Agent("Counts"), []

    @agent.skill(replies="task")
    async def count(turn: Turn) -> str:
        state = ContextState(turn, "state", max_bytes=100)
        before = await state.read(step="state")
        if turn.message.text == "large":
            await state.write(before, {**before, "large": "x" * 200})
        else:
            after = {**before, "said": [*before.get("said", []), turn.message.text]}
            await state.write(before, after)
            await turn.ask("Again?")  # after the reply, the function runs again from its start
            await state.write(before, after)
        read.append(await state.read())
        return "done"

    host = Host(placed(agent), MemoryTaskStore(), ServerOptions(drain=0))
    await host.start()
    try:
        caller = Talk(host.services[""], host)
        tasks = [await caller.task(each, context_id="c") for each in ("one", "two")]
        for each in tasks:
            await caller.task("yes", task_id=each.id)
        await caller.task("large", context_id="c")
    finally:
        await host.stop()
    assert read == [{"said": ["one", "two"]}] * 3


class Counted(dict[str, int]):
    """A message that counts comparisons of messages."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def test_a_long_conversation_is_not_compared_with_each_message_of_another():
    earlier = [Counted(n=number) for number in range(300)]
    others = [Counted(n=-number) for number in range(1, 300)]
    assert added_to(earlier, others) == ([], others)
    assert added_to(earlier, [*others, *earlier[250:], Counted(n=0)])[1] == [{"n": 0}]
    assert Counted.compared < 1000


async def test_an_emoji_that_a_model_cuts_is_remembered_as_a_replacement_character() -> None:
    assert await in_one_context("cut\ud83d", "found") == [["cut\ufffd"]]
