"""Limits of callers, under attack, with a moved clock, and while what replicas share is away."""

from __future__ import annotations

import asyncio
import logging
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
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.security.limits import counters
from parley.security.limits.agent_limits import Asking
from parley.security.limits.counters import DailyCounters, LocalCounters, RedisCounters
from parley.security.limits.declaration import DAY_MS, Rate, parse_limits
from parley.security.limits.usage import QuotaAsk, QuotaGrant, UsageQuery, UsageRow
from parley.server.app import App
from parley.server.run import serving
from parley.server.settings import GrpcOptions, Settings
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.sqlite.store import SqliteTaskStore
from parley.wire import versions
from tests.kit.http import JSON, call, connection, post
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

NO_RETRIES = Retry(calls=0, streams=0)
RATE = Rate(text="10/minute", name="n", amount=10, period_ms=60_000)


class Clock:
    """Milliseconds that pass when a test says so."""

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


async def rows_in(path: Path) -> Sequence[UsageRow]:
    """Return the usage that a server left in its store."""
    again = SqliteTaskStore(path)
    await again.open(lambda records: None)
    rows = await again.usage(UsageQuery())
    await again.close()
    return rows


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


async def test_anonymous_callers_are_told_apart_by_address_alone() -> None:
    app = parley.asgi(agent_with("2/hour per caller"))
    async with serving(app) as url:
        forged = [
            (await statuses(url, 1, **{"X-Forwarded-For": f"10.0.0.{n}"}))[0] for n in range(3)
        ]
    assert forged == [200, 200, 429]


async def test_behind_a_proxy_the_address_that_it_added_counts() -> None:
    app = parley.asgi(agent_with("1/hour per caller"), settings=Settings(trust_proxy=True))
    async with serving(app) as url:
        by_proxy = [("6.6.6.6, 10.0.0.1", 200), ("7.7.7.7, 10.0.0.1", 429), ("10.0.0.2", 200)]
        for forwarded, expected in by_proxy:
            assert await statuses(url, 1, **{"X-Forwarded-For": forwarded}) == [expected]
        v6 = [("2001:db8::1", 200), ("2001:db8::2", 429), ("2001:db8:0:1::1", 200)]
        for forwarded, expected in v6:  # a network is one client
            assert await statuses(url, 1, **{"X-Forwarded-For": forwarded}) == [expected]


async def test_who_names_the_proxy_as_the_sender_is_not_exempt_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1")
    limit = "1/hour per caller except address:127.0.0.0/8"
    settings = Settings(trust_proxy=True)
    app = parley.asgi(agent_with(limit), settings=settings)
    async with serving(app) as url:
        forged = {"X-Forwarded-For": "127.0.0.1, 6.6.6.6"}
        assert await statuses(url, 2, **forged) == [200, 429]


@pytest.mark.parametrize(
    ("exempt", "issuer", "id", "expected"),
    [
        ("ada", "https://a.example", "ada", True),
        ("https://a.example:ada", "https://a.example", "ada", True),
        ("https://a.example:ada", "https://b.example", "ada", False),
        ("https://a.example:ada", "https://b.example", "https://a.example:ada", False),
        ("https://a.example:ada", "", "ada", False),
    ],
)
def test_an_exemption_may_name_the_issuer_of_a_caller(
    exempt: str, issuer: str, id: str, expected: bool
) -> None:
    [limit] = parse_limits([f"1/hour except caller:{exempt}"])
    assert isinstance(limit, Rate)
    caller = Caller(id, issuer=issuer, authenticated=True)
    assert Asking(caller, "", "", "SendMessage").is_exempt(limit.applies) is expected


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


def of_tenant(tenant: str, method: str = "SendMessage") -> bytes:
    return call(method).replace(b'"params": {', b'"params": {"tenant": "%s", ' % tenant.encode())


async def test_tenants_are_counted_apart_wherever_a_request_names_them() -> None:
    app = parley.asgi(agent_with("1/hour per tenant"), caller=ada)
    async with serving(app) as url:
        found = [(await post(url, of_tenant(name))).status for name in ("a", "b", "a", "")]
        assert found == [200, 200, 429, 200]
        by_path = await post(url, b"{}", path="/a/message:send")
        assert by_path.status == 429


async def test_the_tenant_of_a_request_is_checked_before_it_is_counted(tmp_path: Path) -> None:
    store = SqliteTaskStore(tmp_path / "tasks.db")
    app = parley.asgi(agent_with(), store=store, caller=ada, usage=True)
    async with serving(app) as url:
        for tenant in ("a\\u0000b", "x" * 50_000):
            refused = await post(url, of_tenant(tenant))
            assert "tenant: an id has at most" in refused.error["message"]
    assert not await rows_in(tmp_path / "tasks.db")


async def test_refused_requests_do_not_fill_the_store_with_tenants(tmp_path: Path) -> None:
    store = SqliteTaskStore(tmp_path / "tasks.db")
    app = parley.asgi(agent_with("1/hour per caller"), store=store, caller=ada, usage=True)
    async with serving(app) as url:
        for number in range(5):
            await post(url, of_tenant(f"t{number}"))
    rows = await rows_in(tmp_path / "tasks.db")
    counted = {row.tenant: (row.requests, row.refusals) for row in rows if not row.skill}
    assert counted == {"t0": (1, 0), "": (4, 4)}


async def test_streaming_is_no_way_around_a_limit_of_messages() -> None:
    app = parley.asgi(agent_with("1/hour per caller on SendMessage"), caller=ada)
    async with serving(app) as url:
        assert await statuses(url, 1) == [200]
        assert (await post(url, call("SendStreamingMessage"))).status == 429
        assert (await post(url, call("GetTask"))).status == 200


async def test_grpc_says_what_remains_in_its_metadata() -> None:
    grpc = pytest.importorskip("grpc")
    app = parley.asgi(agent_with("1/hour per caller"), caller=ada)
    operation = BY_NAME["SendMessage"]
    message = Message(message_id="1", role=Role.USER, parts=(Part(text="hi"),))
    data = (
        versions.dialect("1.0").grpc().write_request(operation, SendMessageRequest(message=message))
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(app, grpc=GrpcOptions(port=0)))
        target = f"127.0.0.1:{app.grpc.port}"
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(target))
        send = channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")
        first = send(data, metadata=(("a2a-version", "1.0"),))
        await first
        initial = dict(await first.initial_metadata())
        assert initial["ratelimit-policy"] == '"caller-hour";q=1;w=3600'
        assert initial["ratelimit"].startswith('"caller-hour";r=0;t=')
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send(data, metadata=(("a2a-version", "1.0"),))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = dict(refused.value.trailing_metadata())
    assert trailing["ratelimit"].startswith('"caller-hour";r=0;t=')
    assert b"google.rpc.RetryInfo" in trailing["grpc-status-details-bin"]
    assert b"google.rpc.QuotaFailure" in trailing["grpc-status-details-bin"]


async def test_a_request_above_a_limit_is_refused_before_it_is_read() -> None:
    app = parley.asgi(agent_with("1/hour per caller"), caller=ada)
    wrong = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":7}}'
    async with serving(app) as url:
        assert await statuses(url, 1) == [200]
        assert (await post(url, wrong)).status == 429


def test_a_flood_of_keys_is_forgotten_from_the_oldest_on() -> None:
    local = LocalCounters(Clock(), most_keys=100)
    for number in range(1000):
        local.try_take("steady", RATE)
        local.try_take(f"key {number}", RATE)
    assert len(local._windows) == 100
    assert not local.try_take("steady", RATE).allowed


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


def test_each_of_many_replicas_admits_one() -> None:
    local = LocalCounters(Clock())
    local.share(100)
    assert [local.try_take("k", RATE).allowed for _ in range(2)] == [True, False]


DAILY = Rate(text="", name="n", amount=10, period_ms=DAY_MS, is_daily=True)


async def test_replicas_admit_exactly_the_messages_of_a_day_together() -> None:
    async with replicas(3, "50 messages/day per caller") as urls:
        found = await asyncio.gather(*[statuses(url, 30, **{"x-user": "ada"}) for url in urls])
    assert sum(each.count(200) for each in found) == 50


async def test_a_message_that_one_limit_refuses_takes_nothing_of_the_others() -> None:
    def to(skill: str) -> bytes:
        return call("SendMessage").replace(
            b'"messageId"', b'"metadata": {"skill": "%s"}, "messageId"' % skill.encode()
        )

    limits = ("4 messages/day per caller", "1 tasks/day per skill", "9/minute per skill")
    async with replicas(2, *limits) as urls:
        found = [(await post(url, to("echo"))).status for url in urls * 2]
        assert found == [200, 429, 429, 429]
        found = [(await post(url, to(skill))).status for url in urls for skill in ("write", "echo")]
        assert found == [200, 429, 429, 429]


class CountingStore(MemoryTaskStore):
    """Counts what it is asked about limits."""

    calls = 0

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        self.calls += 1
        return await super().take_quotas(asks)


async def test_messages_at_once_are_counted_by_few_changes_and_refusals_by_none() -> None:
    store = CountingStore(clock=(clock := Clock()))
    await store.open(lambda records: None)
    daily = DailyCounters(store, clock)
    taken = await asyncio.gather(*[daily.take("k", DAILY) for _ in range(50)])
    assert sum(each.allowed for each in taken) == 10
    assert store.calls < 5
    before = store.calls
    refused = [daily.try_take("k", DAILY) for _ in range(50)]
    assert [each is not None and not each.allowed for each in refused] == [True] * 50
    daily.give_back("k", DAILY)
    await daily.close()
    clock.now += 1000  # after a second the store is asked again: something may have come back
    assert daily.try_take("k", DAILY) is None
    assert (await daily.take("k", DAILY)).allowed
    assert store.calls == before + 2
    await store.close()


async def test_a_bug_of_a_store_is_an_error_of_the_request() -> None:
    class Broken:
        async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
            raise ZeroDivisionError

    daily = DailyCounters(Broken(), Clock())  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        await daily.take("k", DAILY)


async def test_while_the_store_is_away_each_process_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away:
        async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
            raise StoreUnavailable("away")

    daily = DailyCounters(Away(), Clock())  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        taken = [(await daily.take("k", DAILY)).allowed for _ in range(12)]
    assert taken == [True] * 10 + [False] * 2
    assert caplog.text.count("each process counts on its own") == 1


async def test_while_redis_is_away_each_process_counts() -> None:
    pytest.importorskip("limits")
    redis = RedisCounters("redis://127.0.0.1:1", "parley:limits", Clock())
    taken = [(await redis.take("k", RATE)).allowed for _ in range(12)]
    assert taken == [True] * 10 + [False] * 2
    await redis.close()


# -- budgets and usage -------------------------------------------------------------------------


async def test_messages_of_a_day_are_kept_over_a_restart(tmp_path: Path) -> None:
    clock = Clock()

    def app() -> App:
        store = SqliteTaskStore(tmp_path / "tasks.db", clock=clock)
        return parley.asgi(agent_with("5 messages/day per caller"), store=store, caller=ada)

    async with serving(app()) as url:
        assert await statuses(url, 3) == [200] * 3
    async with serving(app()) as url:
        assert await statuses(url, 3) == [200, 200, 429]
        clock.now += DAY_MS
        assert await statuses(url, 1) == [200]


async def test_a_spent_budget_of_output_refuses_messages_until_tomorrow() -> None:
    clock = Clock()
    agent = agent_with("1500 bytes output/day per caller")
    app = parley.asgi(agent, store=MemoryTaskStore(clock=clock), caller=named)
    options = {"retries": NO_RETRIES, "headers": {"x-user": "ada"}}
    async with serving(app) as url, parley.connect(url, **options) as remote:  # type: ignore[arg-type]
        for _ in range(2):
            await remote.send("hi", metadata={"skill": "write"})
        with pytest.raises(TooManyRequestsError, match="1500 bytes output/day") as refused:
            await remote.send("hi")
        assert refused.value.retry_after == DAY_MS / 1000
        assert await statuses(url, 1, **{"x-user": "eve"}) == [200]
        clock.now += DAY_MS
        await remote.send("hi")


async def test_a_spent_budget_takes_no_messages_of_the_day() -> None:
    app = parley.asgi(agent_with("900 bytes output/day per caller", "9 messages/day per caller"))
    async with serving(app) as url, parley.connect(url, retries=NO_RETRIES) as remote:
        await remote.send("hi", metadata={"skill": "write"})
        for _ in range(12):
            with pytest.raises(TooManyRequestsError, match="900 bytes output/day"):
                await remote.send("hi")


async def test_callers_without_proof_learn_that_they_share_a_budget() -> None:
    agent = agent_with("900 bytes output/day per caller")
    options: dict[str, Any] = {"retries": NO_RETRIES}
    async with serving(parley.asgi(agent)) as url, parley.connect(url, **options) as remote:
        await remote.send("hi", metadata={"skill": "write"})
        with pytest.raises(TooManyRequestsError, match="by all callers without proof"):
            await remote.send("hi")


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


async def test_refusals_are_counted_and_usage_is_stored_at_the_end(tmp_path: Path) -> None:
    path, clock = tmp_path / "tasks.db", Clock()
    store = SqliteTaskStore(path, clock=clock)
    app = parley.asgi(agent_with("2/hour per caller"), store=store, caller=ada, usage=True)
    async with serving(app) as url:
        assert await statuses(url, 5) == [200, 200, 429, 429, 429]
    again = SqliteTaskStore(path, clock=clock)
    await again.open(lambda records: None)
    rows = {row.skill: row for row in await again.usage(UsageQuery(caller="ada"))}
    await again.close()
    assert (rows[""].requests, rows[""].refusals, rows["echo"].messages) == (5, 3, 2)


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


def test_an_agent_without_limits_has_nothing_to_ask() -> None:
    app = parley.asgi(agent_with())
    for served in app.agents.values():
        assert served.dispatcher._agent is not None
        assert served.dispatcher._agent.endpoint.limits is None


def test_a_limit_of_a_skill_that_no_agent_has_is_refused() -> None:
    with pytest.raises(ValueError, match="'dance', which no agent here has; there are echo"):
        parley.asgi(agent_with(), limits=["5/minute for skill dance"])
