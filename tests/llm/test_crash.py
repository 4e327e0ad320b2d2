"""After a kill, a run resumes after the last completed reply, and repeats no step."""

from __future__ import annotations

from pathlib import Path

import pytest

import parley
from parley import TaskArtifactUpdateEvent, TaskState
from parley.extensions.usage import spent_on
from parley.llm import ModelUsage, ScriptedReply
from parley.testing.model_endpoint import held
from tests.faults.conftest import Served
from tests.kit.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.E3]

SCRIPT = Path(__file__).with_name("served.py")


@pytest.mark.slow
async def test_a_killed_run_goes_on_after_the_last_completed_reply(endpoint, tmp_path) -> None:
    wait, let_go = held()
    usage = ModelUsage(input_tokens=10, output_tokens=5)
    asked: list[str] = []

    def script(request):
        if request.said == "Count":  # the process dies in the middle of this answer
            asked.append("count")
            pause = 0.5 if asked.count("count") == 1 else 0
            return ScriptedReply(text="One two three four five six.", pause=pause)
        if not request.tool_results:
            asked.append("first")
            calls = [("book", {"room": "one"}), ("book", {"room": "two"})]
            return ScriptedReply(text="I book.", tool_calls=calls, usage=usage)
        asked.append("second")
        if asked.count("second") == 1:  # and during this model request
            return ScriptedReply(text="Never said.", hold=wait)
        return ScriptedReply(text="Both are booked.", usage=usage)

    served = endpoint(script)
    written = tmp_path / "written"
    server = Served(tmp_path / "tasks.db", script=SCRIPT, args=[served.url, str(written)])
    await server.start()
    try:
        async with parley.connect(server.url) as remote:
            task = await remote.send("Two rooms", return_immediately=True)
            await until(lambda: "second" in asked)
            async with remote.stream("Count") as stream:
                async for event in stream:
                    if isinstance(event, TaskArtifactUpdateEvent):
                        break
            await server.end()
            await server.start()
            task = await remote.wait(task.id)
            counted = await remote.wait(stream.task_id)
        assert task.state is TaskState.COMPLETED
        assert task.text == "Both are booked."
        assert sorted(asked) == ["count", "count", "first", "second", "second"]
        assert sorted(written.read_text().split()) == ["one", "two"]
        assert spent_on(task).tokens == 30
        assert [artifact.name for artifact in task.artifacts] == ["answer"]
        assert counted.text == "One two three four five six."
    finally:
        let_go()
        if server.process is not None and server.process.returncode is None:
            await server.end()
