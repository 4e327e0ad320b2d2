"""Features of Pydantic AI alone."""

from __future__ import annotations

import pytest

import parley
from parley import Part, TaskState
from parley.extensions.declared import schemas_on
from parley.extensions.questions import question
from tests.integrations.test_adapters import agent_of, completed

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("served", ["pydantic_ai"], indirect=True)]


def asks(task, text: str) -> None:
    assert task.state is TaskState.INPUT_REQUIRED, (task.state, task.text)
    assert text in task.text


def failed(task) -> str:
    assert task.state is TaskState.FAILED
    return task.status.message.text


async def test_the_card_is_the_agents_own(served):
    async with agent_of(served) as remote:
        card = remote.card
    about, _, tools = card.description.partition(" Tools: ")
    assert (card.name, about) == ("Travel helper", "Helps with travel")
    assert "add (Add two numbers.); " in tools
    assert set(card.skills[0].tags) >= {"pydantic-ai", "add", "book"}
    async with agent_of(served, "structured") as remote:
        (schema,) = schemas_on(remote.card).values()
    assert set(schema.output["properties"]) == {"city", "celsius"}


async def test_tools_get_deps_of_the_turn(served):
    async with agent_of(served) as remote:
        task = completed(await remote.send("call where {}", context_id="here"))
    assert task.text == "Result: here"


async def test_spans_of_the_framework_are_in_the_trace_of_the_turn(served):
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    async with parley.connect(f"{served.url}/traced", headers=headers) as remote:
        task = completed(await remote.send("call position {}"))
    assert task.text == f"Result: execute_tool {trace_id}"


async def test_only_calls_that_need_it_ask_for_approval_and_a_no_tells_the_model_why(served):
    async with agent_of(served) as remote:
        assert completed(await remote.send('call pay {"amount": 5}')).text == "Result: paid 5"
        task = await remote.send('call pay {"amount": 50}')
        asks(task, "pay")
        asks(await remote.send("is it much?", task_id=task.id), "neither yes nor no")
        task = completed(await remote.send("no, too dear", task_id=task.id))
    assert task.text == "Result: too dear"


async def test_the_result_of_an_external_tool_is_asked_of_the_caller(served):
    async with agent_of(served) as remote:
        task = await remote.send('call apply {"days": 3}')
        asks(task, '"days":3')
        task = completed(await remote.send({"status": "granted"}, task_id=task.id))
    assert task.text == 'Result: {"status":"granted"}'


async def test_a_question_of_a_tool_is_a_question_to_the_caller(served):
    async with agent_of(served) as remote:
        task = await remote.send('call which {"question": "Window or aisle?"}')
        asks(task, "Window or aisle?")
        task = completed(await remote.send("window", task_id=task.id))
    assert task.text == "Result: window"


async def test_what_an_output_validator_makes_of_the_text_is_the_answer(served):
    async with agent_of(served, "checked") as remote:
        assert completed(await remote.send("hello")).text == "YOU SAID: HELLO"
        task = await remote.send("whisper")
    assert failed(task) == "The language model gave no valid answer."


async def test_a_file_that_the_agent_returns_is_an_artifact(served):
    async with agent_of(served, "painter") as remote:
        task = completed(await remote.send('call final_result {"text": "pixels"}'))
    (part,) = task.artifacts[-1].parts
    assert (part.raw, part.media_type) == (b"pixels", "image/png")


async def test_a_limit_of_usage_fails_the_task_and_is_named(served):
    async with agent_of(served, "limited") as remote:
        task = await remote.send("add 2 and 3")
    assert "request_limit of 1" in failed(task)


async def test_a_context_remembers_so_many_messages(served):
    async with agent_of(served, "short") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        same = {"context_id": first.context_id}
        assert completed(await remote.send("who am I?", **same)).text == "You are Ada."
        assert completed(await remote.send("who am I?", **same)).text == "I do not know you."


async def test_an_agent_that_needs_dependencies_is_not_served_without(served):
    async with agent_of(served, "needs-deps") as remote:
        why = (await remote.send("why")).text
    assert "deps_type=Desk" in why
    assert "deps_of=lambda turn" in why


async def test_a_question_outlives_a_crash(served):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        waiting = await remote.send('call apply {"days": 1}')
    served.kill()
    served.start()
    async with agent_of(served) as remote:
        completed(await remote.send("yes", task_id=task.id))
        completed(await remote.send("granted", task_id=waiting.id))
    assert served.notes("book") == ["Oslo"]


async def test_the_program_that_moves_here_serves_its_agent(served):
    async with agent_of(served, "moved") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        task = completed(await remote.send("who am I?", context_id=first.context_id))
    assert task.text == "You are Ada."


async def test_the_page_serves_an_agent(served):
    async with agent_of(served, "page") as remote:
        task = completed(await remote.send("add 2 and 3"))
    assert task.text == "The sum is 5."


async def test_the_page_calls_an_agent_outside_of_parley_and_answers_it(served):
    said = "agent, what about the weather?"
    async with agent_of(served, "outside") as remote:
        answer = await remote.send({"said": said, "answer": "Oslo"}, metadata={"skill": "call"})
        assert answer.text == "The agent says: sunny in Oslo"
        told = await remote.send({"said": said}, metadata={"skill": "tell"})
    assert "asks: Which city?" in told.text


async def test_a_question_comes_alone_and_with_its_schema(served):
    async with agent_of(served, "caller") as remote:
        task = await remote.send("agent, show me a country")
        asked = question(task)
        assert (asked.text, set(asked.schema["properties"])) == ("Which country?", {"name"})
        task = completed(await remote.send({"name": "Norway"}, task_id=task.id))
    assert "a map of Norway" in task.text


async def test_two_calls_that_need_approval_are_asked_one_after_the_other(served):
    async with agent_of(served) as remote:
        task = await remote.send("twice book a room")
        asks(task, "Oslo")
        asks(await remote.send("no", task_id=task.id), "Bergen")
        completed(await remote.send("yes", task_id=task.id))
    assert served.notes("book") == ["Bergen"]


async def test_an_output_of_several_types_is_data_with_its_own_schema(served):
    async with agent_of(served, "search") as remote:
        found = completed(await remote.send('call final_result_Flight {"number": "SK 1"}'))
        text = completed(await remote.send("hello"))
    (result,) = [each for each in found.artifacts if each.name == "result"]
    assert result.parts[0].data == {"number": "SK 1"}
    assert set(result.metadata["schema"]["properties"]) == {"number"}
    assert text.text == "You said: hello"


async def test_large_files_of_earlier_tasks_are_not_kept_with_the_context(served):
    picture = Part(raw=b"\x89PNG" * 200_000, media_type="image/png")
    async with agent_of(served) as remote:
        first = completed(await remote.send(["look at this", picture]))
        second = await remote.send(["look at this", picture], context_id=first.context_id)
        third = await remote.send("look again", context_id=first.context_id)
    assert [completed(each).text[:7] for each in (second, third)] == ["I see 2", "I see 1"]
