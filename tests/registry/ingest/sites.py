"""Local sites with catalogs and cards, and a reader for them."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from parley.registry.ingest.addresses import DnsNames
from parley.registry.ingest.crawler import Crawler
from parley.registry.ingest.examiner import Examiner
from parley.registry.ingest.fetching import IngestLimits, WebFetcher
from parley.registry.records import Source, SourceKind
from parley.security.egress import Egress
from tests.kit.certificates import Authority
from tests.kit.scripted_server import Exchange, ScriptedServer, card, scripted
from tests.registry.ingest.fake_index import FakeIndex

HERE = "agent.localhost"
"""A publisher that local catalogs may represent."""

CATALOG = "/.well-known/ard.json"
PREDECESSOR = "/.well-known/ai-catalog.json"
A2A = "application/a2a-agent-card+json"
NESTED = "application/ai-catalog+json"

HERE_ONLY = Egress(public=False).adding(["127.0.0.0/8", "localhost", "*.localhost"])


class WebSite:
    """Answers paths with JSON, bytes, a status, or a function of the exchange."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.headers: dict[str, Mapping[str, str]] = {}
        self.asked: list[str] = []
        self.requests: list[Exchange] = []
        self.url = ""
        self.server: ScriptedServer | None = None

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.target
        self.asked.append(path)
        self.requests.append(exchange)
        found = self.pages.get(path, self.pages.get("*", 404))
        headers = {
            name.replace("-", "_"): value for name, value in self.headers.get(path, {}).items()
        }
        if callable(found):
            await found(exchange)
        elif isinstance(found, int):
            await exchange.body_of(b"", found, **headers)
        elif isinstance(found, bytes):
            await exchange.body_of(found, **headers)
        else:
            await exchange.json(found, **headers)

    def serve(self, *entries: Any, path: str = CATALOG, **more: Any) -> str:
        """Serve a catalog; return its address."""
        self.pages[path] = catalog(*entries, **more)
        return self.url + path

    def serve_card(self, name: str, publisher: str = HERE, **more: Any) -> dict[str, Any]:
        """Serve a card; return its entry."""
        self.pages[f"/{name}.json"] = card(self.url, **{"name": name, **more})
        return entry(name, f"{self.url}/{name}.json", publisher)


def catalog(*entries: Any, **more: Any) -> dict[str, Any]:
    return {"specVersion": "1.0", "entries": list(entries), **more}


def entry(name: str, url: str = "", publisher: str = HERE, **more: Any) -> dict[str, Any]:
    """Return an agent's entry, with its card inline or at an address."""
    found = {
        "identifier": f"urn:air:{publisher}:test:{name}",
        "displayName": name,
        "type": A2A,
        **({"url": url} if url else {}),
        **more,
    }
    return {key: value for key, value in found.items() if value is not None}


def nested(name: str, url: str = "", publisher: str = HERE, **more: Any) -> dict[str, Any]:
    return entry(name, url, publisher, type=NESTED, **more)


def urn(name: str, publisher: str = HERE) -> str:
    return f"urn:air:{publisher}:test:{name}"


@asynccontextmanager
async def site(
    tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[WebSite]:
    """Run a site on a free port."""
    made = WebSite()
    async with scripted(made, tls=tls) as server:
        made.server = server
        made.url = server.url.replace("127.0.0.1", host)
        yield made


class Reader:
    """A registry's crawler: an index, and the code that fills it."""

    def __init__(
        self,
        *,
        egress: Egress = HERE_ONLY,
        names: DnsNames | None = None,
        tls: ssl.SSLContext | None = None,
        plain_http: tuple[str, ...] = (),
        index: Any = None,
        poll_seconds: float = 5.0,
        **limits: Any,
    ) -> None:
        self.limits = IngestLimits(**limits)
        self.index: Any = FakeIndex() if index is None else index
        self.fetcher = WebFetcher(
            egress, limits=self.limits, lookup=names, tls=tls, plain_http=plain_http
        )
        self.examiner = Examiner(self.fetcher)
        self.crawler = Crawler(
            self.index, self.examiner, self.fetcher, names=names, poll_seconds=poll_seconds
        )

    async def add(self, url: str, kind: SourceKind = SourceKind.CATALOG, **more: Any) -> Source:
        source = Source(url=url, kind=kind, **more)
        await self.index.add_sources([source])
        return source

    async def visit(self, url: str, kind: SourceKind = SourceKind.CATALOG, **more: Any) -> Source:
        """Visit a source as stored in the index; add it first if it is missing."""
        if url not in self.index.places:
            await self.add(url, kind, **more)
        return await self.crawler.visit(self.index.places[url])

    async def visit_all(self, most: int = 200) -> int:
        """Visit all due sources and their nested sources; return the number of visits."""
        count = 0
        while claimed := await self.index.claim_sources(1, 300):
            count += 1
            assert count <= most, "the crawl does not end"
            await self.crawler.visit(claimed[0])
        return count


@asynccontextmanager
async def reader(**options: Any) -> AsyncIterator[Reader]:
    made = Reader(**options)
    try:
        yield made
    finally:
        await made.crawler.stop()
        await made.fetcher.close()


def server_tls(authority: Authority, folder: Path, *names: str) -> ssl.SSLContext:
    """Return the TLS settings of a server with these names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.server(*names).write(folder, names[0].replace("*", "any")))
    return context


def old_card(url: str, **more: Any) -> dict[str, Any]:
    """Return a card of version 0.3."""
    return {
        "protocolVersion": "0.3.0",
        "name": "Old agent",
        "description": "As others wrote them",
        "url": f"{url}/a2a",
        "preferredTransport": "JSONRPC",
        "version": "0.1",
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["application/json"],
        "skills": [{"id": "old", "name": "Old", "description": "Old skill", "tags": ["legacy"]}],
        **more,
    }


def body_of(value: Any) -> bytes:
    return msgspec.json.encode(value) if not isinstance(value, str) else json.dumps(value).encode()
