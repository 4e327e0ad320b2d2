"""Features of BeeAI alone: its other agents, workflows, final answers as tool calls."""

from __future__ import annotations

import pytest

from parley import Part, TaskArtifactUpdateEvent, TaskState
from parley.extensions.usage import spent_on
from tests.integrations.test_adapters import agent_of, completed, counted, progress_in

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("served", ["beeai"], indirect=True)]


async def test_a_workflow_returns_its_state_and_its_steps_may_ask(served):
    async with agent_of(served, "workflow") as remote:
        task = await remote.send([{"city": "Oslo"}])
        assert (task.state, task.text) == (TaskState.INPUT_REQUIRED, "How many days in Oslo?")
        async with remote.stream("3", task_id=task.id) as events:
            shown = progress_in([event async for event in events])
        task = completed(await remote.get(task.id))
        refused = await remote.send([{"days": 3}])
    (result,) = task.artifacts
    assert result.parts[0].data == {"city": "Oslo", "days": 3}
    assert [each["name"] for each in shown if each["kind"] == "step"] == ["days"]
    assert refused.state is TaskState.REJECTED
    assert "city" in refused.text


async def test_the_answer_of_a_react_agent_is_without_its_thoughts(served):
    async with agent_of(served, "react") as remote, remote.stream("react") as events:
        seen = [event async for event in events]
        task = completed(await remote.get(events.task_id))
    assert task.text == "It is done."
    assert any(isinstance(event, TaskArtifactUpdateEvent) for event in seen)
    thoughts = [each["text"] for each in progress_in(seen) if each["kind"] == "thinking"]
    assert "I know it" in "".join(thoughts)


async def test_a_final_answer_that_is_a_call_of_a_tool_is_the_answer(served):
    async with agent_of(served, "speaker") as remote, remote.stream("good morning") as events:
        seen = [event async for event in events]
        task = completed(await remote.get(events.task_id))
    assert task.text == "You said: good morning"
    assert "toolCall" not in [each["kind"] for each in progress_in(seen)]


async def test_what_is_said_before_the_framework_asks_again_is_no_answer_but_has_its_usage(served):
    with counted(served) as used:
        async with agent_of(served, "speaker") as remote:
            task = completed(await remote.send("count to five"))  # as text, not as a tool call
    assert "five" not in task.text
    assert task.text.startswith("You said: The model was required to produce a tool call")
    assert spent_on(task).tokens == used[0]
    (answer,) = task.artifacts
    assert answer.metadata["urn:parley:run-progress:v1"]["usage"]["requests"] == 2


async def test_a_call_in_the_text_of_a_reply_is_not_streamed(served):
    async with agent_of(served, "clerk") as remote, remote.stream("good morning to you") as events:
        seen = [event async for event in events]
        task = completed(await remote.get(events.task_id))
    chunks = [
        part.text
        for event in seen
        if isinstance(event, TaskArtifactUpdateEvent)
        for part in event.artifact.parts
    ]
    assert task.text == "You said: good morning to you"
    assert "{" not in "".join(chunks)


async def test_the_agents_of_a_workflow_have_their_usage(served):
    with counted(served) as used:
        async with agent_of(served, "team") as remote:
            task = completed(await remote.send("add 2 and 3"))
    assert task.text == "The sum is 5."
    assert served.notes("add") == ["2+3"]
    assert spent_on(task).tokens == used[0]


async def test_an_answer_asks_the_model_nothing_twice(served):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        asked = len(served.model.requests)
        again = await remote.send("hm", task_id=task.id)
        assert again.state is TaskState.INPUT_REQUIRED
        completed(await remote.send([{"approve": True}], task_id=task.id))
    assert served.notes("book") == ["Oslo"]
    assert len(served.model.requests) == asked + 1  # for the step after the tool's result


async def test_what_the_page_shows_works(served):
    async with agent_of(served, "page") as remote:
        assert remote.card.name == "hotel"
        assert "book (Book a room in a city.)" in remote.card.description
        task = await remote.send("book a room")
        assert "May the tool book be called" in task.text
        task = completed(await remote.send("yes", task_id=task.id))
        assert "booked Oslo" in task.text
    async with agent_of(served, "page-caller") as remote:
        answer = completed(await remote.send("agent, tell me about birds"))
    assert "consulted on agent, tell me about birds" in answer.text


async def test_a_workflow_whose_agents_ask_at_the_terminal_is_not_served(served):
    async with agent_of(served, "asks") as remote:
        why = (await remote.send("why")).text
    assert "handler=" in why


async def test_outside_of_a_turn_conversations_answer_their_own_questions(served):
    async with agent_of(served, "plain") as remote:
        asked = await remote.send("agent, what is the weather?")
        other = await remote.send("agent, tell me about birds")
        answered = await remote.send("ask and answer")
    assert "The agent asks: Which city?" in asked.text
    assert other.text == "The agent says: consulted on agent, tell me about birds"
    assert answered.text.startswith("sunny in Rome")


async def test_what_was_said_while_a_question_waited_is_remembered(served):
    async with agent_of(served) as remote:
        asked = await remote.send("book a room")
        completed(await remote.send("Hello, my name is Ada", context_id=asked.context_id))
        completed(await remote.send("yes", task_id=asked.id))
        same = completed(await remote.send("who am I?", context_id=asked.context_id))
    assert same.text == "You are Ada."


async def test_large_files_of_earlier_tasks_are_not_kept_with_the_context(served):
    picture = Part(raw=b"\x89PNG" * 150_000, media_type="image/png")
    async with agent_of(served) as remote:
        first = completed(await remote.send(["look at this", picture]))
        second = await remote.send(["look at this", picture], context_id=first.context_id)
        third = await remote.send("look again", context_id=first.context_id)
    assert [completed(each).text[:7] for each in (second, third)] == ["I see 2", "I see 1"]
