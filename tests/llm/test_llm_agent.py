"""An agent with a model: tools, memory, thinking, budgets, typed answers."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import pytest

import parley
import parley.llm
from parley import Agent, McpServer, Part, TaskState, TaskStatusUpdateEvent, Turn
from parley.extensions import Chain, ChainBudget
from parley.extensions.usage import RUN_PROGRESS, USAGE, Spent, run_progress, spent_on
from parley.llm import (
    ModelLoop,
    ModelUsage,
    OpenAIModel,
    Price,
    RunStopped,
    ScriptedReply,
    TokenBudget,
    ToolResult,
    llm_agent,
    model_run,
)
from parley.llm.conversation import estimated
from parley.llm.model import ModelReply
from parley.llm.token_budget import Tally, TokenSpending
from parley.model.backoff import Backoff
from parley.model.errors import ContentTypeNotSupportedError
from parley.testing.model_endpoint import held
from tests.kit.waiting import until
from tests.llm.raw_endpoint import events, refusal, refusing

pytestmark = pytest.mark.anyio


def made(endpoint, **options) -> Agent:
    return llm_agent("Helper", model="m", base_url=endpoint.url, api_key="k", **options)


@pytest.mark.slow
async def test_it_streams_calls_functions_and_says_what_it_used(endpoint) -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def script(request):
        if request.tool_results:
            return ScriptedReply(
                text="<think>Two sums.</think>They are " + " and ".join(request.tool_results),
                usage=ModelUsage(input_tokens=50, output_tokens=10),
            )
        return ScriptedReply(
            text="Let me see.",
            thinking="Sums.",
            tool_calls=[("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})],
            usage=ModelUsage(input_tokens=30, output_tokens=10),
        )

    served = endpoint(script)
    agent = made(
        served, tools=[add], instructions="Be short.", prices={"m": Price(input=10, output=100)}
    )
    async with parley.connect(agent) as remote:
        assert RUN_PROGRESS in [e.uri for e in remote.card.capabilities.extensions]
        async with remote.stream("1+2 and 3+4?") as stream:
            seen = [event async for event in stream]
        task = await remote.get(stream.task_id)
    assert task.state is TaskState.COMPLETED
    assert task.text == "They are 3 and 7"
    assert "Sums" not in repr(task)
    [answer] = task.artifacts
    assert answer.metadata[USAGE] == {"tokens": 100, "cost": pytest.approx(0.0028)}
    assert answer.metadata[RUN_PROGRESS]["usage"]["requests"] == 2
    shown = [run_progress(e) for e in seen if isinstance(e, TaskStatusUpdateEvent)]
    kinds = [each["kind"] for each in shown if each]
    assert [k for k in kinds if k != "thinking"] == ["toolCall"] * 2 + ["toolResult"] * 2
    thoughts = "".join(each["text"] for each in shown if each and each["kind"] == "thinking")
    assert thoughts == "Sums.Two sums."
    first = served.requests[0]
    assert first.messages[0] == {"role": "system", "content": "Be short."}
    assert first.tools[0]["function"]["name"] == "add"


async def test_tools_of_one_reply_run_at_the_same_time_and_a_wrong_call_is_told(raw) -> None:
    waiting = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        await asyncio.wait_for(waiting.wait(), 10)
        return f"{name} met"

    def call(index, name, arguments):
        function = {"name": name, "arguments": arguments}
        return {"index": index, "id": f"c{index}", "function": function}

    raw.will(
        events({"tool_calls": [call(0, "meet", '{"name": "A"}'), call(1, "meet", '{"name": "B"}'),
                               call(2, "meet", '{"name": '), call(3, "flee", "{}"),
                               call(4, "meet", '{"nam": "C"}')]}, {"finish": "tool_calls"}),
        events({"content": "Done."}, {"finish": "stop"}),
    )  # fmt: skip
    async with parley.connect(made(raw, tools=[meet])) as remote:
        assert (await remote.send("Meet!")).text == "Done."
    said = raw.bodies[-1]["messages"]
    results = [message["content"] for message in said if message["role"] == "tool"]
    assert results[:2] == ["A met", "B met"]
    assert results[2].startswith("Error: the arguments are not a JSON object")
    assert results[3] == "Error: there is no tool 'flee'; the tools: meet"
    assert results[4].startswith("Error: these arguments do not fit: name: required")
    sent = next(message for message in said if message["role"] == "assistant")
    assert sent["tool_calls"][2]["function"]["arguments"] == "{}"


@pytest.mark.slow
async def test_contexts_remember_whole_exchanges_within_bounds(endpoint) -> None:
    def look_up(what: str) -> str:
        return f"{what} {'x' * 3000}"

    def script(request):
        if request.tool_results:
            return f"Found {request.said}."
        return ScriptedReply(tool_calls=[("look_up", {"what": request.said})])

    served = endpoint(script)
    agent = made(served, tools=[look_up], memory_tokens=1400)
    async with parley.connect(agent) as remote:
        first = await remote.send("one")
        for said in ("two", "three", "four"):
            await remote.send(said, context_id=first.context_id)
        other = await remote.send("five")
        assert other.context_id != first.context_id
    last, fresh = served.requests[-3], served.requests[-1]
    users = [m["content"] for m in last.messages if m["role"] == "user"]
    assert users == ["two", "three", "four"]  # the oldest exchange is dropped as a whole
    roles = [message["role"] for message in last.messages]
    assert roles == [*["user", "assistant", "tool", "assistant"] * 2, "user", "assistant", "tool"]
    assert "more characters are left out" in last.messages[2]["content"]
    ids = [c["id"] for m in last.messages for c in m.get("tool_calls", ())]
    assert len(set(ids)) == len(ids)
    assert [m["content"] for m in fresh.messages if m["role"] == "user"] == ["five"]


async def test_tasks_at_the_same_time_mix_nothing_in_their_context(endpoint) -> None:
    both = asyncio.Barrier(2)

    async def meet() -> str:
        await asyncio.wait_for(both.wait(), 10)
        return "met"

    def script(request):
        if request.said == "What was said?":
            return " ".join(str(m["content"]) for m in request.messages if m["role"] != "tool")
        if request.tool_results:
            return f"{request.said} done"
        return ScriptedReply(tool_calls=[("meet", {})])

    async with parley.connect(made(endpoint(script), tools=[meet])) as remote:
        await asyncio.gather(remote.send("A", context_id="ctx"), remote.send("B", context_id="ctx"))
        said = (await remote.send("What was said?", context_id="ctx")).text
    assert said in (
        "A None A done B None B done What was said?",
        "B None B done A None A done What was said?",
    )


async def test_the_model_asks_its_caller_and_what_runs_beside_is_done_once(endpoint) -> None:
    counted: list[str] = []

    async def count() -> str:
        """Slow enough for the question to come first."""
        await until(lambda: len(asyncio.all_tasks()) > 0)
        counted.append("once")
        return "counted"

    def script(request):
        if request.tool_results:
            return " / ".join(request.tool_results)
        return ScriptedReply(tool_calls=[("ask_user", {"question": "Which?"}), ("count", {})])

    served = endpoint(script)
    async with parley.connect(made(served, tools=[count], ask_user=True)) as remote:
        task = await remote.send("Go")
        assert task.state is TaskState.INPUT_REQUIRED
        assert task.status.message.text == "Which?"
        task = await remote.send("The blue one", task=task)
    assert task.text == "The blue one / counted"
    assert counted == ["once"]
    assert len(served.requests) == 2  # the first reply was not requested again


@dataclass
class City:
    """A city."""

    name: str
    people: int


async def test_answers_of_a_type_are_data(endpoint) -> None:
    served = endpoint(lambda request: '{"name": "Oslo", "people": 700000}')
    async with parley.connect(made(served, output=City)) as remote:
        task = await remote.send("A city")
        schemas = remote.card.capabilities.extensions
    [result] = task.artifacts
    assert result.parts[0].data == {"name": "Oslo", "people": 700000}
    assert result.metadata["schema"]["required"] == ["name", "people"]
    assert result.metadata[RUN_PROGRESS]["usage"]["requests"] == 1
    schema = served.requests[0].response_format["json_schema"]["schema"]
    assert schema["properties"]["people"] == {"type": "integer"}
    assert any("people" in repr(each.params) for each in schemas)


async def test_a_wrong_one_is_asked_for_again_with_what_was_wrong(endpoint) -> None:
    def script(request):
        if "does not fit: people" in request.said:
            return 'Sure:\n```json\n{"name": "Oslo", "people": 7}\n```'
        return '{"name": "Oslo", "people": "many"}'

    async with parley.connect(made(endpoint(script), output=City)) as remote:
        assert (await remote.send("A city")).artifacts[0].parts[0].data["people"] == 7


async def test_an_endpoint_without_response_format_and_an_answer_that_never_fits(raw) -> None:
    words = events({"content": "I would rather not."}, {"finish": "stop"})
    raw.will(refusing("response_format", words))
    async with parley.connect(made(raw, output=list[str])) as remote:
        task = await remote.send("Some cities")
    assert task.state is TaskState.FAILED
    assert "does not match the requested type" in task.status.message.text
    assert spent_on(task) == Spent(tokens=24)
    assert len(raw.bodies) == 3
    assert "JSON alone" in raw.bodies[0]["messages"][0]["content"]


async def test_with_tools_json_is_asked_for_when_the_tools_are_done(endpoint) -> None:
    def script(request):
        if request.response_format:
            return '{"value": ["Oslo", "Bergen"]}'
        return "Oslo and Bergen" if request.tool_results else ScriptedReply(
            tool_calls=[("cities", {})]
        )  # fmt: skip

    def cities() -> str:
        return "Oslo, Bergen"

    served = endpoint(script)
    async with parley.connect(made(served, output=list[str], tools=[cities])) as remote:
        task = await remote.send("Some cities")
    assert task.artifacts[0].parts[0].data == ["Oslo", "Bergen"]
    assert [bool(r.tools) for r in served.requests] == [True, True, False]


async def test_images_go_to_a_model_that_takes_them(endpoint) -> None:
    served = endpoint(lambda request: "A dot.")
    image = Part(raw=b"png", media_type="image/png", filename="dot.png")
    notes = Part(raw="Grüße".encode(), media_type="text/plain", filename="notes.txt")
    async with parley.connect(made(served, takes=["image/*"])) as remote:
        task = await remote.send("What is it?", files=[image, notes])
        await remote.send("And now?", context_id=task.context_id)
    said, picture, text = served.requests[0].messages[0]["content"]
    assert said["text"] == "What is it?"
    url = picture["image_url"]["url"]
    assert url == "data:image/png;base64," + base64.b64encode(b"png").decode()
    assert text["text"] == "notes.txt:\nGrüße"
    assert "[image_url, sent earlier]" in served.requests[1].messages[0]["content"]


async def test_files_that_it_does_not_take_are_refused_with_a_reason(endpoint) -> None:
    agent = made(endpoint(lambda request: "?"))
    image = Part(raw=b"png", media_type="image/png", filename="dot.png")
    async with parley.connect(agent) as remote:
        with pytest.raises(ContentTypeNotSupportedError, match="image/png"):
            await remote.send("What is it?", files=[image])
    loop = ModelLoop(base_url=endpoint(lambda request: "?").url, model="m")
    open_agent = Agent("Open")

    @open_agent.skill(replies="task")
    async def look(turn: Turn) -> None:
        """Looks."""
        await loop.run(turn)

    async with parley.connect(open_agent) as remote:
        task = await remote.send("What is it?", files=[image])
    assert task.state is TaskState.REJECTED
    assert "accepts text, but dot.png is image/png" in task.status.message.text


async def test_a_turn_ends_clearly_when_its_budget_is_used_up(endpoint) -> None:
    def more() -> str:
        return "more"

    served = endpoint(
        lambda request: ScriptedReply(
            tool_calls=[("more", {})], usage=ModelUsage(input_tokens=300, output_tokens=100)
        )
    )
    agent = made(served, tools=[more], budget=TokenBudget(turn=900), max_reply_tokens=2000)
    async with parley.connect(agent) as remote:
        task = await remote.send("Go on")
    assert task.state is TaskState.FAILED
    assert "The token budget of one task is exhausted: 800 of 900" in task.status.message.text
    assert spent_on(task).tokens == 800
    assert [r.max_tokens < 900 for r in served.requests] == [True, True]


async def test_budgets_of_contexts_and_callers_hold_over_tasks(endpoint, monkeypatch) -> None:
    monkeypatch.setattr("parley.llm.token_budget.DAY_MS", 10**15)  # midnight is far away

    def usage(request):
        return ScriptedReply(text="Hm.", usage=ModelUsage(input_tokens=90, output_tokens=10))

    agent = made(endpoint(usage), budget=TokenBudget(context=200, caller_per_day=310))
    async with parley.connect(agent) as remote:
        states = []
        for context in ("a", "a", "a", "b", "c"):
            task = await remote.send("Hm?", context_id=context)
            states.append(task.status.message.text if task.status.message else "")
    assert states[0] == states[1] == states[3] == ""
    assert "of this conversation is exhausted: 200 of 200" in states[2]
    assert "of a caller in a day is exhausted: 300 of 310" in states[4]


async def test_a_reply_counts_once_if_the_process_dies_before_the_count_is_logged() -> None:
    agent, budget = Agent("Counter"), TokenBudget(context=1000, caller_per_day=1000)
    reply = ModelReply(id="a", usage=ModelUsage(input_tokens=90, output_tokens=10))
    used = []

    @agent.skill(replies="task")
    async def count(turn: Turn) -> str:
        """Counts, as the attempts before and after a crash do."""
        spending = TokenSpending(turn, budget, "llm")
        for number in (1, 2):  # the log has no count of the first
            await spending.count(number, reply)
        await spending.count(3, msgspec.structs.replace(reply, id="b"))
        context = await turn.recall("llm:tokens")
        used.append((context[1], (await spending._of_caller()).used))
        assert spending._read(msgspec.json.encode(Tally(1, 50))).used == 0  # a count of another day
        return "done"

    async with parley.connect(agent) as remote:
        for _ in range(2):
            await remote.send("Go", context_id="a")
    assert used == [(200, 200), (400, 400)]


@pytest.mark.parametrize("last", [64, 65])
def test_a_count_remembers_a_bounded_number_of_tasks(last) -> None:
    tally = Tally().counted("0", "a", 1)
    for number in range(1, last):
        tally = tally.counted(f"{number}", "a", 1)
    assert len(tally.last) == min(last, 64)
    assert tally.counted("0", "a", 1).used == (last if last == 64 else last + 1)
    assert msgspec.json.decode(b"[20, 7]", type=Tally).used == 7  # the format of older versions


async def test_what_the_caller_lets_it_spend_holds_too(endpoint) -> None:
    served = endpoint(lambda request: "Hm.")
    agent = made(served)
    caller = Agent("Caller", uses=[agent])

    @caller.skill(replies="task")
    async def pass_on(turn: Turn) -> object:
        """Passes on."""
        return (await turn.delegate(agent, turn.text)).text

    chain = {"urn:parley:call-chain:v1": {"hops": 1, "budget": {"tokens": 5}}}
    assert Chain(hops=1, budget=ChainBudget(tokens=5)).budget
    async with parley.connect(agent, extensions=["urn:parley:call-chain:v1"]) as remote:
        task = await remote.send("Hello?", metadata=chain)
    assert task.state is TaskState.FAILED
    assert "budget that the caller set" in task.status.message.text
    assert served.requests == []


async def test_a_model_that_never_comes_to_an_end(endpoint) -> None:
    def more() -> str:
        return "more"

    served = endpoint(lambda request: ScriptedReply(tool_calls=[("more", {})]))
    async with parley.connect(made(served, tools=[more], max_rounds=3)) as remote:
        task = await remote.send("Go on")
    assert task.state is TaskState.FAILED
    assert "called tools 3 times" in task.status.message.text
    assert len(served.requests) == 3


async def test_an_endpoint_that_refuses_is_the_operators_to_know(raw, caplog) -> None:
    raw.will(refusal(401, "Incorrect API key provided: k-secret"))
    agent = llm_agent("Helper", model="m", base_url=raw.url, api_key="k-secret")
    async with parley.connect(agent) as remote:
        task = await remote.send("Hello?")
    assert task.state is TaskState.FAILED
    assert task.status.message.text == (
        "The language model does not accept this agent's credentials."
    )
    assert "set OPENAI_API_KEY" in caplog.text
    assert "k-secret" not in caplog.text


async def test_a_canceled_task_stops_asking(endpoint) -> None:
    wait, let_go = held()
    served = endpoint(lambda request: ScriptedReply(text="Late.", hold=wait))
    try:
        async with parley.connect(made(served)) as remote:
            task = await remote.send("Hello?", return_immediately=True)
            await until(lambda: served.requests)
            assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    finally:
        let_go()


async def test_a_server_does_not_start_without_a_model(endpoint) -> None:
    with pytest.raises(Exception, match="PARLEY_MODEL_URL"):
        async with parley.connect(llm_agent("Helper")) as remote:
            await remote.send("Hello?")


async def test_a_model_that_wants_its_thinking_back_gets_it_until_the_answer(raw) -> None:
    def look() -> str:
        return "seen"

    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    raw.will(
        events({"reasoning_content": "Let me "}, {"reasoning_content": "look."},
               {"tool_calls": [call]}, {"finish": "tool_calls"}),
        events({"content": "Seen."}, {"finish": "stop"}),
    )  # fmt: skip
    model = OpenAIModel("m", base_url=raw.url, returns_thinking=True)
    async with parley.connect(llm_agent("Helper", model=model, tools=[look])) as remote:
        task = await remote.send("Look")
        await remote.send("And?", context_id=task.context_id)
    assert raw.bodies[1]["messages"][1]["reasoning_content"] == "Let me look."
    assert "Let me" not in repr(raw.bodies[2])
    assert "Let me" not in repr(task)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_is_not_whole_says_so(endpoint, reason) -> None:
    replies = iter(["Once", ""])
    served = endpoint(lambda request: ScriptedReply(text=next(replies), finish_reason=reason))
    async with parley.connect(made(served)) as remote:
        task = await remote.send("Tell.")
        empty = await remote.send("Tell.")
    assert (task.state, task.text) == (TaskState.COMPLETED, "Once")
    assert task.artifacts[0].metadata[RUN_PROGRESS]["finishReason"] == reason
    assert empty.state is (TaskState.FAILED if reason == "length" else TaskState.REJECTED)
    assert len(served.requests) == 2


async def test_a_reply_that_broke_off_is_asked_for_again(endpoint, monkeypatch) -> None:
    monkeypatch.setattr(model_run, "AGAIN", Backoff(first=0.001, longest=0.002))
    cuts = iter([True, False, True, True, True, True])
    served = endpoint(lambda request: ScriptedReply(text="One two.", is_cut=next(cuts)))
    async with parley.connect(made(served)) as remote:
        task = await remote.send("Count.")
        lost = await remote.send("Count.")
    assert (task.state, task.text) == (TaskState.COMPLETED, "One two.")
    assert (lost.state, len(served.requests)) == (TaskState.FAILED, 6)
    assert "was interrupted at each attempt" in lost.status.message.text


async def test_an_empty_reply_is_asked_for_again(endpoint) -> None:
    replies = iter(["", "Here."])
    async with parley.connect(made(endpoint(lambda request: next(replies)))) as remote:
        assert (await remote.send("Where?")).text == "Here."


async def test_without_an_endpoint_a_script_answers_and_the_log_says_so(caplog) -> None:
    agent = llm_agent("Helper", model="m", script=lambda request: f"You said {request.said}.")
    async with parley.connect(agent) as remote:
        assert (await remote.send("hi")).text == "You said hi."
    assert "a script answers instead of m" in caplog.text


async def test_a_loop_runs_in_any_skill_and_may_only_return(endpoint) -> None:
    served = endpoint(lambda request: request.said.upper())
    loop = ModelLoop("m", base_url=served.url, memory_tokens=0)
    agent = Agent("Shouter")

    @agent.skill
    async def shout(turn: Turn) -> str:
        """Shouts."""
        one = await loop.run(turn, "first", key="one", writes=False)
        two = await loop.run(turn, writes=False)
        return f"{one}, {two}"

    async with parley.connect(agent) as remote:
        task = await remote.send("second")
    assert str(task) == "FIRST, SECOND"


async def test_tools_of_ones_own_are_remembered_and_opened_for_each_turn(endpoint) -> None:
    class Lamp:
        name, description = "lamp", "Switches the lamp."
        parameters: ClassVar = {"type": "object", "properties": {}}
        calls = 0

        async def call(self, arguments, *, key):
            self.calls += 1
            return ToolResult(parts=(Part(text=f"lamp {self.calls}"),))

    lamp, opened = Lamp(), []

    class Room:
        @asynccontextmanager
        async def open_tools(self, turn):
            opened.append(turn.number)
            yield [lamp]
            opened.append("closed")

    def script(request):
        if len(request.tool_results) == 3:
            return " / ".join(request.tool_results)
        name = "ask_user" if request.tool_results else "lamp"
        both = [(name, {"question": "More?"})]
        return ScriptedReply(tool_calls=both if request.tool_results else [*both, ("lamp_2", {})])

    agent = made(endpoint(script), tools=[lamp, Room()], ask_user=True)
    async with parley.connect(agent) as remote:
        task = await remote.send("Light!")
        assert task.state is TaskState.INPUT_REQUIRED
        task = await remote.send("No", task=task)
    assert task.text == "lamp 1 / lamp 2 / No"
    assert lamp.calls == 2
    assert opened == [1, 2, "closed"] or opened == [1, "closed", 2, "closed"]


class Stock:
    """A tool with this name that returns its owner."""

    description = "Looks something up."
    parameters: ClassVar = {"type": "object", "properties": {}}

    def __init__(self, name: str, owner: str) -> None:
        self.name, self.owner = name, owner

    async def call(self, arguments, *, key):
        return ToolResult(parts=(Part(text=self.owner),))


class Shelf:
    """A source that may be unavailable."""

    is_away = False

    def __init__(self, owner: str, *names: str) -> None:
        self.tools = [Stock(name, owner) for name in names]

    @asynccontextmanager
    async def open_tools(self, turn):
        if self.is_away:
            raise ConnectionError("away")
        yield self.tools


async def test_a_call_goes_to_no_other_source_when_its_own_is_away(endpoint) -> None:
    first, second = Shelf("first", "find"), Shelf("second", "find")

    def script(request):
        if len(request.tool_results) == 2:
            return " / ".join(request.tool_results)
        if request.tool_results:
            return ScriptedReply(tool_calls=[("find", {})])
        return ScriptedReply(tool_calls=[("ask_user", {"question": "Go on?"})])

    agent = made(endpoint(script), tools=[first, second], ask_user=True)
    async with parley.connect(agent) as remote:
        asked = await remote.send("Go")
        first.is_away = True
        task = await remote.send("yes", task=asked)
    assert task.text.startswith("yes / Error: there is no tool 'find'")
    assert "find_2" in task.text


def test_every_public_name_is_there() -> None:
    for name in parley.llm.__all__:
        assert getattr(parley.llm, name) is not None, name
    assert set(parley.llm.__all__) <= set(dir(parley.llm))


def test_what_cannot_be() -> None:
    with pytest.raises(TypeError, match=r"tools=\["):
        ModelLoop(tools="https://example.com")
    with pytest.raises(TypeError, match="a tool must be a function"):
        ModelLoop(tools=[3])
    with pytest.raises(ValueError, match="turn of a token budget"):
        TokenBudget(turn=0)
    assert TokenBudget(turn=1).turn == 1
    assert issubclass(RunStopped, Exception)


@pytest.mark.slow
async def test_a_package_that_a_tool_needs_is_missed_when_the_server_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.llm.tool_calls.find_spec", lambda name: None)
    helper = llm_agent(
        "Helper", model="m", script=lambda request: "Hi", tools=[McpServer.stdio("x", name="lift")]
    )
    with pytest.raises(Exception, match=r'lift need the package mcp: pip install "parley-a2a\[mcp'):
        async with parley.connect(helper) as remote:
            await remote.send("Hello")


async def test_each_call_of_a_reply_gets_one_result_under_its_own_id(raw, monkeypatch) -> None:
    monkeypatch.setattr("parley.llm.tool_calls.MAX_CALLS", 5)

    async def look(what: str) -> str:
        return what

    def reply(*calls):
        made = [
            {"index": n, "id": "c", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
        return events({"content": "Hm."}, {"tool_calls": made}, {"finish": "tool_calls"})

    asked = ("ask_user", '{"question":" "}'), ("ask_user", '{"question":7}')
    calls = ("look", '{"what":""}'), ("look", "{"), ("", "{}"), *asked, ("look", "{}")
    end = events({"content": " "}, {"finish": "length"})
    raw.will(reply(*calls), end, reply(calls[0]), end)
    async with parley.connect(made(raw, tools=[look], ask_user=True)) as remote:
        async with remote.stream("Go") as stream:
            seen = [run_progress(e) async for e in stream if isinstance(e, TaskStatusUpdateEvent)]
        task = await remote.get(stream.task_id)
        await remote.send("Again", context_id=task.context_id)
    assert task.text == "Hm."  # an empty reply leaves the text before the calls
    assert [tool["type"] for tool in raw.bodies[0]["tools"]] == ["function"] * 2
    _, said, *results = raw.bodies[1]["messages"]
    sent = [(call["id"], call["type"], call["function"]["name"]) for call in said["tool_calls"]]
    names = ["look", "look", "unknown", "ask_user", "ask_user", "look"]
    ids = ["c", "c_2", "c_3", "c_4", "c_5", "c_6"]
    assert sent == [(ids[n], "function", names[n]) for n in range(6)]
    assert [each["tool_call_id"] for each in results] == ids
    texts = ["nothing", "Error: the arg", "Error: there", *["Error: question"] * 2, "Error: only 5"]
    assert all(each["content"].startswith(texts[n]) for n, each in enumerate(results))
    # An id of an earlier exchange is not reused.
    assert raw.bodies[3]["messages"][-1]["tool_call_id"] == "c_7"
    shown = [each for each in seen if each and each["kind"] == "toolResult"]
    assert {each["id"] for each in shown if "isError" in each} == {*ids[1:5]}


async def test_thinking_counts_where_an_endpoint_does_not_report_usage(raw) -> None:
    for deltas in (
        [{"content": "<think>" + "x" * 400 + "</think>Yes."}],
        [{"reasoning": "x" * 400}, {"content": "Yes."}],
    ):
        raw.will(events(*deltas, {"finish": "stop"}, usage=False))
        async with parley.connect(made(raw)) as remote:
            task = await remote.send("Hello?")
        asked, replied = estimated(raw.bodies[0]["messages"]), estimated(["Yes.", []])
        assert spent_on(task) == Spent(tokens=asked + replied + 100)


async def test_an_answer_of_a_type_is_found_among_words(raw) -> None:
    values = ['{"name": "Oslo"}', '{"name": "Oslo", "people": 7} is it']
    raw.will(*[events({"content": each}, {"finish": "stop"}) for each in values])
    async with parley.connect(made(raw, output=City)) as remote:
        task = await remote.send("A city")
    data = {"name": "Oslo", "people": 7}
    assert task.artifacts[0].parts == (Part(data=data, media_type="application/json"),)
    assert raw.bodies[1]["messages"][2] == {"role": "assistant", "content": values[0]}
