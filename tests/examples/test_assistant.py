"""The assistant: functions, MCP and A2A skills as tools, with its rules and with any endpoint."""

from __future__ import annotations

import pytest

import parley
from parley.extensions.usage import run_progress
from parley.llm import ModelRequest, ScriptedReply
from parley.testing.model_endpoint import ModelEndpoint
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio

VARIABLES = ("PARLEY_MODEL_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "PARLEY_MODEL", "CLOCK")


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


async def test_rules_answer_with_all_kinds_of_tools_in_two_languages(example, caplog) -> None:
    assistant, clock = example("assistant"), example("time_agent")
    async with parley.connect(assistant.agent) as remote:
        async with remote.stream("What happened on this day?") as stream:
            seen = [event async for event in stream]
        answer = (await remote.get(stream.task_id)).text
        shown = [run_progress(e) for e in seen if getattr(e, "status", None) and e.metadata]
        calls = [each["name"] for each in shown if each and each["kind"] == "toolCall"]
        assert calls == ["current_time", "events_on"]
        now = clock.now(None)
        found = example("on_this_day").events_on(now.month, now.day)
        assert answer == assistant.told(found, in_chinese=False)
        assert "a script answers instead of a model" in caplog.text

        async def says(text: str) -> str:
            return (await remote.send(text)).text

        assert await says("历史上的7月20日发生了什么?") == "1969年7月20日：人类登上月球。"
        assert await says("Events of 9 November?") == "On 9 November 1989: The Berlin Wall opens."
        assert await says("Days from 2026-07-04 to 2026-12-24?") == "It is 173 days."
        assert "In Tokyo it is" in await says("What time is it in Tokyo?")
        assert "北京现在是" in await says("北京现在几点?")


async def test_any_endpoint_answers_and_the_time_agent_may_be_elsewhere(
    example, monkeypatch
) -> None:
    def model(request: ModelRequest) -> ScriptedReply | str:
        if request.tool_results:
            return f"I looked: {request.tool_results[0]}"
        return ScriptedReply(tool_calls=[("current_time", {"message": request.said})])

    with ModelEndpoint(model) as endpoint:
        async with under_uvicorn(
            parley.asgi(example("time_agent").agent, store="memory:")
        ) as clock:
            monkeypatch.setenv("PARLEY_MODEL_URL", endpoint.url)
            monkeypatch.setenv("PARLEY_MODEL", "qwen3:8b")
            monkeypatch.setenv("CLOCK", clock)
            async with parley.connect(example("assistant").agent) as remote:
                task = await remote.send("What time is it in Oslo?")
        assert task.text.startswith("I looked: In Oslo it is")
        names = [tool["function"]["name"] for tool in endpoint.requests[0].tools]
        assert names == ["days_between", "events_on", "current_time"]
        assert endpoint.requests[0].model == "qwen3:8b"
