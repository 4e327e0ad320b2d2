"""Sites: discovery of their catalogs (ARD §5.1), and the sources that a visit adds.

Catalogs are named by robots.txt, links, well-known addresses and DNS; a page may contain entries.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from html import unescape
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from parley.model.bounded import Bounded
from parley.registry.catalog.entries import (
    CATALOG_PATH,
    CATALOG_PATHS,
    PREDECESSOR_PATH,
    RELATIONS,
    expanded,
)
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.addresses import (
    AUDIENCE,
    AUTHORITY,
    DOMAINS,
    ROOT,
    DnsNames,
    DnsUnavailable,
    PlainHosts,
    UnfitAddress,
    announcers_of,
    authority_of,
    checked_address,
    domain_of,
    domains_of,
    domains_of_nested,
    is_same_site,
    is_well_known_catalog,
    origin_text,
)
from parley.registry.ingest.fetching import (
    AGENT_NAME,
    JSON_TYPES,
    IngestLimits,
    PageUnavailable,
    WebFetcher,
)
from parley.registry.records import Authority, Source, SourceKind
from parley.security.networks import is_loopback, literal_address

# Links to catalogs: ``Link`` headers (RFC 8288), and ``<link>`` in the head of a page.

MAX_LINKS = 32
_MAX_HEADER = 16 * 1024

_LINK = re.compile(r"<([^<>]{1,2048})>((?:\s*;\s*[^;,\"]+(?:\"[^\"]*\")?)*)")
_PARAMETER = re.compile(r";\s*([!#$&+\-^_`|~\w]+)\s*=\s*(?:\"([^\"]*)\"|([^\s;,\"]+))")

_MARK = re.compile(
    r"<!--|<(?:link|script|style|title|template|noscript|textarea|body)(?=[\s/>])|</head(?=[\s>])",
    re.IGNORECASE,
)
_ENDS = ("<body", "</head")
_TAG = re.compile(r"(?:[^<>\"']|\"[^\"<>]{0,2048}\"|'[^'<>]{0,2048}'){0,512}>")
_ATTRIBUTE = re.compile(r"([^\s=\"'<>/]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))")


def links_of_header(value: str) -> list[str]:
    """Return the addresses of catalogs in a ``Link`` header, unchanged."""
    found = []
    for match in _LINK.finditer(value[:_MAX_HEADER]):
        relations = ""
        for name, quoted, bare in _PARAMETER.findall(match[2]):
            if name.lower() == "rel":
                relations = relations or quoted or bare
        if _is_of_catalog(relations):
            found.append(match[1].strip())
    return found[:MAX_LINKS]


def links_of_page(body: bytes) -> list[str]:
    """Return the addresses of catalogs in the head of a page, unchanged.

    Comments, scripts and titles are text, and the page after its head is not read, because users of
    a site may have written it. The time is proportional to the page's size.
    """
    found: list[str] = []
    for mark, named, _ in _elements(body, _MARK):
        if mark in _ENDS or len(found) >= MAX_LINKS:
            break
        if _is_of_catalog(named.get("rel", "")) and named.get("href", "").strip():
            found.append(unescape(named["href"]).strip())
    return found


def _elements(
    body: bytes, opening: re.Pattern[str]
) -> Iterator[tuple[str, Mapping[str, str], str]]:
    """Yield the elements that a pattern finds in a page: the opening mark, the attributes of a tag,
    and the content of an element or a comment. An element without an end is the last.
    """
    text = body.decode("utf-8", "replace")
    at = 0
    while match := opening.search(text, at):
        mark, at = match[0].lower(), match.end()
        tag = None if mark == "<!--" else _TAG.match(text, at)
        named, inner = {}, ""
        if tag is not None:
            named, at = _attributes(tag[0]), tag.end()
        if mark != "<link" and mark not in _ENDS:
            named = {} if mark != "<script" else named
            end = "-->" if mark == "<!--" else f"</{mark[1:]}"
            close = re.compile(re.escape(end), re.IGNORECASE).search(text, at)
            if close is None:
                return
            inner, at = text[at : close.start()], close.end()
        yield mark, named, inner


def _is_of_catalog(relations: str) -> bool:
    return not set(RELATIONS).isdisjoint(relations.lower().split())


# Entries in a page: JSON-LD in its markup (ARD §5.1), at any position.

MARKUP = "#entries"
"""The suffix of the address of a source that is a page's markup: the page itself is a site."""

_MAX_SCRIPTS = 64
_MAX_NODES = 1_000
_OPENING = re.compile(
    r"<!--|<(?:script|style|title|template|noscript|textarea)(?=[\s/>])", re.IGNORECASE
)


def entries_of_page(body: bytes) -> list[Any]:
    """Return the entries in the JSON-LD of a page, as JSON values that are not validated yet.

    Comments, templates and text areas are skipped. The time is proportional to the page's size.
    """
    found: list[Any] = []
    scripts = 0
    for _, named, inner in _elements(body, _OPENING):
        kind = named.get("type", "").partition(";")[0].strip().lower()
        if kind == "application/ld+json" and scripts < _MAX_SCRIPTS:
            scripts += 1
            with suppress(msgspec.DecodeError, RecursionError):
                found += _nodes(msgspec.json.decode(inner.encode()), None, _MAX_NODES - len(found))
    return found


def _nodes(given: Any, context: Any, most: int) -> list[Any]:
    """Return the entries in a JSON-LD document: the document itself, or in a list, graph or
    manifest.
    """
    found: list[Any] = []
    if isinstance(given, Mapping):
        context = given.get("@context", context)
        inner = given.get("@graph", given.get("entries"))
        if isinstance(inner, list):
            given = inner
        else:
            node = given if context is None else {"@context": context, **given}
            identifier = expanded(node).get("identifier")
            is_entry = isinstance(identifier, str) and identifier[:4].lower() == "urn:"
            return [node] if is_entry and most > 0 else []
    for each in given if isinstance(given, list) else ():
        if isinstance(each, Mapping):
            found += _nodes(each, context, most - len(found))
    return found


def _attributes(text: str) -> dict[str, str]:
    """Return the attributes of a tag; the first attribute of each name is used."""
    found: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(text):
        found.setdefault(name.lower(), double or single or bare)
    return found


# robots.txt (RFC 9309): paths that a site closes to crawlers, and its ``Agentmap`` lines.

MAX_RULES = 5_000
MAX_AGENTMAPS = 32
_MAX_PATTERN = 1024

_Rule = tuple[bool, str]
"""A rule: true if it allows, and its pattern."""


class Robots(msgspec.Struct, frozen=True):
    """A parsed robots.txt. ``own`` are the rules for our name, ``None`` if it has no group."""

    own: tuple[_Rule, ...] | None = None
    others: tuple[_Rule, ...] = ()
    agentmaps: tuple[str, ...] = ()

    def allows_page(self, url: str) -> bool:
        """Return whether a page may be read, by the rules for our name, or else the
        rules for all.
        """
        return _allows(self.others if self.own is None else self.own, url)

    def allows_catalog(self, url: str) -> bool:
        """Return whether a catalog may be read: a published catalog is meant for registries, so
        only rules for our name apply.
        """
        return _allows(self.own or (), url)


NO_PAGES = Robots(others=((False, "/"),))
"""The rules while a robots.txt is unavailable (RFC 9309 §2.3.1.4)."""


def read_robots(body: bytes) -> Robots:
    """Parse a robots.txt. Unknown lines are ignored."""
    groups: dict[str, list[_Rule]] = {}  # only of the names that apply here
    agentmaps: list[str] = []
    names: list[str] = []
    in_rules, count = False, 0
    for line in body.decode("utf-8", "replace").lstrip("\ufeff").splitlines():
        name, separator, value = line.partition("#")[0].partition(":")
        name, value = name.strip().lower(), value.strip()
        if not separator:
            continue
        if name == "agentmap":
            # The value contains ':'; a '#' in it begins a fragment.
            if value and len(agentmaps) < MAX_AGENTMAPS:
                agentmaps.append(value)
        elif name == "user-agent":
            names = [] if in_rules else names
            in_rules = False
            agent = value.lower().partition("/")[0].strip()
            if agent in (AGENT_NAME, "*") and agent not in names:
                names.append(agent)
                groups.setdefault(agent, [])
        elif name in ("allow", "disallow"):
            in_rules = True
            count += 1
            if value and count <= MAX_RULES and len(value) <= _MAX_PATTERN:
                for each in names:
                    groups[each].append((name == "allow", value))
    own = groups.get(AGENT_NAME)
    return Robots(None if own is None else tuple(own), tuple(groups.get("*", ())), tuple(agentmaps))


def _allows(rules: tuple[_Rule, ...], url: str) -> bool:
    """Return whether rules allow an address: the longest pattern wins, and in a draw it
    is allowed.
    """
    parts = urlsplit(url)
    path = unquote(parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    best, allowed = -1, True
    for allows, pattern in rules:
        is_better = len(pattern) > best or (len(pattern) == best and allows)
        if is_better and _matches(unquote(pattern), path):
            best, allowed = len(pattern), allows
    return allowed


def _matches(pattern: str, path: str) -> bool:
    """Return whether a pattern (``*`` for anything, ``$`` for the end) matches a path.

    Parts are searched from left to right: every pattern takes linear time.
    """
    is_whole = pattern.endswith("$")
    first, *rest = re.split(r"\*+", pattern.removesuffix("$"))
    if not path.startswith(first):
        return False
    at = len(first)
    if not rest:
        return not is_whole or at == len(path)
    *middle, last = rest
    for part in middle:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    if is_whole:
        return path.endswith(last) and len(path) - len(last) >= at
    return path.find(last, at) >= 0


ROBOTS_PATH = "/robots.txt"
_PAGE_TYPES = "text/html, application/xhtml+xml, */*;q=0.1"
_ROBOTS_TYPES = "text/plain, */*;q=0.1"
_ROBOTS_SECONDS = 3600.0
_MAX_ROBOTS = 1000


class FoundCatalog(msgspec.Struct, frozen=True):
    """A catalog that a site announces, and by which method. ``domains`` vouch for it."""

    url: str
    how: str
    domains: tuple[str, ...] = ()


class SiteReport(msgspec.Struct, frozen=True):
    """The catalogs of a site, and in ``notes`` the unsuccessful attempts.

    ``retry_after`` is in seconds, if the site sent it. ``is_refused``: the site must not be called.
    ``is_whole``: no part of it was unavailable.
    """

    found: tuple[FoundCatalog, ...] = ()
    notes: tuple[str, ...] = ()
    retry_after: float | None = None
    is_refused: bool = False
    is_whole: bool = False


def site_address(text: str, fetcher: WebFetcher) -> str:
    """Return the address of a site's page: ``acme.com`` is ``https://acme.com/``.

    A site of this machine without a scheme gets http. Raises ``UnfitAddress``.
    """
    if "://" not in text:
        host = text.partition("/")[0].rpartition(":")[0] or text.partition("/")[0]
        is_here = is_loopback(host.strip("[]")) or host.endswith(".localhost")
        text = f"{'http' if is_here else 'https'}://{text}"
    return checked_address(text, plain=fetcher.plain)


class RobotsCache:
    """The robots.txt of sites, cached for an hour."""

    def __init__(self, fetcher: WebFetcher) -> None:
        self._fetcher = fetcher
        self._kept: Bounded[str, tuple[float, Robots]] = Bounded(_MAX_ROBOTS)

    async def of(self, url: str) -> Robots:
        """Return the robots.txt of the site of an address."""
        origin = origin_text(url)
        kept = self._kept.use(origin)
        if kept is not None and time.monotonic() < kept[0]:
            return kept[1]
        try:
            answer = await self._fetcher.get(
                origin + ROBOTS_PATH, accept=_ROBOTS_TYPES, limit=self._fetcher.limits.robots_bytes
            )
        except PageUnavailable:
            found = NO_PAGES
        else:
            found = NO_PAGES if answer.status >= 500 or answer.status == 429 else Robots()
            if answer.status == 200:
                found = read_robots(answer.body)
        self._kept[origin] = (time.monotonic() + _ROBOTS_SECONDS, found)
        return found

    def forget(self, url: str) -> None:
        """Drop the robots.txt of a site."""
        self._kept.pop(origin_text(url), None)


class CatalogFinder:
    """Finds the catalogs of sites. Without ``names`` it does not use DNS."""

    def __init__(self, fetcher: WebFetcher, *, names: DnsNames | None = None) -> None:
        self._fetcher = fetcher
        self._names = names
        self._limits = fetcher.limits
        self.robots = RobotsCache(fetcher)

    async def find(self, site: str) -> SiteReport:
        """Return the catalogs of a site: a domain, or the address of one of its pages."""
        try:
            page = site_address(site, self._fetcher)
        except UnfitAddress as error:
            return SiteReport(notes=(str(error),), is_refused=True)
        self.robots.forget(page)
        robots = await self.robots.of(page)
        domain = domain_of(page)
        found = self._catalogs(robots.agentmaps, page, "Agentmap of robots.txt", (domain,))
        notes: list[str] = []
        failures: list[PageUnavailable] = []
        is_whole = robots is not NO_PAGES
        for step in await asyncio.gather(
            self._from_page(page, robots, domain),
            self._from_well_known(page, domain),
            self._from_dns(page, domain),
            return_exceptions=True,
        ):
            if isinstance(step, PageUnavailable | DnsUnavailable):
                notes.append(str(step))
                is_whole = False
                if isinstance(step, PageUnavailable):
                    failures.append(step)
            elif isinstance(step, BaseException):
                raise step
            elif isinstance(step, str):
                notes.append(step)
            else:
                found += step
        unique = {each.url: each for each in reversed(found)}
        for url in [each for each in unique if each.endswith(CATALOG_PATH)]:
            unique.pop(urljoin(url, PREDECESSOR_PATH), None)  # it has the same entries
        kept = tuple(reversed(unique.values()))
        if len(kept) > self._limits.catalogs_per_site:
            notes.append(f"{len(kept) - self._limits.catalogs_per_site} more catalogs are not read")
        waits = [each.retry_after for each in failures if each.retry_after is not None]
        return SiteReport(
            found=kept[: self._limits.catalogs_per_site],
            notes=tuple(notes),
            retry_after=max(waits, default=None),
            is_refused=bool(failures) and all(each.is_refused for each in failures),
            is_whole=is_whole,
        )

    async def _from_page(self, page: str, robots: Robots, domain: str) -> list[FoundCatalog] | str:
        """Return the catalogs to which a page links, or the reason why there are none."""
        if not robots.allows_page(page):
            return f"robots.txt disallows {page}"
        answer = await self._fetcher.get(page, accept=_PAGE_TYPES, limit=self._limits.page_bytes)
        if answer.status != 200:
            return f"{page} answered {answer.status}"
        # A page below the root may belong to another owner: its links prove nothing for the domain.
        is_root = urlsplit(page).path == "/" and is_same_site(domain_of(answer.url), domain)
        domains = (domain,) if is_root else ()
        header = answer.headers.get("link", "")
        found = self._catalogs(links_of_header(header), answer.url, "Link header", domains)
        kind = answer.headers.get("content-type", "").lower()
        if "html" in kind or (not kind and answer.body.lstrip()[:1] == b"<"):
            linked = links_of_page(answer.body)
            found += self._catalogs(linked, answer.url, "link of the page", domains)
            if entries_of_page(answer.body):
                found.append(FoundCatalog(answer.url + MARKUP, "markup of the page", domains))
        return found or f"{page} has no link to a catalog"

    async def _from_well_known(self, page: str, domain: str) -> list[FoundCatalog] | str:
        found = await self._well_known(origin_text(page))
        if isinstance(found, str):
            return found
        return [FoundCatalog(found[0], "well-known address", (domain,))]

    async def _well_known(self, origin: str) -> tuple[str] | str:
        """Return the address of a host's catalog: of ARD 0.91, else of ARD 0.9; or the reason why
        there is none.
        """
        robots = await self.robots.of(origin)
        notes = []
        for path in CATALOG_PATHS:
            url = origin + path
            if not robots.allows_catalog(url):
                notes.append(f"robots.txt disallows {url}")
                continue
            answer = await self._fetcher.get(
                url, accept=JSON_TYPES, limit=self._limits.catalog_bytes
            )
            if answer.status == 200 and answer.body.lstrip()[:1] == b"{":
                return (url,)
            wrong = answer.status == 200
            notes.append(
                f"{url} is not a JSON object" if wrong else f"{url} answered {answer.status}"
            )
        return "; ".join(notes)

    async def _from_dns(self, page: str, domain: str) -> list[FoundCatalog] | str:
        host = urlsplit(page).hostname or ""
        if self._names is None or literal_address(host) is not None or "." not in host:
            return []
        pointers = await self._names.catalogs(host)
        found: list[FoundCatalog] = []
        for each in pointers:
            # DNS is seldom signed: it may point elsewhere, but no other host speaks for the domain.
            vouched = (domain,) if is_same_site(domain_of(each.url), domain) else ()
            for catalog in self._catalogs((each.url,), page, each.record, vouched):
                url = catalog.url
                if each.is_host_alone and isinstance(
                    known := await self._well_known(origin_text(url)), tuple
                ):
                    url = known[0]
                found.append(FoundCatalog(url, catalog.how, catalog.domains))
        return found or f"DNS has no catalog of {host}"

    def _catalogs(
        self, addresses: Iterable[str], near: str, how: str, domains: tuple[str, ...]
    ) -> list[FoundCatalog]:
        found = []
        for each in addresses:
            try:
                url = checked_address(each, near=near, plain=self._fetcher.plain)
            except UnfitAddress:
                continue
            found.append(FoundCatalog(url, how, domains))
        return found


# The sources that a visit finds: nested catalogs and catalogs of a site, within limits, without
# loops.


PATH = "path"
"""A member of ``Source.settings``: the addresses of the catalogs that contain a nested catalog."""

NAMED = "named"
"""A member of ``Source.settings``: the digest of the sources that its last visit found."""

NOTHING = "nothing"
MAX_KNOWN = 100_000
MAX_ANNOUNCERS = 16


class SiteSources:
    """The indexed sources of a site, at the start of a visit."""

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
        self._waits = False

    async def entries_left(self) -> int:
        """Return how many more entries this source may have, given the other sources of
        its site.
        """
        others = sum(
            each.entries
            for each in (await self._sources()).values()
            if self._is_of_site(each) and each.url != self._source.url
        )
        return max(0, min(self._limits.entries_per_site - others, self._limits.entries_per_site))

    async def nest(self, address: str, depth: int, near: str) -> str:
        """Add a nested catalog of this source; return the reason if it is not read, else an empty
        string.

        ``depth`` is the depth of this catalog, ``near`` its address after redirects.
        """
        source = self._source
        try:
            url = checked_address(address, near=near, plain=self._plain)
        except UnfitAddress as error:
            return f"its address is invalid: {error}"
        path = [*_texts(source.settings.get(PATH)), source.url]
        if url in path:
            return "it is a loop: this catalog is nested in itself"
        if depth >= self._limits.depth:
            return f"it is nested deeper than {self._limits.depth} catalogs"
        if url not in self._found and await self._is_full(url):
            return f"its site has {self._limits.catalogs_per_site} catalogs, which is the limit"
        self._note(
            url,
            domains_of_nested(domains_of(source), url),
            depth + 1,
            is_vouched=is_same_site(domain_of(url), domain_of(source.url)),
            **{PATH: path[-self._limits.depth - 1 :]},
        )
        return ""

    def announce(self, found: Iterable[FoundCatalog]) -> None:
        """Add the catalogs that a site announces; the finder limits their number."""
        for each in found:
            self._note(each.url, each.domains)

    def _note(
        self,
        url: str,
        domains: Iterable[str],
        depth: int = 0,
        *,
        is_vouched: bool = True,
        **settings: Any,
    ) -> None:
        """Add a catalog; with ``is_vouched`` the operator vouches for it as well."""
        source = self._source
        settings |= {ROOT: self.root, DOMAINS: {source.url: list(domains)}, **_audience(source)}
        if is_vouched and authority_of(source) is Authority.OPERATOR:
            settings[AUTHORITY] = Authority.OPERATOR.value
        self._found[url] = Source(
            url=url, kind=SourceKind.CATALOG, found_by=source.url, depth=depth, settings=settings
        )

    async def store(self, *, is_whole: bool) -> dict[str, Any]:
        """Store the found sources. If the visit was complete, end the announcements that are
        missing now.

        A known source is visited again if it is announced with more authority than before:
        otherwise, whoever names an address first could keep it from being listed. Return settings
        for this source: while it names the same sources, the index is not searched for changes.
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
            if self._waits:
                return {NAMED: ""}
        return {NAMED: named if is_whole else ""}

    async def _announced(self, found: Source, before: Source) -> None:
        """Record that this source announces a known source."""
        announcers = announcers_of(before)
        own = announcers_of(found)
        if len(announcers) < MAX_ANNOUNCERS or domains_of(found):
            announcers = {**announcers, **own}
        is_nearer = found.depth < before.depth and before.found_by != ""
        is_vouched = AUTHORITY in found.settings and AUTHORITY not in before.settings
        # An operator's restriction applies, whichever source leads to it.
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
        """Record that this source no longer announces a source."""
        known = await self._sources()
        url = self._source.url
        if before.found_by != url and url not in announcers_of(before):
            return
        if (left := _without(before, url, known)) is not None:
            await self._index.change_source(left)
            return
        # A missing well-known catalog ends by itself, unless another catalog at the well-known
        # address has replaced it, and was read.
        after = known.get(urljoin(before.url, CATALOG_PATH))
        is_replaced = before.url.endswith(PREDECESSOR_PATH) and after is not None
        if is_replaced and after is not None and after.fetched_at is None:
            self._waits = True
        elif is_replaced or not is_well_known_catalog(before.url):
            await remove_source(self._index, before.url)

    async def _again(self, source: Source) -> None:
        """Schedule a complete visit of a source: the domains that vouch for its entries have
        changed.
        """
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


def _without(source: Source, left: str, known: Container[str]) -> Source | None:
    """Return a source without an announcement that has ended, to be read again completely, because
    the domains that vouch for its entries have changed. ``None`` if no other source leads to it.
    """
    announcers = announcers_of(source)
    announcers.pop(left, None)
    others = [name for name in announcers if name in known and name != source.url]
    if source.found_by == left and not others:
        return None
    return msgspec.structs.replace(
        source,
        found_by=others[0] if source.found_by == left else source.found_by,
        etag="",
        last_modified="",
        due_at=0,
        settings={**source.settings, DOMAINS: announcers},
    )


async def remove_source(index: RegistryIndex, url: str) -> bool:
    """Remove a source, and the sources that only it led to; return whether it was known.

    Their entries are withdrawn.
    """
    is_known = await index.remove_source(url)
    known = {each.url: each for each in await index.sources(limit=MAX_KNOWN)}
    removed = [url]
    while removed:
        left = removed.pop()
        for each in list(known.values()):
            if each.found_by != left and left not in announcers_of(each):
                continue
            if (again := _without(each, left, known)) is None:
                del known[each.url]
                await index.remove_source(each.url)
                removed.append(each.url)
                continue
            known[each.url] = again
            await index.change_source(again)
    return is_known


def _audience(source: Source) -> dict[str, Any]:
    """Return the setting for the audience of the sources found by a source, if the operator set
    one.
    """
    return {AUDIENCE: source.settings[AUDIENCE]} if source.settings.get(AUDIENCE) else {}


def root_of(source: Source) -> str:
    """Return the source that first led to a source, or the source itself."""
    return str(source.settings.get(ROOT) or source.url)


def _digest(found: Iterable[Source]) -> str:
    """Return a digest that changes when a source names other sources, or vouches for them
    differently.
    """
    lines = sorted(f"{each.url} {each.depth} {sorted(each.settings.items())}" for each in found)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else NOTHING


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
