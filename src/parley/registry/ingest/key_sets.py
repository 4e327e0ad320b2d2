"""The keys of publishers: JWK Sets and DID documents, fetched within limits and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakValueDictionary

import msgspec

from parley.client.card.key_sets import (
    DEFAULT_AGE,
    MAX_AGE,
    MIN_AGE,
    Fetched,
    KeySetCache,
    KeySetUnavailable,
)
from parley.registry.ingest.addresses import UnfitAddress, checked_address
from parley.registry.ingest.authority import domain_of, speaks_for
from parley.registry.ingest.fetching import PageUnavailable, WebFetcher
from parley.registry.ingest.limits import freshness
from parley.security.signing.card_signing import JWKS_PATH

if TYPE_CHECKING:
    from parley.security.issuers.jwks import KeySet, VerificationKey

DID_WEB = "did:web:"
MAX_PLACES = 4
"""How many places are looked at for one key."""

_KEY_TYPES = "application/jwk-set+json, application/did+json, application/json, */*;q=0.1"


class KeyPlaces:
    """Where the keys of a publisher may be, the likeliest first. Others prove nothing for it."""

    def __init__(self, publisher: str, fetcher: WebFetcher) -> None:
        self.publisher = publisher
        self._fetcher = fetcher
        self._urls: dict[str, None] = {}

    def add(self, url: str) -> str:
        """Add an address, if it is one of the publisher's; return why not, empty if it is."""
        try:
            checked = checked_address(url, plain=self._fetcher.plain)
        except UnfitAddress as error:
            return str(error)
        if not speaks_for(domain_of(checked), self.publisher):
            return f"{checked} is not at {self.publisher}"
        self._urls[checked] = None
        return ""

    def add_origin(self, url: str) -> None:
        """Add the well-known key set at the origin of an address of the publisher."""
        try:
            self.add(checked_address(JWKS_PATH, near=url, plain=self._fetcher.plain))
        except UnfitAddress:
            return

    def add_publisher(self) -> None:
        """Add the well-known key set of the publisher."""
        self.add(f"https://{self.publisher}{JWKS_PATH}")

    def __iter__(self) -> Any:
        return iter(list(self._urls)[:MAX_PLACES])


class PublishedKeySets:
    """Fetches key sets through a ``WebFetcher``, and keeps them as long as they may be kept."""

    def __init__(self, fetcher: WebFetcher) -> None:
        self._fetcher = fetcher
        self._kept = KeySetCache()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _turn(self, url: str) -> asyncio.Lock:
        """Return what lets one look-up at a time ask for a key set: the others find it kept."""
        turn = self._turns.get(url)
        if turn is None:
            turn = self._turns[url] = asyncio.Lock()
        return turn

    async def find(self, places: Iterable[str], kid: str) -> tuple[KeySet | None, str]:
        """Return the first set that has a key, or all keys that were found, or why there are none.

        Without a ``kid`` it is the first set.
        """
        from parley.security.issuers.jwks import KeySet

        found: list[VerificationKey] = []
        problems: list[str] = []
        for url in places:
            try:
                async with self._turn(url):
                    keys = await self._kept.find(url, kid, partial(self._fetch, url))
            except KeySetUnavailable as error:
                problems.append(str(error))
                continue
            if not kid or keys.has(kid):
                return keys, ""
            found += keys.keys
        if found:
            return KeySet(found), ""
        return None, "; ".join(problems) or "its publisher names no place with keys"

    async def _fetch(self, url: str) -> Fetched:
        """Return a key set. Raises ``KeySetUnavailable``."""
        from parley.security.issuers.fetch import FetchFailed
        from parley.security.issuers.jwks import KeySet, read_keys

        try:
            answer = await self._fetcher.get(
                url, accept=_KEY_TYPES, limit=self._fetcher.limits.key_bytes
            )
        except PageUnavailable as error:
            raise KeySetUnavailable(f"the keys cannot be had: {error}") from None
        if answer.url != url:
            # Whoever finds an open redirect at a publisher would have keys there.
            words = f"the keys cannot be had: {url} redirects, and redirects are not followed"
            raise KeySetUnavailable(words)
        if answer.status != 200:
            raise KeySetUnavailable(f"the keys cannot be had: {url} answered {answer.status}")
        try:
            content = msgspec.json.decode(answer.body)
            if not isinstance(content, dict):
                raise FetchFailed("it is no JSON object")
            keys = read_keys(content if "keys" in content else _of_did(content))
        except (ValueError, RecursionError, FetchFailed) as error:
            said = str(error) if isinstance(error, FetchFailed) else "it is not JSON"
            raise KeySetUnavailable(f"{url} is no key set: {said}") from None
        age = freshness(answer.headers)
        age = DEFAULT_AGE if age is None else min(max(age, MIN_AGE), MAX_AGE)
        return Fetched(KeySet(keys), age)


def did_document_url(did: str) -> str:
    """Return the address of the document of a ``did:web`` identity, empty for another identity."""
    if not did.startswith(DID_WEB):
        return ""
    host, *path = did.removeprefix(DID_WEB).partition("#")[0].split(":")
    where = "/".join([*map(unquote, path), "did.json"]) if path else ".well-known/did.json"
    return f"https://{unquote(host)}/{where}"


def _of_did(document: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a DID document as a JWK Set; their ids are whole and short ones."""
    methods = document.get("verificationMethod")
    keys: list[Any] = []
    for each in methods if isinstance(methods, list) else ():
        if not isinstance(each, dict) or not isinstance(each.get("publicKeyJwk"), dict):
            continue
        name, jwk = each.get("id"), each["publicKeyJwk"]
        if not isinstance(name, str) or not name:
            keys.append(jwk)
            continue
        short = name.partition("#")[2]
        names = {name, short and f"#{short}", short, jwk.get("kid")}
        keys += [{**jwk, "kid": kid} for kid in names if isinstance(kid, str) and kid]
    return {"keys": keys}
