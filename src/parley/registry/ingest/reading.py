"""Reads catalogs, the A2A cards of their entries, and the values for filters.

A catalog is read with its inline nested catalogs, as one list of entries; a card is inline, or at
its address, in version 1.0 or 0.3.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import msgspec

from parley.client.bindings.binding import canonical
from parley.client.card.resolver import WELL_KNOWN, read_card
from parley.client.errors import CardInvalid
from parley.model.bounded import Bounded
from parley.model.cards import AgentCard, SecurityScheme
from parley.registry.catalog.entries import (
    CATALOG,
    MAX_URN,
    AirUrn,
    CatalogEntry,
    CatalogHost,
    InvalidUrn,
    context_of,
    media_type,
    term_of,
)
from parley.registry.catalog.reading import (
    InvalidCatalog,
    ReadCatalog,
    RejectedEntry,
    read_catalog,
    write_entry,
)
from parley.registry.index.prepared import digest_of
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.addresses import UnfitAddress, checked_address
from parley.registry.ingest.fetching import (
    IngestLimits,
    PageUnavailable,
    WebAnswer,
    WebFetcher,
    freshness,
)
from parley.registry.records import (
    Constraint,
    EntrySelection,
    EntryStanding,
    IndexedEntry,
    Order,
    Viewer,
)
from parley.wire.json.syntax import without_bom

# The values of an entry and its card for filters.

MAX_PATHS = 128
"""The most paths of an entry with values; its own unknown members come last."""

MAX_VALUES = 128
MAX_VALUE = 256
MAX_PATH = 128
MAX_DEPTH = 4

CARD_SIGNERS = "card.signedBy"
MANIFEST_SIGNERS = "trustManifest.signedBy"
"""The thumbprints of the keys to which a card and a manifest are pinned."""

SOURCE = "source"

_OWN = (
    "identifier", "displayName", "type", "version", "updatedAt", "tags", "capabilities",
    "trustManifest",
)  # fmt: skip
_NEVER = ("data", "url", "description", "representativeQueries", "signature")
_DERIVED = ("card", "host", SOURCE)
"""Members of an entry with the same paths as the registry's own values."""


def fields_of(
    entry: CatalogEntry,
    *,
    publisher: str,
    source: str,
    card: AgentCard | None = None,
    host: CatalogHost | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return values by field path (ARD §5.3.1), bounded in number and length.

    A term of another namespace has its IRI as its path. Texts, numbers and booleans are values; a
    path leads through lists to all members.
    """
    found = _Values()
    found.add("publisher", [publisher])
    found.values[SOURCE] = (source,)  # not cut: it selects the entries of a source
    written = write_entry(entry)
    for name in _OWN:
        found.walk(name, written.get(name))
    if card is not None:
        _add_card(found, card)
    if host is not None:
        found.add("host.displayName", [host.display_name])
        found.add("host.identifier", [host.identifier])
    context = context_of(written.get("@context"))
    for given, value in written.items():
        if given[:1] == "@":
            continue
        name = term_of(given, context)
        # A name with dots must not look like the path of another member.
        first, *rest = name.split(".")
        is_derived = first in _DERIVED or (rest and first in (*_OWN, "publisher"))
        is_derived = is_derived or (name == "publisher" and not isinstance(value, Mapping))
        if not is_derived and name not in _OWN and first not in _NEVER:
            found.walk(name, value)
    found.values.pop(MANIFEST_SIGNERS, None)  # only the registry may set this
    return found.values


class _Values:
    """Values by path, within the limits."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[str, ...]] = {}

    def add(self, path: str, values: Iterable[str]) -> None:
        """Add values to a path, each once."""
        if len(path) > MAX_PATH or (path not in self.values and len(self.values) >= MAX_PATHS):
            return
        known = dict.fromkeys(self.values.get(path, ()))
        if len(known) >= MAX_VALUES:
            return
        for each in values:
            text = each.strip()[:MAX_VALUE]
            if text and len(known) < MAX_VALUES:
                known[text] = None
        if known:
            self.values[path] = tuple(known)

    def walk(self, path: str, value: Any, depth: int = 0) -> None:
        """Add the values in a JSON value, with paths below ``path``."""
        if isinstance(value, bool):
            self.add(path, ["true" if value else "false"])
        elif isinstance(value, str):
            self.add(path, [value])
        elif isinstance(value, int | float):
            self.add(path, [msgspec.json.encode(value).decode()])
        elif depth < MAX_DEPTH and isinstance(value, Mapping):
            for name, each in list(value.items())[:MAX_VALUES]:
                if name not in _NEVER and isinstance(name, str):
                    self.walk(f"{path}.{name}", each, depth + 1)
        elif depth < MAX_DEPTH and isinstance(value, list | tuple):
            for each in value[:MAX_VALUES]:
                self.walk(path, each, depth + 1)


def _add_card(found: _Values, card: AgentCard) -> None:
    skills = card.skills[:MAX_VALUES]
    modes = [*card.default_input_modes, *card.default_output_modes]
    for skill in skills:
        modes += [*skill.input_modes, *skill.output_modes]
    found.add("card.name", [card.name])
    found.add("card.version", [card.version])
    found.add("card.skills.id", [skill.id for skill in skills])
    found.add("card.skills.name", [skill.name for skill in skills])
    found.add("card.skills.tags", [tag for skill in skills for tag in skill.tags])
    found.add("card.modes", modes)
    interfaces = card.supported_interfaces[:MAX_VALUES]
    found.add("card.bindings", [canonical(each.protocol_binding) for each in interfaces])
    found.add("card.versions", [each.protocol_version for each in interfaces])
    found.add(
        "card.securitySchemes",
        [name for each in card.security_schemes.values() for name in _kinds(each)],
    )
    abilities = card.capabilities
    found.add("card.extensions", [each.uri for each in abilities.extensions])
    found.add(
        "card.capabilities",
        [
            name
            for name, is_there in (
                ("streaming", abilities.streaming),
                ("pushNotifications", abilities.push_notifications),
                ("extendedAgentCard", abilities.extended_agent_card),
            )
            if is_there
        ],
    )
    if card.provider is not None:
        found.add("card.provider", [card.provider.organization])
        found.add("card.provider.url", [card.provider.url])


def _kinds(scheme: SecurityScheme) -> list[str]:
    """Return the kinds of a scheme, also of HTTP authentication, by their names in 0.3
    and OpenAPI.
    """
    for field, kind in _KINDS.items():
        held = getattr(scheme, field, None)
        if held is not None:
            return [kind, held.scheme.lower()] if kind == "http" else [kind]
    return []


_KINDS = {
    "api_key_security_scheme": "apiKey",
    "http_auth_security_scheme": "http",
    "oauth2_security_scheme": "oauth2",
    "open_id_connect_security_scheme": "openIdConnect",
    "mtls_security_scheme": "mutualTLS",
}


# Reads the A2A card of an entry: inline, or at its address; of version 1.0 or 0.3.

_CARD_TYPES = "application/a2a-agent-card+json, application/json, */*;q=0.1"
_ELSEWHERE = frozenset({200, 404, 405, 406, 410})
"""The statuses of an address without a card: it may be an agent's address, with the
card below it.
"""

_MAX_KEPT = 10_000


class CardFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The card of an entry, or the reason why there is none.

    ``raw`` is its JSON as received, ``url`` its address, empty for an inline card. ``is_passing``:
    the problem may be temporary, and says nothing about the card.
    """

    card: AgentCard | None = None
    raw: bytes = b""
    url: str = ""
    problem: str = ""
    is_passing: bool = False

    @property
    def digest(self) -> str:
        """The SHA-256 of the card, as a registry stores it."""
        return digest_of(self.raw) if self.raw else ""


class _Seen(msgspec.Struct, frozen=True):
    """The response that contained a card."""

    url: str
    etag: str
    last_modified: str
    digest: str
    fresh_until: float


class CardReader:
    """Reads cards. A fresh or unchanged card is not downloaded again."""

    def __init__(self, fetcher: WebFetcher) -> None:
        self._fetcher = fetcher
        self._seen: Bounded[str, _Seen] = Bounded(_MAX_KEPT)

    async def read(
        self, entry: CatalogEntry, known: bytes | None = None, *, fresh: bool = False
    ) -> CardFinding:
        """Return the card of an entry. ``known`` is its earlier card.

        With ``fresh`` it is requested again, even within its cache lifetime.
        """
        if entry.data is not None:
            return self._inline(entry.data)
        try:
            url = checked_address(entry.url, plain=self._fetcher.plain)
        except UnfitAddress as error:
            return CardFinding(problem=f"the address of its card is invalid: {error}")
        seen = self._seen.get(url)
        if seen is not None and (known is None or digest_of(known) != seen.digest):
            seen = None
        is_kept = seen is not None and time.monotonic() < seen.fresh_until and not fresh
        if seen is not None and known is not None and is_kept:
            return self._read(known, seen.url)
        try:
            return await self._fetch(url, seen, known)
        except PageUnavailable as error:
            is_passing = not error.is_refused and error.status == 0
            return CardFinding(
                problem=f"its card cannot be fetched: {error}", is_passing=is_passing
            )

    async def _fetch(self, url: str, seen: _Seen | None, known: bytes | None) -> CardFinding:
        """Return the card at an address, or at the well-known paths below it."""
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
            # A JSON object at a well-known path takes precedence over a page at the address.
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
            problem=f"its card cannot be fetched: {url} answered {answer.status}",
            is_passing=is_passing,
        )

    def _inline(self, data: Any) -> CardFinding:
        if not isinstance(data, Mapping):
            return CardFinding(problem="its inline card is not a JSON object")
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
            time.monotonic() + min(freshness(headers) or 0.0, self._fetcher.limits.refresh_ceiling),
        )


def _candidates(url: str) -> list[str]:
    """Return the possible addresses of a card: the given address, or a well-known path below it."""
    path = url.partition("?")[0]
    if path.lower().endswith(".json"):
        return [url]
    return [url, *(path.rstrip("/") + each for each in WELL_KNOWN)]


MAX_REJECTED = 1_000
PAGE = 50


class ListedEntry(msgspec.Struct, frozen=True):
    """An entry of a catalog, with the host of its catalog.

    ``depth`` is the nesting depth of its catalog. ``problem`` is the reason if it is not examined.
    """

    entry: CatalogEntry
    host: CatalogHost | None
    depth: int
    problem: str = ""

    @property
    def identifier(self) -> str:
        """The identifier in canonical form, as in the index."""
        return one_form(self.entry.identifier)


class CatalogReading(msgspec.Struct, frozen=True):
    """The entries of a catalog, and its invalid entries. ``notes`` are for its source."""

    entries: tuple[ListedEntry, ...] = ()
    rejected: tuple[RejectedEntry, ...] = ()
    notes: tuple[str, ...] = ()


def read_whole(body: bytes, limits: IngestLimits, *, depth: int, at_most: int) -> CatalogReading:
    """Return the entries of a catalog and of its inline catalogs, at most ``at_most``.

    Of the versions of one identifier the newest is returned. Raises ``InvalidCatalog``.
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

    def read(self, read: ReadCatalog, depth: int, parent: str = "") -> None:
        """Add the entries of a catalog, and then the entries of its nested catalogs."""
        self._looked_at += len(read.catalog.entries) + len(read.rejected)
        for rejected in read.rejected[: MAX_REJECTED - len(self.rejected)]:
            if parent and rejected.identifier.startswith("entries["):
                words = f"{rejected.identifier} of {parent}"
                rejected = msgspec.structs.replace(rejected, identifier=words)
            self.rejected.append(rejected)
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
        if self._looked_at >= self._at_most:  # invalid entries take time as well
            words = "the catalog in it is left out: there are too many entries"
            self.entries[place] = msgspec.structs.replace(self.entries[place], problem=words)
            self._note(words)
            return
        try:
            if not isinstance(entry.data, Mapping):
                raise InvalidCatalog("a catalog must be a JSON object")
            nested = read_catalog(entry.data, max_entries=self._limits.entries_per_catalog)
        except InvalidCatalog as error:
            words = f"the catalog in it is invalid: {error}"
            self.entries[place] = msgspec.structs.replace(self.entries[place], problem=words)
            return
        self.read(nested, depth, entry.identifier)

    def _note(self, words: str) -> None:
        if len(self.notes) < 8:
            self.notes.append(words)


def _newest(entries: Iterable[ListedEntry]) -> list[ListedEntry]:
    """Return each identifier once: its newest version, else its first entry."""
    found: dict[str, ListedEntry] = {}
    for each in entries:
        name = each.identifier
        known = found.get(name)
        if known is None or _order(each.entry) > _order(known.entry):
            found[name] = each
    return list(found.values())


def _order(entry: CatalogEntry) -> tuple[tuple[int, ...], int, str]:
    """Return a sort key for versions: numbers, then whether it is final, then the time."""
    core, _, early = entry.version.removeprefix("v").partition("+")[0].partition("-")
    parts = core.split(".")[:4]
    is_plain = all(each.isascii() and each.isdigit() and len(each) < 10 for each in parts)
    return (
        tuple(map(int, parts)) if is_plain and core else (),
        0 if early else 1,
        entry.updated_at,
    )


def is_catalog(kind: str) -> bool:
    """Return whether a media type denotes a nested catalog."""
    return media_type(kind) == CATALOG


def one_form(identifier: str) -> str:
    """Return an identifier in canonical form; an invalid identifier is cut and put on one line."""
    try:
        return str(AirUrn.parse(identifier))
    except InvalidUrn:
        cut = identifier[:MAX_URN]
        return "".join(char if char.isprintable() else "\ufffd" for char in cut)


def host_known(entry: IndexedEntry) -> CatalogHost | None:
    """Return the host of the catalog from which an indexed entry was read."""
    name = entry.fields.get("host.displayName", ())
    identifier = entry.fields.get("host.identifier", ("",))
    return CatalogHost(display_name=name[0], identifier=identifier[0]) if name else None


async def pages_of(
    index: RegistryIndex,
    url: str,
    standings: tuple[EntryStanding, ...] = tuple(EntryStanding),
    *,
    size: int = PAGE,
) -> AsyncIterator[list[IndexedEntry]]:
    """Yield the indexed entries of a source, in pages."""
    selection = EntrySelection(
        viewer=Viewer(sees_all=True),
        constraints=(Constraint(field=SOURCE, values=(url,)),),
        standings=standings,
    )
    offset = 0
    while page := await index.browse(selection, (Order(field="identifier"),), size, offset):
        if ours := [each for each in page if each.source == url]:
            yield ours
        offset += len(page)
        if len(page) < size:
            return
