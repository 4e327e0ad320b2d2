"""The buses: each replica receives another's hints, and survives outages of the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from parley.model.tasks import TaskState
from parley.store.bus.poller import BusPoller
from parley.store.bus.subscriptions import Bus, LocalHints
from parley.store.follow import follow
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.kit.records import addition, chunk, creation, numbers, status
from tests.kit.services import postgres as postgres_service
from tests.kit.services import redis as redis_service
from tests.kit.services.postgres import PostgresServer
from tests.kit.services.proxy import line
from tests.kit.services.redis import RedisServer
from tests.kit.waiting import let_time_pass, until
from tests.store.bus.hinting import WAIT, event

pytestmark = [pytest.mark.anyio, pytest.mark.service]

Server = PostgresServer | RedisServer
KINDS = ["postgres", "redis"]


def url_of(server: Server, port: int = 0) -> str:
    url = server.url() if isinstance(server, PostgresServer) else server.url
    return url.replace(f":{server.port}", f":{port or server.port}")


def new_bus(url: str) -> Bus:
    if url.startswith("redis"):
        from parley.store.bus.redis_bus import RedisBus

        return RedisBus(url)
    from parley.store.bus.postgres_bus import PostgresBus

    return PostgresBus(url)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect a silent server within a second or two."""
    from parley.store.bus import frames, postgres_bus, redis_bus, redis_url

    monkeypatch.setattr(postgres_bus, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(postgres_bus, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(postgres_bus, "TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(redis_bus, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(redis_url, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(redis_url, "CONNECT_SECONDS", 1.0)
    for module in (frames, postgres_bus):
        monkeypatch.setattr(module, "RECONNECT", replace(module.RECONNECT, longest=0.5))


class End:
    """One replica's end of a bus. ``missed`` counts the reports of possibly lost hints."""

    def __init__(self, url: str) -> None:
        self.bus = new_bus(url)
        self.hints = LocalHints()
        self.hints.on_interest = self.bus.watch
        self.hints.on_lookup = self._look
        self.missed = 0

    def _look(self, task_id: str | None) -> None:
        self.missed += task_id is None

    async def until_up(self) -> None:
        await until(lambda: self.bus.is_up)


@asynccontextmanager
async def ends(*urls: str, up: bool = True) -> AsyncIterator[list[End]]:
    made = [End(url) for url in urls]
    try:
        for n, end in enumerate(made):
            await end.bus.open(end.hints, f"replica-{n}")
        for end in made:
            if up:
                await end.until_up()
        yield made
    finally:
        for end in made:
            await end.bus.close()


async def arrives(teller: End, hearer: End, task_id: str = "t") -> None:
    """Send hints for a task until they arrive: subscribing may take a moment."""
    with hearer.hints.subscribe(task_id) as live:
        seq = 0
        async with asyncio.timeout(WAIT):
            while not live.held:
                seq += 1
                teller.bus.publish([event(seq, task_id=task_id)])
                await live.wait(0.05)


@contextmanager
def server_of(kind: str) -> Iterator[Server]:
    """A server that a test may kill."""
    if kind == "redis":
        with redis_service.running() as server:
            yield server
    else:
        with postgres_service.running(fsync="off") as started:
            yield started


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    """A bus on a server that must not be stopped."""
    if request.param == "redis":
        return f"{request.getfixturevalue('redis').url}?prefix={request.node.name}:"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that the test may kill."""
    with server_of(request.param) as started:
        yield started


async def test_what_was_told_last_is_sent_before_it_closes(url: str) -> None:
    async with ends(url, url) as (a, b):
        agents: list[str] = []
        with b.hints.listen_work(agents.append):
            a.bus.publish_work("x")
            await a.bus.close()
            await a.bus.close()
            await until(lambda: agents == ["x"])
            assert not a.bus.is_up
            a.bus.publish_work("y")
            a.bus.publish([event(1)])
            a.bus.watch("t", True)
            a.bus.watch("t", False)


async def test_two_that_share_a_server_do_not_hear_one_another(
    redis: RedisServer, postgres: PostgresServer
) -> None:
    for first, second in (
        (redis.url + "?prefix=one:", redis.url + "?prefix=two:"),
        (postgres.url(schema="one"), postgres.url(schema="two")),
    ):
        async with ends(first, second, second) as (a, b, c):
            agents: asyncio.Queue[str] = asyncio.Queue()
            with b.hints.listen_work(agents.put_nowait):
                a.bus.publish_work("of one")
                await arrives(c, b)
                c.bus.publish_work("of two")
                assert await asyncio.wait_for(agents.get(), WAIT) == "of two"


TELL = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.store.bus.test_bus import End, event
async def main():
    end = End({url!r})
    await end.bus.open(end.hints, "another process")
    await end.until_up()
    print("up", flush=True)
    loop = asyncio.get_running_loop()
    while (line := await loop.run_in_executor(None, sys.stdin.readline)):
        end.bus.publish([event(int(line))])
    await end.bus.close()
asyncio.run(main())
"""


class Replica:
    """A store that shares its logs with another, and its relay."""

    def __init__(self, logs: MemoryLogs, url: str) -> None:
        self.store = MemoryTaskStore(logs=logs)
        self.hints = LocalHints()
        self.bus = new_bus(url)
        self.poller = BusPoller(self.store, self.hints, self.bus, poll=0.2)

    async def start(self) -> None:
        await self.store.open(self.poller.publish)
        await self.poller.start()

    async def stop(self) -> None:
        await self.poller.stop()
        await self.store.close()


async def kill_it(server: Server) -> None:
    server.kill()
    await let_time_pass(0.2)
    await asyncio.to_thread(server.start)


async def pause_it(server: Server) -> None:
    server.pause()
    await let_time_pass(2.0)
    server.go_on()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill_it, pause_it])
async def test_readers_elsewhere_miss_nothing_while_the_server_fails(
    server: Server, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    logs = MemoryLogs()
    writer, reader = Replica(logs, url_of(server)), Replica(logs, url_of(server))
    await writer.start()
    await reader.start()
    found: dict[str, list[int]] = {}
    tasks = [f"t{n}" for n in range(20)]
    is_over = False

    async def write(task_id: str) -> int:
        last = await writer.store.append(creation(task_id))
        while not is_over:
            last = await writer.store.append(addition(task_id, last, chunk(task_id, "x")))
            await let_time_pass(0.005)
        return await writer.store.append(
            addition(task_id, last, status(task_id, TaskState.COMPLETED))
        )

    async def read(task_id: str) -> None:
        found[task_id] = []
        async with aclosing(follow(reader.store, reader.hints, task_id, 0)) as batches:
            async for events in batches:
                found[task_id] += numbers(events)

    async with asyncio.timeout(2 * WAIT):
        writing = [asyncio.ensure_future(write(task_id)) for task_id in tasks]
        await asyncio.sleep(0)
        reading = [asyncio.ensure_future(read(task_id)) for task_id in tasks]
        await let_time_pass(0.3)
        await fault(server)
        await until(lambda: writer.bus.is_up and reader.bus.is_up)
        await let_time_pass(0.3)
        is_over = True
        lasts = await asyncio.gather(*writing)
        await asyncio.gather(*reading)
    for task_id, last in zip(tasks, lasts, strict=True):
        assert found[task_id] == list(range(1, last + 1))
    await writer.stop()
    await reader.stop()


async def test_a_server_that_dies_is_told_of_once_and_found_again(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    caplog.set_level(logging.INFO)
    async with ends(url_of(server), url_of(server)) as (a, b):
        await arrives(a, b)
        missed = b.missed
        for _ in range(2):
            server.kill()
            await until(lambda: not a.bus.is_up and not b.bus.is_up)
            for seq in range(1000):
                a.bus.publish([event(seq + 1)])
            await let_time_pass(0.5)
            await asyncio.to_thread(server.start)
            await a.until_up()
            await b.until_up()
            # Watched tasks are read, since hints in the meantime are lost.
            assert b.missed > missed
            missed = b.missed
            await arrives(a, b)
    ours = f":{server.port}"  # the loop has buses of other tests' servers too
    said = [line for line in caplog.messages if ours in line]
    assert sum("does not work" in line for line in said) == 4
    assert sum("works again" in line for line in said) == 4


async def test_a_listener_that_is_lost_leaves_alone_who_gets_its_descriptor(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from parley.store.bus.postgres_bus import PostgresBus

    impatient(monkeypatch)
    read_notifications = PostgresBus._read_notifications
    pairs: list[tuple[socket.socket, socket.socket]] = []
    others: list[asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = []

    def read_and_replace(self: PostgresBus, connection: Any) -> None:
        number = connection.fileno()
        try:
            read_notifications(self, connection)
        except psycopg.Error:
            # Another connection opens at this moment, and gets the first free descriptor.
            while not any(number == each.fileno() for pair in pairs for each in pair):
                pairs.append(socket.socketpair())
            for one, other in pairs:
                near = one if number == one.fileno() else other
                if number == near.fileno():
                    others.append(asyncio.create_task(asyncio.open_connection(sock=near)))
            raise

    monkeypatch.setattr(PostgresBus, "_read_notifications", read_and_replace)
    with server_of("postgres") as server, contextlib.ExitStack() as sockets:
        assert isinstance(server, PostgresServer)
        async with ends(server.url()) as [end]:
            server.cut_connections()
            await until(lambda: bool(others) and end.bus.is_up)
            monkeypatch.undo()
            impatient(monkeypatch)
        for pair in pairs:
            for each in pair:
                sockets.callback(each.close)
        for other in others:
            reader, writer = await other
            number = writer.get_extra_info("socket").fileno()
            [(one, two)] = [pair for pair in pairs if number in [each.fileno() for each in pair]]
            (two if number == one.fileno() else one).sendall(b"hello")
            assert await asyncio.wait_for(reader.readexactly(5), WAIT) == b"hello"
            writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.slow
async def test_one_that_does_not_answer_is_noticed_and_costs_little(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    async with line(server.port) as passing:
        url = url_of(server, passing.port)
        async with ends(url, url) as (a, b):
            await arrives(a, b)
            passing.freeze()
            large = event(1, "x" * 1000)
            for n in range(20_000):
                a.bus.publish([large])
                a.bus.publish_work("x")
                if n % 100 == 0:
                    await asyncio.sleep(0)
            await until(lambda: not a.bus.is_up and not b.bus.is_up)
            passing.thaw()
            passing.cut()
            await a.until_up()
            await b.until_up()
            await arrives(a, b)
            # A slow connection is no reason to disconnect.
            passing.delay = 0.05
            await arrives(a, b, "u")
            passing.delay = 0.0
            # It closes in bounded time even when the server does not respond.
            passing.freeze()
            a.bus.publish([large])
            async with asyncio.timeout(WAIT):
                await a.bus.close()
                await b.bus.close()


async def test_it_can_be_closed_while_it_connects() -> None:
    async with line(9) as nowhere:
        nowhere.freeze()
        for url in (
            f"postgresql://u:secret@127.0.0.1:{nowhere.port}/d",
            f"redis://u:secret@127.0.0.1:{nowhere.port}",
            f"redis+cluster://u:secret@127.0.0.1:{nowhere.port}",
            f"redis+sentinel://127.0.0.1:{nowhere.port}/hints?sentinel_password=secret",
        ):
            end = End(url)
            opening = asyncio.ensure_future(end.bus.open(end.hints, "a"))
            await let_time_pass(0.05)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await opening
            async with asyncio.timeout(WAIT):
                await end.bus.close()
            assert "secret" not in repr(end.bus)


async def test_behind_a_pooler_nothing_is_heard_and_that_is_said(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    with postgres_service.pooled(postgres) as pooler:
        url = url_of(postgres, pooler.port)
        async with ends(url, up=False) as [end]:
            await until(lambda: "not a pooler" in caplog.text)
            assert not end.bus.is_up
