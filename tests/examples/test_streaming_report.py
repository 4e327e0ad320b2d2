"""A report that grows while it is read, from a script or from a model."""

from __future__ import annotations

import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from parley import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio


@pytest.fixture
def report(example, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    module = example("streaming_report")
    monkeypatch.setattr(module, "PAUSE", 0)
    return module.agent


async def test_the_report_is_streamed_in_chunks_of_one_artifact(report, serve) -> None:
    async with serve(report) as agent:
        events = [event async for event in agent.stream("Write a report about tides")]
        task = await agent.get(events[0].id)
    assert isinstance(events[0], Task)
    chunks = [e for e in events if isinstance(e, TaskArtifactUpdateEvent)]
    assert len(chunks) > 20
    assert [c.append for c in chunks] == [False] + [True] * (len(chunks) - 1)
    assert [c.last_chunk for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len({c.artifact.artifact_id for c in chunks}) == 1
    assert "".join(c.artifact.text for c in chunks) == task.text
    assert task.text.startswith(
        "# A report about tides\n\n## Summary\n\nEverybody has heard of tides;"
    )
    assert task.state is TaskState.COMPLETED


async def test_progress_is_told_between_the_chunks(report, serve) -> None:
    async with serve(report) as agent:
        events = [event async for event in agent.stream("Write a report about tides")]
    said = [
        e.status.message.text
        for e in events
        if isinstance(e, TaskStatusUpdateEvent) and e.status.message
    ]
    assert said == [
        "Writing section 1 of 3: Summary",
        "Writing section 2 of 3: What is known",
        "Writing section 3 of 3: What to do next",
    ]


async def test_a_model_behind_the_openai_api_writes_it(report, serve, monkeypatch) -> None:
    asked = []

    async def completions(request: Request) -> StreamingResponse:
        asked.append((request.headers["authorization"], await request.json()))

        async def body():
            for words in ("Tides ", "rise."):
                chunk = {"choices": [{"delta": {"content": words}}]}
                yield f"data: {json.dumps(chunk)}\n\n"
            yield 'data: {"choices": [{"delta": {}}]}\n\ndata: [DONE]\n\n'

        return StreamingResponse(body(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", completions, methods=["POST"])])
    async with under_uvicorn(app) as model, serve(report) as agent:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        monkeypatch.setenv("OPENAI_MODEL", "small")
        task = await agent.send("Write a report about tides")
    assert task.state is TaskState.COMPLETED
    assert task.text.count("Tides rise.") == 3
    authorization, question = asked[0]
    assert authorization == "Bearer secret"
    assert (question["model"], question["stream"]) == ("small", True)
    assert question["messages"][0]["content"].endswith("report on tides.")


async def test_a_model_that_fails_fails_the_report(report, serve, monkeypatch) -> None:
    async with under_uvicorn(Starlette()) as nothing, serve(report) as agent:
        monkeypatch.setenv("OPENAI_BASE_URL", nothing)
        task = await agent.send("Write a report about tides")
    assert task.state is TaskState.FAILED
    assert "404" not in task.status.message.text  # details are for the server's log
