"""Features of the OpenAI Agents SDK alone."""

from __future__ import annotations

import pytest

from parley import TaskArtifactUpdateEvent, TaskState
from parley.extensions.usage import spent_on
from parley.llm.run_output import RUN_PROGRESS
from tests.integrations.test_adapters import agent_of, completed, counted, progress_in, why

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("served", ["openai_agents"], indirect=True),
]


async def test_the_card_is_the_agents_own_without_its_instructions(served):
    async with agent_of(served) as remote:
        card = remote.card
    assert card.name == "Assistant"
    assert card.description.startswith("Adds, books, waits. Tools: add (Add two numbers.); book")
    assert "helpful assistant" not in str(card)
    async with agent_of(served, "drawer") as remote:  # Agent(name="Draws"), name="Drawer"
        assert remote.card.description.startswith("The agent Drawer. Tools: draw (Draw a picture")
    async with agent_of(served, "triage") as remote:
        assert "Hands over to: Expert." in remote.card.description


async def test_a_handoff_is_a_step_and_the_answer_is_of_the_last_agent(served):
    async with (
        agent_of(served, "triage") as remote,
        remote.stream("transfer to the expert") as all_,
    ):
        shown = progress_in([event async for event in all_])
        task = completed(await remote.get(all_.task_id))
    assert [each["name"] for each in shown if each["kind"] == "step"] == ["Expert"]
    assert task.text == "The expert speaks."


async def test_an_answer_that_is_neither_yes_nor_no_is_asked_again(served):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        task = await remote.send("yes, but only with a view", task_id=task.id)
        assert task.state is TaskState.INPUT_REQUIRED
        assert "neither yes nor no" in task.text
        task = completed(
            await remote.send({"approve": False, "reason": "too dear"}, task_id=task.id)
        )
    assert served.notes("book") == []
    assert task.text == "Result: too dear."


async def test_two_calls_that_need_approval_are_asked_one_after_the_other(served):
    async with agent_of(served) as remote:
        task = await remote.send("twice book a room")
        assert "Oslo" in task.text
        task = await remote.send("no", task_id=task.id)
        assert task.state is TaskState.INPUT_REQUIRED
        assert "Bergen" in task.text
        completed(await remote.send("yes", task_id=task.id))
    assert served.notes("book") == ["Bergen"]


async def test_a_guardrail_of_the_input_rejects_the_task(served):
    async with agent_of(served, "guarded") as remote:
        task = await remote.send("damn")
        assert task.state is TaskState.REJECTED
        assert "guardrail polite rejects" in task.text
        assert task.artifacts == ()
        completed(await remote.send("please"))


async def test_what_a_guardrail_of_the_output_refuses_is_never_shown(served):
    async with agent_of(served, "guarded") as remote, remote.stream("tell the secret") as events:
        seen = [event async for event in events]
        task = await remote.get(events.task_id)
    assert task.state is TaskState.REJECTED
    assert "secret" not in task.text
    assert not [event for event in seen if isinstance(event, TaskArtifactUpdateEvent)]


async def test_usage_has_the_requests_of_agents_that_tools_and_guardrails_run(served):
    with counted(served) as used:
        async with agent_of(served, "boss") as remote:
            task = completed(await remote.send('call counter {"input": "count"}'))
    assert task.text == "Result: one two three four five"
    assert spent_on(task).tokens == used[0]
    usage = (task.artifacts[-1].metadata or {})[RUN_PROGRESS]["usage"]
    assert usage["requests"] == 4


async def test_a_response_that_is_incomplete_is_an_answer_that_was_shortened(served):
    async with agent_of(served, "responses") as remote:
        task = completed(await remote.send("go on"))
    assert task.text == "It"
    said = (task.artifacts[0].metadata or {})[RUN_PROGRESS]
    assert said["finishReason"] == "length"
    assert said["usage"] == {"inputTokens": 3, "outputTokens": 4, "requests": 1}


async def test_too_many_requests_name_the_limit_of_the_sdk(served):
    async with agent_of(served) as remote:
        assert "max_turns" in why(await remote.send("loop for ever"))


async def test_a_session_of_the_sdk_keeps_the_conversation_of_a_context(served):
    async with agent_of(served, "sqlite") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        asked = await remote.send("book a room", context_id=first.context_id)
        completed(await remote.send("yes", task_id=asked.id))
        same = completed(await remote.send("who am I?", context_id=first.context_id))
        other = completed(await remote.send("who am I?", context_id="one-more-context"))
    assert (same.text, other.text) == ("You are Ada.", "I do not know you.")
    said = [each for each in served.model.requests if each.said == "who am I?"][-2].messages
    roles = [each["role"] for each in said if each["role"] != "system"]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]


async def test_a_file_that_a_tool_returns_is_an_artifact(served):
    async with agent_of(served) as remote:
        task = completed(await remote.send("draw something"))
    (picture,) = [each for each in task.artifacts if each.parts[0].media_type == "image/png"]
    assert picture.parts[0].raw == bytes.fromhex("89504e470d0a1a0a")


async def test_files_that_a_tool_returns_as_plain_data_are_artifacts(served):
    async with agent_of(served, "drawer") as remote, remote.stream("draw something") as events:
        shown = progress_in([event async for event in events])
        task = completed(await remote.get(events.task_id))
    files = {each.parts[0].filename: each.parts[0].raw for each in task.artifacts}
    assert files["image"] == bytes.fromhex("89504e470d0a1a0a")
    assert files["hello.bin"] == b"hello"
    (result,) = [each["result"] for each in shown if each["kind"] == "toolResult"]
    assert result == ["(a file)", "(a file)", "drawn"]


@pytest.mark.parametrize("kind", ["dict", "pydantic", "dataclass", "msgspec", "opaque", "turn"])
async def test_the_run_context_lives_through_a_turn(served, kind):
    async with agent_of(served, f"context-{kind}") as remote:
        completed(await remote.send("add 2 and 3"))
        assert instructions(served) == "asked 2"
        task = await remote.send("book a room")
        completed(await remote.send("yes", task_id=task.id))
    assert instructions(served) == ("asked 1" if kind in ("opaque", "turn") else "asked 2")


def instructions(served) -> str:
    return str(served.model.requests[-1].messages[0]["content"])


async def test_the_agent_that_has_the_conversation_keeps_it(served):
    async with agent_of(served, "triage") as remote:
        first = completed(await remote.send("transfer to the expert"))
        before = len(served.model.requests)
        same = await remote.send("transfer to the expert", context_id=first.context_id)
        assert completed(same).text == "The expert speaks."
        assert len(served.model.requests) == before + 1
        completed(await remote.send("transfer to the expert"))  # another context has no history
    assert len(served.model.requests) == before + 3


async def test_thinking_is_progress_and_is_not_kept(served):
    async with agent_of(served) as remote, remote.stream("think") as events:
        shown = progress_in([event async for event in events])
        task = completed(await remote.get(events.task_id))
    assert "Let me think" in "".join(each.get("text", "") for each in shown)
    assert task.text == "Forty-two."


async def test_two_remote_calls_of_one_round_ask_one_after_the_other(served):
    async with agent_of(served, "caller") as remote:
        task = await remote.send("both agents, what is the weather?")
        asked = 0
        while task.state is TaskState.INPUT_REQUIRED:
            asked += 1
            task = await remote.send(f"City {asked}", task_id=task.id)
    assert asked == 2
    assert "City 1" in completed(task).text
    assert "City 2" in task.text


async def test_a_question_of_a_remote_agent_does_not_ask_the_model_again(served):
    async with agent_of(served, "caller") as remote:
        task = await remote.send("agent, what is the weather today?")
        asked = len(served.model.requests)
        task = completed(await remote.send("Oslo", task_id=task.id))
    assert len(served.model.requests) == asked + 1


async def test_a_remote_agent_can_be_handed_over_to(served):
    async with agent_of(served, "frontdesk") as remote:
        task = await remote.send("transfer me, I want to know the weather")
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        task = completed(await remote.send("Turku", task_id=task.id))
    assert task.text == "sunny in Turku"
    usage = [each.metadata for each in task.artifacts if each.metadata]
    assert usage
    assert RUN_PROGRESS in usage[-1]


async def test_a_remote_agent_remembers_what_was_said_in_the_context(served):
    said = "transfer me, how often did I ask?"
    async with agent_of(served, "frontdesk") as remote:
        first = completed(await remote.send(said))
        again = completed(await remote.send(said, context_id=first.context_id))
    assert [first.text, again.text] == ["asked 1 times", "asked 2 times"]


async def test_outside_of_a_turn_the_model_answers_questions_of_remote_agents(served):
    async with agent_of(served, "plain") as remote:
        answer = await remote.send("ask and answer")
    assert answer.text == "sunny in Rome (1 tool)"


async def test_the_model_reads_the_question_of_a_remote_agent_not_what_was_said_before(served):
    async with agent_of(served, "plain") as remote:
        answer = await remote.send("agent, show me a country")
    assert "The agent asks: Which country?" in answer.text
    assert "a map" not in answer.text


async def test_what_was_said_while_a_question_waited_stays_in_the_session(served):
    async with agent_of(served, "sqlite") as remote:
        asked = await remote.send("book a room")
        other = await remote.send("Hello, my name is Ada", context_id=asked.context_id)
        assert completed(other).context_id == asked.context_id
        completed(await remote.send("yes", task_id=asked.id))
        same = completed(await remote.send("who am I?", context_id=asked.context_id))
    assert same.text == "You are Ada."
    roles = [each["role"] for each in served.model.requests[-1].messages[1:]]
    spoken = ["user", "assistant", "assistant"]
    assert roles == ["user", "assistant", "tool", *spoken, "user"]  # a result follows its call


async def test_a_long_turn_keeps_what_was_said_alone(served):
    async with agent_of(served, "long") as remote:
        first = completed(await remote.send("draw, my name is Ada"))
        same = completed(await remote.send("who am I?", context_id=first.context_id))
    assert same.text == "You are Ada."
    assert len(str(served.model.requests[-1].messages)) < 10_000


async def test_the_example_of_the_page_runs(served):
    async with agent_of(served, "page") as remote:
        assert completed(await remote.send("add 2 and 3")).text == "The sum is 5."
        task = await remote.send("book a room")
        assert completed(await remote.send("yes", task_id=task.id)).text == "Result: booked Oslo."


async def test_a_crash_takes_back_what_a_session_has_of_the_attempt(served):
    served.script.close()
    async with agent_of(served, "sqlite") as remote:
        task = await remote.send("crash it in the middle", return_immediately=True)
        served.await_result("crash it in the middle")
    served.kill()
    served.script.open()
    served.start()
    async with agent_of(served, "sqlite") as remote:
        completed(await remote.wait(task.id))
        completed(await remote.send("count", context_id=task.context_id))
    roles = [each["role"] for each in served.model.requests[-1].messages[1:]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert served.notes("add") == ["20+22"]
