"""Reads a catalog with those that are inline in it, as one list of entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from parley.model.catalog.entries import CatalogEntry, CatalogHost
from parley.registry.ingest.examiner import is_catalog, one_form
from parley.registry.ingest.limits import IngestLimits
from parley.wire.catalog.entries import InvalidCatalog, ReadCatalog, RejectedEntry, read_catalog

MAX_REJECTED = 1_000


class ListedEntry(msgspec.Struct, frozen=True):
    """An entry of a catalog, with the host of the catalog that it stands in.

    ``depth`` is that of its catalog. ``problem`` says why it is not examined.
    """

    entry: CatalogEntry
    host: CatalogHost | None
    depth: int
    problem: str = ""

    @property
    def identifier(self) -> str:
        """The identifier in one form, as the index has it."""
        return one_form(self.entry.identifier)


class CatalogReading(msgspec.Struct, frozen=True):
    """The entries of a catalog, and those that cannot be read. ``notes`` are for its source."""

    entries: tuple[ListedEntry, ...] = ()
    rejected: tuple[RejectedEntry, ...] = ()
    notes: tuple[str, ...] = ()


def read_whole(body: bytes, limits: IngestLimits, *, depth: int, at_most: int) -> CatalogReading:
    """Return the entries of a catalog at a depth, with those of inline ones, ``at_most`` so many.

    Of the versions of one identifier the newest is taken. Raises ``InvalidCatalog``.
    """
    reader = _Reader(limits, at_most)
    reader.read(read_catalog(body, max_entries=limits.entries_per_catalog), depth)
    return CatalogReading(
        tuple(_newest(reader.entries)), tuple(reader.rejected), tuple(reader.notes)
    )


class _Reader:
    def __init__(self, limits: IngestLimits, at_most: int) -> None:
        self._limits = limits
        self._at_most = at_most
        self._looked_at = 0
        self.entries: list[ListedEntry] = []
        self.rejected: list[RejectedEntry] = []
        self.notes: list[str] = []

    def read(self, read: ReadCatalog, depth: int) -> None:
        """Add the entries of a catalog, and then those of the catalogs in it."""
        self._looked_at += len(read.catalog.entries) + len(read.rejected)
        self.rejected += read.rejected[: MAX_REJECTED - len(self.rejected)]
        inline: list[tuple[int, CatalogEntry]] = []
        for number, each in enumerate(read.catalog.entries):
            if len(self.entries) >= self._at_most:
                left = len(read.catalog.entries) - number
                self._note(f"{left} entries are left out: the limit is {self._at_most:,}")
                return
            problem = ""
            if is_catalog(each.type) and each.data is not None:
                if depth >= self._limits.depth:
                    problem = f"it is nested deeper than {self._limits.depth} catalogs"
                else:
                    inline.append((len(self.entries), each))
                    each = msgspec.structs.replace(each, data={})  # its entries are listed
            self.entries.append(ListedEntry(each, read.catalog.host, depth, problem))
        for place, each in inline:
            self._read_inline(place, each, depth + 1)

    def _read_inline(self, place: int, entry: CatalogEntry, depth: int) -> None:
        if self._looked_at >= self._at_most:  # those that are wrong take time, too
            words = "the catalog in it is left out: there are too many entries"
            self.entries[place] = msgspec.structs.replace(self.entries[place], problem=words)
            self._note(words)
            return
        try:
            if not isinstance(entry.data, Mapping):
                raise InvalidCatalog("a catalog is a JSON object")
            nested = read_catalog(entry.data, max_entries=self._limits.entries_per_catalog)
        except InvalidCatalog as error:
            words = f"the catalog in it cannot be read: {error}"
            self.entries[place] = msgspec.structs.replace(self.entries[place], problem=words)
            return
        self.read(nested, depth)

    def _note(self, words: str) -> None:
        if len(self.notes) < 8:
            self.notes.append(words)


def _newest(entries: Iterable[ListedEntry]) -> list[ListedEntry]:
    """Return each identifier once: its newest version, else the one that comes first."""
    found: dict[str, ListedEntry] = {}
    for each in entries:
        name = each.identifier
        known = found.get(name)
        if known is None or _order(each.entry) > _order(known.entry):
            found[name] = each
    return list(found.values())


def _order(entry: CatalogEntry) -> tuple[tuple[int, ...], int, str]:
    """Return what versions are compared by: numbers, then whether it is final, then the time."""
    core, _, early = entry.version.removeprefix("v").partition("+")[0].partition("-")
    parts = core.split(".")[:4]
    is_plain = all(each.isascii() and each.isdigit() and len(each) < 10 for each in parts)
    return (
        tuple(map(int, parts)) if is_plain and core else (),
        0 if early else 1,
        entry.updated_at,
    )
