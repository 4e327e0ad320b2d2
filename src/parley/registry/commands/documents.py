"""Catalogs in files and at addresses, fetched within limits; and ``parley catalog show``."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.errors import ClientError, ResponseTooLarge
from parley.registry.catalog.entries import (
    CATALOG,
    CATALOG_PATH,
    MAX_NESTING,
    PREDECESSOR_PATH,
    CatalogEntry,
)
from parley.registry.catalog.reading import InvalidCatalog, ReadCatalog, read_catalog
from parley.security.networks import is_loopback

# ``parley catalog show``: the entries of a catalog, and of catalogs in it.

MAX_NESTED = 50
"""How many nested catalogs are fetched."""


def show(call: AgentCall, output: Output, reference: str) -> int:
    """Write what a catalog lists; as JSON, the document as it is."""

    async def work() -> None:
        document = await read_document(call, reference)
        if output.is_json:
            _read(document)  # nothing that is no catalog is shown as one
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
        """Write a catalog that was fetched."""
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
            self._output.warn(f"{entry.identifier} is nested too deeply, and left out")
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
    """The bytes of a catalog, where they are from, and the media type they came with."""

    body: bytes
    where: str
    media_type: str = ""

    @property
    def is_fetched(self) -> bool:
        """Whether it came from an address."""
        return _ADDRESS.match(self.where) is not None


def catalog_address(reference: str) -> str:
    """Return the address of the catalog of a host, or an address that names one itself."""
    url = reference.strip()
    if not _ADDRESS.match(url):
        if not _HOST.fullmatch(url):
            raise UsageFailure(f"{reference[:200]!r} is no address", hint="https://example.com")
        host = urlsplit(f"//{url}").hostname or ""
        url = f"{'http' if is_loopback(host) else 'https'}://{url}"
    try:
        path = urlsplit(url).path
    except ValueError:
        raise UsageFailure(f"{reference[:200]!r} is no address") from None
    if path.endswith(".json") or "/.well-known/" in path:
        return url
    return url.partition("?")[0].partition("#")[0].rstrip("/") + CATALOG_PATH


async def read_document(call: AgentCall, reference: str) -> CatalogDocument:
    """Return the catalog that a file has (``-`` for standard input), or an address."""
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
    """Return the catalog in a file, ``None`` for a reference that names none."""
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
            f"{redacted(url)} answers with status {reply.status}, and not with a catalog",
            hint="a Parley server publishes one if it has a publisher: "
            "parley serve agent.py --publisher example.com",
        )
    media_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    return CatalogDocument(reply.body, reply.url, media_type)


def _bounded(body: bytes, name: str) -> bytes:
    if len(body) > MAX_BYTES:
        raise CommandFailure("PARLEY_ERR_CATALOG", f"{name} has more than {MAX_BYTES} bytes")
    return body
