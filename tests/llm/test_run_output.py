"""What a run of a model shows in a turn."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent, Turn
from parley.extensions.usage import USAGE
from parley.llm.current_turn import current_turn
from parley.llm.model import ModelUsage
from parley.llm.run_output import RUN_PROGRESS, RunOutput, current_run

pytestmark = pytest.mark.anyio

agent = Agent("Runner")


class Marked(str):
    """Text as frameworks have it, such as the text of LangChain's messages."""


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
    assert isinstance(task, Task)
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
