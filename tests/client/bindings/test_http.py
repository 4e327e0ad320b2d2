"""The transport: trust, bounds, closing."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from parley.client import connect
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.errors import ClientError, ConnectionClosed, Disconnected, Timeout, Untrusted
from parley.client.retry import Retry, is_worth_repeating
from parley.model.backoff import seconds_of
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio

# A key and a certificate for localhost that nobody but these tests trusts.
CERTIFICATE = Path(__file__).parents[1] / "localhost.pem"


async def answer(exchange: Exchange) -> None:
    await exchange.json({"path": exchange.target})


@pytest.fixture
def tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(tls) -> None:
    asyncio.get_running_loop().set_debug(False)  # or the server's side of it is an error too
    async with scripted(answer, tls=tls) as server:
        async with HttpTransport() as http:
            with pytest.raises(Untrusted, match=r"certificate of https://127.* is not trusted"):
                await http.get(server.url, {})
        with pytest.raises(Untrusted):
            await connect(server.url)
        assert server.exchanges == []


async def test_trust_is_given_by_an_authority_or_waived_in_so_many_words(tls, caplog) -> None:
    async with scripted(answer, tls=tls) as server:
        authority = ssl.create_default_context(cafile=str(CERTIFICATE))
        async with HttpTransport(tls=authority) as http:
            assert (await http.get(server.url, {})).status == 200
        assert "not verified" not in caplog.text
        async with HttpTransport(insecure=True) as http:
            assert (await http.get(server.url, {})).status == 200
        assert "not verified" in caplog.text


async def test_connections_are_kept_and_cookies_are_not() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.json({}, set_cookie="a=b")

    async with scripted(handler) as server, HttpTransport() as http:
        for _ in range(3):
            await http.send("POST", server.url, {}, b"{}")
        assert server.connections == 1
        assert all("cookie" not in exchange.headers for exchange in server.exchanges)


async def test_a_closed_transport_says_so_and_ends_what_is_under_way() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.path == "/slow":
            await exchange.never()
        await exchange.head(transfer_encoding="chunked")
        await exchange.chunk(b"a beginning")
        await exchange.never()

    async with scripted(handler) as server:
        http = HttpTransport()
        calls = [asyncio.create_task(http.get(server.url + path, {})) for path in ("/slow", "/")]
        await server.until_asked(2)
        await http.close()
        for call in calls:
            with pytest.raises(ConnectionClosed):
                await call
        with pytest.raises(ConnectionClosed):
            await http.get(server.url, {})
        await http.close()
        await server.until_idle()


async def test_what_is_not_http_is_a_broken_connection() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        exchange.hang_up()

    async with scripted(handler) as server, HttpTransport() as http:
        with pytest.raises(Disconnected):
            await http.get(server.url, {})


async def test_time_runs_out_in_the_headers_and_in_the_body() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.path == "/body":
            await exchange.head(content_length="10")
        await exchange.never()

    async with scripted(handler) as server, HttpTransport() as http:
        for path in ("/headers", "/body"):
            with pytest.raises(Timeout):
                await http.get(server.url + path, {}, timeout=0.05)
        await server.until_idle()


async def test_wrong_headers_and_addresses_are_errors_of_the_client() -> None:
    async with HttpTransport() as http:
        with pytest.raises(ClientError):
            await http.get("http://", {})
        with pytest.raises(ClientError):
            await http.get("http://127.0.0.1:1", {"X-Bad": "a\r\nX-Injected: b"})


async def test_connections_can_be_shared_between_agents() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.json(card(f"http://{exchange.headers['host']}"))

    async with scripted(handler) as server, HttpTransport() as http:
        async with connect(server.url, http=http), connect(server.url + "/other", http=http):
            pass
        assert server.connections == 1
        assert (await http.get(server.url, {})).status == 200


def test_places_show_neither_queries_nor_credentials() -> None:
    assert redacted("https://me:secret@host:1/p/q?key=secret") == "https://host:1/p/q"
    assert redacted("http://[broken?key=secret") == "http://[broken"
    assert redacted("me:secret@agents.example:50051?key=a/b") == "agents.example:50051"
    assert redacted("agents.example:50051") == "agents.example:50051"
    assert redacted("//me:secret@host/p") == "host/p"
    assert redacted("/p?key=secret") == "/p"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Thu, 01 Oct 2026 00:01:00 GMT", 60.0),
        ("Wed, 30 Sep 2026 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("²", None),
    ],
)
def test_retry_after_is_read_in_both_forms(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header, datetime(2026, 10, 1, tzinfo=UTC)) == seconds


def test_pauses_grow_to_their_limit_and_are_never_all_the_same() -> None:
    retry = Retry(first=0.1, limit=2.0)
    for nth, full in enumerate([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]):
        pauses = [retry.pause(nth) for _ in range(50)]
        assert full / 2 <= min(pauses) < max(pauses) <= full
    assert retry.pause(10_000) <= 2.0


def test_what_never_left_may_always_be_sent_again_unless_it_never_will() -> None:
    assert not is_worth_repeating(Untrusted(), safe=True)
    assert not is_worth_repeating(Disconnected(), safe=False)
    assert not is_worth_repeating(Timeout("late"), safe=True)
