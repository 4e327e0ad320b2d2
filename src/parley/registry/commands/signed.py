"""Signatures of a catalog: of the trust manifests in it, and of the cards that it names."""

from __future__ import annotations

from collections.abc import Sequence

from parley.client.bindings.http import HttpTransport
from parley.client.errors import ClientError
from parley.model.catalog.entries import CatalogEntry
from parley.model.catalog.urn import AirUrn, InvalidUrn
from parley.registry.ingest.authority import is_public_suffix
from parley.registry.ingest.fetching import JSON_TYPES, PageUnavailable, WebAnswer, WebFetcher
from parley.registry.ingest.key_sets import PublishedKeySets
from parley.registry.ingest.manifests import ManifestVerifier
from parley.registry.ingest.signatures import CardSignatures, Signing
from parley.registry.records import Trust
from parley.wire.catalog.problems import CatalogProblem

MAX_CHECKED = 1_000
"""How many trust manifests are verified."""

TIMEOUT = 15.0


class SignatureCheck:
    """Verifies what is signed in a catalog, as registries do. ``near`` is its address.

    Raises ``RuntimeError`` if what that needs is not installed.
    """

    def __init__(self, http: HttpTransport, near: str) -> None:
        is_public_suffix("example.com")
        fetcher = _CommandFetcher(http)
        keys = PublishedKeySets(fetcher)
        self._manifests = ManifestVerifier(fetcher, keys)
        self._cards = CardSignatures(fetcher, keys)
        self._near = near

    async def manifests(self, entries: Sequence[CatalogEntry]) -> list[CatalogProblem]:
        """Return what is wrong with the trust manifests of entries."""
        found = []
        signed = [
            (number, each)
            for number, each in enumerate(entries)
            if each.trust_manifest is not None and each.trust_manifest.signature
        ]
        for number, each in signed[:MAX_CHECKED]:
            try:
                publisher = AirUrn.parse(each.identifier).publisher
            except InvalidUrn:
                continue
            signing = await self._manifests.check(each, publisher, self._near)
            found += _problems(f"entries[{number}].trustManifest", signing)
        if len(signed) > MAX_CHECKED:
            words = f"only the first {MAX_CHECKED} trust manifests were verified, of {len(signed)}"
            found.append(CatalogProblem("entries", words, False))
        return found

    async def card(self, where: str, entry: CatalogEntry, raw: bytes) -> list[CatalogProblem]:
        """Return what is wrong with the signatures of the card of an entry."""
        try:
            publisher = AirUrn.parse(entry.identifier).publisher
        except InvalidUrn:
            return []
        return _problems(where, await self._cards.check(raw, entry.url, publisher, self._near))


def _problems(where: str, signing: Signing) -> list[CatalogProblem]:
    if signing.trust is Trust.VERIFIED or not (signing.is_signed or signing.trust is Trust.FAILED):
        return []
    return [CatalogProblem(where, signing.reason, signing.trust is Trust.FAILED)]


class _CommandFetcher(WebFetcher):
    """Fetches keys as the command fetches catalogs: with its proxy and its authorities."""

    def __init__(self, http: HttpTransport) -> None:
        super().__init__()
        self._http = http

    async def get(
        self,
        url: str,
        *,
        etag: str = "",
        last_modified: str = "",
        accept: str = JSON_TYPES,
        limit: int | None = None,
    ) -> WebAnswer:
        """Return the answer of an address. Raises ``PageUnavailable``."""
        limit = self.limits.key_bytes if limit is None else limit
        try:
            reply = await self._http.get(url, {"Accept": accept}, timeout=TIMEOUT, limit=limit)
        except ClientError as error:
            raise PageUnavailable(str(error)) from None
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return WebAnswer(status=reply.status, url=reply.url, body=reply.body, headers=headers)
