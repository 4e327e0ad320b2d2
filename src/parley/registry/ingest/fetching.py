"""Fetches untrusted documents: every redirect through the egress guard, bounded in
bytes and time.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from parley.model.backoff import Backoff, seconds_of
from parley.model.distribution import VERSION
from parley.registry.catalog.entries import MAX_NESTING, all_positive
from parley.registry.ingest.addresses import PlainHosts, UnfitAddress, checked_address
from parley.security.egress import Egress, ForbiddenAddress, ThreadedLookup, find_forbidden
from parley.security.outbound import guarded_session, max_age

if TYPE_CHECKING:
    import ssl

    import aiohttp

    from parley.registry.ingest.addresses import DnsNames

# The limits of ingestion, and the intervals of visits.

AGENT_NAME = "parley-registry"
"""The name of a registry in robots.txt and in ``User-Agent``."""

MINUTE, HOUR, DAY = 60.0, 3600.0, 24 * 3600.0
FIRST_RETRY = 5.0


class IngestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of reading. Raises ``ValueError`` for an invalid limit.

    Sizes are in bytes (of a decompressed body), times in seconds.
    """

    catalog_bytes: int = 16 * 1024 * 1024
    card_bytes: int = 256 * 1024
    entry_bytes: int = 64 * 1024
    page_bytes: int = 1024 * 1024
    robots_bytes: int = 512 * 1024
    key_bytes: int = 256 * 1024
    entries_per_catalog: int = 10_000
    entries_per_site: int = 100_000
    catalogs_per_site: int = 200
    depth: int = MAX_NESTING
    """The depth to which catalogs may be nested, by address and inline together."""
    redirects: int = 4
    fetch_seconds: float = 20.0
    connect_seconds: float = 5.0
    visit_seconds: float = 240.0
    """The time limit of a visit. The next visit follows soon and reads the rest."""
    lease_seconds: float = 15.0
    """The time for which a visit is claimed; a running visit renews its claim three times in that
    time. After it expires, another process continues the visit of a killed process.
    """
    per_host: int = 2
    """The concurrent requests to one host."""
    at_once: int = 32
    """The concurrent requests of a registry."""
    refresh_floor: float = 5 * MINUTE
    refresh_default: float = 6 * HOUR
    refresh_ceiling: float = 7 * DAY
    """The longest interval between visits, whatever the headers say."""
    gone_after: int = 8
    """After how many failures in succession a source is gone, and its entries are withdrawn."""

    def __post_init__(self) -> None:
        all_positive(self)
        if not self.refresh_floor <= self.refresh_default <= self.refresh_ceiling:
            raise ValueError("refresh_floor <= refresh_default <= refresh_ceiling must hold")

    def refresh_after(self, headers: Mapping[str, str]) -> float:
        """Return the seconds until the next visit, by the response headers, within the limits."""
        seconds = freshness(headers)
        if seconds is None:
            seconds = self.refresh_default
        return min(max(seconds, self.refresh_floor), self.refresh_ceiling)

    def retry_after(
        self, failures: int, wanted: float | None = None, *, is_unread: bool = False
    ) -> float:
        """Return the seconds until the next attempt, after ``failures`` failures in succession.

        ``wanted`` is the server's ``Retry-After``. An operator's source that was never read
        (``is_unread``) is retried sooner, and never later than ``refresh_floor``.
        """
        first = min(FIRST_RETRY if is_unread else MINUTE, self.refresh_floor)
        last = self.refresh_floor if is_unread else self.refresh_ceiling
        backoff = Backoff(first, last, factor=3.0, jitter=(0.8, 1.2))
        return min(max(backoff.delay(max(failures, 1)), wanted or 0.0), self.refresh_ceiling)


def freshness(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds a response is fresh; ``None`` if its headers do not say.

    ``headers`` have names in lower case. A response that may not be cached is fresh for 0 seconds.
    """
    found = max_age(headers.get("cache-control", ""))
    if found is None:
        return seconds_of(headers.get("expires")) if headers.get("expires") else None
    age = headers.get("age", "").strip()
    return max(0.0, found - (float(age[:10]) if age.isascii() and age.isdigit() else 0.0))


REDIRECTS = frozenset({301, 302, 303, 307, 308})
JSON_TYPES = "application/ai-catalog+json, application/json, */*;q=0.1"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PIECE = 64 * 1024
_MAX_HOSTS = 10_000
_MAX_HEADERS = 64
_STRIKES = 3
"""The number of times in succession a host may fail to answer before it is not called
for a while.
"""

_STRIKE_PAUSE = 60.0
_MAX_PAUSE = 24 * 3600.0
_MISSES = 20
"""The number of times in succession a host may lack the expected document before it is called more
slowly.
"""

_SLOWLY = 1.0
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class PageUnavailable(Exception):
    """A document is unavailable. The message gives the reason, for the operator.

    ``is_refused``: it must not be fetched. ``status`` is the HTTP status, 0 without a response.
    ``retry_after`` is in seconds, if the server sent it.
    """

    def __init__(
        self,
        message: str,
        *,
        is_refused: bool = False,
        status: int = 0,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.is_refused = is_refused
        self.status = status
        self.retry_after = retry_after


class WebAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A response. ``url`` is the address after redirects; names of headers are in lower case."""

    status: int
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class WebFetcher:
    """Fetches documents whose addresses come from untrusted sources.

    Every address (also of a redirect) is https, or http to this machine or to a host of
    ``plain_http``; the ``egress`` policy judges it by name, and again when it is connected. Bodies
    are bounded after decompression. A host gets few concurrent requests, none during its
    ``Retry-After`` (429, 503), none for a minute after several unanswered requests in succession,
    and one per second while it lacks the documents that others attribute to it.

    ``lookup`` resolves names, ``tls`` has the operator's certificate authorities. Close it in its
    event loop.
    """

    def __init__(
        self,
        egress: Egress | None = None,
        *,
        limits: IngestLimits | None = None,
        plain_http: Iterable[str] = (),
        lookup: ThreadedLookup | DnsNames | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.egress = egress or Egress()
        self.limits = limits or IngestLimits()
        self.plain = PlainHosts(plain_http)
        self._lookup = _LocalNames(ThreadedLookup() if lookup is None else lookup)
        self._tls = tls
        self._clock = clock
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._all = asyncio.Semaphore(self.limits.at_once)
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self.requests = 0

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    def found(self, url: str, is_there: bool) -> None:
        """Record whether a fetched address had the expected document.

        Anyone can name a host in thousands of entries.
        """
        turn = self._hosts.get(urlsplit(url).netloc)
        if turn is not None:
            turn.misses = 0 if is_there else turn.misses + 1

    async def get(
        self,
        url: str,
        *,
        etag: str = "",
        last_modified: str = "",
        accept: str = JSON_TYPES,
        limit: int | None = None,
    ) -> WebAnswer:
        """Return the response of an address, of any status; 304 if it has not changed.

        Raises ``PageUnavailable``.
        """
        limit = self.limits.catalog_bytes if limit is None else limit
        asked = {"Accept": accept}
        if etag:
            asked["If-None-Match"] = etag
        elif last_modified:
            asked["If-Modified-Since"] = last_modified
        here = self._checked(url)
        for _ in range(self.limits.redirects + 1):
            answer = await self._ask(here, asked, limit)
            location = answer.headers.get("location", "")
            if answer.status not in REDIRECTS or not location:
                return answer
            there = self._checked(location, near=here)
            if here.startswith("https:") and there.startswith("http:"):
                raise PageUnavailable(
                    f"{here} redirects to {there}, which is not encrypted", is_refused=True
                )
            here = there
        raise PageUnavailable(f"{url[:200]} redirects more than {self.limits.redirects} times")

    def _checked(self, url: str, near: str = "") -> str:
        try:
            checked = checked_address(url, near=near, plain=self.plain)
            parts = urlsplit(checked)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            self.egress.check_host(parts.hostname or "", port)
        except UnfitAddress as error:
            words = f"{near} redirects, and {error}" if near else str(error)
            raise PageUnavailable(words, is_refused=True) from None
        except ForbiddenAddress as error:
            raise _forbidden(checked, near, error) from None
        return checked

    async def _ask(self, url: str, asked: Mapping[str, str], limit: int) -> WebAnswer:
        host = urlsplit(url).netloc
        async with self._turn(host) as turn:
            try:
                answer = await self._exchange(url, asked, limit)
            except PageUnavailable as error:
                turn.note(self._clock(), failed=error.status == 0 and not error.is_refused)
                raise
            wanted = seconds_of(answer.headers.get("retry-after"))
            is_asked_to_wait = answer.status in (429, 503)
            turn.note(self._clock(), failed=False, wait=wanted if is_asked_to_wait else None)
            return answer

    async def _exchange(self, url: str, asked: Mapping[str, str], limit: int) -> WebAnswer:
        import aiohttp

        session = self._session(url)
        headers = {
            "User-Agent": f"{AGENT_NAME}/{VERSION}",
            "Accept-Encoding": "gzip, deflate, identity",
            **asked,
        }
        seconds = self.limits.fetch_seconds
        self.requests += 1
        try:
            async with (
                asyncio.timeout(seconds),
                session.get(url, headers=headers, allow_redirects=False) as response,
            ):
                found = _headers(response)
                status = response.status
                body = b"" if status in REDIRECTS or status == 304 else None
                if body is None:
                    body = await _body(response, found, url, limit)
                body = body.removeprefix(_BYTE_ORDER_MARK)
                return WebAnswer(status=status, url=url, body=body, headers=found)
        except TimeoutError:
            raise PageUnavailable(f"{url} did not answer within {seconds:g} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            forbidden = find_forbidden(error)
            if forbidden is not None:
                raise _forbidden(url, "", forbidden) from None
            raise PageUnavailable(f"{url} cannot be reached: {_reason(error)}") from None

    def _session(self, url: str) -> aiohttp.ClientSession:
        import aiohttp

        trusted = self.egress.trusts(urlsplit(url).hostname or "")
        session = self._sessions.get(trusted)
        if session is None or session.closed:
            timeout = aiohttp.ClientTimeout(
                total=self.limits.fetch_seconds, sock_connect=self.limits.connect_seconds
            )
            session = self._sessions[trusted] = guarded_session(
                self.egress,
                trusted=trusted,
                resolver=self._lookup,
                options={"auto_decompress": False, "timeout": timeout},
                limit=self.limits.at_once,
                **({} if self._tls is None else {"ssl": self._tls}),
            )
        return session

    @asynccontextmanager
    async def _turn(self, host: str) -> AsyncIterator[_Host]:
        """Wait for a free request to a host, within both limits. Raises ``PageUnavailable``."""
        turn = self._hosts.get(host)
        if turn is None:
            turn = self._hosts[host] = _Host(self.limits.per_host)
            if len(self._hosts) > _MAX_HOSTS:
                self._forget_one()
        self._hosts.move_to_end(host)
        turn.users += 1
        try:
            async with turn.turns:
                wait = turn.paused_until - self._clock()
                if wait > 0:
                    raise PageUnavailable(f"{host} {turn.why}", retry_after=wait)
                if turn.misses >= _MISSES:
                    await asyncio.sleep(turn.next_turn(self._clock()))
                async with self._all:
                    yield turn
        finally:
            turn.users -= 1

    def _forget_one(self) -> None:
        idle = next((name for name, each in self._hosts.items() if not each.users), None)
        if idle is not None:
            del self._hosts[idle]


class _LocalNames(ThreadedLookup):
    """Resolves names below ``localhost`` to this machine (RFC 6761), as few systems do."""

    def __init__(self, lookup: ThreadedLookup | DnsNames) -> None:
        super().__init__()
        self._lookup = lookup

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        """Return the addresses of a name. Raises ``OSError``."""
        if not host.lower().rstrip(".").endswith(".localhost"):
            return await self._lookup.resolve(host, port, family)
        found = await super().resolve("localhost", port, family)
        return [{**each, "hostname": host} for each in found]


class _Host:
    """A host: its free requests, and the time until which it is not called."""

    def __init__(self, turns: int) -> None:
        self.turns = asyncio.Semaphore(turns)
        self.users = 0
        self.paused_until = 0.0
        self.why = ""
        self.misses = 0
        self._strikes = 0
        self._next = 0.0

    def next_turn(self, now: float) -> float:
        """Return the seconds until the next request of a host that is called slowly."""
        self._next = max(now, self._next + _SLOWLY)
        return self._next - now

    def note(self, now: float, *, failed: bool, wait: float | None = None) -> None:
        """Record the outcome of a request, and the host's ``Retry-After``."""
        self._strikes = self._strikes + 1 if failed else 0
        if self._strikes >= _STRIKES:
            self._strikes = 0
            self.paused_until = now + _STRIKE_PAUSE
            self.why = f"did not answer {_STRIKES} times in a row: it is not called for a while"
        elif wait:
            self.paused_until = now + min(wait, _MAX_PAUSE)
            self.why = "asked to wait (Retry-After)"


def _headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in list(response.headers.items())[:_MAX_HEADERS]:
        known = found.get(name.lower())
        found[name.lower()] = value if known is None else f"{known}, {value}"
    return found


async def _body(
    response: aiohttp.ClientResponse, headers: Mapping[str, str], url: str, limit: int
) -> bytes:
    """Return a body, decompressed. Raises ``PageUnavailable`` beyond the limit."""
    announced = headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:19]) > limit:
        raise _too_large(url, limit)
    encoding = headers.get("content-encoding", "").strip().lower() or "identity"
    decoder = None
    if encoding in _WINDOW_BITS:
        decoder = zlib.decompressobj(_WINDOW_BITS[encoding])
    elif encoding != "identity":
        words = f"{url} answered with {encoding[:60]!r}, which was not requested"
        raise PageUnavailable(words, status=200)
    pieces: list[bytes] = []
    size = received = 0
    while piece := await response.content.read(_PIECE):
        received += len(piece)
        if received > limit:
            raise _too_large(url, limit)
        if decoder is not None:
            try:
                piece = decoder.decompress(piece, limit + 1 - size)
            except zlib.error:
                words = f"{url} answered with broken {encoding} data"
                raise PageUnavailable(words, status=200) from None
        size += len(piece)
        if size > limit:
            raise _too_large(url, limit)
        pieces.append(piece)
    if decoder is not None and received and not decoder.eof:
        raise PageUnavailable(f"{url} answered with {encoding} data that breaks off", status=200)
    return b"".join(pieces)


def _too_large(url: str, limit: int) -> PageUnavailable:
    return PageUnavailable(f"{url} answered with more than {limit:,} bytes", status=200)


def _forbidden(url: str, near: str, error: ForbiddenAddress) -> PageUnavailable:
    led = f"{near} redirects to {url}, but " if near else ""
    return PageUnavailable(
        f"{led}{url} is not fetched: {error}; the operator may allow it in the egress policy",
        is_refused=True,
    )


def _reason(error: BaseException) -> str:
    """Return a network error in words without unnecessary detail."""
    import ssl

    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host is not known"
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return "no encrypted connection could be made"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "nothing answers there"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the response broke off"
    return type(error).__name__
