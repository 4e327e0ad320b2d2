"""``parley catalog show``: the entries of a catalog, and of catalogs in it."""

from __future__ import annotations

from urllib.parse import urlsplit

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import CommandFailure
from parley.cli.output.streams import Output
from parley.client.bindings.http import HttpTransport
from parley.model.catalog.entries import CATALOG, MAX_NESTING, CatalogEntry
from parley.registry.commands.documents import CatalogDocument, fetch, read_document
from parley.wire.catalog.entries import InvalidCatalog, ReadCatalog, read_catalog

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
    """Writes catalogs as text, and follows nested ones of the same origin."""

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
