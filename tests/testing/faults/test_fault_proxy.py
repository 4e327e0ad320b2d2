"""Faults between a real client and a real server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

import parley
from parley import Agent, Turn
from parley.client.errors import ClientError, Disconnected
from parley.client.remote_agent import RemoteAgent
from parley.client.retry import Retry
from parley.conformance import faults
from parley.conformance.faults import Fault, FaultGate
from parley.model.errors import VersionNotSupportedError
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.testing import FaultProxy
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio
WORDS = ["one ", "two ", "three ", "four ", "five"]
RETRY = Retry(calls=4, streams=8, first=0.001, limit=0.01)
agent = Agent(name="Counting", description="Counts")
counted: list[str] = []


@agent.skill
async def count(turn: Turn) -> Any:
    """Counts."""
    counted.append(turn.text)
    if turn.text == "hello":
        return "Hello!"
    async with turn.stream(name="list") as out:
        for word in WORDS:
            await out.write(word)
    return None


@pytest.fixture(scope="module")
async def place() -> AsyncIterator[tuple[str, str]]:
    app = parley.asgi(agent, drain=0.0)
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        yield url, app.grpc.beside(url)


@pytest.fixture
async def proxy(place: tuple[str, str]) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(place[0]) as proxy:
        yield proxy


async def listed(proxy: FaultProxy, binding: str = "JSONRPC", **options: Any) -> str:
    """Return the client's received items of the list after its stream ends."""
    text: dict[str, str] = {}
    async with parley.connect(proxy.url, binding=binding, retries=RETRY, **options) as remote:
        async for event in remote.stream("list"):
            if artifact := getattr(event, "artifact", None):
                said = "".join(part.text or "" for part in artifact.parts)
                key = artifact.artifact_id
                text[key] = text.get(key, "") + said if event.append else said
        assert (await remote.get(event.task_id)).text == "".join(WORDS)  # type: ignore[union-attr]
    return "".join(text.values())


async def arrived(proxy: FaultProxy) -> None:
    """Wait until a message has reached the proxy."""
    await until(lambda: proxy.of("SendMessage"))


STREAM_FAULTS = {
    "cut_after_a_frame": faults.cut(after_frames=1),
    "cut_after_three_frames": faults.cut(after_frames=3),
    "cut_in_a_frame": faults.cut(after_bytes=700),
    "cut_before_the_first_byte": faults.cut(after_bytes=0),
    "answer_lost": faults.drop_answer(),
    "request_lost": faults.drop(),
    "frame_twice": faults.duplicate_frame(3),
    "frame_lost": faults.drop_frame(4),
    "frames_out_of_order": faults.reorder(3, behind=4),
    "slow": faults.slow(100_000, piece=16),
    "late": faults.delay(0.05),
    "frame_late": faults.delay(0.05, frame=2),
    "too_many": faults.status(429, retry_after=0),
    "unavailable": faults.status(503),
    "twice": faults.duplicate(),
}


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("name", STREAM_FAULTS)
async def test_the_client_has_the_whole_stream_whatever_goes_wrong(
    proxy: FaultProxy, name: str, binding: str
) -> None:
    proxy.fault(STREAM_FAULTS[name], on="SendStreamingMessage")
    began = len(counted)
    assert await listed(proxy, binding) == "".join(WORDS)
    assert len(counted) == began + 1  # the agent did it once
    assert proxy.of("SendStreamingMessage")[0].faults == (STREAM_FAULTS[name],)


CALL_FAULTS = {
    "request_lost": faults.drop(),
    "answer_lost": faults.drop_answer(),
    "answer_cut": faults.cut(after_bytes=20),
    "request_twice": faults.duplicate(),
    "too_many": faults.status(429, retry_after=0),
    "slow": faults.slow(20_000, piece=8),
    "late": faults.delay(0.05),
}


@pytest.mark.parametrize("name", CALL_FAULTS)
async def test_a_call_is_made_once_whatever_goes_wrong(proxy: FaultProxy, name: str) -> None:
    proxy.fault(CALL_FAULTS[name], on="SendMessage")
    began = len(counted)
    async with parley.connect(proxy.url, retries=RETRY) as remote:
        assert (await remote.send("list")).text == "".join(WORDS)
    assert len(counted) == began + 1


async def test_a_wrong_version_gets_the_servers_own_refusal(proxy: FaultProxy) -> None:
    proxy.fault(faults.wrong_version(), on="SendMessage")
    async with parley.connect(proxy.url, version="1.0", binding="JSONRPC") as remote:
        with pytest.raises(VersionNotSupportedError):
            await remote.send("hello")
        assert (await remote.send("hello")).text == "Hello!"


async def test_rules_choose_requests_by_operation_path_function_and_number(
    proxy: FaultProxy,
) -> None:
    proxy.fault(faults.status(503), on="/.well-known/*")
    proxy.fault(faults.status(500), on=lambda request: b"strange" in request.body)
    proxy.fault(faults.drop(), on="GetTask", after=1)
    async with parley.connect(proxy.url, retries=RETRY) as remote:
        assert [each.status for each in proxy.of("card")] == [503, 200]
        task = await remote.send("list")
        with pytest.raises(ClientError):
            await remote.send("strange")
        await remote.get(task.id)
        await remote.get(task.id)
    assert [each.status for each in proxy.of("GetTask")] == [200, 0, 200]
    proxy.clear()


async def test_a_gate_holds_an_answer_until_the_test_opens_it(proxy: FaultProxy) -> None:
    gate = FaultGate()
    proxy.fault(faults.delay(gate), on="SendMessage")
    async with parley.connect(proxy.url) as remote:
        sending = asyncio.create_task(remote.send("hello"))
        await arrived(proxy)
        assert (await remote.send("hello")).text == "Hello!"
        assert not sending.done()
        gate.open()
        assert (await sending).text == "Hello!"


async def test_a_request_is_overtaken_by_the_next(proxy: FaultProxy) -> None:
    proxy.fault(faults.overtaken(), on="SendMessage")
    began = len(counted)
    async with parley.connect(proxy.url) as remote:
        first = asyncio.create_task(remote.send("list"))
        await arrived(proxy)
        await remote.send("hello")
        await first
    assert counted[began:] == ["hello", "list"]


async def test_a_line_that_stays_broken_is_an_error_that_says_so(proxy: FaultProxy) -> None:
    proxy.fault(faults.drop_answer(), on="SendMessage", times=None)
    async with parley.connect(proxy.url, retries=RETRY) as remote:
        with pytest.raises(Disconnected):
            await remote.send("hello")


async def test_any_client_sees_the_faults(proxy: FaultProxy) -> None:
    proxy.fault(faults.status(429, retry_after=7))
    host = proxy.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(b"GET /tasks/1 HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"Retry-After: 7\r\n" in answer


async def answered(remote: RemoteAgent) -> str:
    """Return the agent's answer after gRPC has detected the broken connection."""
    for _ in range(20):
        with suppress(Disconnected):
            return str((await remote.send("hello")).text)
    raise AssertionError("no call got through a line that was cut once")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0, 60])
async def test_grpc_is_cut_by_connection(place: tuple[str, str], cut: int) -> None:
    async with FaultProxy(f"tcp://{place[1]}") as proxy:
        proxy.fault(faults.cut(after_bytes=cut) if cut else faults.drop())
        card = {
            "name": "Counting",
            "description": "Counts",
            "version": "1",
            "capabilities": {"streaming": True},
            "skills": [],
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "supportedInterfaces": [
                {"url": proxy.url, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
            ],
        }
        retry = Retry(calls=50, streams=50, first=0.05, limit=0.2)
        async with parley.connect(card, retries=retry) as remote:
            if cut:  # the delivery is uncertain, and the agent's card does not help
                with pytest.raises(Disconnected):
                    await remote.send("hello")
            assert await answered(remote) == "Hello!"
        assert len(proxy.requests) > 1
        with pytest.raises(ValueError, match="needs HTTP"):
            proxy.fault(faults.duplicate())


def test_faults_that_make_no_sense_are_refused() -> None:
    for wrong in (
        lambda: faults.cut(),
        lambda: faults.cut(after_bytes=1, after_frames=1),
        lambda: faults.status(200),
        lambda: faults.delay(0),
        lambda: faults.reorder(2, behind=1),
        lambda: faults.drop_frame(0),
        lambda: FaultProxy("ftp://x"),
        lambda: FaultProxy("tcp://x"),
    ):
        with pytest.raises(ValueError):
            wrong()  # type: ignore[no-untyped-call]
    assert isinstance(faults.drop(), Fault)


async def test_cards_lead_to_the_proxy_alone(proxy: FaultProxy) -> None:
    async with parley.connect(proxy.url) as remote:
        urls = {each.url for each in remote.card.supported_interfaces}
    assert {url.split("/")[2] for url in urls} == {proxy.url.removeprefix("http://")}


def test_no_connection_is_left_open_at_the_end() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for count in (1, 2, 5, 20):
            with contextlib.ExitStack() as clients, FaultProxy("http://127.0.0.1:9") as proxy:
                address = ("127.0.0.1", urlsplit(proxy.url).port)
                for _ in range(count):
                    clients.enter_context(socket.create_connection(address))
        gc.collect()
    assert [str(each.message) for each in said if each.category is ResourceWarning] == []


async def test_without_faults_an_answer_has_the_headers_of_the_server_alone() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 Fine\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, FaultProxy(f"http://127.0.0.1:{port}") as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(proxy.url).port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    line, *headers = head.split(b"\r\n")
    assert (line, body) == (b"HTTP/1.1 200 Fine", b"hi")
    assert headers == [b"X-A: 1", b"x-a: 2", b"Content-Length: 2", b"Connection: close"]


async def test_the_server_sees_that_a_client_leaves() -> None:
    left = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await writer.drain()
        assert await reader.read() == b""
        left.set()
        writer.close()

    server = await asyncio.start_server(stream, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, FaultProxy(f"http://127.0.0.1:{port}") as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(proxy.url).port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"data: 1")
        writer.close()
        async with asyncio.timeout(5):
            await left.wait()


async def test_a_proxy_ends_while_a_request_is_held(place: tuple[str, str]) -> None:
    async with asyncio.timeout(5):
        async with FaultProxy(place[0]) as proxy:
            proxy.fault(faults.delay(FaultGate()))
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(proxy.url).port)
            writer.write(b"GET /tasks/1 HTTP/1.1\r\nHost: a\r\n\r\n")
            await until(lambda: proxy.requests)
        assert await reader.read() == b""
        writer.close()
