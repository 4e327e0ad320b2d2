"""Documents of others are fetched within limits, from nowhere that the policy forbids."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import pytest

from parley.registry.ingest.addresses import PlainHosts, UnfitAddress, checked_address
from parley.registry.ingest.fetching import IngestLimits, PageUnavailable, WebFetcher, freshness
from parley.security.egress import Egress
from tests.kit.scripted_server import Exchange
from tests.kit.waiting import let_time_pass, until
from tests.registry.ingest.sites import HERE_ONLY, site

pytestmark = pytest.mark.anyio


def fetcher(egress: Egress = HERE_ONLY, **limits: Any) -> WebFetcher:
    return WebFetcher(egress, limits=IngestLimits(**limits))


async def refusal(reader: WebFetcher, url: str, **options: Any) -> PageUnavailable:
    with pytest.raises(PageUnavailable) as caught:
        await reader.get(url, **options)
    await reader.close()
    return caught.value


async def test_an_answer_has_its_status_headers_and_body() -> None:
    async with site() as web:
        web.pages["/a"] = {"a": 1}
        web.headers["/a"] = {"etag": '"1"', "cache-control": "max-age=60"}
        reader = fetcher()
        answer = await reader.get(f"{web.url}/a")
        missing = await reader.get(f"{web.url}/b")
        await reader.close()
    assert (answer.status, answer.body) == (200, b'{"a": 1}')
    assert answer.headers["etag"] == '"1"'
    assert missing.status == 404
    assert web.requests[0].headers["user-agent"].startswith("parley-registry/")


async def test_what_has_not_changed_is_asked_for_by_its_tag_or_its_time() -> None:
    async with site() as web:
        web.pages["*"] = 304
        reader = fetcher()
        tagged = await reader.get(f"{web.url}/", etag='"1"', last_modified="then")
        await reader.get(f"{web.url}/", last_modified="then")
        await reader.close()
    assert tagged.status == 304
    assert web.requests[0].headers["if-none-match"] == '"1"'
    assert "if-modified-since" not in web.requests[0].headers
    assert web.requests[1].headers["if-modified-since"] == "then"


async def test_redirects_are_followed_so_many_times() -> None:
    async with site() as web:
        web.pages["/end"] = {"here": True}
        for number in range(4):
            web.pages[f"/{number}"] = 302
            web.headers[f"/{number}"] = {"location": f"/{number - 1}" if number else "/end"}
        web.pages["/loop"] = 307
        web.headers["/loop"] = {"location": "/loop"}
        reader = fetcher(redirects=4)
        answer = await reader.get(f"{web.url}/3")
        error = await refusal(reader, f"{web.url}/loop")
    assert answer.url == f"{web.url}/end"
    assert "redirects more than 4 times" in str(error)


@pytest.mark.parametrize(
    "where",
    [
        "http://127.0.0.1:1/",
        "https://10.0.0.7/catalog.json",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::ffff:10.0.0.1]/",
        "https://0x7f.1/",
    ],
)
async def test_no_redirect_leads_into_a_private_network(where: str) -> None:
    """Only the port of the site itself is allowed here."""
    async with site() as web:
        port = web.url.rpartition(":")[2]
        web.pages["*"] = 302
        web.headers["/"] = {"location": where}
        reader = fetcher(Egress().adding([f"127.0.0.1:{port}"]))
        error = await refusal(reader, f"{web.url}/")
    assert error.is_refused
    assert "redirects" in str(error)
    assert web.asked == ["/"]


async def test_a_name_that_resolves_to_a_private_address_is_not_asked() -> None:
    class Rebinding:
        async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
            return [
                {"hostname": host, "host": "127.0.0.1", "port": port, "family": 2,
                 "proto": 0, "flags": 0}
            ]  # fmt: skip

        async def close(self) -> None:
            pass

    async with site() as web:
        port = web.url.rpartition(":")[2]
        reader = WebFetcher(Egress(), lookup=Rebinding(), plain_http=["evil.example"])
        error = await refusal(reader, f"http://evil.example:{port}/")
    assert error.is_refused
    assert "loopback address" in str(error)
    assert web.asked == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.com/", "not encrypted"),
        ("ftp://example.com/", "not an https address"),
        ("file:///etc/passwd", "not an https address"),
        ("https://user:secret@example.com/", "may not have a user name or password"),
        ("https://example.com:99999/", "not an address"),
        ("https://exa mple.com/", "not an address"),
        ("https://" + "a" * 3000 + ".example/", "at most 2000"),
        ("//example.com/", "not an https address"),
        ("https://metadata.internal/", "local address"),
        ("https://localhost/", "local address"),
        ("https://10.0.0.1/", "private address"),
        ("https://example.com:6379/", "other protocols than HTTP"),
    ],
)
async def test_an_address_that_is_none_is_refused_with_a_sentence(url: str, words: str) -> None:
    error = await refusal(fetcher(Egress()), url)
    assert error.is_refused
    assert words in str(error)
    assert "secret" not in str(error)


async def test_a_body_beyond_the_limit_is_not_read() -> None:
    sent = 0

    async def endless(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.head(200, transfer_encoding="chunked")
        while True:
            await exchange.chunk(b"x" * 65536)
            sent += 65536

    async with site() as web:
        web.pages["/announced"] = b"x" * 2000
        web.pages["/endless"] = endless
        reader = fetcher()
        with pytest.raises(PageUnavailable, match="more than 1,000 bytes"):
            await reader.get(f"{web.url}/announced", limit=1000)
        error = await refusal(reader, f"{web.url}/endless", limit=100_000)
    assert "more than 100,000 bytes" in str(error)
    assert sent < 64 << 20


async def test_a_compressed_body_is_bounded_by_what_it_becomes() -> None:
    async with site() as web:
        web.pages["/gzip"] = gzip.compress(b'{"a": 1}')
        web.headers["/gzip"] = {"content-encoding": "gzip"}
        web.pages["/deflate"] = zlib.compress(b'{"b": 1}')
        web.headers["/deflate"] = {"content-encoding": "deflate"}
        web.pages["/bomb"] = gzip.compress(bytes(200 << 20), 1)
        web.headers["/bomb"] = {"content-encoding": "gzip"}
        web.pages["/twice"] = gzip.compress(gzip.compress(b"{}"))
        web.headers["/twice"] = {"content-encoding": "gzip, gzip"}
        web.pages["/broken"] = b"no gzip at all"
        web.headers["/broken"] = {"content-encoding": "gzip"}
        web.pages["/cut"] = gzip.compress(b'{"a": 1}' * 100)[:-12]
        web.headers["/cut"] = {"content-encoding": "gzip"}
        reader = fetcher()
        assert (await reader.get(f"{web.url}/gzip")).body == b'{"a": 1}'
        assert (await reader.get(f"{web.url}/deflate")).body == b'{"b": 1}'
        for path, words in (
            ("bomb", "more than 1,000,000 bytes"),
            ("twice", "was not requested"),
            ("broken", "broken gzip data"),
            ("cut", "breaks off"),
        ):
            with pytest.raises(PageUnavailable, match=words):
                await reader.get(f"{web.url}/{path}", limit=1_000_000)
        await reader.close()


async def test_a_length_that_lies_is_found_out() -> None:
    async def too_short(exchange: Exchange) -> None:
        await exchange.head(200, content_length="1000")
        await exchange.raw(b"{}")
        exchange.hang_up()

    async def too_long(exchange: Exchange) -> None:
        await exchange.head(200, content_length="2")
        await exchange.raw(b'{}{"more": true}')
        exchange.hang_up()

    async with site() as web:
        web.pages["/short"] = too_short
        web.pages["/long"] = too_long
        reader = fetcher()
        with pytest.raises(PageUnavailable, match="broke off"):
            await reader.get(f"{web.url}/short")
        try:
            answer = await reader.get(f"{web.url}/long")
        except PageUnavailable:
            pass  # the connection was cut before the body was handed on
        else:
            assert answer.body == b"{}"
        await reader.close()


async def test_a_server_that_answers_byte_by_byte_is_given_up() -> None:
    gave_up = False

    async def loris(exchange: Exchange) -> None:
        nonlocal gave_up
        await exchange.head(200, content_length="1000000")
        try:
            while True:
                await exchange.raw(b"x")
                await let_time_pass(0.01)
        finally:
            gave_up = True

    async with site() as web:
        web.pages["/"] = loris
        error = await refusal(fetcher(fetch_seconds=0.5), f"{web.url}/")
        assert web.server is not None
        await web.server.until_idle()
    assert "did not answer within 0.5 seconds" in str(error)
    assert not error.is_refused
    assert gave_up


async def test_a_host_gets_few_requests_at_a_time() -> None:
    at_once, most = 0, 0
    go = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await go.wait()
        at_once -= 1
        await exchange.json({})

    async with site() as web:
        web.pages["*"] = slow
        reader = fetcher(per_host=2)
        calls = [asyncio.create_task(reader.get(f"{web.url}/{n}")) for n in range(6)]
        await until(lambda: at_once == 2)
        go.set()
        await asyncio.gather(*calls)
        await reader.close()
    assert most == 2


async def test_a_host_that_asks_for_patience_is_left_alone() -> None:
    now = 100.0
    async with site() as web:
        web.pages["/"] = 429
        web.headers["/"] = {"retry-after": "120"}
        reader = WebFetcher(HERE_ONLY, clock=lambda: now)
        answer = await reader.get(f"{web.url}/")
        with pytest.raises(PageUnavailable, match="asked to wait") as caught:
            await reader.get(f"{web.url}/other")
        assert caught.value.retry_after == pytest.approx(120.0)
        now += 121
        web.pages["/other"] = {}
        assert (await reader.get(f"{web.url}/other")).status == 200
        await reader.close()
    assert answer.status == 429


async def test_a_host_that_never_answers_is_not_asked_for_every_entry() -> None:
    async with site() as web:

        async def silent(exchange: Exchange) -> None:
            exchange.reset()

        web.pages["*"] = silent
        reader = fetcher()
        for _ in range(10):
            with pytest.raises(PageUnavailable):
                await reader.get(f"{web.url}/")
        await reader.close()
    assert len(web.asked) <= 6


def test_headers_say_for_how_long_an_answer_is_fresh() -> None:
    assert freshness({}) is None
    assert freshness({"cache-control": "public, max-age=600"}) == 600
    assert freshness({"cache-control": "max-age=600", "age": "100"}) == 500
    assert freshness({"cache-control": "no-store, max-age=600"}) == 0
    assert freshness({"cache-control": "max-age=many"}) is None
    assert freshness({"expires": "Thu, 01 Jan 1970 00:00:00 GMT"}) == 0
    limits = IngestLimits(refresh_floor=60, refresh_default=600, refresh_ceiling=3600)
    assert limits.refresh_after({"cache-control": "max-age=1"}) == 60
    assert limits.refresh_after({"cache-control": "max-age=99999999999999"}) == 3600
    assert limits.refresh_after({}) == 600


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ValueError, match="depth must be more than 0"):
        IngestLimits(depth=0)
    with pytest.raises(ValueError, match="lease_seconds must be more than 0"):
        IngestLimits(lease_seconds=0)
    with pytest.raises(ValueError, match="refresh_floor"):
        IngestLimits(refresh_floor=10, refresh_default=5)


def test_plain_http_is_for_this_machine_and_what_the_operator_names() -> None:
    plain = PlainHosts(["10.1.0.0/16", "*.corp.example", "hooks.example:8080"])
    for host, port, allowed in (
        ("127.0.0.1", 80, True),
        ("localhost", 8000, True),
        ("agent.localhost", 80, True),
        ("10.1.2.3", 80, True),
        ("10.2.2.3", 80, False),
        ("a.corp.example", 80, True),
        ("corp.example", 80, False),
        ("hooks.example", 8080, True),
        ("hooks.example", 80, False),
        ("example.com", 80, False),
    ):
        assert plain.allows(host, port) is allowed, host


def test_addresses_have_one_form() -> None:
    for given, form in (
        ("HTTPS://Example.COM:443", "https://example.com/"),
        ("https://example.com./a#b", "https://example.com/a"),
        ("https://bücher.example/ü?q=ä", "https://xn--bcher-kva.example/%C3%BC?q=%C3%A4"),
        ("https://example.com/a%20b?c=d&e", "https://example.com/a%20b?c=d&e"),
        ("https://[2001:DB8::1]:8443/", "https://[2001:db8::1]:8443/"),
    ):
        assert checked_address(given) == form
    assert checked_address("../c.json", near="https://a.test/x/y.json") == "https://a.test/c.json"
    with pytest.raises(UnfitAddress, match="at most 2000"):
        checked_address("https://example.com/" + "ü" * 1500)
