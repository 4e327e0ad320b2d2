"""What a registry reads of sites: catalogs, their entries, robots.txt, pages, DNS, manifests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from parley.registry.catalog.reading import InvalidCatalog
from parley.registry.ingest.addresses import UnfitAddress, checked_address
from parley.registry.ingest.examiner import Examiner
from parley.registry.ingest.fetching import IngestLimits, WebFetcher
from parley.registry.ingest.reading import read_whole
from parley.registry.ingest.sites import (
    MAX_AGENTMAPS,
    MAX_LINKS,
    links_of_header,
    links_of_page,
    read_robots,
)
from parley.registry.records import Authority, EntryStanding, Trust
from parley.security.egress import Egress
from tests.registry.ingest.sites import card, catalog, entry, nested, old_card

LIMITS = IngestLimits(entries_per_catalog=50, fetch_seconds=1.0)
MOST = 200


def examined(data: bytes) -> None:
    """Every entry that is read gets a standing and, unless it is listed, a reason. Nothing that a
    database cannot hold is left, and a signature that does not hold is never listed.
    """
    try:
        reading = read_whole(data, LIMITS, depth=0, at_most=MOST)
    except InvalidCatalog as error:
        assert str(error)
        return
    assert len(reading.entries) <= MOST
    assert len({each.identifier for each in reading.entries}) == len(reading.entries)
    assert all(each.depth <= LIMITS.depth for each in reading.entries)
    assert all(each.reason for each in reading.rejected)
    asyncio.run(_examine(reading.entries))


async def _examine(entries: Any) -> None:
    # Nothing is public, so nothing is asked.
    fetcher = WebFetcher(Egress(public=False), limits=LIMITS)
    examiner = Examiner(fetcher)
    for each in entries:
        draft = await examiner.examine(
            each.entry,
            source="https://agents.example.com/catalog.json",
            authority=Authority.DOMAIN,
            domains=("example.com", "localhost"),
        )
        msgspec.json.encode(draft)
        assert draft.identifier
        assert draft.standing is EntryStanding.LISTED or draft.reason
        assert draft.reason.isprintable()
        if draft.standing is EntryStanding.LISTED:
            assert draft.publisher == "example.com" or draft.publisher.endswith(".localhost")
            assert draft.trust is not Trust.FAILED
        assert sum(map(len, draft.fields)) < 1 << 16
    await fetcher.close()
    assert fetcher.requests == 0


def examined_seeds() -> Iterator[bytes]:
    signature = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ..c2lnbmF0dXJl"
    manifest = {
        "identity": "did:web:example.com",
        "attestations": [{"type": "a", "uri": "https://example.com/a", "digest": "sha256:00"}],
        "provenance": [{"relation": "publishedFrom", "sourceId": "urn:air:example.com:a"}],
    }
    yield msgspec.json.encode(
        catalog(
            entry("one", "https://example.com/card.json", "example.com", trustManifest=manifest),
            entry("two", data=card("https://example.com"), metadata={"a": [1, {"b": True}]}),
            entry("old", data=old_card("https://example.com"), version="1.0"),
            nested("three", data=catalog(nested("four", data=catalog()))),
            entry("five", "mcp.json", trustManifest={**manifest, "signature": signature}),
            host={"displayName": "Us"},
        )
    )
    signed = {**card("https://example.com"), "signatures": [{"protected": "e30", "signature": "e"}]}
    yield msgspec.json.encode(
        catalog(entry("six", data=signed, type="application/agent-card+json"))
    )


def robots(data: bytes) -> None:
    """What a robots.txt says is bounded, and every path is allowed or is not."""
    found = read_robots(data)
    assert len(found.agentmaps) <= MAX_AGENTMAPS
    for path in ("/", "/.well-known/ai-catalog.json", "/a?b=c", "/%2e%2e/"):
        found.allows_page(f"https://example.com{path}")
        found.allows_catalog(f"https://example.com{path}")


def robots_seeds() -> Iterator[bytes]:
    yield b"User-agent: parley-registry/1\nDisallow: /a*b$\nAllow: /\n\nAgentmap: /c.json # here\n"


def links(data: bytes) -> None:
    """Links are bounded texts; none is an address that is no https."""
    for each in (*links_of_page(data), *links_of_header(data.decode("latin-1"))):
        try:
            found = checked_address(each, near="https://example.com/a/b")
        except UnfitAddress as error:
            assert str(error)
        else:
            assert found.startswith("https://") or "localhost" in found or "127." in found
            assert checked_address(found) == found
    assert len(links_of_page(data)) <= MAX_LINKS


def link_seeds() -> Iterator[bytes]:
    yield b'<head><link rel="ai-catalog" href="/c.json"><!-- x --><script>y</script></head>'
    yield b'</c.json>; rel="ai-catalog", <https://a.test/>; type=x; rel=next'
    yield b"<link href='http://localhost:80/\xc3\xbc?q#f' rel=ai-catalog>"
