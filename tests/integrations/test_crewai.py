"""Features of CrewAI alone: crews with human feedback, flows that pause."""

from __future__ import annotations

import json

import pytest

from parley import Part, TaskState
from parley.extensions.usage import spent_on
from parley.model.errors import ContentTypeNotSupportedError
from tests.integrations.test_adapters import agent_of, completed, counted, progress_in, why

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("served", ["crewai"], indirect=True)]


async def test_human_input_asks_the_caller_until_the_answer_is_good(served):
    async with agent_of(served, "crew") as remote:
        task = await remote.send("Lisbon")
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        assert "You said: Lisbon" in task.text
        asked = len(served.model.requests)
        task = await remote.send("make it shorter", task_id=task.id)
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        assert "shorter" in task.text
        assert len(served.model.requests) == asked + 1  # the log has the first reply
        task = await remote.send({"approve": False, "reason": "too long"}, task_id=task.id)
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        assert "too long" in task.text
        task = completed(await remote.send("yes", task_id=task.id))
    assert "too long" in task.text


async def test_a_crew_asks_for_the_inputs_that_a_message_lacks(served):
    async with agent_of(served, "page") as remote:
        task = await remote.send([{"city": "Oslo"}])
        assert task.state is TaskState.INPUT_REQUIRED
        assert task.text == "What is the season?"
        async with remote.stream("winter", task_id=task.id) as events:
            shown = progress_in([event async for event in events])
        task = completed(await remote.get(task.id))
    assert task.text == "You said: Plan a day in Oslo in winter."
    assert "Planner" in [each["name"] for each in shown if each["kind"] == "step"]


async def test_a_flow_goes_on_from_its_own_record_of_the_pause(served):
    async with agent_of(served, "flow") as remote:
        task = await remote.send("a letter")
        assert (task.state, task.text) == (TaskState.INPUT_REQUIRED, "To whom?")
        task = await remote.send("Ada", task_id=task.id)
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        assert task.text == "Dear Ada\n\nMay it be sent?"
        task = completed(await remote.send("by all means", task_id=task.id))
    assert task.text == "Dear Ada: by all means"
    # A method that asks runs again from its start; a finished method does not.
    assert served.notes("flow") == ["begun", "begun", "written", "sent"]


async def test_what_was_said_while_a_question_waited_is_remembered(served):
    async with agent_of(served) as remote:
        asked = await remote.send("book a room")
        completed(await remote.send("Hello, my name is Ada", context_id=asked.context_id))
        completed(await remote.send("yes", task_id=asked.id))
        same = completed(await remote.send("who am I?", context_id=asked.context_id))
    assert same.text == "You are Ada."


async def test_flows_at_once_in_one_context_share_a_state_that_loses_nothing(served):
    async with agent_of(served, "calendar") as remote:
        tasks = [await remote.send("write", context_id="days") for _ in range(2)]
        for task, day in ((tasks[1], "Monday"), (tasks[0], "Friday")):
            assert completed(await remote.send(day, task_id=task.id)).text == day
        texts = []
        for day in ("large", "Sunday"):  # a state that is too large is not stored
            task = await remote.send("write", context_id="days")
            texts.append(completed(await remote.send(day, task_id=task.id)).text)
    assert texts == ["Monday, Friday, large", "Monday, Friday, Sunday"]


async def test_a_pause_goes_when_its_task_is_canceled(served):
    async with agent_of(served, "calendar") as remote:
        task = await remote.send("write")
        assert any(key == f"crewai.pause:{task.id}" for key, _ in served.kept())
        await remote.cancel(task.id)
    assert not any(task.id in key for key, _ in served.kept())


async def test_a_tool_that_two_runs_use_knows_whose_question_is_answered(served):
    async with agent_of(served, "plain") as remote:
        answer = await remote.send("go")
    assert json.loads(answer.text) == [
        "Remote asks: Which city?",
        "consulted on birds",
        "sunny in Rome",
    ]


async def test_the_page_calls_an_agent(served):
    async with agent_of(served, "page-caller") as remote:
        answer = completed(await remote.send("agent, tell me about birds"))
        assert "Consults" in remote.card.description or "consult" in remote.card.description
    assert "consulted on agent, tell me about birds" in answer.text


@pytest.mark.parametrize("name", ["typed", "structured", "team"])
@pytest.mark.parametrize(
    ("said", "reason"), [("refuse this", "I do not help with that."), ("filter this", "filter")]
)
async def test_a_refusal_instead_of_a_value_or_in_a_flow_is_rejected(served, name, said, reason):
    with counted(served) as used:
        async with agent_of(served, name) as remote:
            task = await remote.send(said)
    assert task.state is TaskState.REJECTED, (task.state, why(task))
    assert reason in why(task)
    assert spent_on(task).tokens == used[0] > 0


async def test_the_agents_that_a_flow_makes_have_their_usage(served):
    with counted(served) as used:
        async with agent_of(served, "team") as remote:
            task = completed(await remote.send("good morning"))
            nothing = completed(await remote.send("say nothing"))
    assert task.text == "You said: good morning"
    assert nothing.text == "The flow has ended without a result."
    assert spent_on(task).tokens + spent_on(nothing).tokens == used[0]


async def test_a_card_offers_the_files_that_what_is_installed_and_the_model_can_take(served):
    texts = {"text/plain", "text/*", "application/json", "application/xml", "application/yaml"}
    for name, others in (("agent", {"image/*"}), ("structured", {"image/*"}), ("bare", set())):
        async with agent_of(served, name) as remote:
            assert set(remote.card.skills[0].input_modes) == texts | others
    async with agent_of(served, "blind") as remote:
        assert set(remote.card.skills[0].input_modes) == texts
        with pytest.raises(ContentTypeNotSupportedError, match="image/png"):
            await remote.send(["look at this", Part(raw=b"\x89PNG", media_type="image/png")])


@pytest.mark.parametrize("name", ["agent", "bare", "team"])
async def test_text_files_are_read_as_text_and_others_are_rejected_with_the_reason(served, name):
    notes = Part(raw=b"my name is Ada", media_type="text/csv", filename="notes.csv")
    async with agent_of(served, name) as remote:
        task = completed(await remote.send(["recall what was said", notes]))
        refused = await remote.send(["look at this", Part(raw=b"\x00\x01", filename="x.bin")])
    assert task.text == "my name is Ada"
    assert refused.state is TaskState.REJECTED
    assert "accepts no files of the type application/octet-stream" in why(refused)
