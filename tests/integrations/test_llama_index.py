"""Features of agents, workflows and engines of LlamaIndex alone."""

from __future__ import annotations

import asyncio

import pytest

from parley import TaskState
from parley.extensions.declared import schemas_on
from parley.extensions.questions import question
from parley.extensions.usage import spent_on
from parley.llm.run_output import RUN_PROGRESS
from tests.integrations.test_adapters import agent_of, completed, counted, progress_in

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("served", ["llama_index"], indirect=True)]


async def test_the_card_is_the_agents_own_without_its_prompt(served):
    async with agent_of(served) as remote:
        card = remote.card
    assert card.name == "Assistant"
    assert card.description.startswith("Adds, books, waits. Tools: add (Add two numbers.); book")
    assert "helpful assistant" not in str(card)


async def test_the_card_of_a_workflow_has_the_schemas_of_its_events(served):
    async with agent_of(served, "planner") as remote:
        card = remote.card
    assert (card.name, card.description) == ("Planner", "Plans a trip.")
    (schema,) = schemas_on(card).values()
    assert schema.input["required"] == ["city"]
    assert set(schema.output["properties"]) == {"city", "hotel"}


async def test_a_handoff_is_a_step_and_the_answer_is_of_the_last_agent(served):
    async with agent_of(served, "team") as remote, remote.stream("team, help") as events:
        shown = progress_in([event async for event in events])
        task = completed(await remote.get(events.task_id))
    assert [each["name"] for each in shown if each["kind"] == "step"] == ["back"]
    assert task.text == "The expert speaks."


async def test_two_questions_of_one_round_are_asked_one_after_the_other(served):
    async with agent_of(served) as remote:
        task = await remote.send("twice book a room")
        assert "Oslo" in task.text
        task = await remote.send("no", task_id=task.id)
        assert task.state is TaskState.INPUT_REQUIRED
        assert "Bergen" in task.text
        completed(await remote.send("yes", task_id=task.id))
    assert served.notes("book") == ["Bergen"]


async def test_a_workflow_takes_data_and_its_own_events_ask_and_answer(served):
    async with agent_of(served, "planner") as remote:
        async with remote.stream({"city": "London", "days": 3}) as events:
            shown = progress_in([event async for event in events])
        task = await remote.get(events.task_id)
        assert task.state is TaskState.INPUT_REQUIRED
        assert task.text == "Which hotel in London for 3 days?"
        task = completed(await remote.send({"hotel": "Ritz"}, task_id=task.id))
    assert [(each["name"], each["detail"]) for each in shown] == [("Halfway", {"city": "London"})]
    (result,) = [each for each in task.artifacts if each.name == "result"]
    assert result.parts[0].data == {"city": "London", "hotel": "Ritz"}
    assert set(result.metadata["schema"]["properties"]) == {"city", "hotel"}
    assert served.notes("begin") == ["London"]


async def test_text_is_the_first_string_of_a_workflows_start_event(served):
    async with agent_of(served, "planner") as remote:
        task = await remote.send("Turku")
        assert task.text == "Which hotel in Turku for 5 days?"
        task = completed(await remote.send("Park", task_id=task.id))
    assert task.artifacts[-1].parts[0].data == {"city": "Turku", "hotel": "Park"}


async def test_an_answer_is_the_only_field_that_fits_and_is_asked_for_until_it_does(served):
    async with agent_of(served, "renter") as remote:
        task = await remote.send("a room")
        for said in ("many", {"days": 2}):
            task = await remote.send(said, task_id=task.id)
            assert task.text.startswith("That does not fit: nights: ")
            assert task.text.endswith("How many nights?")
        task = await remote.send("3", task_id=task.id)
        assert task.text == "Which room for 4 days?"
        task = await remote.send("the second", task_id=task.id)
        assert "send data with floor, beds" in task.text
        assert question(task).schema["required"] == ["floor", "beds"]
        task = completed(await remote.send({"floor": "second", "beds": 2}, task_id=task.id))
    assert task.text == "3 nights, floor second, 2 beds"


async def test_input_that_does_not_fit_a_start_event_is_refused_with_what_would(served):
    async with agent_of(served, "planner") as remote:
        task = await remote.send({"days": "some"})
    assert task.state is TaskState.REJECTED
    assert "city: Field required" in task.text
    assert '"required":["city"]' in task.text


async def test_an_abandoned_question_is_no_part_of_the_conversation(served):
    async with agent_of(served) as remote:
        asked = await remote.send("book a room")
        await remote.cancel(asked.id)
        task = await remote.send("count to five", context_id=asked.context_id)
    assert completed(task).text == "one two three four five"


async def test_workflows_at_once_in_one_context_share_a_store_that_loses_nothing(served):
    async with agent_of(served, "diary") as remote:
        tasks = [await remote.send("Turku", context_id="diary")]
        tasks.append(await remote.send("Oslo", context_id="diary"))
        said = [
            completed(await remote.send(day, task_id=task.id)).text
            for task, day in ((tasks[1], "Monday"), (tasks[0], "Friday"))
        ]
        third = await remote.send("Riga", context_id="diary")
        said.append(completed(await remote.send("Sunday", task_id=third.id)).text)
    assert said[:2] == ["Oslo on Monday", "Turku on Friday"]
    assert said[2] == "Oslo on Monday, Turku on Friday, Riga on Sunday"


async def test_a_query_engine_answers_with_the_passages_that_it_read(served):
    async with agent_of(served, "query") as remote:
        task = completed(await remote.send("When was it begun?"))
    answer, sources = task.artifacts
    assert answer.text == "In spring."
    assert sources.parts[0].data == {
        "sources": [{"text": "Parley was begun in a cold spring.", "file": "a.txt"}]
    }


async def test_a_chat_engine_has_the_conversation_of_its_context(served):
    async with agent_of(served, "chat") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        same = completed(await remote.send("who am I?", context_id=first.context_id))
        other = completed(await remote.send("who am I?"))
    assert (same.text, other.text) == ("You are Ada.", "I do not know you.")


@pytest.mark.parametrize(
    ("name", "said"), [("query", "When was it begun?"), ("chat", "Hello"), ("asker", "weather")]
)
async def test_usage_of_engines_and_of_workflows_that_ask_models_is_counted(served, name, said):
    with counted(served) as used:
        async with agent_of(served, name) as remote:
            task = completed(await remote.send(said))
    assert spent_on(task).tokens == used[0] > 0


async def test_tasks_at_once_count_their_own_requests_each_once(served):
    with counted(served) as used:
        async with agent_of(served, "asker") as remote:
            said = ["weather in Oslo", "weather in the whole of Finland"]
            tasks = await asyncio.gather(*[remote.send(each) for each in said])
    tokens = [spent_on(completed(task)).tokens for task in tasks]
    assert tokens[0] < tokens[1]
    assert sum(tokens) == used[0]
    for task in tasks:
        (answer,) = task.artifacts
        assert answer.metadata[RUN_PROGRESS]["usage"]["requests"] == 6
        assert "relayed user: weather" in answer.text


async def test_a_workflow_without_a_result_says_so(served):
    async with agent_of(served, "silent") as remote:
        task = completed(await remote.send("count to five"))
    assert task.text == "The workflow ended without a result."


async def test_a_remote_agent_can_be_handed_over_to(served):
    async with agent_of(served, "remote-team") as remote:
        task = await remote.send("team, how is the weather?")
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        task = completed(await remote.send("Turku", task_id=task.id))
    assert task.text == "sunny in Turku"


async def test_a_question_of_a_remote_agent_does_not_ask_the_model_again(served):
    async with agent_of(served, "caller") as remote:
        task = await remote.send("agent, what is the weather today?")
        asked = len(served.model.requests)
        completed(await remote.send("Oslo", task_id=task.id))
    assert len(served.model.requests) == asked + 1


async def test_outside_of_a_turn_a_question_is_an_event(served):
    async with agent_of(served, "plain") as remote:
        answer = await remote.send("agent, what is the weather?")
    assert "sunny in Rome" in answer.text


async def test_the_example_of_the_page_runs(served):
    async with agent_of(served, "page") as remote:
        task = await remote.send("book a room")
        assert completed(await remote.send("yes", task_id=task.id)).text == "Result: booked Oslo."
