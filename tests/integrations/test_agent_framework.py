"""Features of Microsoft Agent Framework alone: workflows, sub-agents, their questions."""

from __future__ import annotations

import pytest

from parley import TaskState
from parley.extensions.usage import spent_on
from parley.llm.run_output import RUN_PROGRESS
from tests.integrations.test_adapters import agent_of, completed, counted, progress_in, why

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("served", ["agent_framework"], indirect=True),
]


async def test_a_request_of_a_workflow_is_a_question_and_its_checkpoint_waits(served):
    async with agent_of(served, "workflow") as remote:
        task = await remote.send("Dear Ada")
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        assert "May I send 'Dear Ada'?" in task.text
        served.kill()
        served.start()
    async with agent_of(served, "workflow") as remote:
        again = await remote.send("perhaps", task_id=task.id)
        assert again.state is TaskState.INPUT_REQUIRED
        assert "neither yes nor no" in again.text
        assert completed(await remote.send("yes", task_id=task.id)).text == "sent"


async def test_executors_of_a_workflow_are_steps(served):
    async with agent_of(served, "workflow") as remote:
        task = await remote.send("Dear Bob")
        async with remote.stream("no", task_id=task.id) as events:
            shown = progress_in([event async for event in events])
        task = completed(await remote.get(task.id))
    assert task.text == "thrown away"
    assert [each["name"] for each in shown if each["kind"] == "step"] == ["draft"]


async def test_a_remote_agent_is_an_agent_of_the_framework(served):
    async with agent_of(served, "forwarder") as remote:
        assert completed(await remote.send("birds")).text == "consulted on birds"
        task = await remote.send("the weather")
        assert task.state is TaskState.INPUT_REQUIRED
        task = await remote.send("Oslo", task_id=task.id)
    assert completed(task).text == "sunny in Oslo"


async def test_an_answer_asks_the_model_nothing_twice(served):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        asked = len(served.model.requests)
        completed(await remote.send([{"approve": True}], task_id=task.id))
    assert served.notes("book") == ["Oslo"]
    assert len(served.model.requests) == asked + 1  # for the step after the tool's result


async def test_a_session_keeps_a_bounded_number_of_bytes(served):
    async with agent_of(served, "small") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        same = {"context_id": first.context_id}
        assert completed(await remote.send("who am I?", **same)).text == "You are Ada."
        for letter in "ab":
            completed(await remote.send(letter * 6_000, **same))
        assert completed(await remote.send("who am I?", **same)).text == "I do not know you."


async def test_a_workflow_that_is_canceled_leaves_no_checkpoint(served):
    async with agent_of(served, "workflow") as remote:
        task = await remote.send("Dear Ada")
        assert [name for name, _ in served.kept() if task.id in name] != []
        await remote.cancel(task.id)
    assert [name for name, _ in served.kept() if task.id in name] == []


async def test_the_card_is_that_of_the_framework(served):
    async with agent_of(served) as remote:
        card = remote.card
    assert card.name == "assistant"
    assert "Adds and books" in card.description
    assert "Adds and books Tools: add (Add two numbers.)" in card.description


async def test_usage_counts_the_requests_of_all_turns(served):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        task = completed(await remote.send("no", task_id=task.id))
    (answer,) = [each for each in task.artifacts if each.metadata]
    assert answer.metadata[RUN_PROGRESS]["usage"]["requests"] == 2


@pytest.mark.parametrize(
    ("name", "said", "requests"),
    [("writers", "count to five", 2), ("leader", 'call counter {"task": "count to five"}', 3)],
)
async def test_usage_has_the_requests_of_agents_in_executors_and_tools(
    served, name, said, requests
):
    with counted(served) as used:
        async with agent_of(served, name) as remote:
            task = completed(await remote.send(said))
    assert spent_on(task).tokens == used[0] > 0
    (answer,) = [each for each in task.artifacts if each.metadata]
    assert answer.metadata[RUN_PROGRESS]["usage"]["requests"] == requests


async def test_a_refusal_and_a_cut_reply_of_an_agent_in_a_workflow_are_those_of_the_task(served):
    served.script.broken = 0
    async with agent_of(served, "writers") as remote:
        refused = await remote.send("refuse this")
        again = completed(await remote.send("break off once"))
    assert refused.state is TaskState.REJECTED
    assert ("I do not help with that." in why(refused), refused.artifacts) == (True, ())
    assert "one two three four." in again.text
    assert served.script.broken == 3


async def test_types_that_checkpoints_lack_are_named_when_the_agent_is_made(served):
    said = served.notes("types")[-1]
    assert "'plans' may have __main__:Plan, which" in said
    assert "checkpoint_types=['__main__:Plan'])" in said


async def test_a_checkpoint_that_cannot_be_read_again_ends_its_task_at_once(served):
    async with agent_of(served, "plans") as remote:
        task = await remote.send({"city": "Oslo"})
    assert (task.state, task.text) == (
        TaskState.FAILED,
        "A checkpoint of the workflow cannot be kept.",
    )
    assert "checkpoint_types=['__main__:Plan', '__main__:Thing'])" in served.log()


async def test_input_that_does_not_fit_a_workflow_is_refused_with_what_would(served):
    async with agent_of(served, "things") as remote:
        assert completed(await remote.send({"city": "Oslo"})).text == "to Oslo"
        task = await remote.send({"town": "Oslo"})
    assert task.state is TaskState.REJECTED
    assert "city: Field required" in task.text
    assert '"required":["city"]' in task.text


async def test_what_the_page_shows_works(served):
    async with agent_of(served, "page") as remote:
        task = await remote.send("book a room")
        assert "May the tool book be called" in task.text
        task = completed(await remote.send("yes", task_id=task.id))
        assert "booked Oslo" in task.text
    async with agent_of(served, "page-caller") as remote:
        answer = completed(await remote.send("agent, tell me about birds"))
    assert "consulted on agent, tell me about birds" in answer.text


async def test_a_client_that_says_no_finish_reason_has_not_broken_off(served):
    async with agent_of(served, "echo") as remote:
        assert completed(await remote.send("hi")).text == "Hello!"
    assert served.notes("echo") == ["asked"]


@pytest.mark.parametrize("name", ["plain", "layerless"])
async def test_a_client_without_layers_is_counted(served, name):
    async with agent_of(served, name) as remote:
        task = completed(await remote.send("hi"))
    assert (task.text, spent_on(task).tokens) == ("Hello!", 10)
