"""Features that every adapter keeps of its framework: the same tests for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import parley
from parley import Part, Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.extensions.usage import spent_on
from parley.llm.run_output import RUN_PROGRESS
from tests.integrations.conftest import FrameworkServer

pytestmark = pytest.mark.anyio


def agent_of(served: FrameworkServer, name: str = "agent"):
    return parley.connect(f"{served.url}/{name}")


def progress_in(events) -> list[dict]:
    found = [
        (event.metadata or {}).get(RUN_PROGRESS)
        for event in events
        if isinstance(event, TaskStatusUpdateEvent)
    ]
    return [each for each in found if each]


def why(task: Task) -> str:
    """Return the status message of a task."""
    return task.status.message.text if task.status.message is not None else ""


@contextmanager
def counted(served: FrameworkServer) -> Iterator[list[int]]:
    """Yield the tokens that the endpoint counted for the replies within the block."""
    before, counted = served.model.used, [0]
    yield counted
    counted[0] = served.model.used.tokens - before.tokens


def completed(task) -> Task:
    assert task.id
    assert task.state is TaskState.COMPLETED, (task.state, task.text)
    return task


@pytest.mark.feature("stream")
async def test_tokens_are_streamed(served):
    async with agent_of(served) as remote, remote.stream("count to five") as events:
        seen = [event async for event in events]
        task = completed(await remote.get(events.task_id))
    chunks = [event for event in seen if isinstance(event, TaskArtifactUpdateEvent)]
    assert len(chunks) > 2
    assert task.text == "one two three four five"
    assert [message.text for message in task.history] == ["count to five"]


@pytest.mark.feature("tools")
async def test_tool_calls_are_shown_and_the_answer_is_the_last_message(served):
    async with agent_of(served) as remote, remote.stream("add 2 and 3") as events:
        shown = progress_in([event async for event in events])
        task = completed(await remote.get(events.task_id))
    assert task.text == "The sum is 5."
    assert served.notes("add") == ["2+3"]
    calls = [each for each in shown if each["kind"] == "toolCall"]
    assert [(call["name"], call["arguments"]) for call in calls] == [("add", {"a": 2, "b": 3})]
    results = [each for each in shown if each["kind"] == "toolResult"]
    assert [str(result["result"]) for result in results] == ["5"]


@pytest.mark.feature("tools")
async def test_the_card_names_the_tools_and_what_they_do(served):
    async with agent_of(served) as remote:
        card = remote.card
    if "google-adk" in card.skills[0].tags:  # the tags name the tools
        assert {"add", "book", "wait"} <= set(card.skills[0].tags)
    else:
        tools = card.description.partition(" Tools: ")[2]
        assert tools.startswith("add (Add two numbers.); book (Book a room in a city."), card


@pytest.mark.feature("approval")
@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_what_needs_approval_asks_the_caller_and_goes_on(served, answer):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        assert task.state is TaskState.INPUT_REQUIRED, (task.state, task.text)
        assert "book" in task.text
        assert served.notes("book") == []
        task = completed(await remote.send(answer, task_id=task.id))
    assert ("booked Oslo" in task.text) is (answer == "yes")
    assert served.notes("book") == (["Oslo"] if answer == "yes" else [])


@pytest.mark.feature("memory")
async def test_a_context_is_the_frameworks_thread(served):
    async with agent_of(served) as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        same = await remote.send("who am I?", context_id=first.context_id)
        other = await remote.send("who am I?", context_id="another-context")
    assert completed(same).text == "You are Ada."
    assert completed(other).text == "I do not know you."


@pytest.mark.feature("two at once")
async def test_tasks_at_once_in_one_context_lose_nothing_that_another_said(served):
    async with agent_of(served) as remote:
        room = await remote.send("book a room")
        context = {"context_id": room.context_id}
        hut = await remote.send("book a hut", **context)
        assert (room.state, hut.state) == (TaskState.INPUT_REQUIRED, TaskState.INPUT_REQUIRED)
        completed(await remote.send("Hello, my name is Ada", **context))
        # Both tasks began before the other ended, and before Ada said her name.
        for task in (hut, room):
            assert "booked Oslo" in completed(await remote.send("yes", task_id=task.id)).text
        recalled = completed(await remote.send("recall what was said", **context)).text
    assert {"my name is Ada", "book a hut", "book a room"} <= set(recalled.split("; "))
    assert served.notes("book") == ["Oslo", "Oslo"]


@pytest.mark.feature("cancel")
async def test_cancel_stops_the_run(served):
    async with agent_of(served) as remote:
        task = await remote.send("wait for it", return_immediately=True)
        served.await_note("wait", "begun")
        canceled = await remote.cancel(task.id)
        assert canceled.state is TaskState.CANCELED
    served.await_note("wait", "cancelled")


@pytest.mark.feature("cancel")
async def test_nothing_of_a_task_that_is_canceled_is_left_in_its_context(served):
    async with agent_of(served) as remote:
        asked = await remote.send("book a room")
        served.script.close()
        running = await remote.send("crash before the cancellation", return_immediately=True)
        served.await_result("crash before the cancellation")
        for task in (asked, running):
            assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    served.script.open()
    ids = (asked.id, running.id)
    assert [each for each in served.kept() if any(id in " ".join(each) for id in ids)] == []


@pytest.mark.feature("structured")
async def test_structured_output_is_a_data_part_with_its_schema(served):
    async with agent_of(served, "structured") as remote:
        task = completed(await remote.send("weather in Oslo"))
    (result,) = [artifact for artifact in task.artifacts if artifact.name == "result"]
    assert result.parts[0].data == {"city": "Oslo", "celsius": 21.5}
    properties = (result.metadata or {})["schema"]["properties"]
    assert set(properties) == {"city", "celsius"}


@pytest.mark.feature("files in")
async def test_files_reach_the_model(served):
    pixel = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360000002000001000100000505000100a0b0c0000000"
        "0049454e44ae426082"
    )
    image = Part(raw=pixel, media_type="image/png", filename="dot.png")
    async with agent_of(served) as remote:
        task = completed(await remote.send(["look at this", image]))
    assert "I see 1" in task.text


@pytest.mark.feature("failure")
@pytest.mark.parametrize(
    ("status", "told"),
    [
        (400, "The language model rejected the request with status 400."),
        (401, "The language model does not accept this agent's credentials."),
    ],
)
async def test_a_failure_of_the_model_is_told_alike_and_without_its_words(served, status, told):
    async with agent_of(served) as remote:
        task = await remote.send(f"fail with {status}")
        assert (task.state, why(task)) == (TaskState.FAILED, told)
        completed(await remote.send("count to five"))


@pytest.mark.feature("failure")
async def test_an_error_of_a_tool_is_not_told_as_a_failure_of_the_model(served):
    async with agent_of(served) as remote:
        task = await remote.send("add in vain")
    assert "2+404" in served.notes("add")
    assert "language model" not in f"{why(task)} {task.text}"


@pytest.mark.feature("refusal")
async def test_a_refusal_is_rejected_with_its_words(served):
    with counted(served) as used:
        async with agent_of(served) as remote:
            task = await remote.send("refuse this")
    assert task.state is TaskState.REJECTED, (task.state, why(task), task.text)
    assert "I do not help with that." in why(task)
    assert spent_on(task).tokens == used[0]


@pytest.mark.feature("endings")
async def test_an_answer_that_was_shortened_is_marked(served):
    async with agent_of(served) as remote:
        task = completed(await remote.send("shorten this"))
    assert task.text == "The beginning of"
    ends = [(each.metadata or {}).get(RUN_PROGRESS, {}) for each in task.artifacts]
    assert "length" in [each.get("finishReason") for each in ends]


@pytest.mark.feature("endings")
async def test_an_answer_that_was_filtered_away_is_rejected(served):
    async with agent_of(served) as remote:
        task = await remote.send("filter this")
    assert task.state is TaskState.REJECTED, (task.state, why(task), task.text)
    assert "content filter" in why(task)


@pytest.mark.feature("cut")
async def test_a_reply_that_broke_off_is_asked_for_again(served):
    served.script.broken = 0
    async with agent_of(served) as remote:
        task = completed(await remote.send("break off once"))
    assert task.text == "one two three four."
    assert served.script.broken == 2


@pytest.mark.feature("bound")
async def test_a_run_without_end_is_stopped_and_says_by_what(served):
    before = len(served.model.requests)
    async with agent_of(served) as remote:
        task = await remote.send("loop for ever")
    assert task.state is TaskState.FAILED, (task.state, task.text)
    assert re.search("max_|limit", why(task)), why(task)
    assert len(served.model.requests) - before <= 102


@pytest.mark.feature("usage")
@pytest.mark.parametrize("name", ["agent", "structured"])
async def test_usage_is_what_the_endpoint_says(served, name):
    said = {"agent": "add 2 and 3", "structured": "weather in Oslo"}[name]
    with counted(served) as used:
        async with agent_of(served, name) as remote:
            task = completed(await remote.send(said))
    assert used[0] > 0
    assert spent_on(task).tokens == used[0]


@pytest.mark.feature("usage")
async def test_usage_is_counted_once_over_a_question(served):
    with counted(served) as used:
        async with agent_of(served) as remote:
            task = await remote.send("book a room")
            task = completed(await remote.send("yes", task_id=task.id))
    assert spent_on(task).tokens == used[0]


@pytest.mark.feature("crash")
async def test_a_killed_run_is_taken_up_again(served):
    served.script.close()
    before = served.model.used
    async with agent_of(served) as remote:
        task = await remote.send("crash in the middle", return_immediately=True)
        served.await_result("crash in the middle")
        # The earlier writes are durable when a later task is.
        other = completed(await remote.send("count to five"))
        asked = len(served.model.requests)
    served.kill()
    served.script.open()
    served.start()
    async with agent_of(served) as remote:
        task = completed(await remote.wait(task.id))
    assert task.text == "The sum is 42."
    times = 1 if served.framework.checkpoints else 2
    assert served.notes("add") == ["20+22"] * times
    assert len(served.model.requests) > asked
    tokens = served.model.used.tokens - before.tokens
    assert spent_on(task).tokens + spent_on(other).tokens == tokens


@pytest.mark.feature("calls a skill")
async def test_a_remote_skill_is_a_tool_of_the_framework(served):
    async with agent_of(served, "caller") as remote:
        answer = await remote.send("agent, tell me about birds")
    assert "consulted on agent, tell me about birds" in _said(answer)


@pytest.mark.feature("calls a skill")
async def test_the_model_learns_why_a_remote_agent_refuses(served):
    async with agent_of(served, "caller") as remote:
        answer = await remote.send("agent, please refuse")
    assert "Not on Sundays" in _said(answer)


@pytest.mark.feature("passes questions")
async def test_questions_of_a_remote_agent_reach_the_caller(served):
    async with agent_of(served, "caller") as remote:
        task = await remote.send("agent, what is the weather?")
        assert task.state is TaskState.INPUT_REQUIRED, (task.state, task.text)
        assert "Which city?" in task.text
        task = await remote.send("Oslo", task_id=task.id)
    assert "sunny in Oslo" in _said(task)


def _said(answer: parley.Answer) -> str:
    return answer.required().text
