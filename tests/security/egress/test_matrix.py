"""Each source of foreign addresses, in each form that leads inside: nothing is dialled.

A canary listens on this machine, and counts connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import parley
from parley.agent.remote.connections import Connections
from parley.agent.services import RemoteFiles
from parley.client.auth.issuers import IssuerHttp
from parley.client.bindings.http import HttpTransport
from parley.client.files.stream import FileFacts
from parley.model.cards import AgentCapabilities, AgentCard, AgentInterface
from parley.model.operations import TaskPushNotificationConfig
from parley.push.http_sender import HttpSender
from parley.security.egress import Egress, turn_egress
from parley.security.outbound import Fetcher, FetchFailed
from parley.store.protocols.webhooks import PushRecord

pytestmark = pytest.mark.anyio

SECONDS = 5.0


class Canary:
    """A listener on this machine. It sends ``answer`` on each connection."""

    def __init__(self, answer: bytes = b"") -> None:
        self.port = 0
        self.hits = 0
        self.answer = answer

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hits += 1
        if self.answer:
            await reader.read(1000)
            writer.write(self.answer)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def listening(host: str, port: int = 0, answer: bytes = b"") -> AsyncIterator[Canary]:
    canary = Canary(answer)
    server = await asyncio.start_server(canary.take, host, port)
    canary.port = server.sockets[0].getsockname()[1]
    try:
        yield canary
    finally:
        server.close()
        await server.wait_closed()


# -- sources of addresses ------------------------------------------------------------------------


async def webhook(egress: Egress, scheme: str, host: str) -> None:
    config = TaskPushNotificationConfig(url=f"{scheme}://{host}/hook")
    sender = HttpSender(egress, timeout=SECONDS)
    try:
        for _ in range(2):
            await sender.post(PushRecord(config=config, version="1.0", revision="1"), b"{}", "1")
    finally:
        await sender.close()


async def document(egress: Egress, scheme: str, host: str) -> None:
    """URLs of keys and metadata in documents: jwks_uri, introspection, jku."""
    fetcher = Fetcher(egress)
    try:
        for _ in range(2):
            with pytest.raises(FetchFailed):
                await fetcher.get(f"{scheme}://{host}/jwks", named_by="https://id.example")
    finally:
        await fetcher.close()


async def file(egress: Egress, scheme: str, host: str) -> None:
    files = RemoteFiles(egress)
    try:
        with pytest.raises(parley.ClientError):
            async for _ in files.fetch(
                f"{scheme}://{host}/file", FileFacts(), limit=1000, caller="someone"
            ):
                pass
    finally:
        await files.close()


async def agent(egress: Egress, scheme: str, host: str) -> None:
    """An agent named by a caller: a turn fetches its card."""
    connections = Connections(egress=egress)
    for _ in range(2):
        with pytest.raises((parley.ClientError, ValueError)):
            await connections.acquire(f"{scheme}://{host}", {"retries": 0})
    await connections.aclose()


async def library(egress: Egress, scheme: str, host: str) -> None:
    """The same through ``parley.connect`` in an agent's function."""
    before = turn_egress.set(egress)
    try:
        for _ in range(2):
            with pytest.raises((parley.ClientError, ValueError)):
                await parley.connect(f"{scheme}://{host}", auth=False, retries=0)
    finally:
        turn_egress.reset(before)  # the tests of a module may share a context


def named_by_card(binding: str) -> Callable[[Egress, str, str], Awaitable[None]]:
    async def interface(egress: Egress, scheme: str, host: str) -> None:
        card = AgentCard(
            name="Named",
            description="",
            version="1",
            supported_interfaces=(
                AgentInterface(
                    url=f"{scheme}://{host}/", protocol_binding=binding, protocol_version="1.0"
                ),
            ),
            capabilities=AgentCapabilities(),
            default_input_modes=(),
            default_output_modes=(),
            skills=(),
        )
        connections = Connections(egress=egress)
        for _ in range(2):
            with pytest.raises((parley.ClientError, ValueError)):
                await call(connections, card)
        await connections.aclose()

    async def call(connections: Connections, card: AgentCard) -> None:
        shared = await connections.acquire(card, {"retries": 0, "timeout": SECONDS})
        await shared.agent.send("go")

    return interface


async def token(egress: Egress, scheme: str, host: str) -> None:
    """A token endpoint that only a card names."""
    async with HttpTransport(egress=egress) as http:
        issuer = IssuerHttp(http, trusts=lambda origin: False)
        for _ in range(2):
            with pytest.raises(parley.ClientError):
                await issuer.get_json(f"{scheme}://{host}/token")
        await issuer.aclose()


KINDS = {
    "webhook": webhook,
    "document": document,
    "file": file,
    "agent": agent,
    "library": library,
    "interface": named_by_card("JSONRPC"),
    "interface-http": named_by_card("HTTP+JSON"),
    "interface-grpc": named_by_card("GRPC"),
    "token": token,
}

LITERAL = [
    "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]", "localhost",
    "LOCALHOST.", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "[64:ff9b::7f00:1]",
    "169.254.169.254", "10.0.0.1", "192.168.0.1",
]  # fmt: skip


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """The scripted lookups of names: each lookup takes the next answer; the last one repeats."""
    answers: dict[str, list[list[str]]] = {}
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        listed = answers.get(name)
        if listed is None:
            return real(host, port, *args, **options)
        found = listed.pop(0) if len(listed) > 1 else listed[0]
        return [
            (
                socket.AF_INET6 if ":" in each else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (each, int(port or 0)),
            )
            for each in found
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return answers


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    if request.param.endswith("grpc"):
        pytest.importorskip("grpc")
    return KINDS[request.param]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", LITERAL)
async def test_an_address_inside_is_not_dialled(kind: Any, host: str, scheme: str) -> None:
    async with listening("127.0.0.1") as canary, also_v6(canary.port) as other:
        await kind(Egress(), scheme, f"{host}:{canary.port}")
        assert (canary.hits, other.hits) == (0, 0)


@asynccontextmanager
async def also_v6(port: int) -> AsyncIterator[Canary]:
    """A canary on the same port of the IPv6 loopback, if available."""
    try:
        async with listening("::1", port) as canary:
            yield canary
    except OSError:
        yield Canary()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_name_that_leads_inside_is_not_dialled(kind: Any, names: Any, scheme: str) -> None:
    names["inside.example"] = [["127.0.0.1"]]
    async with listening("127.0.0.1") as canary:
        await kind(Egress(), scheme, f"inside.example:{canary.port}")
        assert canary.hits == 0


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_name_that_is_bound_anew_is_not_dialled(kind: Any, names: Any, scheme: str) -> None:
    """The first lookup finds an allowed address; all others find the canary's address."""
    names["rebinding.example"] = [["127.0.0.2"], ["127.0.0.1"]]
    async with listening("127.0.0.1") as canary:
        await kind(Egress.allowing(["127.0.0.2"]), scheme, f"rebinding.example:{canary.port}")
        assert canary.hits == 0


async def test_a_redirect_inside_is_not_followed(kind: Any) -> None:
    async with listening("127.0.0.1") as canary:
        where = f"http://127.0.0.1:{canary.port}/".encode()
        answer = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n" % where
        async with listening("127.0.0.3", answer=answer) as redirecting:
            await kind(Egress.allowing(["127.0.0.3"]), "http", f"127.0.0.3:{redirecting.port}")
        assert canary.hits == 0


@pytest.mark.parametrize("denied", ["victim.example", "*.example", "127.0.0.0/8", "*"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_deny_wins_over_allow(kind: Any, names: Any, denied: str, scheme: str) -> None:
    names["victim.example"] = [["127.0.0.1"]]
    egress = Egress.of(allow=["victim.example", "127.0.0.0/8"], deny=[denied]).adding(True)
    async with listening("127.0.0.1") as canary:
        await kind(egress, scheme, f"victim.example:{canary.port}")
        assert canary.hits == 0


async def test_what_the_policy_allows_is_dialled(kind: Any, names: Any) -> None:
    """Otherwise the tests above prove nothing. Documents need https, which fails later."""
    names["allowed.example"] = [["127.0.0.1"]]
    async with listening("127.0.0.1") as canary:
        await kind(Egress.of(allow=["allowed.example"]), "https", f"allowed.example:{canary.port}")
        assert canary.hits > 0


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "all_proxy", "grpc_proxy"])
async def test_a_proxy_of_the_environment_is_not_used(
    kind: Any, names: Any, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    names["inside.example"] = [["127.0.0.1"]]
    async with listening("127.0.0.1") as canary:
        for name in (variable, variable.upper()):
            monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
        for scheme in ("http", "https"):
            await kind(Egress(), scheme, "inside.example:8765")
        assert canary.hits == 0
