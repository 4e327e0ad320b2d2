"""What operators decide: of entries that are held or wrong, and of the sources that are read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from parley.model.errors import InvalidParamsError
from parley.model.service import Caller
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.selections import EntrySelection, Order, Viewer
from parley.registry.ingest.addresses import (
    AUTHORITY,
    SCHEMES,
    PlainHosts,
    UnfitAddress,
    checked_address,
)
from parley.registry.ingest.crawler import REFRESH
from parley.registry.ingest.reading import one_form
from parley.registry.ingest.sites import MAX_KNOWN, remove_source, root_of
from parley.registry.publishing.callers import ConflictError, NotFoundError, RegistryAudit
from parley.registry.records import Authority, EntryStanding, IndexedEntry, Source, SourceKind
from parley.store.audit.trail import AuditLine

DECIDED = (EntryStanding.LISTED, EntryStanding.HELD, EntryStanding.REJECTED)
"""The standings that an operator gives an entry."""

MAX_REASON = 500
REFRESH_SECONDS = 20.0
REFRESH_POLL = 0.1
"""How long a refresh waits for the visits, and how often it looks, in seconds."""


class OperatorDecisions:
    """Decides as an operator, and records who decided what, before it is done."""

    def __init__(
        self,
        index: RegistryIndex,
        *,
        plain: PlainHosts | None = None,
        begin_due: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._index = index
        self._audit = RegistryAudit(index)
        self._plain = plain
        self._begin_due = begin_due

    async def entries(
        self, standings: Sequence[EntryStanding], limit: int, offset: int = 0
    ) -> list[IndexedEntry]:
        """Return entries with some standings, the last change first."""
        selection = EntrySelection(viewer=Viewer(sees_all=True), standings=tuple(standings))
        order = (Order(field="updatedAt", descending=True),)
        return await self._index.browse(selection, order, limit, offset)

    async def decide(
        self,
        caller: Caller,
        identifier: str,
        standing: EntryStanding,
        reason: str = "",
        *,
        source: str = "",
        address: str = "",
    ) -> IndexedEntry:
        """Give an entry a standing; return it. ``source`` says which, if several have it.

        Raises ``A2AError``, ``StoreUnavailable``.
        """
        if standing not in DECIDED:
            raise InvalidParamsError(
                f"an operator decides on {', '.join(DECIDED)}, not on {standing}"
            )
        reason = " ".join(reason.split())
        if len(reason) > MAX_REASON or not reason.isprintable():
            raise InvalidParamsError(f"a reason has at most {MAX_REASON} characters on one line")
        if standing is EntryStanding.REJECTED and not reason:
            raise InvalidParamsError("say why: the owner of the entry reads it")
        name = one_form(identifier)
        there = [
            each
            for each in await self._index.entries_of(name)
            if (not source or each.source == source)
            and (source or each.standing is not EntryStanding.WITHDRAWN)
        ]
        if not there:
            raise NotFoundError(
                f"there is no entry {name[:200]!r}" + f" of {source[:200]}" * bool(source)
            )
        if len(there) > 1:
            sources = ", ".join(each.source[:200] for each in there)
            raise ConflictError(f"several sources have {name[:200]}: name one of {sources}")
        [entry] = there
        await self._audit.record(
            caller,
            "entry.decided",
            name,
            address=address,
            source=entry.source,
            standing=standing.value,
            before=entry.standing.value,
            reason=reason,
        )
        try:
            await self._index.decide(entry.key, standing, reason, caller.id)
        except ValueError as error:
            raise ConflictError(str(error)) from None
        found = await self._index.entries_of(name)
        return next((each for each in found if each.key == entry.key), entry)

    async def add_source(
        self,
        caller: Caller,
        url: str,
        *,
        vouches: bool = False,
        audience: tuple[str, ...] = (),
        address: str = "",
    ) -> Source:
        """Add a site or a catalog that is read from now on; return it.

        With ``vouches`` the operator answers for the publishers of its entries, whatever their
        domains. Raises ``A2AError``, ``StoreUnavailable``.
        """
        try:
            checked = checked_address(url, plain=self._plain)
        except UnfitAddress as error:
            raise InvalidParamsError(str(error)) from None
        is_file = checked.partition("?")[0].endswith(".json")
        if vouches and not is_file:
            raise InvalidParamsError(
                "vouching is for one catalog: name the address of its .json document"
            )
        settings: dict[str, object] = {}
        if vouches:
            settings[AUTHORITY] = Authority.OPERATOR.value
        if audience:
            settings["audience"] = list(audience)
        source = Source(
            url=checked, kind=SourceKind.CATALOG if is_file else SourceKind.SITE, settings=settings
        )
        await self._audit.record(
            caller, "source.added", checked[:500], address=address, vouches=vouches
        )
        if not await self._index.add_sources([source]):
            before = await self._index.source(checked)
            if before is not None and not before.found_by:
                raise ConflictError(f"{checked[:200]} is read already")
            if before is not None and "audience" in before.settings and not audience:
                kept = {**settings, "audience": before.settings["audience"]}
                source = msgspec.structs.replace(source, settings=kept)
            await self._index.change_source(source)  # another site had named it
        return source

    async def refresh(self, caller: Caller, url: str, *, address: str = "") -> list[Source]:
        """Have a source, and what it leads to, read again now with all its cards; return them.

        Waits a while for the visits: a source whose visit is not over has ``refresh`` in its
        settings. Raises ``A2AError``, ``StoreUnavailable``.
        """
        named = await self._named(url)
        await self._audit.record(caller, "source.refreshed", named.url[:500], address=address)
        for each in await self._led_to(named):
            settings = {**each.settings, REFRESH: True}
            again = msgspec.structs.replace(
                each, etag="", last_modified="", due_at=0, settings=settings
            )
            await self._index.change_source(again)
        if self._begin_due is not None:
            await self._begin_due()
        found: list[Source] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_SECONDS):
                while True:
                    found = await self._led_to(named)
                    if all(each.fetched_at and REFRESH not in each.settings for each in found):
                        break
                    await asyncio.sleep(REFRESH_POLL)
        return found

    async def _named(self, url: str) -> Source:
        """Return the source that an operator names, by its address or as a domain."""
        given = url.strip()
        host = given.partition("/")[0]
        forms = [given, f"{given}/"] if "://" in given or given[:1] == "/" else []
        forms = forms or [f"{scheme}://{given}" + "/" * (host == given) for scheme in SCHEMES]
        for each in forms:
            with suppress(UnfitAddress):
                if source := await self._index.source(checked_address(each, plain=self._plain)):
                    return source
        with suppress(RuntimeError, ValueError):  # of what is no path of this machine
            for name in (given, _file_address(given)):
                if source := await self._index.source(name):
                    return source
        raise NotFoundError(
            f"there is no source {url[:200]!r}; parley agents import has one read from now on"
        )

    async def _led_to(self, named: Source) -> list[Source]:
        """Return a source as it is now, with those that it led to."""
        every = await self._index.sources(limit=MAX_KNOWN)
        root = {named.url}
        return [each for each in every if each.url in root or root_of(each) in root]

    async def remove_source(self, caller: Caller, url: str, *, address: str = "") -> None:
        """Remove a source and the sources that it alone led to, and withdraw their entries.

        Raises ``A2AError``, ``StoreUnavailable``.
        """
        await self._audit.record(caller, "source.removed", url[:500], address=address)
        if not await remove_source(self._index, url):
            raise NotFoundError(f"there is no source {url[:200]!r}")

    async def sources(self, limit: int) -> Sequence[Source]:
        """Return the sources, with what their last visits found."""
        return await self._index.sources(limit=limit)

    async def acts(
        self, *, after: int, limit: int, kind: str, actor: str, subject: str, newest: bool
    ) -> Sequence[AuditLine]:
        """Return lines of the audit."""
        return await self._index.acts(
            after=after, limit=limit, kind=kind, actor=actor, subject=subject, newest=newest
        )


def _file_address(path: str) -> str:
    return Path(path).expanduser().absolute().as_uri()


def file_source(path: str | Path) -> Source:
    """Return the source of a catalog in a file, which the operator of the registry vouches for.

    It is read again when it has changed. Raises ``ValueError`` for a file without a catalog.
    """
    from parley.registry.catalog.reading import InvalidCatalog
    from parley.registry.ingest.fetching import IngestLimits
    from parley.registry.ingest.reading import read_whole

    found = Path(path).expanduser().absolute()
    limits = IngestLimits()
    try:
        with found.open("rb") as file:
            body = file.read(limits.catalog_bytes + 1)
    except OSError as error:
        raise ValueError(f"the entries of {found} cannot be read: {error.strerror}") from None
    if len(body) > limits.catalog_bytes:
        raise ValueError(f"{found} has more than {limits.catalog_bytes:,} bytes")
    try:
        reading = read_whole(body, limits, depth=0, at_most=limits.entries_per_catalog)
    except InvalidCatalog as error:
        raise ValueError(
            f'{found} is no catalog: {error}; it looks like {{"entries": [...]}}, as '
            "/.well-known/ard.json does"
        ) from None
    if reading.rejected:
        first = reading.rejected[0]
        name = first.identifier[:200] or "an entry"
        raise ValueError(f"{found}: {name} cannot be read: {first.reason}")
    return Source(url=found.as_uri(), kind=SourceKind.FILE)
