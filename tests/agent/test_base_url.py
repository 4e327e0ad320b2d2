"""A turn knows the public address of its agent, in every attempt and on every replica."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

import parley
from parley import Agent, BlockingTurn, CallContext, TaskState, Turn
from parley.host.host import agent_addresses
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.store.events import RecordKind, TurnStarted
from parley.store.memory import MemoryTaskStore
from tests.engine.fleet import Fleet, until_state
from tests.kit.records import private_records
from tests.kit.servers import grpc_of
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

SEEN = CallContext(base_url="https://agents.example/telling")
CONFIGURED = "https://agents.example/all"


def telling(**options: Any) -> Agent:
    agent = Agent("Telling", **options)

    @agent.skill
    async def tell(turn: Turn) -> str:
        if "ask" in turn.text:
            await turn.ask("Go on?")
        return turn.base_url or "unknown"

    @agent.skill
    def tell_from_thread(turn: BlockingTurn) -> str:
        return turn.base_url or "unknown"

    return agent


async def post(url: str, text: str = "Hi", task_id: str = "") -> Any:
    """Send a message to an address, whatever the card says, and return the result."""
    message: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    if task_id:
        message["taskId"] = task_id
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers={"A2A-Version": "1.0"}) as answer,
    ):
        return (await answer.json())["result"]


async def told(url: str) -> str:
    return str((await post(url))["message"]["parts"][0]["text"])


async def test_it_is_the_address_that_the_message_was_sent_to() -> None:
    async with serving(parley.asgi({"/telling": telling()})) as url:
        assert await told(f"{url}/telling") == f"{url}/telling"
        assert await told(f"{url}/a2a/telling") == f"{url}/a2a/telling"
        async with parley.connect(f"{url}/telling") as remote:
            reply = await remote.send("Hi", metadata={"skill": "tell_from_thread"})
            assert reply.text == f"{url}/telling"


async def test_it_is_the_configured_address_whatever_the_message_was_sent_to() -> None:
    tenants = {"acme": telling(key="acme")}
    app = parley.asgi({"/telling": telling()}, tenants=tenants, url=f"{CONFIGURED}/")
    async with serving(app) as url:
        for path, expected in (
            ("/telling", "/telling"),
            ("/a2a/telling", "/telling"),
            ("/acme", "/acme"),
            ("/a2a/acme", "/acme"),
        ):
            assert await told(url + path) == CONFIGURED + expected


async def test_over_grpc_only_a_configured_address_is_known() -> None:
    async with serving(parley.asgi(telling()), grpc=GrpcOptions(port=0)) as url:
        trusted = await grpc_of(url)
        async with parley.connect(url, binding="GRPC", trust_origins=trusted) as remote:
            assert (await remote.send("Hi")).text == "unknown"


async def test_the_turn_of_an_answer_has_the_address_that_the_answer_was_sent_to(
    mortal_fleet: Fleet,
) -> None:
    agent = telling()
    one, two = await mortal_fleet.add(agent), await mortal_fleet.add(agent)
    for address, expected in (("", SEEN.base_url), ("https://two.example", "https://two.example")):
        asked = await one.task("ask", context=SEEN)
        assert asked.state is TaskState.INPUT_REQUIRED
        answered = await two.task("yes", task_id=asked.id, context=CallContext(base_url=address))
        assert answered.artifacts[0].parts[0].text == expected


async def test_a_turn_that_a_killed_replica_began_still_has_it(mortal_fleet: Fleet) -> None:
    agent = Agent("Killed")

    @agent.skill(replies="task")
    async def tell(turn: Turn) -> str:
        while turn.attempt == 1:
            await turn.working("the first attempt, which never ends")
            await let_time_pass(0.01)
        return turn.base_url

    first = await mortal_fleet.add(agent)
    begun = await first.task("Hi", context=SEEN, return_immediately=True)
    second = await mortal_fleet.add(agent)
    await mortal_fleet.kill(first)
    ended = await until_state(second, begun.id, TaskState.COMPLETED)
    assert ended.artifacts[0].parts[0].text == SEEN.base_url


async def test_a_task_that_waits_for_a_worker_has_it(mortal_fleet: Fleet) -> None:
    agent = Agent("Delegated")

    @agent.skill(replies="task")
    async def tell(turn: Turn) -> str:
        return turn.base_url

    api = await mortal_fleet.add(agent, role="api")
    begun = await api.task("Hi", context=SEEN, return_immediately=True)
    (queued,) = await private_records(api.host.store, begun.id)
    assert queued.event == TurnStarted(turn=1, attempt=0)  # without the address
    worker = await mortal_fleet.add(agent, role="worker")
    ended = await until_state(worker, begun.id, TaskState.COMPLETED)
    assert ended.artifacts[0].parts[0].text == SEEN.base_url


@pytest.mark.parametrize("configured", [None, CONFIGURED])
async def test_it_is_kept_only_where_none_is_configured(configured: str | None) -> None:
    store = MemoryTaskStore()
    async with serving(parley.asgi(telling(), store=store, url=configured)) as url:
        task_id = (await post(url, "ask"))["task"]["id"]
        record = await store.load(task_id)
        assert record is not None
        assert record.base_url == ("" if configured else url)


async def test_it_adds_no_record_to_the_log_of_a_task() -> None:
    """A task of an anonymous caller over HTTP has no private record."""
    agent, store = Agent("Plain"), MemoryTaskStore()

    @agent.skill(replies="task")
    async def tell(turn: Turn) -> str:
        return turn.base_url

    async with serving(parley.asgi(agent, store=store)) as url:
        task_id = (await post(url))["task"]["id"]
        assert await private_records(store, task_id) == []
        record = await store.load(task_id)
        assert record is not None
        assert record.base_url == url


async def test_the_address_of_an_answer_is_in_the_record_of_its_turn() -> None:
    store = MemoryTaskStore()
    async with serving(parley.asgi(telling(), store=store)) as url:
        task_id = (await post(url, "ask"))["task"]["id"]
        await post(url, "yes", task_id=task_id)
        events = [r.event for r in await store.private_records(task_id, [RecordKind.TURN])]
        turns = [event for event in events if isinstance(event, TurnStarted)]
        assert [turn.base_url for turn in turns] == ["", url]


def test_the_address_of_an_agent_is_its_path_or_that_of_the_tenant() -> None:
    one, two = Agent("One"), Agent("Two")
    address = agent_addresses("https://a.example/", {"/p": one, "/q": one}, {"t": two, "u": one})
    assert address("one", "") == "https://a.example/p"
    assert address("one", "u") == "https://a.example/u"
    assert address("one", "other") == "https://a.example/p"
    assert address("two", "t") == "https://a.example/t"
