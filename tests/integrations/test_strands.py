"""Features of Strands alone."""

from __future__ import annotations

from shutil import rmtree

import pytest

from parley import TaskState
from parley.extensions.usage import spent_on
from parley.llm.run_output import RUN_PROGRESS
from tests.integrations.test_adapters import agent_of, completed, counted, progress_in, why

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("served", ["strands"], indirect=True)]


async def test_the_card_is_the_agents_own_without_its_prompt(served):
    async with agent_of(served) as remote:
        card = remote.card
    assert card.name == "Assistant"
    assert card.description.startswith("Adds, books, waits. Tools: add (Add two numbers.); book")
    assert "helpful assistant" not in str(card)


async def test_the_card_has_the_name_that_is_given(served):
    async with agent_of(served, "boss") as remote:
        card = remote.card
    assert (card.name, card.skills[0].name) == ("Boss", "Boss")
    assert card.description.startswith("The agent Boss. Tools: counter (Ask an agent that counts.)")


async def test_the_reason_of_an_interrupt_is_text_and_data(served):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
    assert task.state is TaskState.INPUT_REQUIRED
    (data,) = [part.data for part in task.status.message.parts if part.text is None]
    assert data == {"question": "May I book?", "city": "Oslo"}


async def test_two_interrupts_of_one_round_are_asked_one_after_the_other(served):
    async with agent_of(served) as remote:
        task = await remote.send("twice book a room")
        assert "Oslo" in task.text
        task = await remote.send("no", task_id=task.id)
        assert task.state is TaskState.INPUT_REQUIRED
        assert "Bergen" in task.text
        completed(await remote.send("yes", task_id=task.id))
    assert served.notes("book") == ["Bergen"]


async def test_an_abandoned_interrupt_is_no_part_of_the_conversation(served):
    for name in ("agent", "session"):
        async with agent_of(served, name) as remote:
            asked = await remote.send("book a room")
            await remote.cancel(asked.id)
            task = await remote.send("count to five", context_id=asked.context_id)
            assert completed(task).text == "one two three four five"


async def test_agents_of_two_contexts_run_at_the_same_time(served):
    async with agent_of(served) as remote:
        waiting = await remote.send("wait for it", return_immediately=True)
        served.await_note("wait", "begun")
        completed(await remote.send("count to five"))
        await remote.cancel(waiting.id)


async def test_an_answer_goes_on_when_the_session_is_gone(served):
    async with agent_of(served, "session") as remote:
        task = await remote.send("book a room")
        assert task.state is TaskState.INPUT_REQUIRED
        rmtree(served.files / "sessions")
        completed(await remote.send("yes", task_id=task.id))
    assert served.notes("book") == ["Oslo"]


async def test_a_session_manager_keeps_the_conversation_and_the_interrupt(served):
    async with agent_of(served, "session") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        asked = await remote.send("book a room", context_id=first.context_id)
        completed(await remote.send("yes", task_id=asked.id))
        same = completed(await remote.send("who am I?", context_id=first.context_id))
    assert same.text == "You are Ada."
    roles = [each["role"] for each in served.model.requests[-1].messages]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]


async def test_tasks_at_once_in_a_session_keep_their_own_interrupts(served):
    async with agent_of(served, "session") as remote:
        room = await remote.send("book a room")
        context = {"context_id": room.context_id}
        hut = await remote.send("book a hut", **context)
        completed(await remote.send("Hello, my name is Ada", **context))
        said = [completed(await remote.send("yes", task_id=each.id)) for each in (room, hut)]
        recalled = completed(await remote.send("recall what was said", **context)).text
    assert [each.text for each in said] == ["Result: booked Oslo."] * 2
    assert served.notes("book") == ["Oslo", "Oslo"]
    assert set(recalled.split("; ")) == {"my name is Ada", "book a hut", "book a room"}
    messages = served.model.requests[-1].messages
    for number, each in enumerate(messages):  # a result follows its call
        if each["role"] == "tool":
            calls = [call["id"] for call in messages[number - 1].get("tool_calls", [])]
            assert each["tool_call_id"] in calls


async def test_a_file_that_a_tool_returns_is_an_artifact(served):
    async with agent_of(served) as remote:
        task = completed(await remote.send("draw something"))
    (picture,) = [each for each in task.artifacts if each.parts[0].media_type == "image/png"]
    assert picture.parts[0].raw == bytes.fromhex("89504e470d0a1a0a")


async def test_nodes_of_a_graph_are_steps_and_the_last_one_answers(served):
    async with agent_of(served, "graph") as remote, remote.stream("count to five") as events:
        shown = progress_in([event async for event in events])
        task = completed(await remote.get(events.task_id))
    assert [each["name"] for each in shown] == ["researcher", "writer"]
    assert task.text.startswith("You said: Original Task: count to five")
    assert "one two three" in task.text
    assert len(task.artifacts) == 1


@pytest.mark.parametrize("tool", ["counter", "blocker"])
async def test_usage_has_the_requests_of_agents_that_tools_run(served, tool):
    with counted(served) as used:
        async with agent_of(served, "boss") as remote:
            task = completed(await remote.send(f'call {tool} {{"said": "count"}}'))
    assert task.text == "Result: one two three four five\n"
    assert spent_on(task).tokens == used[0]
    usage = (task.artifacts[-1].metadata or {})[RUN_PROGRESS]["usage"]
    assert usage["requests"] == 3


async def test_usage_has_the_requests_of_all_nodes_over_a_question(served):
    for name, said in (("graph", "graph book"), ("swarm", "hand over")):
        with counted(served) as used:
            async with agent_of(served, name) as remote:
                task = await remote.send(said)
                if task.state is TaskState.INPUT_REQUIRED:
                    task = await remote.send("yes", task_id=task.id)
        assert spent_on(completed(task)).tokens == used[0], name


@pytest.mark.parametrize("name", ["graph", "swarm"])
async def test_a_node_tells_of_its_model_as_an_agent_does(served, name):
    served.script.broken = 0
    async with agent_of(served, name) as remote:
        refused = await remote.send("refuse this")
        assert refused.state is TaskState.REJECTED, why(refused)
        assert "I do not help with that." in why(refused)
        failed = await remote.send("fail with 401")
        assert "does not accept this agent's credentials" in why(failed)
        task = completed(await remote.send("break off once"))
    assert "one two three four." in task.text


async def test_an_interrupt_in_a_node_asks_and_the_graph_goes_on_from_there(served):
    async with agent_of(served, "graph") as remote:
        before = len(served.model.requests)
        task = await remote.send("graph book")
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        asked = len(served.model.requests) - before
        task = completed(await remote.send("yes", task_id=task.id))
    assert served.notes("book") == ["Oslo"]
    assert len(served.model.requests) - before == asked + 1


async def test_a_swarm_hands_over_and_the_last_agent_answers(served):
    async with agent_of(served, "swarm") as remote, remote.stream("hand over") as events:
        shown = progress_in([event async for event in events])
        task = completed(await remote.get(events.task_id))
    assert [each["name"] for each in shown if each["kind"] == "step"] == ["front", "back"]
    assert task.text == "The expert speaks."


async def test_a_remote_agent_is_a_node_of_a_graph(served):
    async with agent_of(served, "remote-graph") as remote:
        task = await remote.send("how is the weather")
        assert task.state is TaskState.INPUT_REQUIRED
        task = completed(await remote.send("Turku", task_id=task.id))
    assert "sunny in Turku" in task.text


async def test_a_remote_node_remembers_what_was_said_in_the_context(served):
    async with agent_of(served, "remote-graph") as remote:
        first = completed(await remote.send("how often did I ask?"))
        again = completed(await remote.send("and how often now?", context_id=first.context_id))
    assert "asked 1 times" in first.text
    assert "asked 2 times" in again.text


async def test_outside_of_a_turn_a_question_is_an_interrupt(served):
    async with agent_of(served, "plain") as remote:
        answer = await remote.send("agent, what is the weather?")
    assert "sunny in Rome" in answer.text


async def test_the_example_of_the_page_runs(served):
    async with agent_of(served, "page") as remote:
        task = await remote.send("book a room")
        assert completed(await remote.send("yes", task_id=task.id)).text == "Result: booked Oslo."


async def test_a_crash_in_a_graph_repeats_only_nodes_that_had_not_ended(served):
    served.script.close()
    async with agent_of(served, "graph") as remote, remote.stream("hold the second") as events:
        async for event in events:
            if {"writer"} & {each["name"] for each in progress_in([event])}:
                break
        task_id = events.task_id
        served.await_asked("Original Task: hold the second")
    before = len(served.model.requests)
    served.kill()
    served.script.open()
    served.start()
    async with agent_of(served, "graph") as remote:
        completed(await remote.wait(task_id))
    assert len(served.model.requests) == before + 1


async def test_a_crash_goes_on_from_what_a_session_manager_kept(served):
    served.script.close()
    async with agent_of(served, "session") as remote:
        task = await remote.send("crash it in the middle", return_immediately=True)
        served.await_result("crash it in the middle")
    served.kill()
    served.script.open()
    served.start()
    async with agent_of(served, "session") as remote:
        assert completed(await remote.wait(task.id)).text == "The sum is 42."
        completed(await remote.send("count", context_id=task.context_id))
    roles = [each["role"] for each in served.model.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert served.notes("add") == ["20+22"]
