"""``McpBridge`` in one process, with the official client in both generations of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import mcp_types
import msgspec
import pytest
from mcp import Client, MCPError, types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim

from parley import Agent, find
from parley.extensions.declared import SkillSchema, SkillSchemas
from parley.mcp.agents import BridgedAgent, BridgedAgents
from parley.mcp.bridge import McpBridge, NoAgents
from parley.mcp.calls import TASKS, Handles, UnknownHandle
from parley.mcp.questions import form_schema, object_schema
from parley.model.cards import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from parley.model.struct import encode
from parley.registry.catalog.entries import CatalogEntry
from parley.registry.client.found import FoundAgent
from parley.registry.client.remote_registry import RemoteRegistry
from tests.integrations.mcp import workshop
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

MODES = ("auto", "legacy")


@asynccontextmanager
async def bridged(*agents: Any, **options: Any) -> AsyncIterator[McpBridge]:
    bridge = McpBridge(*(agents or (workshop.agent,)), **options)
    try:
        assert await bridge.load() == []
        yield bridge
    finally:
        await bridge.aclose()


def answering(asked: list[Any], action: Literal["accept", "decline", "cancel"] = "accept") -> Any:
    """Return the callback with which a host asks its user."""

    async def elicit(context: Any, params: types.ElicitRequestFormParams) -> types.ElicitResult:
        asked.append((params.message, params.requested_schema))
        if action != "accept":
            return types.ElicitResult(action=action)
        fields = params.requested_schema["properties"]
        content: Any = {"answer": "it is red"}
        if "name" in fields:
            content = {"name": "Ann", "size": "small"}
        return types.ElicitResult(action="accept", content=content)

    return elicit


def text_of(result: types.CallToolResult) -> str:
    return "\n".join(each.text for each in result.content if isinstance(each, types.TextContent))


@pytest.mark.parametrize("mode", MODES)
async def test_a_skill_with_a_bad_schema_is_no_tool_and_the_others_are(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = SkillSchema(input={"type": "object", "properties": 5})
    agent = Agent("Shop", extensions=[SkillSchemas.of_skills({"paint": bad})])

    @agent.skill
    async def paint(text: str) -> str:
        """Paints a car."""
        return text

    @agent.skill
    async def wash(text: str) -> str:
        """Washes a car."""
        return text

    async with bridged(agent) as bridge, Client(bridge.server, mode=mode) as host:
        names = [tool.name for tool in (await host.list_tools()).tools]
    assert "wash" in names
    assert "paint" not in names
    assert "paint of shop cannot be a tool: its input schema is not a JSON Schema" in caplog.text


@pytest.mark.parametrize("mode", MODES)
async def test_skills_are_tools_with_their_schemas_and_cards_are_resources(mode: str) -> None:
    shown: list[str | None] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        shown.append(message)

    async with bridged() as bridge, Client(bridge.server, mode=mode) as host:
        tools = {tool.name: tool for tool in (await host.list_tools()).tools}
        quoted = await host.call_tool("quote", {"car": "Golf", "doors": 2})
        wrong = await host.call_tool("quote", {"car": 3})
        repaired = await host.call_tool("repair", {"message": "go"}, progress_callback=progress)
        await until(lambda: "as new" in shown)
        (resource,) = (await host.list_resources()).resources
        read = await host.read_resource(resource.uri)
        with pytest.raises(MCPError, match="no tool"):
            await host.call_tool("fly", {})
    assert list(tools)[:5] == ["quote", "repair", "sell", "slow", "caller"]
    assert tools["quote"].input_schema["required"] == ["car"]
    assert tools["quote"].output_schema is not None
    assert "A Golf with two doors" in (tools["quote"].description or "")
    assert quoted.structured_content == {"price": 200.0, "currency": "EUR"}
    assert wrong.is_error
    assert "expected text" in text_of(wrong)
    assert text_of(repaired) == "as good as new"
    assert shown == ["looking", "drill: 1 of 2", "as ", "good ", "as new"]
    (card,) = read.contents
    assert isinstance(card, types.TextResourceContents)
    assert msgspec.json.decode(card.text)["name"] == "Workshop"


@pytest.mark.parametrize("mode", MODES)
async def test_what_an_agent_asks_the_user_is_asked(mode: str) -> None:
    asked: list[Any] = []
    async with (
        bridged() as bridge,
        Client(bridge.server, mode=mode, elicitation_callback=answering(asked)) as host,
    ):
        sold = await host.call_tool("sell", {"message": "the Golf"})
    assert text_of(sold) == "sold to Ann (small), it is red"
    assert [message for message, _ in asked] == ["Who buys?", "Why?"]
    size = asked[0][1]["properties"]["size"]
    assert (size["type"], sorted(size["enum"])) == ("string", ["large", "small"])


@pytest.mark.parametrize("mode", MODES)
async def test_a_user_who_declines_ends_the_task_and_one_who_waits_does_not(mode: str) -> None:
    async with bridged() as bridge:
        async with Client(
            bridge.server, mode=mode, elicitation_callback=answering([], "decline")
        ) as host:
            declined = await host.call_tool("sell", {"message": "x"})
        async with Client(
            bridge.server, mode=mode, elicitation_callback=answering([], "cancel")
        ) as host:
            waiting = await host.call_tool("sell", {"message": "x"})
            handle = waiting.structured_content["task"]
            answered = await host.call_tool("cancel_task", {"task": handle})
    assert declined.is_error
    assert "declined" in text_of(declined)
    assert text_of(answered) == "The task is canceled."


async def test_a_host_that_cannot_ask_is_told_how_to_answer() -> None:
    async with bridged() as bridge, Client(bridge.server) as host:
        asked = await host.call_tool("sell", {"message": "x"})
        handle = asked.structured_content["task"]
        wrong = await host.call_tool("answer_task", {"task": handle, "answer": {"name": "Bob"}})
        given = '{"name": "Bob", "size": "large"}'
        why = await host.call_tool("answer_task", {"task": handle, "answer": given})
        sold = await host.call_tool("answer_task", {"task": handle, "answer": "it is cheap"})
        late = await host.call_tool("answer_task", {"task": handle, "answer": "again"})
        with pytest.raises(MCPError, match="no such task"):
            await host.call_tool("follow_task", {"task": "workshop"})
        unnamed = await host.call_tool("follow_task", {"wait_seconds": 1})
    assert "Who buys?" in text_of(asked)
    assert "answer_task" in text_of(asked)
    assert '"required":["name","size"]' in text_of(asked)
    assert "size" in text_of(wrong)
    assert text_of(why).startswith("The agent asks: Why?")
    assert text_of(sold) == "sold to Bob (large), it is cheap"
    assert late.is_error
    assert unnamed.is_error
    assert "missing required field `task`" in text_of(unnamed)


@pytest.mark.parametrize("mode", MODES)
async def test_a_long_task_is_started_followed_and_canceled_by_its_name(mode: str) -> None:
    workshop.ended.clear()
    async with bridged(wait=0.2) as bridge, Client(bridge.server, mode=mode) as host:
        going = await host.call_tool("slow", {"message": "0.5"})
        handle = going.structured_content["task"]
        result = await host.call_tool("follow_task", {"task": handle, "wait_seconds": 20})
        started = await host.call_tool(
            "start_task", {"tool": "slow", "arguments": {"message": "60"}}
        )
        other = started.structured_content["task"]
        looked = await host.call_tool("follow_task", {"task": other, "wait_seconds": 0})
        canceled = await host.call_tool("cancel_task", {"task": other})
        assert workshop.ended == ["canceled"]
        bridge.calls.wait = 60
        at_work = asyncio.Event()

        async def progress(done: float, total: float | None, message: str | None) -> None:
            at_work.set()

        call = asyncio.ensure_future(
            host.call_tool("slow", {"message": "60"}, progress_callback=progress)
        )
        await asyncio.wait_for(at_work.wait(), 10)
        call.cancel()
        await until(lambda: workshop.ended == ["canceled", "canceled"])
    assert "still running" in text_of(going)
    assert text_of(result) == "done at last"
    assert "still running" in text_of(looked)
    assert text_of(canceled) == "The task is canceled."


# -- the tasks extension ---------------------------------------------------------------------------


class TaskHandle(types.Result):
    """The result of a call that continues as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None = None
    poll_interval_ms: int | None = None


class AnyParams(types.RequestParams):
    """The parameters of the methods of the extension."""

    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(types.Request[AnyParams, str]):
    """A request of the extension."""

    name_param = "taskId"
    params: AnyParams


class AnyResult(types.Result):
    """Any result of the extension."""

    model_config = {"extra": "allow"}


async def asked_for(session: Any, method: str, task_id: str, **given: Any) -> dict[str, Any]:
    request = TaskRequest(method=method, params=AnyParams(task_id=task_id, **given))
    result = await session.send_request(request, AnyResult)
    return dict(result.model_dump(by_alias=True, exclude_none=True))


class Tasks(ClientExtension):
    """A host with the tasks extension: it polls, and replies to questions of tasks."""

    identifier = TASKS

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.cancels = False

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskHandle, resolve=self.resolve)]

    async def resolve(self, handle: TaskHandle, context: ClaimContext) -> types.CallToolResult:
        answered: set[str] = set()
        if self.cancels:
            await asked_for(context.session, "tasks/cancel", handle.task_id)
        while True:
            task = await asked_for(context.session, "tasks/get", handle.task_id)
            self.seen.append(task)
            if task["status"] == "cancelled":
                return types.CallToolResult(content=[], is_error=True)
            if task["status"] == "completed":
                return types.CallToolResult.model_validate(task["result"], by_name=False)
            for key in set(task.get("inputRequests", ())) - answered:
                answered.add(key)
                content = {"name": "Ann", "size": "small"}
                if "Why" in task["inputRequests"][key]["params"]["message"]:
                    content = {"answer": "it is red"}
                response = {key: {"action": "accept", "content": content}}
                await asked_for(
                    context.session, "tasks/update", handle.task_id, input_responses=response
                )


async def test_a_long_call_is_a_task_of_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.mcp.calls.TASK_SECONDS", 0.1)
    agent, tasks = Agent("Slow"), Tasks()

    @agent.skill
    async def sell(turn: Any) -> str:
        """Sells, slowly."""
        await turn.working("looking for a buyer")
        await asyncio.sleep(0.3)
        return f"sold: {(await turn.ask('Why?')).text}"

    async with (
        bridged(agent) as bridge,
        Client(bridge.server, extensions=[tasks], elicitation_callback=answering([])) as host,
    ):
        assert TASKS in (host.server_capabilities.extensions or {})
        sold = await host.call_tool("sell", {"message": "go"})
        tasks.cancels = True
        canceled = await host.call_tool("sell", {"message": "go"})
        with pytest.raises(MCPError, match="no such task"):
            await asked_for(host.session, "tasks/get", "slow.of-another")
        async with Client(bridge.server) as other:
            with pytest.raises(MCPError) as refused:
                await asked_for(other.session, "tasks/get", tasks.seen[0]["taskId"])
    assert text_of(sold) == "sold: it is red"
    assert canceled.is_error
    statuses = list(dict.fromkeys(task["status"] for task in tasks.seen))
    assert statuses == ["working", "input_required", "completed", "cancelled"]
    assert tasks.seen[0]["pollIntervalMs"] == 1000
    assert refused.value.code == mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY


# -- many agents -----------------------------------------------------------------------------------


async def test_tools_of_several_agents_have_their_names_and_one_that_is_away_is_left_out() -> None:
    other = Agent("Paint shop")

    @other.skill
    async def quote() -> list[int]:
        """Says what paint costs."""
        return [1, 2]

    bridge = McpBridge(workshop.agent, other, "http://127.0.0.1:9/none")
    try:
        (problem,) = await bridge.load()
        async with Client(bridge.server) as host:
            names = [tool.name for tool in (await host.list_tools()).tools]
            nothing = await host.call_tool("paint_shop_quote", {})
            result = await host.call_tool("paint_shop_quote", {"message": "a Golf"})
    finally:
        await bridge.aclose()
    assert "127.0.0.1:9" in problem
    assert {"workshop_quote", "paint_shop_quote"} <= set(names)
    assert nothing.is_error
    assert "nothing to send" in text_of(nothing)
    assert result.structured_content == {"result": [1, 2]}
    alone = McpBridge("http://127.0.0.1:9/none")
    with pytest.raises(NoAgents):
        await alone.load()
    with pytest.raises(ValueError, match="give an agent"):
        McpBridge()


def card_of(address: str, name: str, *skills: str) -> AgentCard:
    """Return the card of an agent at an address."""
    return AgentCard(
        name=name,
        description=name,
        version="1",
        capabilities=AgentCapabilities(),
        default_input_modes=("text/plain",),
        default_output_modes=("text/plain",),
        supported_interfaces=(
            AgentInterface(url=address, protocol_binding="JSONRPC", protocol_version="1.0"),
        ),
        skills=tuple(AgentSkill(id=each, name=each, description=each, tags=()) for each in skills),
    )


def found_at(address: str, name: str, *skills: str) -> FoundAgent:
    """Return an agent as a registry lists it, with its card in the entry."""
    data = msgspec.json.decode(encode(card_of(address, name, *skills)))
    identifier = f"urn:air:{address.partition('://')[2]}:agent:x"
    kind = "application/a2a-agent-card+json"
    return FoundAgent(
        entry=CatalogEntry(identifier=identifier, display_name=name, type=kind, data=data)
    )


async def whose(*agents: Any, found: Any = ()) -> dict[str, str]:
    """Return the tools of a new bridge, with the addresses of their agents."""
    async with bridged(*agents, found=found) as bridge:
        tools = bridge.agents.tools
        return {name: tool.agent.card.supported_interfaces[0].url for name, tool in tools.items()}


async def test_a_found_agent_has_one_name_whatever_else_is_found() -> None:
    good = found_at("https://good.example", "Booking", "book")
    bad = found_at("https://bad.example", "Booking", "book")
    own = card_of("https://own.example", "Booking", "book")
    seen: dict[str, set[str]] = {}
    for named in ([], [own], [own, card_of("https://x.example", "Other", "do")]):
        for found in ([good], [bad, good], [good, bad]):
            for name, address in (await whose(*named, found=found)).items():
                seen.setdefault(name, set()).add(address)
    assert all(len(addresses) == 1 for addresses in seen.values()), seen
    assert seen["booking_book"] == seen["book"] == {"https://own.example"}
    marked = [name for name in seen if name.startswith("booking_") and len(name) > 20]
    assert len(marked) == 2


async def test_named_agents_of_one_name_are_told_apart_by_their_addresses() -> None:
    one = card_of("https://one.example", "Paint", "mix")
    two = card_of("https://two.example", "Paint", "mix")
    names = await whose(one, two)
    assert names == await whose(two, one)
    assert len(names) == 2
    assert "paint_mix" not in names


async def test_an_agent_that_answers_later_takes_no_name_over() -> None:
    late = card_of("https://late.example", "Car", "repair_find")
    early = card_of("https://early.example", "Car repair", "find")
    namesake = card_of("https://namesake.example", "Car repair", "find")
    agents = BridgedAgents([late, namesake, early], [], {})
    read, away = agents._read, [late, namesake]

    async def reading(agent: BridgedAgent) -> str:
        return "away" if agent.reference in away else await read(agent)

    agents._read = reading  # type: ignore[method-assign]
    assert await agents.load() == ["away", "away"]
    away.clear()
    assert await agents.load() == []
    whose = {name: tool.agent.card for name, tool in agents.tools.items()}
    assert whose["car_repair_find"] is not None
    assert whose["car_repair_find"].supported_interfaces[0].url == "https://early.example"
    assert len(whose) == 3
    await agents.aclose()


async def test_a_registry_is_searched_and_what_it_finds_is_asked() -> None:
    catalog = {
        "specVersion": "1.0",
        "entries": [
            {
                "identifier": "urn:air:example.com:agent:paint",
                "displayName": "Painter",
                "description": "Paints cars in any colour",
                "type": "application/a2a-agent-card+json",
                "url": "http://10.0.0.1/card.json",
            }
        ],
    }
    registry = RemoteRegistry(catalog)
    found = await find("paint a car", registry=catalog)
    async with Client(McpBridge(registry=registry).server) as host:
        names = [tool.name for tool in (await host.list_tools()).tools]
        result = await host.call_tool("find_agents", {"need": "paint a car", "limit": 3})
        away = await host.call_tool(
            "ask_agent", {"identifier": found[0].identifier, "message": "red"}
        )
        unknown = await host.call_tool("ask_agent", {"identifier": "urn:air:x.y:z", "message": "a"})
    assert {"find_agents", "ask_agent"} <= set(names)
    (entry,) = result.structured_content["results"]
    assert entry["entry"]["displayName"] == "Painter"
    assert entry["score"] == found[0].score
    assert away.is_error
    assert unknown.is_error


# -- values ----------------------------------------------------------------------------------------


def test_a_handle_is_good_for_its_caller_alone() -> None:
    handles = Handles(b"k" * 32)
    made = handles.make("workshop", "task.1", "ann")
    assert handles.read(made, "ann") == ("workshop", "task.1")
    for wrong, principal in ((made, "bob"), (made[:-1] + "x", "ann"), ("workshop.t", "ann")):
        with pytest.raises(UnknownHandle):
            handles.read(wrong, principal)
    assert Handles().read(Handles().make("a/b", "t")) == ("a/b", "t")
    assert Handles(b"j" * 32).read(handles.make("a", "t", None), None) == ("a", "t")
    with pytest.raises(UnknownHandle):
        handles.read(handles.make("a", "t", None), "ann")


@pytest.mark.parametrize(
    ("schema", "kind", "fields"),
    [
        (None, "text", {"answer": "string"}),
        ({"type": "integer"}, "value", {"answer": "integer"}),
        ({"enum": ["a", "b"]}, "value", {"answer": "string"}),
        (
            {"$ref": "#/$defs/X", "$defs": {"X": {"type": "boolean"}}},
            "value",
            {"answer": "boolean"},
        ),
        ({"type": "object", "properties": {"a": {"type": "number"}}}, "fields", {"a": "number"}),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, "json", {"answer": "string"}),
        ({"type": "array", "items": {"type": "integer"}}, "json", {"answer": "string"}),
    ],
    ids=["none", "number", "choice", "reference", "flat", "nested", "list"],
)
def test_a_form_has_what_forms_can_have(schema: Any, kind: str, fields: dict[str, str]) -> None:
    form, how = form_schema(schema)
    assert how == kind
    assert {name: field["type"] for name, field in form["properties"].items()} == fields


def test_the_schema_of_a_tool_is_that_of_an_object() -> None:
    named = {"$ref": "#/$defs/X", "$defs": {"X": {"type": "object", "title": "X"}}}
    schema, wraps = object_schema(named, "result")
    assert (schema["title"], wraps) == ("X", False)
    schema, wraps = object_schema({"type": "array", "$defs": {"Y": {}}}, "result")
    assert (schema["required"], schema["$defs"], wraps) == (["result"], {"Y": {}}, True)
