"""Catalogs in files and at addresses, fetched within limits; ``parley catalog show`` and ``check``.

Trust manifests and the cards that a catalog names are verified as registries do.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import FAILED, CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.output.text import TextWriter
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.card.resolver import MAX_CARD, read_card
from parley.client.errors import ClientError, ResponseTooLarge
from parley.registry.catalog.entries import (
    A2A_CARD_TYPES,
    CATALOG,
    CATALOG_PATH,
    MAX_NESTING,
    PREDECESSOR_PATH,
    AirUrn,
    CatalogEntry,
    InvalidUrn,
    is_within,
)
from parley.registry.catalog.reading import (
    CatalogProblem,
    InvalidCatalog,
    ReadCatalog,
    problems_of,
    read_catalog,
)
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

# ``parley catalog show``: the entries of a catalog and of its nested catalogs.

MAX_NESTED = 50
"""The number of nested catalogs fetched."""


def show(call: AgentCall, output: Output, reference: str) -> int:
    """Write the entries of a catalog; as JSON, the unchanged document."""

    async def work() -> None:
        document = await read_document(call, reference)
        if output.is_json:
            _read(document)  # raises for a document that is not a catalog
            output.json(document.body)
            return
        async with call.http() as http:
            await _Shown(output, http).catalog(document, 1)

    return call.run(work)


class _Shown:
    """Writes catalogs as text, and follows nested catalogs of the same origin."""

    def __init__(self, output: Output, http: HttpTransport) -> None:
        self._output = output
        self._http = http
        self._seen: set[str] = set()

    async def catalog(self, document: CatalogDocument, depth: int) -> None:
        """Write a fetched catalog."""
        self._seen.add(document.where)
        await self._write(_read(document), document.where, depth)

    async def _write(self, read: ReadCatalog, where: str, depth: int) -> None:
        text, catalog = self._output.text, read.catalog
        text.field("Catalog", where)
        if catalog.host is not None:
            text.field("Host", catalog.host.display_name)
        text.field("Entries", str(len(catalog.entries)))
        for rejected in read.rejected:
            text.field("Not read", f"{rejected.identifier or 'an entry'}: {rejected.reason}")
        for entry in catalog.entries:
            text.gap()
            self._entry(entry)
        for entry in catalog.entries:
            if entry.type == CATALOG:
                await self._nested(entry, where, depth)

    async def _nested(self, entry: CatalogEntry, where: str, depth: int) -> None:
        if depth >= MAX_NESTING:
            self._output.warn(f"{entry.identifier} is nested too deeply and left out")
            return
        name = f"{where} > {entry.display_name}"
        try:
            if entry.data is not None:
                self._output.text.gap()
                read = read_catalog(entry.data if isinstance(entry.data, dict) else b"")
                await self._write(read, name, depth + 1)
            elif entry.url in self._seen or not _is_same_origin(entry.url, where):
                return
            elif len(self._seen) > MAX_NESTED:
                self._output.warn(
                    f"there are more than {MAX_NESTED} catalogs; the rest is left out"
                )
            else:
                document = await fetch(self._http, entry.url)
                self._output.text.gap()
                await self.catalog(document, depth + 1)
        except InvalidCatalog as error:
            self._output.warn(f"{name}: {error}")
        except CommandFailure as error:
            self._output.warn(error.message)

    def _entry(self, entry: CatalogEntry) -> None:
        text = self._output.text
        text.field("Identifier", entry.identifier)
        text.field("Name", entry.display_name)
        text.field("Type", entry.type)
        text.field("Address", entry.url or "in the catalog")
        if entry.description:
            text.content("Description", entry.description)
        write_facts(text, entry)


def write_facts(text: TextWriter, entry: CatalogEntry) -> None:
    """Write the details of an entry other than its name, address and description."""
    for label, value in (
        ("Version", entry.version),
        ("Updated", entry.updated_at),
        ("Tags", ", ".join(entry.tags)),
        ("Capabilities", ", ".join(entry.capabilities)),
    ):
        if value:
            text.field(label, value)
    for query in entry.representative_queries:
        text.field("Query", query)
    manifest = entry.trust_manifest
    if manifest is not None:
        signed = "signed, not verified here" if manifest.signature else "not signed"
        text.field("Identity", f"{manifest.identity} ({signed})")


def _read(document: CatalogDocument) -> ReadCatalog:
    try:
        return read_catalog(document.body)
    except InvalidCatalog as error:
        words = f"{document.where}: {error}"
        raise CommandFailure("PARLEY_ERR_CATALOG", words) from None


def _is_same_origin(url: str, where: str) -> bool:
    try:
        one, other = urlsplit(url), urlsplit(where.partition(" > ")[0])
        return (one.scheme, one.netloc) == (other.scheme, other.netloc) and bool(one.netloc)
    except ValueError:
        return False


MAX_BYTES = 8 * 1024 * 1024
"""The size of a catalog."""

TIMEOUT = 30.0
NOT_FOUND = "PARLEY_ERR_CATALOG_NOT_FOUND"

_ACCEPT = {"Accept": f"{CATALOG}, application/json;q=0.9"}
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w-]+(\.[\w-]+)*)(:\d{1,5})?(/\S*)?")


class CatalogDocument(NamedTuple):
    """The bytes of a catalog, with their origin and media type."""

    body: bytes
    where: str
    media_type: str = ""

    @property
    def is_fetched(self) -> bool:
        """Return whether it was fetched from an address."""
        return _ADDRESS.match(self.where) is not None


def catalog_address(reference: str) -> str:
    """Return the address of the catalog of a host, or the given address of a catalog."""
    url = reference.strip()
    if not _ADDRESS.match(url):
        if not _HOST.fullmatch(url):
            raise UsageFailure(f"{reference[:200]!r} is not an address", hint="https://example.com")
        host = urlsplit(f"//{url}").hostname or ""
        url = f"{'http' if is_loopback(host) else 'https'}://{url}"
    try:
        path = urlsplit(url).path
    except ValueError:
        raise UsageFailure(f"{reference[:200]!r} is not an address") from None
    if path.endswith(".json") or "/.well-known/" in path:
        return url
    return url.partition("?")[0].partition("#")[0].rstrip("/") + CATALOG_PATH


async def read_document(call: AgentCall, reference: str) -> CatalogDocument:
    """Return the catalog in a file (``-`` is standard input), or at an address."""
    document = _from_file(reference)
    if document is not None:
        return document
    url = catalog_address(reference)
    async with call.http() as http:
        try:
            return await fetch(http, url)
        except CommandFailure as error:
            base, path, _ = url.rpartition(CATALOG_PATH)
            if not path or error.code != NOT_FOUND:
                raise
            with suppress(CommandFailure):
                return await fetch(http, base + PREDECESSOR_PATH)
            raise


def _from_file(reference: str) -> CatalogDocument | None:
    """Return the catalog in a file, ``None`` for a reference to an address."""
    if reference == "-":
        return CatalogDocument(_bounded(sys.stdin.buffer.read(MAX_BYTES + 1), "-"), "-")
    path = Path(reference)
    if _ADDRESS.match(reference) or not (path.suffix == ".json" or path.is_file()):
        return None
    try:
        with path.open("rb") as file:
            return CatalogDocument(_bounded(file.read(MAX_BYTES + 1), reference), reference)
    except OSError as error:
        words = f"{reference} cannot be read: {error.strerror}"
        raise CommandFailure(NOT_FOUND, words) from None


async def fetch(http: HttpTransport, url: str) -> CatalogDocument:
    """Return the catalog at an address. Raises ``CommandFailure``."""
    try:
        reply = await http.get(url, _ACCEPT, timeout=TIMEOUT, limit=MAX_BYTES)
    except ResponseTooLarge as error:
        raise CommandFailure("PARLEY_ERR_CATALOG", str(error)) from None
    except ClientError as error:
        raise CommandFailure(
            "A2ACLI_ERR_UNREACHABLE", str(error), hint="is the server running there?"
        ) from None
    if reply.status != 200:
        raise CommandFailure(
            NOT_FOUND,
            f"{redacted(url)} answered with status {reply.status}, not with a catalog",
            hint="a Parley server publishes one if it has a publisher: "
            "parley serve agent.py --publisher example.com",
        )
    media_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    return CatalogDocument(reply.body, reply.url, media_type)


def _bounded(body: bytes, name: str) -> bytes:
    if len(body) > MAX_BYTES:
        raise CommandFailure("PARLEY_ERR_CATALOG", f"{name} is larger than {MAX_BYTES} bytes")
    return body


# Signatures of a catalog: of its trust manifests, and of the cards that it names.

MAX_CHECKED = 1_000
"""The number of trust manifests verified."""


class SignatureCheck:
    """Verifies the signatures in a catalog, as registries do. ``near`` is its address.

    Raises ``RuntimeError`` if a required package is not installed.
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
    """Fetches keys with the proxy and the certificate authorities of the command."""

    def __init__(self, http: HttpTransport) -> None:
        super().__init__()
        self._http = http

    async def get(
        self, url: str, *, accept: str = JSON_TYPES, limit: int | None = None, **known: str
    ) -> WebAnswer:
        """Return the response of an address. Raises ``PageUnavailable``."""
        limit = self.limits.key_bytes if limit is None else limit
        try:
            reply = await self._http.get(
                url, {"Accept": accept}, timeout=CHECK_TIMEOUT, limit=limit
            )
        except ClientError as error:
            raise PageUnavailable(str(error)) from None
        headers = {name.lower(): value for name, value in reply.headers.items()}
        return WebAnswer(status=reply.status, url=reply.url, body=reply.body, headers=headers)


_ACCEPT_CARD = {"Accept": "application/json"}

MAX_CARDS = 100
"""The most cards that are fetched."""

CHECK_TIMEOUT = 15.0


def check(call: AgentCall, output: Output, reference: str, *, cards: bool = False) -> int:
    """Report the problems of a catalog; return the exit status: 1 if there is an error.

    With ``cards`` the cards of the catalog are fetched too. Signatures are verified; for a catalog
    in a file only with ``cards``, because their keys must be fetched.
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
                reply = await http.get(
                    entry.url, _ACCEPT_CARD, timeout=CHECK_TIMEOUT, limit=MAX_CARD
                )
                if reply.status != 200:
                    words = f"{redacted(entry.url)} answered with status {reply.status}"
                    yield CatalogProblem(where, f"{words}, not with a card")
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
    """Return the problems of a catalog's address, and of its HTTP response."""
    if not document.is_fetched:
        return []
    parts = urlsplit(document.where)
    host = parts.hostname or ""
    found = []
    if document.media_type != CATALOG:
        words = f"its media type is {document.media_type or 'missing'}, and should be {CATALOG}"
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
