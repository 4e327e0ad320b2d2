"""Redis with several servers, or with other kinds of connections."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError

from parley.store.bus.redis_url import RedisAddress
from tests.kit.processes import free_port
from tests.kit.services import redis as redis_service
from tests.kit.services.redis import RedisServer
from tests.kit.waiting import until
from tests.store.bus.hinting import Ear, event
from tests.store.bus.test_bus import End, arrives, ends, impatient

pytestmark = [pytest.mark.anyio, pytest.mark.service]


async def everywhere(teller: End, hearer: End, count: int = 30) -> None:
    """Send hints for tasks whose channels lie on all nodes."""
    for n in range(count):
        await arrives(teller, hearer, f"task {n}")


@pytest.mark.slow
async def test_a_cluster_carries_hints_and_outlives_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    with redis_service.cluster() as nodes:
        urls = [f"redis+cluster://127.0.0.1:{node.port}" for node in nodes]
        async with ends(urls[0], f"{urls[1]},127.0.0.1:{nodes[2].port}") as (a, b):
            agents: list[str] = []
            with b.hints.listen_work(agents.append):
                await until(lambda: len(_connections(a)) == 3 and len(_connections(b)) == 3)
                await everywhere(a, b)
                a.bus.publish_work("x")
                await until(lambda: agents == ["x"])
                nodes[2].kill()
                await until(lambda: not a.bus.is_up and not b.bus.is_up)
                missed = b.missed
                nodes[2].start()
                await a.until_up()
                await b.until_up()
                assert b.missed > missed
                await everywhere(a, b)


@pytest.mark.slow
async def test_what_moves_to_another_node_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    with redis_service.cluster() as nodes:
        url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
        async with ends(url, url) as (a, b):
            await everywhere(a, b, 5)
            with b.hints.subscribe("task 1") as live:
                live.seen = 10**6
                slot = _slot(nodes[0], "parley:task:task 1")
                [giver] = [node for node in nodes if _has(node, slot)]
                [taker, *_] = [node for node in nodes if node is not giver]
                name = taker.ask("CLUSTER", "MYID").splitlines()[1]
                for node in (taker, giver, *nodes):
                    assert node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", name).startswith("+OK")
                seq = live.seen
                async_wait = 0
                while not live.held:
                    seq = live.seen + 1
                    a.bus.publish([event(seq, task_id="task 1")])
                    await live.wait(0.1)
                    async_wait += 1
                    assert async_wait < 300, "the other node is not found"
                events, behind = live.take()
                assert ([e.seq for e in events], behind) == ([seq], False)
                assert _subscribers(taker, "parley:task:task 1") == 1


@pytest.mark.slow
async def test_a_service_that_sentinels_do_not_know_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with redis_service.watched() as (_, guards):
        url = f"redis+sentinel://127.0.0.1:{guards[0].port}/another"
        async with ends(url, up=False) as [end]:
            assert "know no service another" in caplog.text
            assert not end.bus.is_up


async def test_what_is_no_cluster_is_told(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with ends(f"redis+cluster://127.0.0.1:{redis.port}", up=False) as [end]:
        assert "cluster support disabled" in caplog.text
        assert not end.bus.is_up


async def test_the_first_server_with_an_answer_is_enough(redis: RedisServer) -> None:
    url = f"redis+cluster://127.0.0.1:{redis.port},127.0.0.1:{free_port()}"
    address = RedisAddress.of(url)
    assert (await address._ask(address.nodes, "PING"))[0] == address.nodes[0]


async def test_what_is_over_at_once_costs_the_server_nothing(redis: RedisServer) -> None:
    async with ends(redis.url) as [end]:
        for n in range(1000):
            with end.hints.subscribe(f"task {n}"), end.hints.listen(f"task {n}", Ear()):
                pass
        with end.hints.subscribe("last"):
            await until(lambda: "task:last" in redis.ask("PUBSUB", "CHANNELS", "*:last"))
            assert "task" not in redis.ask("PUBSUB", "CHANNELS", "*:task *")
        await until(lambda: "task:last" not in redis.ask("PUBSUB", "CHANNELS", "*:last"), 20)


async def lose_at_once() -> None:
    """Connect to a server, and lose the connection before the handshake."""
    listening = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        address = RedisAddress.of(f"redis://127.0.0.1:{port}")
        async with address.client(address.nodes[0]) as client:
            await client.ping()


def test_a_connection_that_is_lost_at_once_is_trouble_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uvloop = pytest.importorskip("uvloop")
    connect: Any = Connection._connect

    async def connect_and_lose(self: Any) -> None:
        await connect(self)
        self._writer.transport.abort()

    monkeypatch.setattr(Connection, "_connect", connect_and_lose)
    with pytest.raises(ConnectionError):
        uvloop.run(lose_at_once())


async def test_tls_is_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    port = free_port()
    with redis_service.running(
        f"tls-port {port}", f"tls-cert-file {cert}", f"tls-key-file {key}", "tls-auth-clients no"
    ) as server:
        url = f"rediss://localhost:{port}"
        known = f"{url}?ssl_ca_certs={cert}"
        async with ends(known, server.url) as (a, b):
            await arrives(a, b)
            await arrives(b, a)
        for refused in (url, known.replace("localhost", "127.0.0.1")):
            caplog.clear()
            async with ends(refused, up=False) as [end]:
                await until(lambda: "does not work" in caplog.text)
                assert not end.bus.is_up
        anyway = known.replace("localhost", "127.0.0.1") + "&ssl_check_hostname=false"
        async with ends(anyway, server.url) as (a, b):
            await arrives(a, b)


@pytest.mark.parametrize(
    ("url", "name", "nodes", "options"),
    [
        ("redis://h", "redis://h:6379", [("h", 6379)], {}),
        ("redis://h:1/0", "redis://h:1", [("h", 1)], {}),
        ("redis://:p%40@[::1]:1", "redis://::1:1", [("::1", 1)], {"password": "p@"}),
        (
            "rediss://u:p@h?ssl_check_hostname=no&prefix=x",
            "rediss://h:6379",
            [("h", 6379)],
            {"username": "u", "password": "p", "ssl_check_hostname": False},
        ),
        (
            "rediss://h?ssl_check_hostname=yes",
            "rediss://h:6379",
            [("h", 6379)],
            {"ssl_check_hostname": True},
        ),
        ("redis+unix:///a/b", "redis+unix:///a/b", [("/a/b", 0)], {}),
        ("redis+cluster://a,b:1", "redis+cluster://a:6379,b:1", [("a", 6379), ("b", 1)], {}),
        (
            "rediss+sentinel://u:p@a,b:1/it?sentinel_password=s",
            "rediss+sentinel://a:26379,b:1/it",
            [("a", 26379), ("b", 1)],
            {"username": "u", "password": "p"},
        ),
    ],
)
def test_an_address_says_where_to_go(
    url: str, name: str, nodes: list[tuple[str, int]], options: dict[str, object]
) -> None:
    address = RedisAddress.of(url)
    assert (address.name, list(address.nodes), dict(address.options)) == (name, nodes, options)
    assert "p@" not in repr(address)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://u:hidden@h", "one of redis://"),
        ("redis+ring://u:hidden@h", "one of redis://"),
        ("redis://u:hidden@h:port", "one of redis://"),
        ("redis://u:hidden@", "one of redis://"),
        ("redis://u:hidden@a,b", "one of redis://"),
        ("redis+unix://", "one of redis://"),
        ("redis://u:hidden@h/3", "all its databases"),
        ("redis://u:hidden@h?timeout=3", "knows nothing of timeout"),
        ("redis+sentinel://u:hidden@h", "names their service"),
        ("redis://u:hidden@h?ssl_ca_certs=x", "only rediss:// has TLS"),
        ("rediss://u:hidden@h?ssl_check_hostname=maybe", "true or false"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_without_its_password(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        RedisAddress.of(url)
    assert "hidden" not in str(refused.value)
    assert refused.value.__cause__ is None


def _connections(end: End) -> dict[tuple[str, int], object]:
    links: dict[tuple[str, int], object] = end.bus._connections  # type: ignore[attr-defined]
    return links


def _slot(node: RedisServer, channel: str) -> int:
    return int(node.ask("CLUSTER", "KEYSLOT", channel)[1:])


def _has(node: RedisServer, slot: int) -> bool:
    for line in node.ask("CLUSTER", "NODES").splitlines():
        if "myself" in line:
            for part in line.split()[8:]:
                first, _, last = part.partition("-")
                if int(first) <= slot <= int(last or first):
                    return True
    return False


def _subscribers(node: RedisServer, channel: str) -> int:
    return int(node.ask("PUBSUB", "SHARDNUMSUB", channel).split()[-1].lstrip(":"))
