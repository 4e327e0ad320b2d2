"""Limits on waiting and reading requests, rates in Redis, and reported usage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from parley.model.errors import OverloadedError
from parley.model.service import CallContext, Caller, StreamItem
from parley.security.limits import usage
from parley.security.limits.declaration import DAY_MS, Rate
from parley.security.limits.usage import UsageMeter, UsageQuery, UsageRow
from parley.server.app import Settings
from parley.server.limits import ConcurrencyLimiter
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from tests.kit.http import call, connection, post
from tests.kit.scripted import Scripted, Standstill, app_of, reply, task
from tests.kit.services.redis import RedisServer
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def who(scope):
    name = dict(scope["headers"]).get(b"x-user", b"").decode()
    return Caller(id=name, authenticated=bool(name))


async def test_one_caller_gets_a_share_of_the_streams():
    still = Standstill(StreamItem(task(), 1))
    settings = Settings(max_streams=4, caller_share=0.5)
    app = app_of(Scripted(subscribe_to_task=still), settings=settings, identify=who)
    async with serving(app) as url, contextlib.AsyncExitStack() as stack:
        for user in ("ada", "ada", "eve"):
            http = await stack.enter_async_context(connection(url))
            await http.subscribe(headers={"x-user": user})
        refused = await post(url, call("SubscribeToTask"), {"x-user": "ada"})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "2 streams are open for this caller" in refused.error["message"]
        http = await stack.enter_async_context(connection(url))
        await http.subscribe(headers={"x-user": "eve"})
        refused = await post(url, call("SubscribeToTask"), {"x-user": "bob"})
        assert "4 streams are open, which is all" in refused.error["message"]


async def test_senders_who_wait_are_limited_in_number():
    gate, waiting = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(request, context):
        waiting.release()
        await gate.wait()
        return reply()

    service = Scripted(send_message=slow)
    app = app_of(
        service, settings=Settings(max_blocking_requests=3, caller_share=0.7), identify=who
    )
    async with serving(app) as url, asyncio.TaskGroup() as group:
        senders = [
            group.create_task(post(url, call("SendMessage"), {"x-user": user}))
            for user in ("ada", "ada", "")
        ]
        async with asyncio.timeout(20):
            for _ in senders:
                await waiting.acquire()
        for user, words in (("ada", "all that this server"), ("eve", "all that this server")):
            refused = await post(url, call("SendMessage"), {"x-user": user})
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.error["code"] == -32012
            assert words in refused.error["message"]
        gate.set()
        answers = [(await sender).json for sender in senders]
        assert all("result" in answer for answer in answers)
        assert "result" in (await post(url, call("SendMessage"), {"x-user": "ada"})).json


def test_namesakes_of_two_issuers_have_a_share_each():
    limiter = ConcurrencyLimiter("senders wait", 4, 0.25)
    bobs = [Caller("bob", True, issuer=issuer) for issuer in ("", "one", "two")]
    with contextlib.ExitStack() as stack:
        for bob in [*bobs, Caller("bob")]:
            stack.enter_context(limiter.slot(CallContext(caller=bob)))
        for bob in bobs:
            with pytest.raises(OverloadedError), limiter.slot(CallContext(caller=bob)):
                pass


def test_slots_are_released_and_shared():
    limiter = ConcurrencyLimiter("senders wait", 4, 0.5)
    ada = CallContext(caller=Caller(id="ada"))
    here = CallContext(caller=Caller(id="ada"), tenant="other")
    with limiter.slot(ada), limiter.slot(ada):
        with (
            pytest.raises(OverloadedError, match="2 senders wait for this caller"),
            limiter.slot(ada),
        ):
            pass
        with (
            limiter.slot(here),
            limiter.slot(CallContext()),
            pytest.raises(OverloadedError, match="4 senders wait"),
            limiter.slot(CallContext()),
        ):
            pass
    with pytest.raises(KeyError), limiter.slot(ada):
        raise KeyError
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(limiter.slot(CallContext()))


# -- rates in Redis, under a flood -----------------------------------------------------------------


pytest.importorskip("limits")

RATE = Rate(text="", name="n", amount=100, period_ms=3_600_000)


@pytest.mark.slow
async def test_a_flood_is_counted_in_redis_on_few_connections(redis: RedisServer) -> None:
    """More connections than the client opens would be an error; counting would restart here."""
    from parley.security.limits.counters import REDIS_CONNECTIONS, RedisCounters

    before = redis.ask("CLIENT", "LIST").count(" addr=")
    counters = RedisCounters(redis.url, "flood:limits", lambda: 0)
    try:
        taken = await asyncio.gather(*[counters.take("k", RATE) for _ in range(500)])
        assert sum(each.allowed for each in taken) == 100
        assert not counters.is_alone
        # Redis registers a closed connection with a delay.
        await until(
            lambda: redis.ask("CLIENT", "LIST").count(" addr=") <= before + REDIS_CONNECTIONS
        )
    finally:
        await counters.close()


# -- usage: its labels, its memory, and its store calls --------------------------------------------


DAY = 20_000


class CountedStore(MemoryTaskStore):
    """Counts store calls, and fails when a test sets it."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: DAY * DAY_MS)
        self.writes = 0
        self.fails = False

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        self.writes += 1
        if self.fails:
            raise StoreUnavailable("away")
        await super().add_usage(rows)

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        if self.fails:
            raise StoreUnavailable("away")
        return await super().usage(query)


@pytest.fixture
async def store() -> CountedStore:
    store = CountedStore()
    await store.open(lambda records: None)
    return store


@pytest.fixture
def meter(store: CountedStore) -> UsageMeter:
    return UsageMeter(store, lambda: DAY * DAY_MS)


async def test_memory_stays_bounded_while_the_store_is_away(
    store: CountedStore, meter: UsageMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_ROWS", 10)
    monkeypatch.setattr(meter._totals, "most", 10)
    store.fails = True
    for batch in range(10):
        for number in range(10):
            caller = f"caller {batch} {number}"
            meter.count("requests", "shop", "", caller)
            await meter.used("output_bytes", (DAY, None, None, caller))
        with pytest.raises(StoreUnavailable):
            await meter.flush()
    assert len(meter._pending) <= 21
    assert len(meter._totals) <= 10
    store.fails = False
    await meter.flush()
    assert sum(row.requests for row in await store.usage(UsageQuery())) == 100
