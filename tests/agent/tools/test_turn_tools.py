"""``turn.tools``: MCP servers over HTTP and stdio, in their own processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, BlockingTurn, McpServer, McpServerUnavailable, TaskState, ToolResult, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.mcp.tool_calls import McpSessions
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
    """Return an agent that calls the tool named in a message, and the list of results."""
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


@pytest.mark.slow
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


# -- stored results ------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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


# -- processes and threads -----------------------------------------------------------------------


@pytest.mark.slow
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
