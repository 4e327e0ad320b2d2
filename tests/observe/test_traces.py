"""Spans of turns and calls, and what each carrier carries of a trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry import baggage, context, trace

import parley
from parley import Agent, McpServer, TraceContext, Turn
from parley.llm import llm_agent
from parley.llm.model import ScriptedModel, ScriptedReply
from parley.mcp.bridge import McpBridge
from parley.mcp.http import http_app
from parley.observe import tracing
from parley.registry.app.registry import Registry
from parley.server.run import serving
from tests.kit.servers import BINDINGS, served
from tests.kit.webhooks import webhook
from tests.observe.spans import Spans

pytestmark = pytest.mark.anyio

ENVELOPE = "urn:parley:envelope:v1"
SENT = TraceContext(
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", baggage="user=ann"
)


class Listener:
    """An agent that notes the trace of its turns, and the baggage that its program sees."""

    def __init__(self) -> None:
        self.traces: list[TraceContext] = []
        self.baggage: list[dict[str, object]] = []
        self.agent = Agent("Listener")

        @self.agent.skill
        async def hear(turn: Turn) -> str:
            self.traces.append(turn.trace)
            self.baggage.append(dict(baggage.get_all()))
            return turn.text

    def heard(self, trace_id: str, traced: bool) -> None:
        [found] = self.traces
        assert found.trace_id == trace_id
        assert found.baggage == "user=ann"
        assert self.baggage == ([{"user": "ann"}] if traced else [{}])


def calling(reference: Any, **options: Any) -> Agent:
    """Return an agent that passes its message on."""
    agent = Agent("Caller", uses=[reference] if isinstance(reference, Agent) else [])

    @agent.skill
    async def ask(turn: Turn) -> str:
        async with turn.connect(reference, **options) as other:
            return (await other.send(turn.text)).text

    return agent


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "untraced"])
@pytest.mark.parametrize("binding", [*BINDINGS, ENVELOPE])
async def test_each_binding_carries_the_program_s_span_and_baggage(
    binding: str, traced: bool
) -> None:
    listener = Listener()
    spans = Spans()
    if not traced:
        tracing.use(None)
    async with served(listener.agent, way=(binding, "1.0")) as remote:
        with spans.tracer.start_as_current_span("program") as span:
            token = context.attach(baggage.set_baggage("user", "ann"))
            await remote.send("hello")
            context.detach(token)
    listener.heard(f"{span.get_span_context().trace_id:032x}", traced)
    if traced:
        assert spans.path(spans.one("invoke_agent listener")) == [
            "invoke_agent listener", "SendMessage", "invoke_agent Listener", "program",
        ]  # fmt: skip
        [call] = spans.named("invoke_agent Listener")
        assert call.attributes is not None
        assert str(call.attributes["server.address"]).startswith("127.0.0.1:")


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "untraced"])
@pytest.mark.parametrize("way", ["local", "http", "mcp"])
async def test_a_turn_passes_its_trace_on(way: str, traced: bool) -> None:
    listener = Listener()
    if traced:
        spans = Spans()
    async with serving(parley.asgi(listener.agent)) as url:
        bridge = http_app(McpBridge(url))
        async with serving(bridge) as tools:
            if way == "mcp":
                front = Agent("Caller")

                @front.skill
                async def ask(turn: Turn) -> str:
                    async with turn.tools(McpServer(f"{tools}/mcp")) as found:
                        return (await found.call("hear", {"message": turn.text})).text
            else:
                front = calling(listener.agent if way == "local" else url)
            async with served(front, allow_private_agents=True) as remote:
                remote.context = replace(remote.context, trace=SENT)
                assert (await remote.send("hello")).text == "hello"
    [found] = listener.traces
    assert found.trace_id == SENT.trace_id
    assert found.traceparent != SENT.traceparent or not traced
    assert found.baggage == SENT.baggage
    if traced:
        path = spans.path(spans.one("invoke_agent listener"))
        assert path[-3:] == ["invoke_agent caller", "SendMessage", "invoke_agent Caller"]
        assert "invoke_agent Listener" in path


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "untraced"])
async def test_a_webhook_gets_the_trace_of_its_task(traced: bool) -> None:
    agent = Agent("Worker")

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        return "done"

    spans = Spans() if traced else None
    async with webhook() as hook, served(agent, allow_private_webhooks=True) as remote:
        remote.context = replace(remote.context, trace=SENT)
        await remote.send("go", push=hook.url)
        await hook.until_over()
        headers = hook.told[-1].headers
    assert headers["traceparent"].split("-")[1] == SENT.trace_id
    assert headers["baggage"] == SENT.baggage
    if spans is not None:
        sent = spans.named("POST webhook")[-1]
        assert headers["traceparent"].split("-")[2] == f"{sent.context.span_id:016x}"
        assert sent.attributes is not None
        assert sent.attributes["http.response.status_code"] == 200
        assert sent.attributes["server.address"] == hook.url.split("/")[2]


async def test_a_turn_its_steps_and_the_program_s_spans_are_one_tree() -> None:
    spans = Spans()
    agent = Agent("Author")

    def inner(name: str) -> str:
        with spans.tracer.start_as_current_span(name):
            return name

    async def branch(name: str) -> str:
        await asyncio.sleep(0)
        return inner(name)

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.step("one", inner, "in a thread")
        with turn.span("planning", parts=2):
            await asyncio.gather(branch("left"), branch("right"))
        answer = await turn.ask("Which?")
        return answer.text

    @agent.skill
    async def stream(turn: Turn) -> AsyncIterator[str]:
        yield inner("in a generator")
        raise RuntimeError("hunter2")

    async with served(agent) as remote:
        task = (await remote.send("go", skill="work")).task
        assert task is not None
        await remote.send("this", task_id=task.id)
        failed = (await remote.send("go", skill="stream")).task
        assert failed is not None
    first, second, third = spans.named("invoke_agent author")
    below = {
        "in a thread": ["in a thread", "step inner", "invoke_agent author"],
        "left": ["left", "planning", "invoke_agent author"],
        "right": ["right", "planning", "invoke_agent author"],
        "in a generator": ["in a generator", "invoke_agent author"],
    }
    for name, path in below.items():
        found = spans.named(name)
        assert spans.path(found[0])[: len(path)] == path
    assert len(spans.named("step inner")) == 1  # a replayed step has no span
    assert [event.name for event in first.events] == ["ask"]
    assert [link.context.trace_id for link in second.links] == [first.context.trace_id]
    assert third.status.status_code is trace.StatusCode.ERROR
    assert third.attributes is not None
    assert third.attributes["error.type"] == "RuntimeError"
    assert sum(span.attributes["parley.records"] for span in spans.named("append")) >= 6  # type: ignore[index, misc]
    assert not any("hunter2" in span.to_json() for span in spans.all)


def asked(request: Any) -> Any:
    if request.tool_results:
        return "sunny"
    return ScriptedReply(tool_calls=[("weather", {"city": "Paris"})])


@pytest.mark.parametrize("content", [False, True])
async def test_model_calls_and_tools_have_spans_by_the_conventions(content: bool) -> None:
    spans = Spans(content=content)

    def weather(city: str) -> str:
        """Tells the weather."""
        return f"it rains in {city}"

    model = ScriptedModel(asked)
    model.name = "tiny"  # type: ignore[attr-defined]
    agent = llm_agent("Weather", description="Weather", model=model, tools=[weather])
    async with served(agent) as remote:
        assert (await remote.send("hunter2")).text == "sunny"
    first, second = spans.named("chat tiny")
    for span, reason in ((first, "tool_calls"), (second, "stop")):
        assert span.attributes is not None
        assert span.attributes["gen_ai.operation.name"] == "chat"
        assert span.attributes["gen_ai.response.finish_reasons"] == (reason,)
        assert span.attributes["gen_ai.usage.output_tokens"] > 0  # type: ignore[operator]
        assert ("gen_ai.input.messages" in span.attributes) == content
    tool = spans.one("execute_tool weather")
    assert tool.attributes is not None
    assert tool.attributes["gen_ai.tool.call.id"]
    assert "invoke_agent weather" in spans.path(tool)
    said = " ".join(span.to_json() for span in spans.all)
    for word in ("hunter2", "Paris", "it rains"):
        assert (word in said) == content, word


@pytest.mark.parametrize("content", [False, True])
async def test_a_search_has_spans_on_both_sides(content: bool) -> None:
    spans = Spans(content=content)
    async with serving(Registry("memory:").app) as url:
        with spans.tracer.start_as_current_span("program"):
            await parley.find("currency hunter2", registry=url)
    server, client = spans.named("search")
    assert spans.path(server) == ["search", "search", "program"]
    assert client.attributes is not None
    assert client.attributes["parley.results"] == 0
    assert any("hunter2" in span.to_json() for span in spans.all) == content


@pytest.mark.parametrize("replies", ["message", "task"])
async def test_a_turn_s_span_has_its_message_and_its_answer_only_with_content(replies: Any) -> None:
    agent = Agent("Talker")

    @agent.skill(replies=replies)
    async def talk(text: str) -> str:
        return f"{text} yourself"

    for content in (False, True):
        spans = Spans(content=content)
        async with served(agent) as remote:
            await remote.send("hello")
        attributes = spans.one("invoke_agent talker").attributes or {}
        found = {name: attributes.get(f"gen_ai.{name}.messages") for name in ("input", "output")}
        said = '[{"role":"%s","parts":[{"type":"text","content":"%s"}]}]'
        assert found == (
            {"input": said % ("user", "hello"), "output": said % ("assistant", "hello yourself")}
            if content
            else {"input": None, "output": None}
        )
