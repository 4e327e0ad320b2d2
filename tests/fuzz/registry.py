"""Fuzz targets for the registry: sites with catalogs, entries, robots.txt, pages and searches.

Valid input is read, the rest gets a reason, and every result is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from parley.model.errors import InvalidParamsError
from parley.registry.catalog.reading import (
    MAX_PROBLEMS,
    InvalidCatalog,
    InvalidEntry,
    problems_of,
    read_catalog,
    read_entry,
)
from parley.registry.catalog.searching import QueryModel
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
from parley.registry.search.filters import constraints_of, constraints_of_expression, order_of
from parley.registry.search.searcher import MAX_OFFSET, asked_digest, page_token, place_in
from parley.registry.search.texts import MARKS, MAX_TEXT, marks_of, texts_of
from parley.security.egress import Egress
from tests.registry.ingest.sites import card, catalog, entry, nested, old_card
from tests.wire.catalog.test_problems import GOOD

LIMITS = IngestLimits(entries_per_catalog=50, fetch_seconds=1.0)
MOST = 200


def examined(data: bytes) -> None:
    """Check the entries that are read: each has a standing and, unless listed, a reason.

    Every value fits into a database. An entry with a wrong signature is never listed.
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
    # No address is public, so no request is made.
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
    """The rules of a robots.txt are bounded, and every path is either allowed or not."""
    found = read_robots(data)
    assert len(found.agentmaps) <= MAX_AGENTMAPS
    for path in ("/", "/.well-known/ai-catalog.json", "/a?b=c", "/%2e%2e/"):
        found.allows_page(f"https://example.com{path}")
        found.allows_catalog(f"https://example.com{path}")


def robots_seeds() -> Iterator[bytes]:
    yield b"User-agent: parley-registry/1\nDisallow: /a*b$\nAllow: /\n\nAgentmap: /c.json # here\n"


def links(data: bytes) -> None:
    """Links are bounded texts; every address is https."""
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


def checked(data: bytes) -> None:
    """A catalog has problems, each with a reason, or all of its entries can be read."""
    try:
        problems = problems_of(data)
    except InvalidCatalog as error:
        assert str(error)
        return
    assert len(problems) <= MAX_PROBLEMS + 11
    assert all(each.what and str(each) for each in problems)
    if not any(each.is_error for each in problems):
        assert read_catalog(data).rejected == ()


def catalog_seeds() -> Iterator[bytes]:
    yield msgspec.json.encode(GOOD)
    yield b'{"specVersion":"1.0","entries":[]}'
    for each in GOOD["entries"]:  # type: ignore[attr-defined]
        yield msgspec.json.encode({"specVersion": "1.0", "entries": [each]})


DATA = Path(__file__).parents[1] / "data" / "registry"
ASKED = asked_digest("search", "weather")


def expressions(data: bytes) -> None:
    """An expression becomes constraints with values, or is rejected with a short reason."""
    text = data.decode("utf-8", "replace")
    for read in (constraints_of_expression, order_of):
        try:
            for each in read(text):
                assert each.field
        except InvalidParamsError as error:
            assert 0 < len(str(error)) < 1_000


def expression_seeds() -> Iterator[bytes]:
    yield b"type = 'application/a2a-agent-card+json' AND createdAfter > '2026-01-01'"
    yield b"NOT (tags = a OR tags IN ('b', \"c\")) AND contains(displayName, 'x'), y"
    yield b"updatedAt DESC, displayName"


def filters(data: bytes) -> None:
    """A filter in JSON becomes constraints with values, or is rejected with a reason."""
    try:
        given = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    try:
        for each in constraints_of(QueryModel(filter=given)):
            assert each.field
            assert all(each.values)
    except InvalidParamsError as error:
        assert str(error)


def filter_seeds() -> Iterator[bytes]:
    yield b'{"type":["application/a2a-agent-card+json"],"metadata.seats":3,"a.b":[true,"x"]}'


def places(data: bytes) -> None:
    """A token is a position within bounds, or is rejected."""
    try:
        place = place_in(data.decode("utf-8", "replace"), ASKED)
    except InvalidParamsError:
        return
    assert 0 <= place.offset <= MAX_OFFSET
    assert place_in(page_token(ASKED, place), ASKED) == place


def place_seeds() -> Iterator[bytes]:
    yield page_token(ASKED, place_in("", ASKED)).encode()


def texts(data: bytes) -> None:
    """Any text has some of the marks, each once and in order."""
    found = marks_of({"C": data.decode("utf-8", "surrogateescape")})
    assert found == tuple(mark for mark in MARKS if mark in found)


def text_seeds() -> Iterator[bytes]:
    for line in (DATA / "instructing.txt").read_text("utf-8").splitlines()[1:]:
        text = line.split(" | ", 1)[1].encode("latin-1", "backslashreplace")
        yield text.decode("unicode_escape").encode("utf-8", "replace")


def described(data: bytes) -> None:
    """The texts of an entry are bounded, whatever it holds."""
    try:
        entry = read_entry(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidEntry):
        return
    found = texts_of(entry)
    assert found.keys() <= set("ABCD")
    assert all(0 < len(text) <= MAX_TEXT for text in found.values())


def described_seeds() -> Iterator[bytes]:
    catalog = msgspec.json.decode((DATA / "catalog.json").read_bytes())
    for each in catalog["entries"][:5]:
        yield msgspec.json.encode(each)
    first = {**catalog["entries"][0], "data": {"tools": [{"name": "x", "inputSchema": {}}]}}
    yield msgspec.json.encode({name: first[name] for name in first if name != "url"})
