"""Finds the catalogs of a site: robots.txt, links, the well-known address, DNS (ARD §6.1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import msgspec

from parley.model.bounded import Bounded
from parley.model.catalog.entries import CATALOG_PATH
from parley.registry.ingest.addresses import UnfitAddress, checked_address, origin_text
from parley.registry.ingest.authority import domain_of, is_same_site
from parley.registry.ingest.fetching import JSON_TYPES, PageUnavailable, WebFetcher
from parley.registry.ingest.limits import IngestLimits
from parley.registry.ingest.links import links_of_header, links_of_page
from parley.registry.ingest.names import DnsNames, DnsUnavailable
from parley.registry.ingest.robots import NO_PAGES, Robots, read_robots
from parley.security.loopback import is_loopback, literal_address

ROBOTS_PATH = "/robots.txt"
_PAGE_TYPES = "text/html, application/xhtml+xml, */*;q=0.1"
_ROBOTS_TYPES = "text/plain, */*;q=0.1"
_ROBOTS_SECONDS = 3600.0
_MAX_ROBOTS = 1000


class FoundCatalog(msgspec.Struct, frozen=True):
    """A catalog that a site announces, and how. ``domains`` vouch for it."""

    url: str
    how: str
    domains: tuple[str, ...] = ()


class SiteReport(msgspec.Struct, frozen=True):
    """The catalogs of a site, and in ``notes`` what was tried without success.

    ``retry_after`` is in seconds, if the site asked for a pause. ``is_refused``: the site must not
    be asked. ``is_whole``: nothing of it was unavailable.
    """

    found: tuple[FoundCatalog, ...] = ()
    notes: tuple[str, ...] = ()
    retry_after: float | None = None
    is_refused: bool = False
    is_whole: bool = False


def site_address(text: str, fetcher: WebFetcher) -> str:
    """Return the address of a site's page: ``acme.com`` is ``https://acme.com/``.

    A site of this machine without a scheme is asked over http. Raises ``UnfitAddress``.
    """
    if "://" not in text:
        host = text.partition("/")[0].rpartition(":")[0] or text.partition("/")[0]
        is_here = is_loopback(host.strip("[]")) or host.endswith(".localhost")
        text = f"{'http' if is_here else 'https'}://{text}"
    return checked_address(text, plain=fetcher.plain)


class RobotsCache:
    """The robots.txt of sites, each kept for an hour."""

    def __init__(
        self, fetcher: WebFetcher, limits: IngestLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetcher = fetcher
        self._limits = limits
        self._clock = clock
        self._kept: Bounded[str, tuple[float, Robots]] = Bounded(_MAX_ROBOTS)

    async def of(self, url: str) -> Robots:
        """Return the robots.txt of the site of an address."""
        origin = origin_text(url)
        kept = self._kept.use(origin)
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        try:
            answer = await self._fetcher.get(
                origin + ROBOTS_PATH, accept=_ROBOTS_TYPES, limit=self._limits.robots_bytes
            )
        except PageUnavailable:
            found = NO_PAGES
        else:
            found = NO_PAGES if answer.status >= 500 or answer.status == 429 else Robots()
            if answer.status == 200:
                found = read_robots(answer.body)
        self._kept[origin] = (self._clock() + _ROBOTS_SECONDS, found)
        return found

    def forget(self, url: str) -> None:
        """Drop what is kept of a site."""
        self._kept.pop(origin_text(url), None)


class CatalogFinder:
    """Looks for the catalogs of sites. Without ``names`` it asks no DNS."""

    def __init__(
        self,
        fetcher: WebFetcher,
        *,
        names: DnsNames | None = None,
        robots: RobotsCache | None = None,
        limits: IngestLimits | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._names = names
        self._limits = limits or fetcher.limits
        self.robots = robots or RobotsCache(fetcher, self._limits)

    async def find(self, site: str) -> SiteReport:
        """Return the catalogs of a site: a domain, or the address of a page of it."""
        try:
            page = site_address(site, self._fetcher)
        except UnfitAddress as error:
            return SiteReport(notes=(str(error),), is_refused=True)
        self.robots.forget(page)
        robots = await self.robots.of(page)
        domain = domain_of(page)
        found, notes = self._agentmaps(robots, page, domain), []
        failures: list[PageUnavailable] = []
        is_whole = robots is not NO_PAGES
        for step in await asyncio.gather(
            self._from_page(page, robots, domain),
            self._from_well_known(page, robots, domain),
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
        kept = tuple(reversed(unique.values()))
        if len(kept) > self._limits.catalogs_per_site:
            notes.append(f"{len(kept) - self._limits.catalogs_per_site} more are not read")
        waits = [each.retry_after for each in failures if each.retry_after is not None]
        return SiteReport(
            found=kept[: self._limits.catalogs_per_site],
            notes=tuple(notes),
            retry_after=max(waits, default=None),
            is_refused=bool(failures) and all(each.is_refused for each in failures),
            is_whole=is_whole,
        )

    def _agentmaps(self, robots: Robots, page: str, domain: str) -> list[FoundCatalog]:
        return self._catalogs(robots.agentmaps, page, "Agentmap of robots.txt", (domain,))

    async def _from_page(self, page: str, robots: Robots, domain: str) -> list[FoundCatalog] | str:
        """Return the catalogs that a page links to, or why there are none."""
        if not robots.allows_page(page):
            return f"robots.txt disallows {page}"
        answer = await self._fetcher.get(page, accept=_PAGE_TYPES, limit=self._limits.page_bytes)
        if answer.status != 200:
            return f"{page} answered {answer.status}"
        # A page below the root may be somebody else's: its links prove nothing for the domain.
        is_root = urlsplit(page).path == "/" and is_same_site(domain_of(answer.url), domain)
        domains = (domain,) if is_root else ()
        header = answer.headers.get("link", "")
        found = self._catalogs(links_of_header(header), answer.url, "Link header", domains)
        kind = answer.headers.get("content-type", "").lower()
        if "html" in kind or (not kind and answer.body.lstrip()[:1] == b"<"):
            linked = links_of_page(answer.body)
            found += self._catalogs(linked, answer.url, "link of the page", domains)
        return found or f"{page} has no link to a catalog"

    async def _from_well_known(
        self, page: str, robots: Robots, domain: str
    ) -> list[FoundCatalog] | str:
        url = origin_text(page) + CATALOG_PATH
        if not robots.allows_catalog(url):
            return f"robots.txt disallows {url}"
        answer = await self._fetcher.get(url, accept=JSON_TYPES, limit=self._limits.catalog_bytes)
        if answer.status != 200:
            return f"{url} answered {answer.status}"
        if answer.body.lstrip()[:1] != b"{":
            return f"{url} is no JSON object"
        return [FoundCatalog(url, "well-known address", (domain,))]

    async def _from_dns(self, page: str, domain: str) -> list[FoundCatalog] | str:
        host = urlsplit(page).hostname or ""
        if self._names is None or literal_address(host) is not None or "." not in host:
            return []
        pointers = await self._names.catalogs(host)
        found: list[FoundCatalog] = []
        for each in pointers:
            # DNS is seldom signed: it leads elsewhere, and lets nobody else speak for the domain.
            vouched = (domain,) if is_same_site(domain_of(each.url), domain) else ()
            found += self._catalogs((each.url,), page, each.record, vouched)
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
