"""Credentials and TLS: no secret over plain text; client certificates go to trusted origins."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.client import auth
from parley.client.bindings.binding import is_supported
from parley.client.bindings.http import HttpTransport, Tls
from parley.client.errors import NotEncrypted, OriginNotTrusted, Unreachable
from parley.client.origin import Origin
from parley.security import MutualTls
from parley.server.run import serving
from parley.server.settings import GrpcOptions, TlsOptions
from tests.kit.scripted_server import Exchange, card, scripted, task

pytestmark = pytest.mark.anyio

PLAIN = card("http://agent.example")


@pytest.mark.parametrize(
    "given",
    [
        {"bearer": "t"},
        {"api_key": "k"},
        {"auth": auth.Bearer("t")},
        {"auth": auth.ApiKey("k")},
        {"headers": {"Authorization": "Basic x"}},
        {"headers": {"X-Api-Key": "k"}},
        {"headers": {"Cookie": "session=1"}},
    ],
)
async def test_no_credentials_go_out_unencrypted(given: dict[str, Any]) -> None:
    async with parley.connect(PLAIN, retries=0, **given) as agent:
        with pytest.raises(NotEncrypted, match=r"http://agent\.example, which is not encrypted"):
            await agent.get("t-1")


# -- certificates ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and the certificates that it issued for a server and a client."""
    folder = tmp_path_factory.mktemp("authority")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority",
            "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=keyCertSign")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-extfile", "names")  # fmt: skip
    openssl("ec", "-in", "client.key", "-aes256", "-passout", "pass:x", "-out", "locked.key")
    return folder


def server_side(files: Path, *, asks: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files / "ca.pem"))
    context.load_cert_chain(files / "server.pem", files / "server.key")
    context.verify_mode = ssl.CERT_OPTIONAL if asks else ssl.CERT_NONE
    return context


class Site:
    """An agent that records each caller's name from the client certificate."""

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.card: dict[str, Any] = {}

    async def __call__(self, exchange: Exchange) -> None:
        seen = exchange._writer.get_extra_info("ssl_object").getpeercert()
        subject = dict(pair[0] for pair in seen["subject"]) if seen else {}
        self.names.append(subject.get("commonName"))
        await (exchange.json(self.card) if exchange.method == "GET" else exchange.result(task()))


@pytest.mark.slow
async def test_a_certificate_is_shown_to_the_agent_alone(files: Path) -> None:
    mine, other = Site(), Site()
    context = server_side(files, asks=True)
    async with scripted(mine, tls=context) as here, scripted(other, tls=context) as there:
        schemes = {"m": {"mtlsSecurityScheme": {}}}
        needs = [{"schemes": {"m": {"list": []}}}]
        mine.card = card(here.url, securitySchemes=schemes, securityRequirements=needs)
        own = auth.ClientCertificate(files / "client.pem", files / "client.key")
        tls = Tls(ca=files / "ca.pem")
        async with parley.connect(here.url, auth=own, tls=tls) as agent:
            await agent.get("t-1")
            assert mine.names == ["client", "client"]
            await agent._http.send("GET", there.url, {}, None)  # type: ignore[union-attr]
            assert other.names == [None]
        settings = Tls(ca=files / "ca.pem", cert=files / "client.pem", key=files / "client.key")
        async with parley.connect(here.url, tls=settings) as agent:
            await agent.get("t-1")
        assert mine.names[2:] == ["client", "client"]


@pytest.mark.parametrize("given", ["auth", "tls"])
async def test_a_certificate_is_shown_over_grpc_too(files: Path, given: str) -> None:
    if not is_supported("GRPC"):
        pytest.skip("gRPC is not installed")
    bank = Agent("Bank", security=MutualTls(["CN=client"]))

    @bank.skill
    async def who(turn: Turn) -> str:
        return str(turn.caller.id)

    ca, pair = files / "ca.pem", (files / "client.pem", files / "client.key")
    options: dict[str, Any] = {
        "auth": {"auth": auth.ClientCertificate(*pair), "tls": Tls(ca=ca)},
        "tls": {"tls": Tls(ca=ca, cert=pair[0], key=pair[1])},
    }[given]
    own = TlsOptions(cert=files / "server.pem", key=files / "server.key", client_ca=ca)
    async with serving(parley.asgi(bank), tls=own, grpc=GrpcOptions(port=0)) as url:
        async with parley.connect(url, binding="JSONRPC", **options) as agent:
            offered = agent.card.supported_interfaces
        [own_url] = {one.url for one in offered if one.protocol_binding == "GRPC"}
        needs = {"securityRequirements": [{"schemes": {"mtls": {"list": []}}}]}
        schemes = {"securitySchemes": {"mtls": {"mtlsSecurityScheme": {}}}}
        there = card(f"https://127.0.0.1:{Origin.of_grpc(own_url).port}", **schemes, **needs)
        there["supportedInterfaces"][0]["protocolBinding"] = "GRPC"
        async with parley.connect(there, **options) as agent:
            assert (await agent.send("hi")).text == "localhost"  # the name in the certificate
        # The gRPC port is another origin, and gets the certificate only if that origin is trusted.
        with pytest.raises(OriginNotTrusted):
            await parley.connect(url, binding="GRPC", **options)


async def test_certificates_are_verified_unless_the_caller_says_no(files: Path) -> None:
    site = Site()
    async with scripted(site, tls=server_side(files, asks=False)) as server:
        site.card = card(server.url)
        with pytest.raises(Unreachable, match="not trusted"):
            await parley.connect(server.url, retries=0)
        for options in ({"insecure": True}, {"tls": Tls(ca=files / "ca.pem")}):
            async with parley.connect(server.url, **options) as agent:
                await agent.get("t-1")


def test_files_that_cannot_be_used_are_refused_at_once(files: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    ca = str(files / "ca.pem")
    for settings, words in (
        ({"ca": tmp_path / "gone.pem"}, "cannot be used"),
        ({"ca": tmp_path / "junk.pem"}, "cannot be used"),
        ({"cert": files / "client.pem", "key": files / "server.key"}, "belong together"),
        ({"cert": files / "client.pem", "key": files / "locked.key"}, "the key unencrypted"),
    ):
        with pytest.raises(ValueError, match=words):
            parley.connect("https://agent.example", tls=Tls(**settings))
    with pytest.raises(ValueError, match="goes with its certificate"):
        Tls(key="client.key")
    certificate = auth.ClientCertificate(files / "client.pem", files / "client.key")
    for wrong in (
        {"auth": certificate, "http": HttpTransport()},
        {"proxy": "http://p:1", "http": HttpTransport()},
        {"auth": certificate, "tls": ssl.create_default_context(cafile=ca)},
        {"auth": [certificate, certificate]},
        {"proxy": "socks5://p:1"},
        {"proxy": "p:3128"},
    ):
        with pytest.raises(ValueError):
            parley.connect("https://agent.example", **wrong)


# -- a proxy --------------------------------------------------------------------------------------


class Tunnels:
    """A proxy that answers CONNECT, and forwards everything to one port of this machine."""

    def __init__(self, port: int = 0) -> None:
        self.to = port
        self.heads: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        there, out = await asyncio.open_connection("127.0.0.1", self.to)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass(reader, out))
            group.create_task(self._pass(there, writer))

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


async def test_a_proxy_carries_grpc_but_not_to_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_supported("GRPC"):
        pytest.skip("gRPC is not installed")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    agent = Agent("Plain")

    @agent.skill
    async def hi(turn: Turn) -> str:
        return "hi"

    tunnels = Tunnels()
    proxy = await asyncio.start_server(tunnels, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    async with proxy, serving(parley.asgi(agent), grpc=GrpcOptions(port=0)) as url:
        async with parley.connect(url) as remote:
            offered = remote.card.supported_interfaces
        [own] = {one.url for one in offered if one.protocol_binding == "GRPC"}
        tunnels.to = Origin.of_grpc(own).port
        options: dict[str, Any] = {
            "binding": "GRPC",
            "proxy": f"http://me:pw@127.0.0.1:{port}",
            "retries": 0,
        }
        there = {**card("http://agent.example:50051")}
        there["supportedInterfaces"][0]["protocolBinding"] = "GRPC"
        async with parley.connect(there, **options) as remote:
            assert (await remote.send("hi")).text == "hi"
        [head] = tunnels.heads
        assert head.startswith("CONNECT agent.example:50051 ")
        assert "proxy-authorization: basic " in head.lower()
        # A proxy from the environment, which the caller did not name, is not used either.
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("grpc_proxy", f"http://127.0.0.1:{port}")
        async with parley.connect(url, **options) as remote:
            assert (await remote.send("hi")).text == "hi"
        assert tunnels.heads == [head]
