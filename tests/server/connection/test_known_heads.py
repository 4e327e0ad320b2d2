"""A connection caches a head that its client repeats: responses are the same as without."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import parley
from parley import Agent
from parley.model.errors import A2AError
from parley.model.service import ANONYMOUS
from parley.server.http.exchange import HeadFields
from parley.server.http1.asgi import scope_of
from parley.server.http1.connection import HttpConnection
from parley.server.http1.head import RequestHead, RequestRefused, read_head
from tests.server.connection.wire import Wire, answers, serving_of, undated

LENGTH = re.compile(rb"(?i)(\r\ncontent-length:[ ]*)\d+")


FIELDS_OF_CALLS = st.sampled_from(
    [
        b"A2A-Version: 1.0", b"a2a-version: 0.3", b"A2A-Version: 7", b"A2A-Version:", b"X: y",
        b"Content-Type: application/json", b"Content-Type: Application/A2A+JSON; charset=utf-8",
        b"Content-Type: text/plain", b"A2A-Extensions: urn:a, urn:b,", b"X-A2A-Extensions: urn:c",
        b"Last-Event-ID: 7", b"Last-Event-ID: \xe4", b"tracestate: a=1", b"tracestate: b=2",
        b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"traceparent: broken", b"Host: 127.0.0.1:1", b"Accept: application/a2a+json",
    ]
)  # fmt: skip
PATHS = st.sampled_from(
    [
        (b"POST", b"/"), (b"POST", b"/?A2A-Version=0.3"), (b"GET", b"/tasks/t?historyLength=1"),
        (b"GET", b"/tasks?a2a-version=1.0"), (b"GET", b"/v1/tasks/t"), (b"GET", b"/t/tasks/t"),
        (b"POST", b"/message:send"),
    ]
)  # fmt: skip


def requests_of(app: Any, data: bytes) -> Any:
    """The requests with a head, as parsed by a connection without a cache."""
    try:
        head = read_head(data)
    except RequestRefused:
        return None
    scope = scope_of(head, server=("127.0.0.1", 80), client=("127.0.0.1", 1), scheme="http")
    return app.requests({**scope, "state": {}})


def kept_of(requests: Any) -> dict[str, Any]:
    """All cached data of a head, except the length of the body."""
    fields = requests._fields
    kept = {name: getattr(fields, name) for name in HeadFields.__slots__ if name != "scope"}
    kept["headers"] = {k: v for k, v in fields.headers.items() if k != b"content-length"}
    return kept


@pytest.mark.slow
@given(
    PATHS,
    st.lists(FIELDS_OF_CALLS, max_size=6, unique=True),
    st.none() | st.integers(0, 10**6),
    st.lists(st.sampled_from(["GetTask", "SendMessage", "message/send", "Nothing", ""])),
    st.integers(0, 10**6),
)
def test_what_is_kept_of_a_head_is_what_would_be_read(
    path: tuple[bytes, bytes],
    lines: list[bytes],
    length: int | None,
    methods: list[str],
    other: int,
) -> None:
    """Requests with that head, whatever their outcome, change nothing in the cache."""
    lines = [b"%b %b HTTP/1.1" % path, b"Host: 127.0.0.1", *lines]
    if length is not None:
        lines.insert(2, b"Content-Length: %d" % length)
    data = b"\r\n".join([*lines, b"", b""])
    requests = requests_of(APP, data)
    if requests is None:
        return
    before = kept_of(requests)
    for method in methods:
        body = b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (
            method.encode(), b'{"id":"t","message":{"messageId":"m","role":"ROLE_USER","parts":[]}}'
        )  # fmt: skip
        exchange = requests.exchange()
        with suppress(A2AError):
            exchange.read(body, ANONYMOUS)
    after = kept_of(requests)
    assert {**after, "address": None} == before
    anew = requests_of(APP, LENGTH.sub(rb"\g<1>%d" % other, data))
    assert kept_of(anew) == before
    if after["address"] is not None:
        assert anew.exchange().address("") == after["address"]


def asking(method: str, *, host: str = "127.0.0.1", version: str = "1.0", body: str = "") -> bytes:
    data = body.encode() or b'{"jsonrpc":"2.0","id":1,"method":"%b","params":{"id":"t"}}' % (
        method.encode()
    )
    return (
        b"POST / HTTP/1.1\r\nHost: %b\r\nA2A-Version: %b\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (host.encode(), version.encode(), len(data), data)
    )


REQUESTS = {
    "get": asking("GetTask"),
    "get by a longer name": asking("GetTask" + "s" * 30),
    "no JSON": asking("", body="{"),
    "another version": asking("GetTask", version="0.3"),
    "no such version": asking("GetTask", version="7"),
    "a page's host": asking("GetTask", host="evil.example"),
    "by path": b"GET /tasks/t HTTP/1.1\r\nHost: 127.0.0.1\r\nA2A-Version: 1.0\r\n\r\n",
    "by path, with a query": b"GET /tasks?pageSize=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"A2A-Version: 1.0\r\n\r\n",
    "by path, with a body": b"GET /tasks/t HTTP/1.1\r\nHost: 127.0.0.1\r\nA2A-Version: 1.0\r\n"
    b"Content-Length: 2\r\n\r\n{}",
    "half of a path": b"GET /tasks/t HTTP/1.1\r\nHost: 127.0.0.1\r\nA2A-Version: 1.0\r\n\r",
    "the rest of that": b"\n",
    "the card": b"GET /.well-known/agent-card.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "in chunks": asking("GetTask").partition(b"Content-Length")[0]
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "two at once": asking("GetTask") + asking("ListTasks"),
    "empty lines before": b"\r\n\r\n" + asking("GetTask"),
    "half of a body": asking("GetTask")[:-5],
    "the rest of it": asking("GetTask")[-5:],
    "smuggled": asking("GetTask").replace(b"Content-Length: ", b"Content-Length: +"),
}


def asked() -> Agent:
    agent = Agent("Asked")

    @agent.skill
    async def say(text: str) -> str:
        """Says it."""
        return text

    return agent


APP = parley.asgi(asked())


async def answered(names: list[str], *, forgets: bool) -> list[Any]:
    """Return an agent's responses on one connection, which may forget each head."""
    app = parley.asgi(asked())
    async with app.lifespan():
        serving, wire = serving_of(app, agents=app), Wire()
        connection = HttpConnection(serving, asyncio.get_running_loop())
        connection.connection_made(wire)
        for name in names:
            if wire.has_ended:
                break
            if forgets:
                connection._known = None
            connection.data_received(REQUESTS[name])
            while serving.tasks and not (connection._rest or connection._body):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        connection.connection_lost(None)
        while serving.tasks:
            await asyncio.sleep(0)
    return [*answers(undated(b"".join(wire.written))), wire.has_ended]


PAIRS = [[first, "get", second, "get", "get by a longer name"] for first in ("get", "no JSON")
         for second in REQUESTS]  # fmt: skip
PAIRS += [["by path", "by path", second, "by path"] for second in REQUESTS]


@pytest.mark.anyio
@pytest.mark.parametrize("names", PAIRS)
async def test_each_request_is_answered_as_on_a_connection_that_forgets(names: list[str]) -> None:
    cached = await answered(names, forgets=False)
    assert cached == await answered(names, forgets=True)
    assert len(cached) > 3


@pytest.mark.anyio
async def test_a_task_asked_for_by_its_path_is_known_by_its_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[bytes] = []

    def noting(data: bytes) -> RequestHead:
        read.append(data)
        return read_head(data)

    monkeypatch.setattr("parley.server.http1.connection.read_head", noting)
    assert len(await answered(["by path"] * 5, forgets=False)) == 6
    assert len(read) == 1
