"""The choice among an agent's interfaces, and failover when an interface cannot be called."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from parley.client import connect
from parley.client.bindings import binding
from parley.client.card.interface import choose
from parley.client.card.resolver import read_card
from parley.client.errors import (
    CardInvalid,
    Disconnected,
    NoCommonInterface,
    NoCommonVersion,
    StreamCut,
    UnexpectedStatus,
    Unreachable,
)
from parley.model.errors import TaskNotFoundError, VersionNotSupportedError
from parley.model.tasks import TaskState
from tests.kit.scripted_server import (
    AT_ONCE,
    Agent,
    Exchange,
    ScriptedServer,
    card,
    error,
    hang_up,
    reset,
    scripted,
    status,
    task,
)

pytestmark = pytest.mark.anyio

ONE = {"protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
REST = {**ONE, "protocolBinding": "HTTP+JSON"}
GRPC = {**ONE, "protocolBinding": "GRPC"}
OLD = {**ONE, "protocolVersion": "0.3"}


@pytest.fixture
def dead() -> Iterator[str]:
    """An address without a listener; the port stays reserved."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def with_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(binding._NEEDS, "GRPC", ())


def card_of(*offers: Mapping[str, str], **more: Any) -> dict[str, Any]:
    return card("http://x", **{"supportedInterfaces": list(offers), **more})


def order(*offers: Mapping[str, str], **options: Any) -> list[str]:
    """Return the paths of the addresses of ``offers``, in the order of the calls."""
    found = choose(read_card(_json(card_of(*offers)), "the card"), **options).candidates
    return [candidate.interface.url.rpartition("/")[2] for candidate in found]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@asynccontextmanager
async def line(agent: Agent, *offers: Mapping[str, str], **options: Any) -> Any:
    """A connection to an agent with ``offers``; an address that is a path is on its server."""
    async with scripted(agent) as server:
        there = [
            {**offer, "url": server.url + offer["url"]} if offer["url"][:1] == "/" else offer
            for offer in offers
        ]
        reference = card_of(*there)
        async with connect(reference, **{"retries": 0, **options}) as remote:
            yield remote, server


def paths(server: ScriptedServer) -> list[str]:
    return [exchange.path for exchange in server.exchanges]


def at(offer: Mapping[str, str], url: str, **more: str) -> dict[str, str]:
    return {**offer, "url": url, **more}


# -- the order of the calls -----------------------------------------------------------------------


OFFERS = (
    at(GRPC, "http://h:1/grpc"),
    at(REST, "http://h/rest"),
    at(ONE, "http://h/one"),
    at(OLD, "http://h/old"),
)


@pytest.mark.parametrize(
    ("offers", "options", "kind", "words"),
    [
        ([at({**ONE, "protocolBinding": "SMOKE"}, "http://h/")], {}, NoCommonInterface, "SMOKE"),
        ([at({**ONE, "protocolVersion": "2.0"}, "http://h/")], {}, NoCommonVersion, r"JSONRPC 2\."),
        (
            OFFERS[1:],
            {"version": "0.3", "binding": "rest"},
            NoCommonVersion,
            r"HTTP\+JSON 0\.3 was",
        ),
        (OFFERS[2:], {"binding": "rest"}, NoCommonInterface, r"offers JSONRPC 1\.0, JSONRPC 0\.3"),
    ],
)
def test_a_card_with_nothing_in_common_is_refused_with_what_it_offers(
    offers: Any, options: Any, kind: type[NoCommonInterface], words: str
) -> None:
    with pytest.raises(NoCommonInterface, match=words) as caught:
        order(*offers, **options)
    assert type(caught.value) is kind


def test_a_binding_under_its_name_of_0_3_is_named() -> None:
    with pytest.raises(CardInvalid, match=r"no protocolBinding for http://h/one: .*'transport'"):
        order({"url": "http://h/one", "transport": "JSONRPC", "protocolVersion": "1.0"})


async def test_a_version_that_nobody_speaks_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"'0\.1' .* 1\.0, 0\.3"):
        connect("http://agent.example", version="0.1")


def test_addresses_that_are_none_are_passed_over_if_others_are_right(with_grpc: None) -> None:
    assert order(at(ONE, "ftp://h/ftp"), at(REST, "http://h/rest")) == ["rest"]
    assert order(at(GRPC, "agent.example:443")) == ["agent.example:443"]
    assert order(at(GRPC, "https://agent.example/grpc")) == ["grpc"]
    for address in ("agent.example", "/grpc", "h:x"):
        with pytest.raises(CardInvalid, match="host:port"):
            order(at(GRPC, address))


def test_nothing_unencrypted_follows_what_is_encrypted() -> None:
    safe, plain = at(ONE, "https://h/safe"), at(REST, "http://h/plain")
    assert order(safe, plain) == ["safe"]
    assert order(plain, safe) == ["plain", "safe"]
    assert order(safe, at(REST, "http://localhost:1/here")) == ["safe", "here"]


# -- failover to the next interface ---------------------------------------------------------------


async def test_an_interface_out_of_reach_is_left_for_the_next_for_good(
    dead: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "parley.client")
    offers = at(ONE, f"{dead}/a", tenant="of-a"), at(ONE, "/b", tenant="of-b")
    async with line(Agent(task()), *offers) as (remote, server):
        assert (remote.interface.url, remote.version) == (f"{dead}/a", "1.0")
        assert f"calling JSONRPC 1.0 at {dead}/a" in caplog.text
        assert (await remote.get("t-1")).id == "t-1"
        assert remote.interface.url == server.url + "/b"
        assert f"calling JSONRPC 1.0 at {server.url}/b from now on" in caplog.text
        assert "cannot connect" in caplog.text
        count = len(caplog.records)
        await remote.get("t-1")
        assert len(caplog.records) == count
        assert paths(server) == ["/b", "/b"]
        assert server.exchanges[0].params == {"tenant": "of-b", "id": "t-1"}
        assert all(record.levelno == logging.INFO for record in caplog.records)


async def test_an_interface_that_closes_badly_leaves_no_connection_open(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    async def aclose(self: Any) -> None:
        closed.append(self)
        raise OSError(f"not today, number {len(closed)}")

    monkeypatch.setattr("parley.client.bindings.jsonrpc.JsonRpcClientBinding.aclose", aclose)
    offers = at(ONE, f"{dead}/a"), at(ONE, "/b")
    with pytest.raises(OSError, match="not today, number 2"):
        async with line(Agent(task()), *offers) as (remote, _):
            await remote.get("t-1")
    assert len(closed) == 2
    assert remote._http.closed


async def test_grpc_out_of_reach_is_left_for_http(dead: str) -> None:
    if not binding.is_supported("GRPC"):
        pytest.skip("gRPC is not installed")
    offers = at(GRPC, dead.removeprefix("http://")), at(ONE, "/b")
    async with line(Agent(task()), *offers) as (remote, server):
        assert remote.interface.protocol_binding == "GRPC"
        await remote.get("t-1")
        assert remote.interface.protocol_binding == "JSONRPC"
        assert paths(server) == ["/b"]
    with pytest.raises(Unreachable):
        async with connect(card_of(*offers), binding="GRPC", retries=0) as pinned:
            await pinned.get("t-1")


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (hang_up, Disconnected),
        (reset, Disconnected),
        (status(500), UnexpectedStatus),
        (status(404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":""}}'), None),
    ],
)
async def test_a_message_that_may_have_arrived_is_sent_nowhere_else(
    failure: Any, kind: type[Exception] | None
) -> None:
    async with line(Agent(failure), at(ONE, "/a"), at(ONE, "/b")) as (remote, server):
        with pytest.raises(kind or TaskNotFoundError):
            await remote.send("hi")
        with pytest.raises(StreamCut if kind is Disconnected else kind or TaskNotFoundError):
            await anext(remote.stream("hi"))
        assert paths(server) == ["/a", "/a"]


async def test_a_stream_that_has_begun_is_taken_up_where_it_can_be() -> None:
    async def agent(exchange: Exchange) -> None:
        if exchange.path == "/b":
            await exchange.stream(exchange.frame({"task": task()}))
        elif exchange.call["method"] == "SendStreamingMessage":
            await exchange.open_stream()
            await exchange.chunk(exchange.frame({"task": task("WORKING")}))
            exchange.reset()
        elif exchange.call["method"] == "GetTask":
            await exchange.result(task("WORKING"))
        else:
            await status(404)(exchange)

    async with line(agent, at(ONE, "/a"), at(ONE, "/b"), retries=AT_ONCE) as (remote, server):
        states = [event.status.state async for event in remote.stream("go")]
        assert states == [TaskState.WORKING, TaskState.COMPLETED]
        assert server.calls == ["SendStreamingMessage", "GetTask", *["SubscribeToTask"] * 2]
        assert paths(server) == ["/a", "/a", "/a", "/b"]


async def test_when_all_refuse_all_are_named_and_what_was_said_counts_most(dead: str) -> None:
    also_dead = dead.replace("127.0.0.1", "localhost")
    async with line(Agent(task()), at(ONE, f"{dead}/a"), at(ONE, f"{also_dead}/b")) as (remote, _):
        with pytest.raises(Unreachable, match=f"{dead}/a.*{also_dead}/b"):
            await remote.get("t-1")
        assert remote.interface.url == f"{dead}/a"
    refuses = Agent(error(-32009, "only 2.0 here"))
    async with line(refuses, at(ONE, dead), at(ONE, "/b")) as (remote, _):
        with pytest.raises(VersionNotSupportedError, match=r"only 2\.0 here"):
            await remote.get("t-1")


async def test_a_server_that_is_away_is_not_asked_for_another_of_its_interfaces(dead: str) -> None:
    """Failover would be permanent, although the server may soon be back."""
    offers = at(ONE, f"{dead}/a"), at(REST, f"{dead}/b"), at(OLD, f"{dead}/c")
    async with line(Agent(task()), *offers) as (remote, _):
        with pytest.raises(Unreachable) as failure:
            await remote.get("t-1")
        assert f"{dead}/a" in str(failure.value)
        assert f"{dead}/b" not in str(failure.value)
        with pytest.raises(Unreachable) as failure:
            [event async for event in remote.stream("go")]
        assert f"{dead}/b" not in str(failure.value)


async def test_what_worked_is_left_for_what_worked_before_it() -> None:
    gone = False

    async def agent(exchange: Exchange) -> None:
        if (exchange.path == "/a") is gone:
            await exchange.result(task())
        else:
            await status(404)(exchange)

    async with line(agent, at(ONE, "/a"), at(ONE, "/b")) as (remote, server):
        await remote.get("t-1")
        gone = False
        assert remote.interface.url.endswith("/b")
        gone = True
        await remote.get("t-1")
        assert remote.interface.url.endswith("/a")
        assert paths(server) == ["/a", "/b", "/b", "/a"]
