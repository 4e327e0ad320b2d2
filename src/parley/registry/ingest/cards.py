"""Reads the A2A card of an entry: inline, or at its address; of version 1.0 or 0.3."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from parley.client.card.resolver import WELL_KNOWN, read_card
from parley.client.errors import CardInvalid
from parley.model.bounded import Bounded
from parley.model.cards import AgentCard
from parley.model.catalog.entries import CatalogEntry
from parley.registry.ingest.addresses import UnfitAddress, checked_address
from parley.registry.ingest.fetching import PageUnavailable, WebAnswer, WebFetcher
from parley.registry.ingest.limits import freshness
from parley.wire.json.syntax import without_bom

_CARD_TYPES = "application/a2a-agent-card+json, application/json, */*;q=0.1"
_ELSEWHERE = frozenset({200, 404, 405, 406, 410})
"""The statuses of an address that is no card: it may be that of an agent, with its card below."""

_MAX_KEPT = 10_000


class CardFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The card of an entry, or why there is none.

    ``raw`` is its JSON as it was received, ``url`` where it is, empty for an inline one.
    ``is_passing``: the problem may pass by itself, and says nothing of the card.
    """

    card: AgentCard | None = None
    raw: bytes = b""
    url: str = ""
    problem: str = ""
    is_passing: bool = False

    @property
    def digest(self) -> str:
        """The SHA-256 of the card, as a registry keeps it."""
        return digest_of(self.raw) if self.raw else ""


class _Seen(msgspec.Struct, frozen=True):
    """The answer that had a card."""

    url: str
    etag: str
    last_modified: str
    digest: str
    fresh_until: float


class CardReader:
    """Reads cards. Those that are fresh, or have not changed, are not read again."""

    def __init__(self, fetcher: WebFetcher, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._seen: Bounded[str, _Seen] = Bounded(_MAX_KEPT)

    async def read(self, entry: CatalogEntry, known: bytes | None = None) -> CardFinding:
        """Return the card of an entry. ``known`` is the one that it had before."""
        if entry.data is not None:
            return self._inline(entry.data)
        try:
            url = checked_address(entry.url, plain=self._fetcher.plain)
        except UnfitAddress as error:
            return CardFinding(problem=f"the address of its card is wrong: {error}")
        seen = self._seen.get(url)
        if seen is not None and (known is None or digest_of(known) != seen.digest):
            seen = None
        if seen is not None and known is not None and self._clock() < seen.fresh_until:
            return self._read(known, seen.url)
        try:
            return await self._fetch(url, seen, known)
        except PageUnavailable as error:
            is_passing = not error.is_refused and error.status == 0
            return CardFinding(problem=f"its card cannot be had: {error}", is_passing=is_passing)

    async def _fetch(self, url: str, seen: _Seen | None, known: bytes | None) -> CardFinding:
        """Return the card at an address, or at the well-known places below it."""
        first: CardFinding | None = None
        for candidate in _candidates(url):
            is_known = seen is not None and seen.url == candidate
            answer = await self._fetcher.get(
                candidate,
                etag=seen.etag if seen is not None and is_known else "",
                last_modified=seen.last_modified if seen is not None and is_known else "",
                accept=_CARD_TYPES,
                limit=self._fetcher.limits.card_bytes,
            )
            if answer.status == 304 and is_known and known is not None:
                self._keep(url, candidate, answer, known, seen)
                return self._read(known, candidate)
            found = self._found(candidate, answer)
            self._fetcher.found(answer.url, found.card is not None)
            if found.card is not None:
                self._keep(url, candidate, answer, found.raw, None)
                return found
            # A well-known place says more than a page at the address does, if it has a JSON object.
            first = first or found
            if found.is_passing or answer.status not in _ELSEWHERE:
                break
        assert first is not None
        return first

    def _found(self, url: str, answer: WebAnswer) -> CardFinding:
        if answer.status == 200:
            return self._read(answer.body, answer.url)
        is_passing = answer.status in (408, 425, 429) or answer.status >= 500
        return CardFinding(
            problem=f"its card cannot be had: {url} answered {answer.status}", is_passing=is_passing
        )

    def _inline(self, data: Any) -> CardFinding:
        if not isinstance(data, Mapping):
            return CardFinding(problem="its inline card is no JSON object")
        return self._read(msgspec.json.encode(data), "")

    def _read(self, raw: bytes, url: str) -> CardFinding:
        raw = without_bom(raw)
        limit = self._fetcher.limits.card_bytes
        if len(raw) > limit:
            return CardFinding(problem=f"its card is larger than {limit:,} bytes", url=url)
        try:
            card = read_card(raw, url or "the inline card")
        except CardInvalid as error:
            return CardFinding(problem=str(error), url=url)
        return CardFinding(card=card, raw=raw, url=url)

    def _keep(
        self, url: str, where: str, answer: WebAnswer, raw: bytes, before: _Seen | None
    ) -> None:
        headers = answer.headers
        self._seen[url] = _Seen(
            where,
            headers.get("etag", before.etag if before else "")[:512],
            headers.get("last-modified", before.last_modified if before else "")[:128],
            digest_of(raw),
            self._clock() + min(freshness(headers) or 0.0, self._fetcher.limits.refresh_ceiling),
        )


def digest_of(raw: bytes) -> str:
    """Return the digest of a card."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def _candidates(url: str) -> list[str]:
    """Return where the card of an address may be: there, or at a well-known place below."""
    path = url.partition("?")[0]
    if path.lower().endswith(".json"):
        return [url]
    return [url, *(path.rstrip("/") + each for each in WELL_KNOWN)]
