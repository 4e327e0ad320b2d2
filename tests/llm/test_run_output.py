"""The output of a model's run in a turn."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, TaskArtifactUpdateEvent, TaskStatusUpdateEvent, Turn
from parley.extensions.usage import USAGE, Spent, spent_on
from parley.llm.current_turn import current_turn
from parley.llm.model import ModelUsage
from parley.llm.run_output import RUN_PROGRESS, ModelRequests, RunOutput, current_run, model_failure

pytestmark = pytest.mark.anyio

agent = Agent("Runner")


class Marked(str):
    """Text in a framework's form, such as the text of LangChain's messages."""


@agent.skill(replies="task")
async def run(turn: Turn) -> None:
    """Runs."""
    async with RunOutput(turn) as out:
        assert current_turn() is turn
        await out.thinking("Hm. ")
        await out.thinking("A city.")
        await out.text("Let me ")
        await out.text("see.")
        await out.tool_called("weather", {"city": Marked("Oslo")}, call_id="1")
        await out.tool_returned("weather", "rain", call_id="1")
        await out.text("It ")
        await out.text("rains.")
        out.requests.count(ModelUsage(input_tokens=7, output_tokens=5, requests=2))


async def test_the_answer_is_what_was_said_last_and_progress_is_not_kept() -> None:
    async with parley.connect(agent) as remote:
        async with remote.stream("Oslo?") as events:
            seen = [event async for event in events]
        task = await remote.get(events.task_id)
    assert task.id
    assert task.text == "It rains."
    (answer,) = task.artifacts
    assert answer.metadata is not None
    assert answer.metadata[USAGE] == {"tokens": 12}
    shown = [
        (event.metadata or {}).get(RUN_PROGRESS)
        for event in seen
        if isinstance(event, TaskStatusUpdateEvent)
    ]
    kinds = [each["kind"] for each in shown if each]
    assert kinds == ["thinking", "thinking", "toolCall", "toolResult"]
    assert [each["arguments"] for each in shown if each and "arguments" in each] == [
        {"city": "Oslo"}
    ]
    assert [message.text for message in task.history] == ["Oslo?"]
    chunks = [event for event in seen if isinstance(event, TaskArtifactUpdateEvent)]
    said = "".join(part.text or "" for e in chunks for part in e.artifact.parts)
    assert said.startswith("Let me")
    assert current_turn() is None


async def test_the_run_of_a_framework_is_found_within_its_output_alone() -> None:
    found: list[object] = []

    async def runs(turn: Turn) -> str:
        """Runs."""
        async with RunOutput(turn) as out:
            out.run = "a run"
            async with RunOutput(turn, artifact="within"):
                found.append(current_run(str))
            found.append(current_run(int))
        found.append(current_run(str))
        return "done"

    runner = Agent("Framework")
    runner.skill()(runs)
    async with parley.connect(runner) as remote:
        await remote.send("go")
    assert found == ["a run", None, None]


async def test_progress_has_each_thought_each_call_and_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.llm.run_output.THINKING_SECONDS", 5.0)
    progress = Agent("Progress")

    @progress.skill(replies="task")
    async def show(turn: Turn) -> None:
        """Shows."""
        async with RunOutput(turn) as out:
            for piece in ("one ", "two ", "three"):
                await out.thinking(piece)
            await out.tool_called("look", 7, call_id="1")
            await out.tool_returned("", "gone", call_id="1", is_error=True)
            await out.step("node", {"n": 1})
            await out.step("node")

    async with parley.connect(progress) as remote:
        seen = [event async for event in remote.stream("Go")]
    shown = [(e.metadata or {}).get(RUN_PROGRESS) for e in seen if type(e) is TaskStatusUpdateEvent]
    assert [each for each in shown if each] == [
        {"kind": "thinking", "text": "one "},
        {"kind": "thinking", "text": "two three"},
        {"kind": "toolCall", "id": "1", "name": "look", "arguments": 7},
        {"kind": "toolResult", "id": "1", "name": "look", "result": "gone", "isError": True},
        {"kind": "step", "name": "node", "detail": {"n": 1}},
        {"kind": "step", "name": "node"},
    ]


async def test_requests_up_to_the_limit_count_and_a_failed_run_states_its_cost() -> None:
    limited, counts = Agent("Limited"), []

    @limited.skill(replies="task")
    async def ask(turn: Turn) -> None:
        """Asks."""
        async with RunOutput(turn, requests=ModelRequests(turn, most=2)) as out:
            out.requests.spent += Spent(calls=3)
            for ending in ("max_tokens", "eos", None):
                out.requests.replied(ModelUsage(input_tokens=4), ending=ending)
                counts.append(out.requests.ending)

    async with parley.connect(limited) as remote:
        task = await remote.send("Go")
    assert (counts, spent_on(task)) == (["length", "stop"], Spent(calls=3, tokens=12))
    usage = {"inputTokens": 12, "outputTokens": 0, "requests": 3}
    assert task.status.message.metadata[RUN_PROGRESS] == {"usage": usage}


def test_a_failure_is_told_by_its_status() -> None:
    class Failure(Exception):
        status: object = None

    for status, words in ((100, "100"), (500, "failed with"), ("99", "reached"), (600, "reached")):
        error = Failure()
        error.status = status
        assert words in model_failure(error, [error])
