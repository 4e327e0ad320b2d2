"""The sources that a visit finds: nested catalogs and those of a site, within limits, no loops."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.addresses import (
    PlainHosts,
    UnfitAddress,
    checked_address,
    is_well_known_catalog,
)
from parley.registry.ingest.authority import (
    AUDIENCE,
    AUTHORITY,
    DOMAINS,
    ROOT,
    announcers_of,
    authority_of,
    domain_of,
    domains_of,
    domains_of_nested,
    is_same_site,
)
from parley.registry.ingest.finding import FoundCatalog
from parley.registry.ingest.limits import IngestLimits
from parley.registry.records import Authority, Source, SourceKind

PATH = "path"
"""A member of ``Source.settings``: the addresses of the catalogs that a nested one is in."""

NAMED = "named"
"""A member of ``Source.settings``: the digest of the sources that it named at its last visit."""

NOTHING = "nothing"
MAX_KNOWN = 100_000
MAX_ANNOUNCERS = 16


class SiteSources:
    """The sources of the site of one source, as the index has them when a visit begins."""

    def __init__(
        self, index: RegistryIndex, limits: IngestLimits, source: Source, plain: PlainHosts
    ) -> None:
        self._index = index
        self._limits = limits
        self._source = source
        self._plain = plain
        self._known: dict[str, Source] | None = None
        self.root = root_of(source)
        self._found: dict[str, Source] = {}
        self._room: int | None = None

    async def entries_left(self) -> int:
        """Return how many entries this source may have, for what others of its site have."""
        others = sum(
            each.entries
            for each in (await self._sources()).values()
            if self._is_of_site(each) and each.url != self._source.url
        )
        return max(0, min(self._limits.entries_per_site - others, self._limits.entries_per_site))

    async def nest(self, address: str, depth: int, near: str) -> str:
        """Note a catalog that is nested in this one; return why it is not read, empty if it is.

        ``depth`` is that of the catalog which has it, ``near`` its address after redirects.
        """
        source = self._source
        try:
            url = checked_address(address, near=near, plain=self._plain)
        except UnfitAddress as error:
            return f"its address is wrong: {error}"
        path = [*_texts(source.settings.get(PATH)), source.url]
        if url in path:
            return "it is a loop: this catalog is nested in itself"
        if depth >= self._limits.depth:
            return f"it is nested deeper than {self._limits.depth} catalogs"
        if url not in self._found and await self._is_full(url):
            return f"its site has {self._limits.catalogs_per_site} catalogs, which is the limit"
        settings: dict[str, Any] = {
            ROOT: self.root,
            PATH: path[-self._limits.depth - 1 :],
            DOMAINS: {source.url: list(domains_of_nested(domains_of(source), url))},
            **_audience(source),
        }
        is_vouched = authority_of(source) is Authority.OPERATOR
        if is_vouched and is_same_site(domain_of(url), domain_of(source.url)):
            settings[AUTHORITY] = Authority.OPERATOR.value
        self._found[url] = Source(
            url=url,
            kind=SourceKind.CATALOG,
            found_by=source.url,
            depth=depth + 1,
            settings=settings,
        )
        return ""

    async def announce(self, found: Iterable[FoundCatalog]) -> None:
        """Note the catalogs that a site announces; its finder bounds how many."""
        source = self._source
        for each in found:
            settings: dict[str, Any] = {
                ROOT: self.root,
                DOMAINS: {source.url: list(each.domains)},
                **_audience(source),
            }
            if authority_of(source) is Authority.OPERATOR:
                settings[AUTHORITY] = Authority.OPERATOR.value
            self._found[each.url] = Source(
                url=each.url, kind=SourceKind.CATALOG, found_by=source.url, settings=settings
            )

    async def store(self, *, is_whole: bool) -> dict[str, Any]:
        """Add what was found. If the visit saw all of it, leave what is not there any more.

        A source that is known is visited again if it is announced better than before: otherwise,
        whoever names an address first could keep it from being listed. Return settings of this
        source: as long as it names the same, the sources of the index are not looked through.
        """
        named = _digest(self._found.values())
        if self._found:
            await self._index.add_sources(list(self._found.values()))
        if named == self._source.settings.get(NAMED, NOTHING):
            return {}
        known = await self._sources()
        for url, each in self._found.items():
            if (before := known.get(url)) is not None:
                await self._announced(each, before)
        if is_whole:
            for url, before in known.items():
                if url not in self._found and url != self._source.url:
                    await self._left(before)
        return {NAMED: named if is_whole else ""}

    async def _announced(self, found: Source, before: Source) -> None:
        """Note that this source announces one that is known."""
        announcers = announcers_of(before)
        own = announcers_of(found)
        if len(announcers) < MAX_ANNOUNCERS or domains_of(found):
            announcers = {**announcers, **own}
        is_nearer = found.depth < before.depth and before.found_by != ""
        is_vouched = AUTHORITY in found.settings and AUTHORITY not in before.settings
        # What an operator restricts stays so, however else it is found.
        is_restricted = (
            AUDIENCE in found.settings and AUDIENCE not in before.settings and before.found_by != ""
        )
        is_same = announcers == announcers_of(before)
        if is_same and not is_nearer and not is_vouched and not is_restricted:
            return
        settings = {**before.settings, DOMAINS: announcers}
        if is_restricted:
            settings[AUDIENCE] = found.settings[AUDIENCE]
        if is_vouched:
            settings[AUTHORITY] = found.settings[AUTHORITY]
        if is_nearer:
            settings.update({name: found.settings[name] for name in (ROOT, PATH) if name in
                             found.settings})  # fmt: skip
        await self._again(
            msgspec.structs.replace(
                before,
                found_by=found.found_by if is_nearer else before.found_by,
                depth=found.depth if is_nearer else before.depth,
                settings=settings,
            )
        )

    async def _left(self, before: Source) -> None:
        """Note that this source does not announce one any more, if it did."""
        announcers = announcers_of(before)
        is_ours = before.found_by == self._source.url
        if not is_ours and self._source.url not in announcers:
            return
        announcers.pop(self._source.url, None)
        if is_ours and not announcers:
            if not is_well_known_catalog(before.url):  # which ends by itself, if it is not there
                await remove_source(self._index, before.url)
            return
        await self._again(
            msgspec.structs.replace(
                before,
                found_by=next(iter(announcers)) if is_ours else before.found_by,
                settings={**before.settings, DOMAINS: announcers},
            )
        )

    async def _again(self, source: Source) -> None:
        """Have a source read again, whole: who vouches for its entries has changed."""
        again = msgspec.structs.replace(source, etag="", last_modified="", due_at=0)
        await self._index.change_source(again)

    async def _sources(self) -> dict[str, Source]:
        if self._known is None:
            listed = await self._index.sources(limit=MAX_KNOWN)
            self._known = {each.url: each for each in listed}
        return self._known

    def _is_of_site(self, source: Source) -> bool:
        return source.settings.get(ROOT) == self.root or source.url == self.root

    async def _is_full(self, url: str) -> bool:
        known = await self._sources()
        if url in known:
            return False
        if self._room is None:  # counted once: a catalog may nest thousands
            there = sum(self._is_of_site(each) for each in known.values())
            self._room = self._limits.catalogs_per_site - there
        if self._room <= 0:
            return True
        self._room -= 1
        return False


async def remove_source(index: RegistryIndex, url: str) -> bool:
    """Remove a source, and those that it alone led to; return whether it was known.

    Their entries are withdrawn.
    """
    is_known = await index.remove_source(url)
    known = {each.url: each for each in await index.sources(limit=MAX_KNOWN)}
    removed = [url]
    while removed:
        left = removed.pop()
        for each in list(known.values()):
            announcers = announcers_of(each)
            if each.found_by != left and left not in announcers:
                continue
            announcers.pop(left, None)
            others = [name for name in announcers if name in known and name != each.url]
            if each.found_by == left and not others:
                del known[each.url]
                await index.remove_source(each.url)
                removed.append(each.url)
                continue
            known[each.url] = again = msgspec.structs.replace(
                each,
                found_by=others[0] if each.found_by == left else each.found_by,
                etag="",
                last_modified="",
                due_at=0,
                settings={**each.settings, DOMAINS: announcers},
            )
            await index.change_source(again)
    return is_known


def _audience(source: Source) -> dict[str, Any]:
    """Return the setting of who sees what a source leads to, if the operator restricted it."""
    return {AUDIENCE: source.settings[AUDIENCE]} if source.settings.get(AUDIENCE) else {}


def root_of(source: Source) -> str:
    """Return the source that led to one first, itself if it was not led to."""
    return str(source.settings.get(ROOT) or source.url)


def _digest(found: Iterable[Source]) -> str:
    """Return what changes when a source names others, or vouches for them otherwise."""
    lines = sorted(f"{each.url} {each.depth} {sorted(each.settings.items())}" for each in found)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else NOTHING


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
