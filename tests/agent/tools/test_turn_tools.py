"""``turn.tools``: MCP servers over HTTP and stdio, in processes of their own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, BlockingTurn, McpServer, McpServerUnavailable, TaskState, ToolResult, Turn
from parley.extensions.questions import question
from parley.extensions.usage import run_progress
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.mcp.tool_calls import McpSessions
from parley.model.operations import CancelTaskRequest, GetTaskRequest
from parley.model.tasks import TaskStatusUpdateEvent
from parley.security.egress import Egress
from parley.store.admin.sqlite import SqliteAdmin
from parley.store.audit.trail import AuditFilter
from parley.store.memory import MemoryTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.agent.tools.shop import SCRIPT, Shop, running_shop
from tests.engine.fleet import Fleet, until_state
from tests.engine.in_process import mortal_fleet as mortal_fleet
from tests.engine.talk import Talk
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running_shop(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture
def shop(process: Shop) -> Shop:
    process.forget()
    return process


@asynccontextmanager
async def served(
    agent: Agent, store: TaskStore | None = None, egress: Egress | None = None
) -> AsyncIterator[Talk]:
    host = Host(placed(agent), store or MemoryTaskStore(), ServerOptions(drain=0, egress=egress))
    await host.start()
    try:
        yield Talk(host.services[""], host)
    finally:
        await host.stop()


def calling(*servers: McpServer, **options: Any) -> tuple[Agent, list[ToolResult]]:
    """Return an agent that calls the tool that a message names, and the results."""
    agent, results = Agent("Mechanic"), list[ToolResult]()

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        data = turn.message.parts[0].text or ""
        name, _, value = data.partition(" ")
        arguments: dict[str, Any] = {}
        if value:
            key, _, given = value.partition("=")
            arguments[key] = given
        async with turn.tools(*servers) as tools:
            result = await tools.call(name, arguments, **options)
        results.append(result)
        return result.text

    return agent, results


# -- results -------------------------------------------------------------------------------------


async def test_a_tool_with_a_schema_that_is_too_large_is_left_out_or_refused(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.mcp.session.MAX_AGE", -1)  # each use lists anew
    small = McpServer(shop.url, max_schema_bytes=100)
    wanted = McpServer(shop.url, max_schema_bytes=100, tools=["raise_platform"])
    agent, names = Agent("Mechanic"), list[str]()

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        names.extend(tool.tool for tool in await turn.tools(small))
        await turn.tools(small)
        with pytest.raises(
            McpServerUnavailable, match=r"raise_platform .* more than 100: raise max"
        ):
            await turn.tools(wanted)
        return "done"

    async with served(agent) as caller:
        assert (await caller.task("go")).state is TaskState.COMPLETED
    assert "raise_platform" not in names
    assert "photo" in names
    said = "the tool 'raise_platform' of the MCP server http://127.0.0.1"
    assert caplog.text.count(said) == 1  # however often the tools are listed


async def test_a_server_whose_list_of_tools_is_too_large_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.mcp.session.MOST_LISTED_BYTES", 200)
    agent, server = Agent("Mechanic"), McpServer(shop.url)

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        with pytest.raises(McpServerUnavailable, match="lists tools of more than 200 bytes"):
            await turn.tools(server)
        return "done"

    async with served(agent) as caller:
        assert (await caller.task("go")).state is TaskState.COMPLETED


async def test_results_are_parts_and_data_with_their_schema(shop: Shop) -> None:
    agent, seen, server = Agent("Mechanic"), {}, McpServer(shop.url)

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        async with turn.tools(server) as tools:
            lift = tools["raise_platform"]
            assert lift.parameters["required"] == ["height_meters"]
            assert lift.output_schema is not None
            seen["lift"] = await lift.call({"height_meters": 2}, key="up")
            seen["photo"] = await tools.call("photo")
            seen["wrong"] = await tools.call("raise_platform", {})
            seen["fail"] = await tools.call("fail")
        return "done"

    async with served(agent) as caller:
        assert (await caller.task("go")).state is TaskState.COMPLETED
    assert seen["lift"].data == {"height_meters": 2.0}
    text, image, link = seen["photo"].parts
    assert (text.text, image.raw, image.media_type) == ("the car", b"\x89PNG", "image/png")
    assert (link.url, link.filename) == ("https://example.com/manual.pdf", "manual.pdf")
    assert seen["wrong"].is_error
    assert "height_meters" in seen["wrong"].text
    assert seen["fail"].is_error
    assert shop.did == ["raised 2"]


@pytest.mark.parametrize("progress", [True, False])
async def test_the_progress_of_a_call_is_shown_now_and_then_and_not_kept(
    shop: Shop, progress: bool
) -> None:
    agent, server = Agent("Mechanic"), McpServer(shop.url)

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        async with turn.tools(server, progress=progress) as tools:
            return (await tools.call("polish", {"times": 500})).text

    async with served(agent) as caller:
        events = [item.event async for item in caller.stream("go")]
        statuses = [event for event in events if isinstance(event, TaskStatusUpdateEvent)]
        shown = [found for event in statuses if (found := run_progress(event))]
        asked = GetTaskRequest(id=statuses[-1].task_id)
        task = await caller.service.get_task(asked, caller.context)
    assert task.text == "polished"
    assert len(task.history) == 1
    if progress:
        first = {"kind": "toolProgress", "name": "polish", "text": "polished 0"}
        assert shown[0] == first
        assert len(shown) < 100
    else:
        assert not shown


async def test_names_are_unique_and_what_is_too_much_is_refused(shop: Shop) -> None:
    one = McpServer(shop.url, name="one", tools=["read_code", "noise"], max_result_bytes=1000)
    two = McpServer(shop.url, name="two", tools=["read_code"], headers={"X-Bay": "2"})
    agent, seen = Agent("Mechanic"), dict[str, Any]()

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        async with turn.tools(one, two) as tools:
            seen["names"] = [tool.name for tool in tools]
            seen["large"] = await tools.call("noise", {"size": 5000})
            with pytest.raises(KeyError, match="there are: one_read_code, noise, two_read_code"):
                await tools.call("read_code")
        for server, said in (
            (McpServer(shop.url, max_tools=2), "name those that are needed"),
            (McpServer(shop.url, tools=["fly"]), "has no tool fly"),
            (McpServer("http://127.0.0.1:9/mcp"), "cannot be used"),
            (McpServer.stdio("no-such-program"), "no-such-program"),
        ):
            with pytest.raises(McpServerUnavailable, match=said):
                await turn.tools(server)
        return "done"

    async with served(agent, egress=Egress.allowing(True)) as caller:
        assert (await caller.task("go")).state is TaskState.COMPLETED
    assert seen["names"] == ["one_read_code", "noise", "two_read_code"]
    assert seen["large"].is_error
    assert "the limit is 1,000" in seen["large"].text


async def test_a_call_has_a_time_limit_and_ends_with_its_task(shop: Shop) -> None:
    agent, results = calling(McpServer(shop.url, timeout=0.3))
    async with served(agent) as caller:
        await caller.task("order part=1")
    assert results[0].is_error
    assert "did not answer within 0.3 s" in results[0].text
    agent, _ = calling(McpServer(shop.url))
    async with served(agent) as caller:
        task = await caller.task("order part=2", return_immediately=True)
        await until(lambda: "ordered 2" in shop.did)
        await caller.service.cancel_task(CancelTaskRequest(id=task.id), caller.context)
        await until(lambda: "gave up 2" in shop.did)


# -- remembered ----------------------------------------------------------------------------------


async def test_a_call_is_made_once_however_often_the_function_runs(
    shop: Shop, tmp_path: Path
) -> None:
    server, agent = McpServer(shop.url), Agent("Mechanic")

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        async with turn.tools(server) as tools:
            first = await tools.call("raise_platform", {"height_meters": 1})
            second = await tools.call("raise_platform", {"height_meters": 2}, key="again")
            answer = await turn.ask("Go on?")
            with pytest.raises(ValueError, match="used twice"):
                await tools.call("read_code", key="again")
            code = await tools.call("read_code")
        return f"{first.data} {second.data} {code.text} {answer.text}"

    async with served(agent, SqliteTaskStore(tmp_path / "tasks.db", synchronous="OFF")) as caller:
        asked = await caller.task("go")
        ended = await caller.task("yes", task_id=asked.id)
    assert "'height_meters': 1.0} {'height_meters': 2.0} P0300 yes" in ended.text
    assert shop.did == ["raised 1", "raised 2", "read"]
    with SqliteAdmin(tmp_path / "tasks.db").audit() as reading:
        facts = [
            (fact.kind, fact.outcome, fact.details["tool"], fact.details["server"])
            for fact in reading.entries(AuditFilter(kind="tool"))
        ]
    assert facts == [
        ("tool.called", "", "raise_platform", shop.url),
        ("tool.returned", "", "raise_platform", shop.url),
    ] * 2 + [("tool.returned", "", "read_code", shop.url)]


@pytest.mark.parametrize("repeats", [False, True])
async def test_a_call_that_a_crash_interrupted_is_repeated_only_if_that_is_safe(
    shop: Shop, mortal_fleet: Fleet, repeats: bool
) -> None:
    agent, results = calling(McpServer(shop.url, repeats=repeats))
    first = await mortal_fleet.add(agent)
    task = await first.task("order part=3", return_immediately=True)
    await until(lambda: "ordered 3" in shop.did)
    second = await mortal_fleet.add(agent)
    await mortal_fleet.kill(first)
    shop.go.touch()
    await until_state(second, task.id, TaskState.COMPLETED)
    assert shop.did.count("ordered 3") == 1 + repeats
    assert results[-1].is_error is not repeats
    if not repeats:
        assert "not known whether it was executed" in results[-1].text


# -- questions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "legacy"), [("hand_over", False), ("sign", True)])
async def test_what_a_server_asks_the_caller_is_asked(shop: Shop, tool: str, legacy: bool) -> None:
    agent, results = calling(McpServer(shop.url, legacy=legacy))
    async with served(agent) as caller:
        asked = await caller.task(tool)
        assert asked.state is TaskState.INPUT_REQUIRED
        found = question(asked)
        assert found is not None
        assert found.schema["required"] == ["name"]
        again = await caller.task('{"name": 3}', task_id=asked.id)
        assert again.state is TaskState.INPUT_REQUIRED
        assert "does not fit" in again.text
        ended = await caller.task("Ann", task_id=asked.id)
        assert ended.state is TaskState.COMPLETED
        refused = await caller.task(tool)
        await caller.task("decline", task_id=refused.id)
    assert results[0].text.startswith(("handed over to Ann", "signed by Ann"))
    assert [each for each in shop.did if "Ann" in each] == [results[0].parts[0].text]
    assert "Ann" not in results[1].text


async def test_a_server_that_asks_only_once_is_not_called_again_after_a_crash(
    shop: Shop, mortal_fleet: Fleet
) -> None:
    agent, results = calling(McpServer(shop.url, legacy=True))
    first = await mortal_fleet.add(agent)
    task = await first.task("pay")
    assert task.state is TaskState.INPUT_REQUIRED
    await first.task("Ann", task_id=task.id, return_immediately=True)
    await until(lambda: "paid" in shop.did)
    second = await mortal_fleet.add(agent)
    await mortal_fleet.kill(first)
    shop.go.touch()
    await until_state(second, task.id, TaskState.COMPLETED)
    assert shop.did == ["paid"]
    assert "not known whether it was executed" in results[-1].text


# -- where it goes -------------------------------------------------------------------------------


async def test_an_address_that_a_caller_may_have_named_is_guarded(shop: Shop) -> None:
    agent, own = Agent("Mechanic"), McpServer(shop.url)

    @agent.skill(replies="task")
    async def named(turn: Turn) -> str:
        try:
            async with turn.tools(McpServer(turn.text)):
                return "reached"
        except McpServerUnavailable as error:
            return str(error)

    @agent.skill(replies="task")
    async def authors(turn: Turn) -> str:
        async with turn.tools(own) as tools:
            return str(len(tools))

    async with served(agent) as caller:
        refused = await caller.task(shop.url, request_metadata={"skill": "named"})
        reached = await caller.task("go", request_metadata={"skill": "authors"})
    assert "must not be called" in refused.text
    assert int(reached.text) > 5
    with pytest.raises(ValueError, match="without encryption"):
        McpServer("http://shop.example.com/mcp", auth="secret")
    with pytest.raises(ValueError, match="not in its address"):
        McpServer("https://me:secret@shop.example.com/mcp")


async def test_a_program_is_shared_by_threads_and_ends_with_the_server(tmp_path: Path) -> None:
    journal = tmp_path / "journal.txt"
    server = McpServer.stdio(sys.executable, str(SCRIPT), env={"JOURNAL": str(journal)})
    assert server.name == "shop_server"
    agent = Agent("Mechanic")

    @agent.skill(replies="task")
    def work(turn: BlockingTurn) -> str:
        with turn.tools(server) as tools:
            result = tools.call(turn.text)
            return f"{result.is_error} {result.text}"

    async with served(agent) as caller:
        codes = await asyncio.gather(*(caller.task("read_code") for _ in range(3)))
        assert {code.text for code in codes} == {"False P0300"}
        (services,) = caller.host._services
        sessions = services.shared(McpSessions)
        (session,) = sessions._kept.values()
        lost = await caller.task("stop")
        assert lost.text.startswith("True stop: ")
        assert session.retired
    assert sessions._kept == {}
