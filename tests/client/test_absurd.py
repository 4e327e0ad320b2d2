"""What no server says in earnest ends in an error that is ours, or is passed over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from parley.client import connect
from parley.client.bindings.http import HttpTransport
from parley.client.card.resolver import CardResolver
from parley.client.errors import CardInvalid, CardNotFound, ClientError, UnexpectedStatus
from parley.model.errors import A2AError, InvalidAgentResponseError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.tasks import TaskState
from tests.kit.scripted_server import Agent, Exchange, card, scripted, talk, task

pytestmark = pytest.mark.anyio

DEEP = 100_000
NEST = b'{"a":' * DEEP + b"1" + b"}" * DEEP


def nested(depth: int = DEEP) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "raw",
    [
        NEST,
        b'{"name":"x","supportedInterfaces":[],"skills":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"name":"x","url":"http://x","metadata":' + NEST + b"}",
        b'{"name":"x","url":"http://x","security":' + b"[" * DEEP,
    ],
)
async def test_a_card_that_is_nested_too_deeply_is_no_card(raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(raw)

    async def server_of_it(exchange: Exchange) -> None:
        await exchange.body_of(raw, content_type="application/json")

    async with HttpTransport() as http, scripted(server_of_it) as server:
        for reference in (raw, raw.decode(), file, str(file), server.url):
            with pytest.raises(CardInvalid):
                await CardResolver(http).resolve(reference)


async def test_a_card_in_memory_that_is_nested_too_deeply_is_no_card() -> None:
    async with HttpTransport() as http:
        with pytest.raises(CardInvalid, match="nested too deeply"):
            await CardResolver(http).resolve({**card("http://x"), "more": nested()})


@pytest.mark.parametrize("name", ["skills", "securitySchemes", "provider", "name"])
async def test_a_nest_within_a_card_is_no_crash(name: str) -> None:
    raw = json.dumps({**card("http://x"), name: "NEST"}).encode().replace(b'"NEST"', NEST)
    async with HttpTransport() as http:
        with pytest.raises(CardInvalid):
            await CardResolver(http).resolve(raw)


@pytest.mark.parametrize(
    "reference",
    [
        "http://localhost:99999/",
        "http://localhost:-1/",
        "http://localhost:" + "9" * 5000,
        "localhost:99999",
        "http://localhost/\0",
        "http://loc\0alhost/",
        "a\0b",
        "./a\0b",
        "file:///a%00b",
        "http://localhost/\udc80",
        "\udc80",
        "./\udc80",
        '{"name": "\udc80"}',
        "http://[::1/",
        "x" * 100_000,
        "./" + "x" * 100_000,
    ],
    ids=lambda text: ascii(text)[:40],
)
async def test_an_absurd_reference_is_no_agent(reference: str) -> None:
    with pytest.raises(ClientError):
        async with connect(reference, retries=0, timeout=5):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:99999/",
        "http://localhost:0/",
        "http://localhost:" + "9" * 5000 + "/",
        "http://[::1/",
        "http:///",
        "",
        "ftp://localhost",
    ],
    ids=lambda url: url[:30],
)
@pytest.mark.parametrize("binding", ["JSONRPC", "GRPC"])
async def test_an_interface_at_an_absurd_address_is_passed_over(url: str, binding: str) -> None:
    agent = Agent(task())
    async with scripted(agent) as server:
        right = card(server.url)["supportedInterfaces"]
        wrong = {"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}
        if binding == "GRPC" and url:
            wrong["url"] = url.removeprefix("http://").rstrip("/")
        agent.card_members = {"supportedInterfaces": [wrong, *right]}
        async with connect(server.url, retries=0) as remote:
            assert remote.interface.protocol_binding == "JSONRPC"
            assert (await remote.get("t-1")).id == "t-1"


async def test_an_event_number_of_5000_digits_is_none() -> None:
    async def streamed(exchange: Exchange) -> None:
        frame = exchange.frame({"task": task()})
        await exchange.stream(b"id: " + b"9" * 5000 + b"\n" + frame)

    agent = Agent(streamed)
    agent.extensions = (RESUMABLE_STREAMS,)
    async with talk(agent) as (remote, _):
        stream = remote.stream("go")
        assert [event.state async for event in stream] == [TaskState.COMPLETED]
        assert stream.seq is None


HEADS = {
    "content-length of 5,000 digits": "Content-Length: " + "9" * 5000,
    "content-length beyond all": "Content-Length: 99999999999999999999",
    "content-length below nothing": "Content-Length: -5",
    "content-length of words": "Content-Length: many",
    "two content-lengths": "Content-Length: 5\r\nContent-Length: 6",
    "a header without end": "X-Long: " + "x" * 200_000,
    "100,000 headers": "\r\n".join(f"X-{n}: 1" for n in range(100_000)),
    "a header of no text": "X-A: \x00\x01",
    "a location with a bad port": "Location: http://localhost:99999/x",
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("status", [200, 307, 503])
async def test_an_absurd_head_of_an_answer_is_a_client_error(head: str, status: int) -> None:
    async def absurd(exchange: Exchange) -> None:
        await exchange.raw(f"HTTP/1.1 {status} OK\r\n{HEADS[head]}\r\n\r\n".encode("latin-1"))
        exchange.hang_up()

    async with scripted(absurd) as server:
        with pytest.raises(ClientError):
            async with connect(server.url, retries=0, timeout=5):
                pass
        async with connect(card(server.url), retries=0, timeout=5) as remote:
            for call in (remote.get("t"), remote.send("go"), anext(remote.stream("go"))):
                with pytest.raises((ClientError, InvalidAgentResponseError)):
                    await call


COOKIES = [
    "a=" + "b" * 8000,
    '="; Max-Age=' + "9" * 5000,
    "a=b; expires=Thu, 99 Foo 99999 99:99:99 GMT",
    "\xff\xfe=\xff; Domain=..; Path=\x01",
    "; " * 2000,
]


@pytest.mark.parametrize("cookie", COOKIES, ids=lambda text: ascii(text)[:20])
async def test_cookies_are_neither_kept_nor_a_fault(cookie: str) -> None:
    async def with_cookie(exchange: Exchange) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": None, "result": task()}).encode()
        if exchange.method == "GET":
            body = json.dumps(card(f"http://{exchange.headers['host']}")).encode()
        head = f"HTTP/1.1 200 OK\r\nSet-Cookie: {cookie}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        await exchange.raw(head.encode("latin-1").replace(b"\x01", b"") + body)

    async with scripted(with_cookie) as server, connect(server.url, retries=0) as remote:
        for _ in range(2):
            assert (await remote.get("t-1")).id == "t-1"
        assert "cookie" not in server.exchanges[-1].headers


@pytest.mark.parametrize(
    "wish",
    ["9" * 5000, "-1", "Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 99 Dec 99999 99:99:99 GMT", "²", ""],
    ids=lambda text: text[:20],
)
async def test_an_absurd_retry_after_is_not_waited_for(wish: str) -> None:
    async def later(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(card(f"http://{exchange.headers['host']}"))
            return
        await exchange.body_of(b"later", 503, retry_after=wish)

    async with (
        asyncio.timeout(30),
        scripted(later) as server,
        connect(server.url, retries=1) as remote,
    ):
        with pytest.raises(UnexpectedStatus, match="503"):
            await remote.get("t-1")


@pytest.mark.parametrize("control", ["max-age=" + "9" * 5000, "max-age=²"])
@pytest.mark.parametrize("age", ["9" * 5000, "²", "-1"])
async def test_an_absurd_age_of_a_card_is_no_fault(control: str, age: str) -> None:
    async def aged(exchange: Exchange) -> None:
        value = card(f"http://{exchange.headers['host']}")
        await exchange.json(value, cache_control=control, age=age)

    async with scripted(aged) as server, connect(server.url, retries=0) as remote:
        assert (await remote.refresh_card()).name == "Scripted agent"


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"result":' + NEST + b"}",
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":' + NEST + b"}}",
        b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":' + b"9" * 5000 + b',"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1e400,"message":""}}',
    ],
    ids=["nested result", "nested error", "long id", "long code", "infinite code"],
)
async def test_an_absurd_answer_is_the_agents_fault(body: bytes) -> None:
    async def absurd(exchange: Exchange) -> None:
        await exchange.json(body)

    async with talk(Agent(absurd), retries=0) as (remote, _):
        with pytest.raises(A2AError):
            await remote.get("t-1")


@pytest.mark.parametrize(
    "moment", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "9" * 5000, "\ud83d", "²"]
)
async def test_an_absurd_moment_is_none(moment: str) -> None:
    status = {"state": "TASK_STATE_COMPLETED", "timestamp": moment}
    async with talk(Agent(task() | {"status": status}), retries=0) as (remote, _):
        got = await remote.get("t-1")
        assert (got.state, got.status.timestamp) == (TaskState.COMPLETED, None)


async def test_no_card_is_found_where_a_file_has_no_such_name() -> None:
    async with HttpTransport() as http:
        for name in ("a\0b.json", "./a\0b"):
            with pytest.raises(CardNotFound):
                await CardResolver(http).resolve(name)
            with pytest.raises(CardNotFound):
                await CardResolver(http).resolve(Path(name))
