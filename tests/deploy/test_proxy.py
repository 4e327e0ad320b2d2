"""The proxy of ``deploy/`` in front of real replicas is invisible to callers."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

import parley
from parley import TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.client.retry import Retry
from tests.deploy.proxied import HAPROXY, haproxy, names
from tests.kit.processes import Running, free_port
from tests.kit.waiting import let_time_pass

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.service,
    pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed"),
]

ADDRESSES = ("127.0.0.1", "127.0.0.2")
AGENT = str(Path(__file__).with_name("agent.py"))
BOUND = 30


def call(method: str, skill: str, text: str) -> dict[str, object]:
    said = {
        "messageId": f"m-{text}",
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        "metadata": {"skill": skill},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": said}}


class Fleet:
    """Two replicas, and a caller who knows only the proxy's address."""

    def __init__(self, url: str, http: aiohttp.ClientSession, replicas: list[Running]) -> None:
        self.url = url
        self.http = http
        self.replicas = replicas

    async def who(self) -> int:
        """Send a message; return the process that answered, or raise if the request fails."""
        async with self.http.post(self.url, json=call("SendMessage", "who", "?")) as reply:
            assert reply.status == 200, await reply.text()
            (part,) = (await reply.json())["result"]["message"]["parts"]
            return int(part["text"])

    async def until_answered_by(self, pids: set[int]) -> None:
        """Send requests until exactly the processes ``pids`` answer."""
        async with asyncio.timeout(BOUND):
            while {await self.who() for _ in range(8)} != pids:
                await let_time_pass(0.05)

    @property
    def pids(self) -> set[int]:
        return {replica.process.pid for replica in self.replicas}


@asynccontextmanager
async def replicas(folder: Path, *options: tuple[str, ...]) -> AsyncIterator[Fleet]:
    """Two replicas behind the proxy, each with its own options."""
    port = free_port(ADDRESSES)
    async with AsyncExitStack() as stack:
        running = []
        for address, more in zip(ADDRESSES, options, strict=True):
            arguments = ["serve", AGENT, "--host", address, "--port", str(port), *more]
            running.append(stack.enter_context(Running(arguments, folder)))
        for replica in running:
            await asyncio.to_thread(replica.until, "Ctrl-C stops the server")
        url = await stack.enter_async_context(front(folder, port))
        headers = {"A2A-Version": "1.0"}
        http = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
        fleet = Fleet(url, http, running)
        await fleet.until_answered_by(fleet.pids)
        yield fleet


@asynccontextmanager
async def front(
    folder: Path, port: int, addresses: Sequence[str] = ADDRESSES
) -> AsyncIterator[str]:
    """The proxy in front of the servers that listen on ``port`` at the addresses."""
    async with names(addresses) as (_, dns):
        with haproxy(folder, port, dns) as url:
            async with asyncio.timeout(BOUND), aiohttp.ClientSession() as http:
                while not await _is_up(http, url):
                    await let_time_pass(0.05)
            yield url


async def _is_up(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/health/ready") as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Two replicas without a shared store: the test is about the proxy."""
    stores = [("--store", f"sqlite:///{tmp_path}/{n}.db") for n in range(2)]
    async with replicas(tmp_path, *stores) as fleet:
        yield fleet


@asynccontextmanager
async def stream(fleet: Fleet, go: Path) -> AsyncIterator[AsyncIterator[dict[str, object]]]:
    async with fleet.http.post(
        fleet.url, json=call("SendStreamingMessage", "halves", str(go))
    ) as reply:
        assert reply.status == 200

        async def events() -> AsyncIterator[dict[str, object]]:
            async for line in reply.content:
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])["result"]

        yield events()


def said(event: dict[str, object]) -> str:
    update = event.get("artifactUpdate")
    parts = update["artifact"]["parts"] if isinstance(update, dict) else []
    return "".join(part["text"] for part in parts)


async def test_a_stream_is_passed_on_as_it_is_written(fleet: Fleet, tmp_path: Path) -> None:
    """The agent waits until its first words have arrived: a buffering proxy would block it."""
    go = tmp_path / "go"
    async with asyncio.timeout(BOUND), stream(fleet, go) as events:
        async for event in events:
            if int(said(event) or 0) in fleet.pids:
                break
        go.touch()
        rest = [said(event) async for event in events]
    assert "the rest" in rest


async def test_a_replica_that_was_killed_costs_no_further_request(fleet: Fleet) -> None:
    dead, alive = fleet.replicas
    dead.process.kill()
    dead.process.wait()
    # A failed connection is retried at another replica, before and after a health check.
    for _ in range(3):
        await fleet.until_answered_by({alive.process.pid})


async def test_a_replica_that_drains_ends_its_streams_and_gets_no_requests(
    fleet: Fleet, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with asyncio.timeout(BOUND), stream(fleet, go) as events:
        mine = ""
        async for event in events:
            if mine := said(event):
                break
        (drained,) = [r for r in fleet.replicas if r.process.pid == int(mine)]
        drained.process.send_signal(signal.SIGTERM)
        others = fleet.pids - {int(mine)}
        await fleet.until_answered_by(others)
        go.touch()
        async for _ in events:  # would raise if the stream were cut
            pass
    assert await asyncio.to_thread(drained.end) == 0
    await fleet.until_answered_by(others)


async def test_a_replica_that_drains_loses_no_request_of_a_caller_who_never_repeats_one(
    fleet: Fleet,
) -> None:
    drained, other = fleet.replicas
    is_over = False

    async def ask() -> int:
        asked = 0
        while not is_over:
            await fleet.who()  # would raise
            asked += 1
        return asked

    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        asking = [group.create_task(ask()) for _ in range(8)]
        await let_time_pass(0.3)
        drained.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(drained.end) == 0
        await fleet.until_answered_by({other.process.pid})
        is_over = True
    assert all(each.result() > 10 for each in asking)


async def test_a_stream_goes_on_through_the_proxy_when_its_replica_is_killed(
    postgres_url: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    shared = ("--store", postgres_url, "--lease", "2s")
    async with (
        asyncio.timeout(4 * BOUND),
        replicas(tmp_path, shared, shared) as fleet,
        parley.connect(fleet.url, retries=Retry(streams=100, first=0.1, limit=0.5)) as agent,
    ):
        seen: list[object] = []
        async for event in agent.stream(str(go), message_metadata={"skill": "halves"}):
            seen.append(event)
            if not go.exists() and isinstance(event, TaskArtifactUpdateEvent):
                (dead,) = [
                    replica
                    for replica in fleet.replicas
                    if str(replica.process.pid) == event.artifact.parts[0].text
                ]
                dead.process.kill()
                go.touch()
        (alive,) = [replica for replica in fleet.replicas if replica is not dead]
        task = await agent.get(seen[0].id)  # type: ignore[attr-defined]
        assert task.state is TaskState.COMPLETED
        assert "".join(a.text for a in task.artifacts) == f"{alive.process.pid}the rest"
        assert isinstance(seen[-1], TaskStatusUpdateEvent)
        assert seen[-1].status.state is TaskState.COMPLETED


async def test_only_what_changes_nothing_is_sent_a_second_time(tmp_path: Path) -> None:
    """A replica that dies during a request may have processed it."""
    port = free_port(ADDRESSES)
    seen: list[str] = []

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # a health check may break off
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            if "/health/ready" in request:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            else:
                seen.append(request.split()[0])
        writer.close()

    async with AsyncExitStack() as stack:
        for address in ADDRESSES:
            server = await asyncio.start_server(break_off, address, port)
            stack.callback(server.close)
        url = await stack.enter_async_context(front(tmp_path, port))
        for method in ("GET", "POST"):
            seen.clear()
            async with asyncio.timeout(BOUND), aiohttp.request(method, f"{url}/tasks/1") as reply:
                assert reply.status >= 500
            assert set(seen) == {method}
            assert (len(seen) > 1) == (method == "GET")
