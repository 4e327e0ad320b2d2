"""Fair scheduling: unresponsive webhooks do not delay others."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from parley.model.service import CallContext, Caller
from parley.push.delivery import RetryPolicy
from parley.push.scheduler import DeliveryJob, DeliveryLimits, PushScheduler
from parley.store.protocols.webhooks import PushState
from tests.kit.waiting import until
from tests.kit.webhooks import webhook
from tests.push.pushing import PATIENT, Pushed, pushing, writer

pytestmark = pytest.mark.anyio

SLOW = replace(PATIENT, timeout=60.0)
"""A hanging webhook keeps its slot for longer than any of these tests waits."""


class Hanging:
    """Accepts connections at all local addresses, and sends no responses."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: set[asyncio.StreamWriter] = set()

    def url(self, n: int) -> str:
        """Return an address for each number, each with a different origin."""
        return f"http://127.1.{n // 250}.{n % 250 + 1}:{self.port}/hook"

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            await reader.read(-1)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            await until(lambda: len(self.connections) >= count)


@asynccontextmanager
async def hanging() -> AsyncIterator[Hanging]:
    made = Hanging()
    server = await asyncio.start_server(made.take, "0.0.0.0", 0, backlog=2048)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for connection in made.connections:
            connection.close()
        for connection in made.connections:
            await asyncio.gather(connection.wait_closed(), return_exceptions=True)


def as_caller(caller: Pushed, name: str) -> CallContext:
    return replace(caller.context, caller=Caller(id=name))


async def hang(caller: Pushed, hung: Hanging, count: int) -> None:
    """Make one caller's webhooks hang at several origins."""
    for n in range(count):
        await caller.task("go", hung.url(n), return_immediately=True)
    await hung.until(count)


@pytest.mark.slow
async def test_a_thousand_origins_that_hang_delay_no_other() -> None:
    async with (
        hanging() as hung,
        webhook() as mine,
        webhook() as theirs,
        pushing(writer(1), retry_policy=SLOW) as caller,
    ):
        await hang(caller, hung, 1000)
        await caller.task("go", mine.url)
        await caller.task("go", theirs.url, context=as_caller(caller, "grace"))
        await theirs.until_over()
        await mine.until_over()
        assert len(caller.host.push._scheduler._running) >= 1000


@pytest.mark.slow
async def test_a_callers_webhooks_that_hang_delay_no_other_at_their_origin_for_four_seconds() -> (
    None
):
    async with webhook() as hook, pushing(writer(1), retry_policy=RetryPolicy()) as caller:
        never = asyncio.Event()

        async def answer(told: Any) -> int:
            if told.path == "/hang":
                await never.wait()
            return 200

        hook.answer = answer
        for _ in range(10):
            await caller.task("go", hook.url.replace("/hook", "/hang"), return_immediately=True)
        await hook.until(lambda told: len(told) == 2)
        begun = asyncio.get_running_loop().time()
        task = await caller.task("go", hook.url)
        await caller.settled(task.id, PushState.DONE)
        assert asyncio.get_running_loop().time() - begun < 4.0
        never.set()


async def test_one_callers_webhooks_that_hang_do_not_delay_anothers_at_the_same_origin() -> None:
    async with webhook() as hook, pushing(writer(1), retry_policy=SLOW) as caller:
        never = asyncio.Event()

        async def answer(told: Any) -> int:
            if told.path == "/hang":
                await never.wait()
            return 200

        hook.answer = answer
        for _ in range(10):
            await caller.task("go", hook.url.replace("/hook", "/hang"), return_immediately=True)
        await hook.until(lambda told: len(told) == 2)
        await caller.task("go", hook.url, context=as_caller(caller, "grace"))
        await hook.until_over()
        never.set()


# -- the scheduler alone -------------------------------------------------------------------------


class Doing:
    """Jobs that start, and end when the test releases them."""

    def __init__(self, **limits: int) -> None:
        self.scheduler = PushScheduler(DeliveryLimits(**limits))
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self._kept: list[Any] = []

    def put(self, name: str, *, caller: str = "ada", well: bool | None = None) -> DeliveryJob:
        """Submit a job for an origin; ``well`` sets the result of its last call."""

        async def work() -> None:
            self.begun.append(name)
            await self.gates.setdefault(name, asyncio.Event()).wait()

        destination = self.scheduler.destination(caller, name)
        if well is not None:
            destination.answered(well=well)
        job = DeliveryJob(destination, work)
        self._kept.append(job)
        self.scheduler.submit(job)
        return job

    async def settle(self) -> list[str]:
        """Return the jobs started since the last call."""
        for _ in range(5):
            await asyncio.sleep(0)
        begun, self.begun = self.begun, []
        return begun

    async def end(self, *names: str) -> list[str]:
        """Finish the jobs of some origins; return the jobs that start then."""
        for name in names:
            self.gates.setdefault(name, asyncio.Event()).set()
        return await self.settle()


async def test_origins_that_failed_leave_the_slots_to_others() -> None:
    doing = Doing(slots=4, slow_slots=2, per_origin=1)
    for name in ("bad-1", "bad-2", "bad-3"):
        doing.put(name, well=False)
    for name in ("new-1", "new-2"):
        doing.put(name)
    doing.put("good", well=True)
    # A single caller gets half of the capacity: 1 slow slot and 2 others.
    assert await doing.settle() == ["bad-1", "new-1", "new-2"]
    assert await doing.end("new-1") == ["good"]
    assert await doing.end("bad-1") == ["bad-2"]
    assert await doing.end("bad-2", "bad-3", "new-2", "good") == ["bad-3"]
    await doing.scheduler.close(0)


async def test_an_origin_takes_several_slots_only_while_there_are_many() -> None:
    doing = Doing(slots=100, slow_slots=1, per_origin=2, per_quick_origin=30)
    for _ in range(40):
        doing.put("good", well=True)
        doing.put("new")
    begun = await doing.settle()
    assert begun.count("new") == 2
    assert begun.count("good") == 18  # so that 20 are used, a quarter of the 80 free slots
    for n in range(40):
        doing.put(f"other-{n}")
    assert len(await doing.settle()) == 30  # and half of all slots by first calls
    await doing.scheduler.close(0)


async def test_callers_and_origins_take_turns() -> None:
    doing = Doing(slots=1, slow_slots=1)
    for name in ("a", "a", "a", "b", "c"):
        doing.put(name)
    for name in ("d", "d"):
        doing.put(name, caller="bob")
    begun = await doing.settle()
    for name in "abcd":
        doing.gates.setdefault(name, asyncio.Event()).set()
    for _ in range(20):
        begun += await doing.settle()
    # Bob's job arrived when a job of Ada's was already queued.
    assert begun == ["a", "b", "d", "c", "d", "a", "a"]
    await doing.scheduler.close(5)


async def test_an_origin_that_fails_waits_with_those_that_do_from_then_on() -> None:
    doing = Doing(slots=1, slow_slots=1)
    begun = doing.put("turns-bad"), doing.put("other"), doing.put("turns-bad")
    assert await doing.settle() == ["turns-bad"]
    begun[0].destination.answered(well=False)
    doing.put("turns-bad")
    assert await doing.settle() == ["turns-bad"]  # in the slow slot
    assert await doing.end("turns-bad") == ["other", "turns-bad"]
    await doing.scheduler.close(0)


async def test_a_job_that_is_cancelled_does_not_run() -> None:
    doing = Doing(slots=1, slow_slots=1)
    doing.put("a")
    cancelled = doing.put("b")
    doing.put("c")
    await doing.settle()
    await doing.scheduler.cancel(cancelled)
    assert await doing.end("a") == ["c"]
    await doing.scheduler.close(0)


async def test_a_call_that_hangs_lets_the_next_job_of_its_origin_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.push.scheduler.HANGS_AFTER", 0.0)
    scheduler = PushScheduler(DeliveryLimits(per_origin=1, hanging_per_origin=3))
    destination, begun, never = scheduler.destination("ada", "origin"), [0], asyncio.Event()

    def put(*, has_hung: bool = False) -> None:
        async def work() -> None:
            begun[0] += 1
            with scheduler.calling(job):
                await never.wait()

        job = DeliveryJob(destination, work)
        job.has_hung = has_hung
        scheduler.submit(job)

    for _ in range(6):
        put()
    async with asyncio.timeout(10):
        await until(lambda: begun[0] == 3)
    assert (destination.active, destination.hanging) == (3, 3)
    put(has_hung=True)
    assert len(destination.queued_hung or ()) == 1
    never.set()
    async with asyncio.timeout(10):
        await until(lambda: begun[0] == 7)
    await scheduler.close(5)
    assert (destination.active, destination.hanging) == (0, 0)


async def test_webhooks_that_hang_at_one_port_do_not_delay_another_port() -> None:
    async with (
        hanging() as hung,
        webhook() as good,
        pushing(writer(1), retry_policy=SLOW) as caller,
    ):
        hung_url = f"http://127.0.0.1:{hung.port}/hook"
        for _ in range(10):
            await caller.task("go", hung_url, return_immediately=True)
        await hung.until(2)
        await caller.task("go", good.url)
        await good.until_over()


async def test_one_callers_names_that_hang_do_not_delay_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    asked: set[str] = set()
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        if host.endswith(".example.com"):
            asked.add(host)
            gate.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up(host, *rest, **options)

    monkeypatch.setattr("parley.security.egress.socket.getaddrinfo", getaddrinfo)
    try:
        async with webhook() as hook, pushing(writer(1), retry_policy=SLOW) as caller:
            for n in range(200):
                url = f"http://n{n}.example.com/"
                await caller.task("go", url, return_immediately=True)
            async with asyncio.timeout(30):
                await until(lambda: len(asked) >= 32)
            url = hook.url.replace("127.0.0.1", "localhost")
            await caller.task("go", url, context=as_caller(caller, "grace"))
            await hook.until_over(30)  # the names hang for a minute
            assert len(asked) == 32
    finally:
        gate.set()
