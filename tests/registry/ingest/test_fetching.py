"""Documents of other sites are fetched within limits, and never from forbidden addresses."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from parley.registry.ingest.fetching import IngestLimits, PageUnavailable, WebFetcher
from parley.security.egress import Egress
from tests.kit.scripted_server import Exchange
from tests.registry.ingest.sites import HERE_ONLY, site

pytestmark = pytest.mark.anyio


def fetcher(egress: Egress = HERE_ONLY, **limits: Any) -> WebFetcher:
    return WebFetcher(egress, limits=IngestLimits(**limits))


async def refusal(reader: WebFetcher, url: str, **options: Any) -> PageUnavailable:
    with pytest.raises(PageUnavailable) as caught:
        await reader.get(url, **options)
    await reader.close()
    return caught.value


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
    """The policy allows only the port of the site itself."""
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


@pytest.mark.slow
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
