"""HTTPS: certificates, their requirements, and changes to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

import parley
from parley import Agent
from parley.client.bindings.http import GrpcTls, HttpTransport
from parley.server.app import Settings
from parley.server.run import serving
from parley.server.settings import GrpcOptions, TlsOptions, tls_options
from parley.server.tls import ReloadingTls, TlsFailure
from tests.kit.certificates import Authority, Pair, trusting
from tests.kit.scripted import app_of
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

AUTHORITY = Authority()
OTHER = Authority("Another authority")

agent = Agent("Clock")


@agent.skill
async def tell(text: str) -> str:
    return "It is noon."


def options(folder: Path, pair: Pair | None = None, **others) -> TlsOptions:
    cert, key = (pair or AUTHORITY.server()).write(folder, "server")
    return TlsOptions(cert=cert, key=key, check_interval=0.02, **others)


@pytest.fixture
def tls(tmp_path):
    return options(tmp_path)


async def serial(url: str, context: ssl.SSLContext | None = None) -> int:
    """Return the serial number of the certificate on a new connection."""
    async with connected(url, context) as (_, writer):
        found = writer.get_extra_info("ssl_object").getpeercert()
        return int(found["serialNumber"], 16)


@contextlib.asynccontextmanager
async def connected(
    url: str, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = int(url.rpartition(":")[2])
    context = context or trusting(AUTHORITY)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(stream, path="/health/live", host="localhost") -> bytes:
    reader, writer = stream
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


# -- serving -----------------------------------------------------------------------------------


async def test_grpc_has_the_same_certificate_unless_it_has_its_own(tls, tmp_path):
    authority = AUTHORITY.write(tmp_path)
    transport = HttpTransport(tls=trusting(AUTHORITY), grpc_tls=GrpcTls(ca=authority))
    async with (
        serving(parley.asgi(agent), tls=tls, grpc=GrpcOptions(port=0)) as url,
        transport,
        parley.connect(url, http=transport, binding="GRPC") as remote,
    ):
        assert (await remote.send("what time is it?")).text == "It is noon."
        assert remote.interface.protocol_binding == "GRPC"
        urls = {each.url for each in remote.card.supported_interfaces}
        assert url in urls


async def test_plain_http_to_the_port_gets_no_answer(tls):
    async with serving(app_of(), tls=tls) as url, aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get(f"http{url.removeprefix('https')}/health/live")


async def test_handshakes_under_way_are_bounded(tls):
    app = app_of(settings=Settings(max_connections=8, head_timeout=30))
    async with serving(app, tls=tls) as url, contextlib.AsyncExitStack() as stack:
        port = int(url.rpartition(":")[2])
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with connected(url):
                pass
        await stack.aclose()
    async with serving(app, tls=tls) as url:
        for _ in range(9):
            async with connected(url) as stream:
                assert b"200 OK" in await ask(stream)


async def test_an_app_sees_the_tls_of_its_connections(tls):
    scopes = []

    async def app(scope, receive, send):
        if scope["type"] == "http":
            scopes.append(scope)
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with serving(app, tls=tls) as url, aiohttp.ClientSession() as http:
        await http.get(url, ssl=trusting(AUTHORITY))
    [scope] = scopes
    assert scope["scheme"] == "https"
    shown = scope["extensions"]["tls"]
    assert shown["tls_version"] == 0x0304
    assert shown["cipher_suite"] >> 8 == 0x13
    assert (shown["client_cert_chain"], shown["client_cert_name"]) == ([], None)


# -- changes -----------------------------------------------------------------------------------


async def test_a_new_certificate_is_for_new_connections_and_old_ones_go_on(tls, tmp_path, caplog):
    first, second = AUTHORITY.server(), AUTHORITY.server(key=3)
    first.write(tmp_path, "server")
    with caplog.at_level(logging.INFO, "parley.server"):
        async with serving(app_of(), tls=tls) as url, connected(url) as old:
            assert await serial(url) == first.certificate.serial_number
            assert b"200 OK" in await ask(old)
            second.write(tmp_path, "server")
            await until(lambda: is_served(url, second))
            assert b"200 OK" in await ask(old)
    assert "was read again" in caplog.text


async def is_served(url: str, pair: Pair) -> bool:
    return await serial(url) == pair.certificate.serial_number


async def test_a_reload_reads_a_changed_certificate_at_once(tls, tmp_path):
    reloading = ReloadingTls(tls)
    before = reloading.files
    assert await reloading.reload() == ""
    AUTHORITY.server(key=3).write(tmp_path, "server")
    assert await reloading.reload() == f"the certificate {tls.cert}"
    assert reloading.files is not before


async def test_a_reload_reads_the_certificate_of_grpc_too(tmp_path):
    cert, key = AUTHORITY.server().write(tmp_path, "grpc")
    app, second = parley.asgi(agent), AUTHORITY.server(key=3)
    async with serving(app, grpc=GrpcOptions(port=0, cert=cert, key=key)):
        address, context = f"https://127.0.0.1:{app.grpc.port}", trusting(AUTHORITY)
        context.set_alpn_protocols(["h2"])
        assert await serial(address, context) != second.certificate.serial_number
        second.write(tmp_path, "grpc")
        await app.lifecycle.reload()
        assert await serial(address, context) == second.certificate.serial_number


async def test_a_certificate_is_changed_by_rename(tls, tmp_path):
    second = AUTHORITY.server(key=3)
    async with serving(app_of(), tls=tls) as url:
        for path, new in zip(
            (tls.cert, tls.key), second.write(tmp_path / "new", "server"), strict=True
        ):
            os.replace(new, path)
        await until(lambda: is_served(url, second))


async def test_a_certificate_is_changed_as_kubernetes_does(tmp_path):
    """A volume's files are links into ``..data``, which is a link to a folder, and is swapped."""
    first, second = AUTHORITY.server(), AUTHORITY.server(key=3)
    first.write(tmp_path / "..2026_1", "tls")
    second.write(tmp_path / "..2026_2", "tls")
    (tmp_path / "..data").symlink_to("..2026_1")
    for name in ("tls.pem", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    tls = TlsOptions(cert=tmp_path / "tls.pem", key=tmp_path / "tls.key", check_interval=0.02)
    async with serving(app_of(), tls=tls) as url:
        assert await is_served(url, first)
        (tmp_path / "..data_tmp").symlink_to("..2026_2")
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
        await until(lambda: is_served(url, second))


async def test_a_broken_pair_is_logged_once_and_the_one_before_stays(tls, tmp_path, caplog):
    first, second = AUTHORITY.server(), AUTHORITY.server(key=3)
    first.write(tmp_path, "server")

    def told():
        return [each for each in caplog.records if "is not used" in each.getMessage()]

    async with serving(app_of(), tls=tls) as url:
        Path(tls.cert).write_text(second.pem)  # its key is still the first certificate's
        await until(told)
        assert "does not belong to the certificate" in caplog.text
        assert await is_served(url, first)
        Path(tls.key).unlink()
        await until(lambda: len(told()) == 2)
        assert "cannot be read: No such file" in caplog.text
        assert await is_served(url, first)
        second.write(tmp_path, "server")
        await until(lambda: is_served(url, second))
    assert len(told()) == 2


async def test_grpc_gets_the_new_certificate_too(tls, tmp_path):
    second = OTHER.server(key=3)
    authority = OTHER.write(tmp_path, "other")
    app = app_of()
    async with serving(app, tls=tls, grpc=GrpcOptions(port=0)) as url:
        port = int(app.grpc.beside(url).rpartition(":")[2])
        of_grpc = f"https://localhost:{port}"
        context = trusting(AUTHORITY)
        context.set_alpn_protocols(["h2"])
        first = await serial(of_grpc, context)
        assert first == await serial(url)
        second.write(tmp_path, "server")
        context = trusting(OTHER)
        context.set_alpn_protocols(["h2"])

        async def is_changed():
            with contextlib.suppress(ssl.SSLError):
                return await serial(of_grpc, context) == second.certificate.serial_number

        await until(is_changed)
        assert authority.exists()


# -- invalid files -------------------------------------------------------------------------------


def test_a_key_that_does_not_match_is_told(tmp_path):
    tls = options(tmp_path)
    Path(tls.key).write_bytes(AUTHORITY.server(key=3).key_pem())
    with pytest.raises(TlsFailure, match="does not belong to the certificate"):
        ReloadingTls(tls)


@pytest.mark.parametrize("name", ["cert", "key", "client_ca"])
def test_damaged_pem_is_told(tmp_path, name):
    tls = options(tmp_path, client_ca=AUTHORITY.write(tmp_path))
    kind = "PRIVATE KEY" if name == "key" else "CERTIFICATE"
    Path(getattr(tls, name)).write_text(f"-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n")
    with pytest.raises(TlsFailure, match="cannot be used"):
        ReloadingTls(tls)


def test_authorities_are_certificates_of_authorities(tmp_path):
    own, _ = AUTHORITY.caller("ada").write(tmp_path, "own")
    with pytest.raises(TlsFailure, match="no certificate of an authority"):
        ReloadingTls(options(tmp_path, client_ca=own))


def test_an_encrypted_key_needs_its_passphrase(tmp_path, monkeypatch):
    cert, key = AUTHORITY.server().write(tmp_path, "server", password=b"open sesame")
    tls = TlsOptions(cert=cert, key=key)
    monkeypatch.delenv("PARLEY_TLS_KEY_PASSWORD", raising=False)
    with pytest.raises(TlsFailure, match="is encrypted: set the environment variable"):
        ReloadingTls(tls)
    monkeypatch.setenv("PARLEY_TLS_KEY_PASSWORD", "open barley")
    with pytest.raises(TlsFailure, match="is not the passphrase") as told:
        ReloadingTls(tls)
    assert "barley" not in str(told.value)
    monkeypatch.setenv("PARLEY_TLS_KEY_PASSWORD", "open sesame")
    assert b"ENCRYPTED" not in ReloadingTls(tls).files.key


@pytest.mark.parametrize(
    ("days", "words"),
    [((-30, -1), "has expired on"), ((1, 30), "is valid from"), ((-1, 3), "expires on")],
)
def test_dates_of_a_certificate_are_warned_of(tmp_path, caplog, days, words):
    ReloadingTls(options(tmp_path, AUTHORITY.server(days=days)))
    assert words in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cert": "a.pem"}, "give both"),
        ({"key": "a.pem"}, "give both"),
        ({"client_ca": "a.pem"}, "need TLS"),
        ({"cert": "", "key": ""}, "give the files of both"),
    ],
)
def test_files_that_make_no_sense_together_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        tls_options(**given)


# -- HSTS --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "max_age", "is_told"),
    [
        ("agents.example.com", 31536000, True),
        ("agents.example.com:8443", 60, True),
        ("agents.example.com", 0, False),
        ("localhost", 31536000, False),
        ("clock.localhost", 31536000, False),
        ("127.0.0.1", 31536000, False),
        ("192.0.2.7", 31536000, False),
        ("[::1]", 31536000, False),
    ],
)
async def test_browsers_are_told_to_come_back_over_https(tls, host, max_age, is_told):
    app = app_of(settings=Settings(hsts_max_age=max_age, allowed_hosts=("*",)))
    header = f"strict-transport-security: max-age={max_age}\r\n".encode()
    async with serving(app, tls=tls) as url, connected(url) as stream:
        assert (header in await ask(stream, host=host)) == is_told
        assert (header in await ask(stream, "/nowhere", host)) == is_told


async def test_nothing_is_told_over_plain_http():
    app = app_of(settings=Settings(allowed_hosts=("*",)))
    async with serving(app) as url, aiohttp.ClientSession() as http:
        answer = await http.get(f"{url}/health/live", headers={"Host": "agents.example.com"})
        assert "strict-transport-security" not in answer.headers
