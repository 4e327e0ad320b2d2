"""Requests without ASGI: their limits and usage, and what a stream that waits holds."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import parley
from parley import Agent, Caller, Turn
from parley.security.limits.declaration import DAY_MS
from parley.security.limits.usage import UsageQuery
from parley.server.app import App
from parley.server.http1.asgi import AsgiExchange
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.http import JSON, WAIT, call, connection, post
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio


_IDS = re.compile(r"[0-9a-f]{12,32}|\d{4}-\d\d-\d\dT[\d:.]+Z")


async def named(scope: Any) -> Caller:
    """Whom the header names; who names nobody is anonymous."""
    id = dict(scope["headers"]).get(b"x-user", b"").decode()
    return Caller(id, authenticated=bool(id))


def agent_of(*limits: str) -> Agent:
    agent = Agent("Limited", limits=limits)

    @agent.skill(default=True)
    async def say(turn: Turn) -> str:
        if turn.text == "break":
            raise RuntimeError("broken")
        return turn.text

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.working("on it")
        return turn.text

    return agent


def saying(text: str, skill: str = "say", tenant: str = "", parts: int = 1) -> bytes:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}] * parts}
    params = {"message": message, "metadata": {"skill": skill}}
    return call("SendMessage", {**params, "tenant": tenant} if tenant else params)


ADA, EVE = {"X-User": "ada"}, {"X-User": "eve"}

# Requests, and how many seconds pass before each.
ASKED: tuple[tuple[bytes, dict[str, str], int], ...] = (
    (saying("one"), ADA, 0),
    (saying("two"), ADA, 1),
    (saying("hello", "work"), ADA, 0),
    (saying("hello"), {}, 0),
    (saying("hello"), {}, 3),
    (call("GetTask", {"id": "t-1"}), ADA, 0),
    (call("ListTasks", {"pageSize": 1}), EVE, 0),
    (call("ListTasks", {"pageSize": 1}), EVE, 0),
    (saying("hello" * 40), ADA, 0),
    (saying("hello", parts=3), EVE, 0),
    (saying("break"), EVE, 0),
    (saying("hello", "none"), EVE, 0),
    (call("SendMessage", {"message": 7}), EVE, 0),
    (saying("hello", tenant="t"), ADA, 0),
    (call("Nothing", {}), ADA, 0),
    (saying("hello", "work"), EVE, 61),
    (saying("three"), ADA, 0),
    (saying("four"), ADA, 0),
    (saying("five"), ADA, 3600),
    (saying("six"), ADA, 86_400),
)  # fmt: skip

LIMITS: dict[str, tuple[str, ...]] = {
    "none, but usage": (),
    "of callers": ("2/minute per caller",),
    "of several things": ("3/minute per caller", "5/hour per operation", "9/day per address"),
    "of tenants": ("1/hour per tenant",),
    "of skills": ("1/hour per skill",),
    "of messages in a day": ("3 messages/day per caller",),
    "of tasks in a day": ("2 tasks/day per caller", "4/minute per caller"),
    "of sizes": ("message 150 B", "message 2 parts"),
    "with an exemption": ("1/hour per caller except caller:ada",),
    "of output": ("8 B output/day per caller",),
}

WAITS = ("of output",)
"""Limits for which the store is to be asked."""


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Has an item for each request that is answered in a task."""
    found: list[bool] = []
    run = AsgiExchange.run

    async def noting(self: AsgiExchange, app: Any) -> None:
        found.append(True)
        await run(self, app)

    monkeypatch.setattr(AsgiExchange, "run", noting)
    return found


def limited(limits: tuple[str, ...], store: Any) -> App:
    return parley.asgi(agent_of(*limits), store=store, caller=named, usage=True)


async def answers(url: str, clock: Clock) -> list[Any]:
    found = []
    for body, headers, seconds in ASKED:
        clock.now += seconds * 1000
        response = await post(url, body, headers)
        fields = {name: each for name, each in response.headers.items() if name != "date"}
        found.append((response.status, fields, _IDS.sub("ID", response.body.decode())))
    return found


async def used(store: Any) -> list[Any]:
    """What a server left in its store."""
    await store.open(lambda records: None)
    rows = sorted(await store.usage(UsageQuery()), key=repr)
    await store.close()
    return [{**msgspec.structs.asdict(row), "run_ms": 0} for row in rows]


@pytest.mark.parametrize("name", LIMITS)
async def test_both_ways_refuse_and_count_the_same(in_tasks, name: str) -> None:
    clocks = Clock(20_000 * DAY_MS), Clock(20_000 * DAY_MS)
    stores = [MemoryTaskStore(clock=clock) for clock in clocks]
    app, inner = [limited(LIMITS[name], store) for store in stores]

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    async with serving(app) as url:
        direct = await answers(url, clocks[0])
    count = len(in_tasks)
    async with inner.lifespan(), serving(around) as behind:
        through = await answers(behind, clocks[1])
    assert direct == through
    rows = await used(stores[0])
    assert rows == await used(stores[1])
    assert sum(row["requests"] for row in rows) >= len(ASKED) - 2
    is_refused = [each[0] == 429 or "than the limit of" in each[2] for each in direct]
    assert any(is_refused) == bool(LIMITS[name])
    assert bool(count) == (name in WAITS)


async def test_what_the_store_counts_is_waited_for_in_a_task(in_tasks, tmp_path: Path) -> None:
    """A rate is counted in this process and a day in the store, which then has to be asked."""
    for limits, waits in ((("2/minute per caller",), 0), (("2 messages/day per caller",), 3)):
        store = SqliteTaskStore(tmp_path / f"{waits}.db", clock=Clock(20_000 * DAY_MS))
        async with serving(limited(limits, store)) as url:
            found = [await post(url, saying("hello"), ADA) for _ in range(3)]
        assert [each.status for each in found] == [200, 200, 429]
        assert "retry-after" in found[2].headers
        assert json.loads(found[2].body)["error"]
        assert len(in_tasks) == waits


# -- A stream that waits has let go of its request: counted in tasks and objects, not in bytes -----


OF_A_REQUEST = (
    "DirectExchange", "HeadFields", "JsonRpcRequests", "KnownHead", "RequestHead",
    "SendMessageRequest", "ServiceCall", "scope",
)  # fmt: skip
STREAMS = 6


def counted() -> Counter[str]:
    """The objects that there are, by the names of their classes, and the scopes of requests."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        found[type(each).__name__] += 1
        if type(each) is dict and each.get("type") == "http" and "raw_path" in each:
            found["scope"] += 1
    return found


async def test_an_idle_stream_holds_two_tasks_and_nothing_of_its_request() -> None:
    agent = Agent("Idle")
    over = asyncio.Event()

    @agent.skill(replies="task")
    async def wait(turn: Turn) -> None:
        """Works for ever."""
        await turn.working()
        await over.wait()

    app = parley.asgi(agent)
    async with asyncio.timeout(WAIT * 6), serving(app) as url, AsyncExitStack() as stack:

        async def opened(number: int) -> None:
            said = {"messageId": f"m-{number}", "role": "ROLE_USER", "parts": [{"text": "x"}]}
            http = await stack.enter_async_context(connection(url))
            body = call("SendStreamingMessage", {"message": said})
            await http.request("POST", "/", body, JSON)
            await http.head()
            frames = http.frames()
            stack.push_async_callback(frames.aclose)
            for _ in range(2):
                await anext(frames)

        await opened(0)
        before, tasks = counted(), len(asyncio.all_tasks())
        for number in range(1, STREAMS + 1):
            await opened(number)
        after, grown = counted(), len(asyncio.all_tasks()) - tasks
        over.set()
    assert grown == 2 * STREAMS  # the agent's, and the stream's
    assert [name for name in OF_A_REQUEST if after[name] > before[name]] == []
    assert after["AsgiExchange"] - before["AsgiExchange"] == STREAMS
