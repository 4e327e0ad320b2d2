"""Limits of callers: under attack, with a moved clock, and without the replicas' shared store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Turn
from parley.client.retry import Retry
from parley.extensions import REPORT, Usage, UsageRequest
from parley.model.errors import InvalidParamsError, TooManyRequestsError
from parley.security.limits import counters
from parley.security.limits.counters import LocalCounters
from parley.security.limits.declaration import DAY_MS, Rate
from parley.server.app import App
from parley.server.run import serving
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.http import JSON, call, connection, post
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


NO_RETRIES = Retry(calls=0, streams=0)
RATE = Rate(text="10/minute", name="n", amount=10, period_ms=60_000)


class Clock:
    """Milliseconds that a test advances."""

    def __init__(self, now: int = 20_000 * DAY_MS) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def ada(scope: object) -> Caller:
    return Caller("ada", authenticated=True)


def named(scope: Any) -> Caller:
    return Caller(dict(scope["headers"]).get(b"x-user", b"").decode(), authenticated=True)


def agent_with(*limits: str, **options: Any) -> Agent:
    agent = Agent("Limited", limits=limits, **options)

    @agent.skill
    def echo(text: str) -> str:
        return text

    @agent.skill(replies="task")
    async def wait(turn: Turn) -> None:
        await turn.working("waiting")
        await asyncio.Event().wait()

    @agent.skill(replies="task")
    async def write(turn: Turn) -> str:
        return "x" * 1000

    return agent


async def statuses(url: str, count: int, **headers: str) -> list[int]:
    return [(await post(url, call("SendMessage"), headers)).status for _ in range(count)]


# -- windows -----------------------------------------------------------------------------------


async def test_what_was_taken_comes_back_when_the_clock_moves() -> None:
    clock = Clock()
    app = parley.asgi(
        agent_with("2/minute per caller"), store=MemoryTaskStore(clock=clock), caller=ada
    )
    async with serving(app) as url:
        assert await statuses(url, 3) == [200, 200, 429]
        clock.now += 59_000
        assert await statuses(url, 1) == [429]
        clock.now += 2_000
        assert await statuses(url, 3) == [200, 200, 429]


async def test_a_refused_request_takes_nothing_of_other_limits() -> None:
    app = parley.asgi(
        agent_with("3/hour per caller", "1/minute per operation"),
        store=MemoryTaskStore(clock=(clock := Clock())),
        caller=ada,
    )
    async with serving(app) as url:
        for _ in range(3):
            assert (await statuses(url, 5))[0] == 200
            clock.now += 61_000
        assert await statuses(url, 1) == [429]


# -- attacks -----------------------------------------------------------------------------------


def of_tenant(tenant: str, method: str = "SendMessage") -> bytes:
    return call(method).replace(b'"params": {', b'"params": {"tenant": "%s", ' % tenant.encode())


async def test_tenants_are_counted_apart_wherever_a_request_names_them() -> None:
    app = parley.asgi(agent_with("1/hour per tenant"), caller=ada)
    async with serving(app) as url:
        found = [(await post(url, of_tenant(name))).status for name in ("a", "b", "a", "")]
        assert found == [200, 200, 429, 200]
        by_path = await post(url, b"{}", path="/a/message:send")
        assert by_path.status == 429


def test_a_flood_of_keys_is_forgotten_from_the_oldest_on() -> None:
    local = LocalCounters(Clock(), most_keys=100)
    for number in range(1000):
        local.try_take("steady", RATE)
        local.try_take(f"key {number}", RATE)
    assert len(local._windows) == 100
    assert not local.try_take("steady", RATE).allowed


@pytest.mark.slow
async def test_streams_of_cut_connections_are_released() -> None:
    app = parley.asgi(agent_with("2 streams per caller"), caller=ada)
    wait = call("SendStreamingMessage").replace(
        b'"messageId"', b'"metadata": {"skill": "wait"}, "messageId"'
    )
    assert b"wait" in wait
    async with serving(app) as url, AsyncExitStack() as stack:
        for _ in range(2):
            http = await stack.enter_async_context(connection(url))
            await http.request("POST", "/", wait, JSON)
            assert (await http.head())[0] == 200
        assert (await post(url, wait)).status == 429
        await stack.aclose()  # cuts both

        async def is_free() -> bool:
            async with connection(url) as http:
                await http.request("POST", "/", wait, JSON)
                return (await http.head())[0] == 200

        await until(is_free, 10)


# -- replicas ----------------------------------------------------------------------------------


@asynccontextmanager
async def replicas(count: int, *limits: str, **options: Any) -> AsyncIterator[Sequence[str]]:
    logs = MemoryLogs(Clock())
    async with AsyncExitStack() as stack:
        urls = []
        for _ in range(count):
            store = MemoryTaskStore(logs=logs)
            app: App = parley.asgi(agent_with(*limits), store=store, caller=named, **options)
            urls.append(await stack.enter_async_context(serving(app)))
        yield urls


async def test_replicas_have_equal_parts_of_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "SHARE_SECONDS", 0.01)
    asked = 0

    async def is_shared(url: str) -> bool:
        nonlocal asked
        asked += 1
        answer = await post(url, call("SendMessage"), {"x-user": f"probe-{asked}"})
        return answer.headers["ratelimit"].startswith('"caller-hour";r=15;')

    async with replicas(3, "50/hour per caller") as urls:
        for url in urls:
            await until(partial(is_shared, url))
        found = await asyncio.gather(*[statuses(url, 30, **{"x-user": "ada"}) for url in urls])
    assert [each.count(200) for each in found] == [16, 16, 16]


# -- budgets and usage -------------------------------------------------------------------------


async def test_what_is_answered_without_a_task_counts_as_none() -> None:
    agent = Agent("Shop", extensions=[Usage()])

    @agent.skill
    async def refuse(text: str) -> str:
        raise InvalidParamsError("not like this")

    @agent.skill
    async def fail(text: str) -> str:
        raise RuntimeError("a bug")

    @agent.skill
    async def nothing(text: str) -> None:
        return None

    async with serving(parley.asgi(agent, caller=ada, usage=True)) as url:
        options: dict[str, Any] = {"retries": NO_RETRIES, "extensions": [Usage()]}
        async with parley.connect(url, **options) as remote:
            with pytest.raises(InvalidParamsError):
                await remote.send("hi", metadata={"skill": "refuse"})
            await remote.send("hi", metadata={"skill": "nothing"})
            await remote.send("hi", metadata={"skill": "fail"})
            report = await remote.call(REPORT, UsageRequest())
    by_skill = {each.skill: each for each in report.usage}
    assert {name: by_skill[name].tasks for name in ("refuse", "nothing", "fail")} == {
        "refuse": 0,
        "nothing": 1,
        "fail": 1,
    }
    assert by_skill["refuse"].output_bytes == by_skill["nothing"].output_bytes == 0


def test_a_limit_of_a_skill_that_no_agent_has_is_refused() -> None:
    with pytest.raises(ValueError, match="'dance', which no agent here has; there are echo"):
        parley.asgi(agent_with(), limits=["5/minute for skill dance"])


async def test_a_caller_reads_its_own_usage_and_what_remains(tmp_path: Path) -> None:
    agent = agent_with("9/hour per caller", "9 messages/day per caller", extensions=[Usage()])
    app = parley.asgi(agent, store=SqliteTaskStore(tmp_path / "tasks.db"), caller=named)
    async with serving(app) as url:
        options: dict[str, Any] = {"retries": NO_RETRIES, "extensions": [Usage()]}
        async with parley.connect(url, headers={"x-user": "ada"}, **options) as remote:
            await remote.send("hi", metadata={"skill": "write"})
            await remote.send("four")
            report = await remote.call(REPORT, UsageRequest())
        by_skill = {each.skill: each for each in report.usage}
        assert by_skill[""].requests == 3
        assert (by_skill["write"].tasks, by_skill["write"].output_bytes) == (1, 1000)
        assert (by_skill["echo"].messages, by_skill["echo"].tasks) == (1, 0)
        assert by_skill["echo"].output_bytes == len("four")
        found = [(each.limit, each.remaining) for each in report.limits]
        assert found == [("9/hour per caller", 6), ("9 messages/day per caller", 7)]
        async with parley.connect(url, headers={"x-user": "eve"}, **options) as remote:
            [line] = (await remote.call(REPORT, UsageRequest())).usage
            assert (line.requests, line.messages) == (1, 0)


async def test_callers_without_proof_learn_that_they_share_a_budget() -> None:
    agent = agent_with("900 bytes output/day per caller")
    options: dict[str, Any] = {"retries": NO_RETRIES}
    async with serving(parley.asgi(agent)) as url, parley.connect(url, **options) as remote:
        await remote.send("hi", metadata={"skill": "write"})
        with pytest.raises(TooManyRequestsError, match="by all callers without proof"):
            await remote.send("hi")


async def test_usage_costs_no_write_for_each_request() -> None:
    store = MemoryTaskStore()
    writes = 0
    add = store.add_usage

    async def counted(rows: Any) -> None:
        nonlocal writes
        writes += 1
        await add(rows)

    store.add_usage = counted  # type: ignore[method-assign]
    app = parley.asgi(agent_with(), store=store, caller=ada, usage=True)
    async with serving(app) as url:
        await statuses(url, 100)
    assert writes < 20


async def test_tenants_that_callers_make_up_are_no_way_around_a_limit_of_callers() -> None:
    app = parley.asgi(agent_with("2/hour per caller"), caller=ada)
    async with serving(app) as url:
        found = []
        for number in range(4):
            body = call("SendMessage").replace(
                b'"params": {', b'"params": {"tenant": "t%d", ' % number
            )
            assert b'"tenant"' in body
            found.append((await post(url, body)).status)
    assert found == [200, 200, 429, 429]


async def test_streaming_is_no_way_around_a_limit_of_messages() -> None:
    app = parley.asgi(agent_with("1/hour per caller on SendMessage"), caller=ada)
    async with serving(app) as url:
        assert await statuses(url, 1) == [200]
        assert (await post(url, call("SendStreamingMessage"))).status == 429
        assert (await post(url, call("GetTask"))).status == 200
