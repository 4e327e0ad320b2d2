"""``parley catalog check``: what registries may refuse about a catalog, and why.

Trust manifests and the cards that a catalog names are verified as registries do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit

import msgspec

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import FAILED, CommandFailure
from parley.cli.output.streams import Output
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.card.resolver import MAX_CARD, read_card
from parley.client.errors import ClientError
from parley.registry.catalog.entries import (
    A2A_CARD_TYPES,
    CATALOG,
    AirUrn,
    CatalogEntry,
    InvalidUrn,
    is_within,
)
from parley.registry.catalog.reading import (
    CatalogProblem,
    InvalidCatalog,
    problems_of,
    read_catalog,
)
from parley.registry.commands.documents import CatalogDocument, read_document
from parley.registry.ingest.addresses import is_public_suffix
from parley.registry.ingest.fetching import JSON_TYPES, PageUnavailable, WebAnswer, WebFetcher
from parley.registry.ingest.signatures import (
    CardSignatures,
    ManifestVerifier,
    PublishedKeySets,
    Signing,
)
from parley.registry.records import Trust
from parley.security.networks import is_loopback

# Signatures of a catalog: of the trust manifests in it, and of the cards that it names.

MAX_CHECKED = 1_000
"""How many trust manifests are verified."""


class SignatureCheck:
    """Verifies the signatures in a catalog, as registries do. ``near`` is its address.

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
        """Return the problems of the trust manifests of entries."""
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
        """Return the problems of the signatures of the card of an entry."""
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
        self, url: str, *, accept: str = JSON_TYPES, limit: int | None = None, **known: str
    ) -> WebAnswer:
        """Return the answer of an address. Raises ``PageUnavailable``."""
        limit = self.limits.key_bytes if limit is None else limit
        try:
            reply = await self._http.get(url, {"Accept": accept}, timeout=TIMEOUT, limit=limit)
        except ClientError as error:
            raise PageUnavailable(str(error)) from None
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return WebAnswer(status=reply.status, url=reply.url, body=reply.body, headers=headers)


_ACCEPT = {"Accept": "application/json"}

MAX_CARDS = 100
"""How many cards are fetched."""

TIMEOUT = 15.0


def check(call: AgentCall, output: Output, reference: str, *, cards: bool = False) -> int:
    """Report the problems of a catalog; return the exit status: 1 if there is an error.

    With ``cards`` the cards that it names are fetched too. Signatures are verified, those of a
    file with ``cards`` only: their keys are fetched.
    """
    found: list[CatalogProblem] = []

    async def work() -> None:
        document = await read_document(call, reference)
        try:
            found.extend(problems_of(document.body))
            found.extend(_of_address(document))
        except InvalidCatalog as error:
            words = f"{document.where}: {error}"
            raise CommandFailure("PARLEY_ERR_CATALOG", words) from None
        if (cards or document.is_fetched) and not any(each.is_error for each in found):
            async with call.http() as http:
                found.extend(await _of_signatures(http, document, cards=cards))
        report(output, document.where, found)

    return call.run(work) or (FAILED if any(each.is_error for each in found) else 0)


def report(output: Output, where: str, found: list[CatalogProblem]) -> None:
    """Write the problems, and whether the catalog is valid."""
    errors = [each for each in found if each.is_error]
    if output.is_json:
        problems = [
            {"where": each.where, "problem": each.what, "error": each.is_error} for each in found
        ]
        document = {"catalog": where, "valid": not errors, "problems": problems}
        output.json(msgspec.json.encode(document))
        return
    output.text.field("Catalog", where)
    output.text.field("Valid", "no" if errors else "yes")
    for each in found:
        output.text.field("Error" if each.is_error else "Warning", str(each))


async def _of_signatures(
    http: HttpTransport, document: CatalogDocument, *, cards: bool
) -> list[CatalogProblem]:
    """Return the problems of the signatures of a catalog, and of its cards."""
    found: list[CatalogProblem] = []
    signatures = None
    try:
        signatures = SignatureCheck(http, document.where)
    except RuntimeError as error:
        found.append(CatalogProblem("", f"signatures are not verified: {error}", False))
    else:
        found += await signatures.manifests(read_catalog(document.body).catalog.entries)
    if cards:
        found += [each async for each in _of_cards(http, document, signatures)]
    return found


async def _of_cards(
    http: HttpTransport, document: CatalogDocument, signatures: SignatureCheck | None
) -> AsyncIterator[CatalogProblem]:
    """Yield the problems of the cards that a catalog names, without nested catalogs."""
    entries = read_catalog(document.body).catalog.entries
    cards = [each for each in enumerate(entries) if each[1].type in A2A_CARD_TYPES]
    for number, entry in cards[:MAX_CARDS]:
        where = f"entries[{number}].{'url' if entry.url else 'data'}"
        try:
            if entry.url:
                reply = await http.get(entry.url, _ACCEPT, timeout=TIMEOUT, limit=MAX_CARD)
                if reply.status != 200:
                    words = f"{redacted(entry.url)} answers with status {reply.status}"
                    yield CatalogProblem(where, f"{words}, and not with a card")
                    continue
                raw = reply.body
            else:
                raw = msgspec.json.encode(entry.data)
            card = read_card(raw, redacted(entry.url) or "the data")
        except ClientError as error:
            yield CatalogProblem(where, str(error))
            continue
        if card.name != entry.display_name:
            words = f"the card calls the agent {card.name[:80]!r}, not {entry.display_name[:80]!r}"
            yield CatalogProblem(where, words, False)
        for each in await signatures.card(where, entry, raw) if signatures else ():
            yield each
    if len(cards) > MAX_CARDS:
        words = f"only the first {MAX_CARDS} cards were fetched, of {len(cards)}"
        yield CatalogProblem("entries", words, False)


def _of_address(document: CatalogDocument) -> list[CatalogProblem]:
    """Return the problems of a catalog's place, and of the way that it is served."""
    if not document.is_fetched:
        return []
    parts = urlsplit(document.where)
    host = parts.hostname or ""
    found = []
    if document.media_type != CATALOG:
        words = f"it is served as {document.media_type or 'nothing'}, and should be as {CATALOG}"
        found.append(CatalogProblem("", words, False))
    if parts.scheme != "https" and not is_loopback(host):
        words = "it is not served over https, so registries do not trust it"
        found.append(CatalogProblem("", words, False))
    publishers = set()
    try:
        entries = read_catalog(document.body).catalog.entries
    except InvalidCatalog:
        return found
    for entry in entries:
        try:
            publishers.add(AirUrn.parse(entry.identifier).publisher)
        except InvalidUrn:
            continue
    for publisher in sorted(publishers):
        if not is_within(host, publisher) and not is_loopback(host):
            words = (
                f"{host} is not below {publisher}, whose agents are listed: registries that read "
                "the catalog here do not list them"
            )
            found.append(CatalogProblem("", words, False))
    return found
