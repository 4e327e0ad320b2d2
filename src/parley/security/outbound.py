"""Outbound HTTP: guarded sessions, small JSON documents, and a cache for documents.

An address in the operator's settings may be on any host. An address in a fetched document must be
on the document's own origin, or be https and allowed by the egress policy: an issuer must not lead
the server into its own network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from parley.security.egress import LOOPBACK, Egress, find_forbidden, origin_of
from parley.security.networks import is_loopback
from parley.security.response_limits import bounded_connector

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("parley.security")

T = TypeVar("T")


def guarded_session(
    egress: Egress | None,
    *,
    trusted: bool = False,
    resolver: Any = None,
    options: Mapping[str, Any] | None = None,
    **connector: Any,
) -> aiohttp.ClientSession:
    """Return a session that connects to addresses that ``egress`` allows, or to all without it.

    It bounds responses, keeps no cookies, and ignores proxies and passwords in the environment.
    ``trusted`` and ``resolver`` are passed to ``Egress.connector``, ``options`` to
    ``ClientSession``, and the remaining arguments to ``TCPConnector``.
    """
    import aiohttp

    if egress is None:
        made = bounded_connector(**connector)
    else:
        made = egress.connector(resolver=resolver, trusted=trusted, **connector)
    return aiohttp.ClientSession(
        connector=made,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # passwords from ~/.netrc would be sent to any port of their hosts
        **(options or {}),
    )


async def read_start(content: aiohttp.StreamReader, most: int) -> bytes:
    """Return the first bytes of a body."""
    found = b""
    while len(found) < most and (piece := await content.read(most - len(found))):
        found += piece
    return found


def max_age(control: str) -> float | None:
    """Return the ``max-age`` of a ``Cache-Control`` in seconds, ``None`` if it has none."""
    found = None
    for directive in control.lower().split(","):
        name, _, value = directive.strip().partition("=")
        if name in ("no-store", "no-cache"):
            return 0.0
        value = value.strip('" ')
        if name == "max-age" and value.isascii() and value.isdigit():
            found = float(value[:10])
    return found


# -- small JSON documents ---------------------------------------------------------------------

MAX_BYTES = 512 * 1024
"""The maximum size of a document."""

TIMEOUT = 5.0
"""The time in seconds for a request and its response."""

_MAX_CONNECTIONS = 32

_Route = tuple[asyncio.AbstractEventLoop, Egress | None, bool]
"""A loop, the egress policy of its connections, and whether these go to trusted hosts."""


class FetchFailed(Exception):
    """A document could not be fetched. The message says why, for the server's log.

    ``status`` is the HTTP status, 0 without a response.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Document(msgspec.Struct, frozen=True):
    """A JSON object, and the seconds for which it may be kept; ``None`` if the server gave none."""

    content: dict[str, Any]
    max_age: float | None = None


def checked_url(url: str, what: str) -> str:
    """Return an address from an operator's settings: https, or http on this machine.

    Raises ``ValueError``.
    """
    reason = _unfit(url)
    if reason:
        raise ValueError(f"{what} is an https address (http on this machine only), {reason}")
    return url


def is_url(text: str) -> bool:
    """Return whether a text is an address from which a document can be fetched."""
    return not _unfit(text)


def _unfit(url: str) -> str:
    """Return the problem of an address, empty if it is valid."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        return f"not {url!r:.200}"
    try:
        address = urlsplit(url)
        host, _ = address.hostname, address.port
    except ValueError:
        return f"not {url[:200]!r}"
    if not host or address.username is not None or address.password is not None:
        return "with a host, and without a name and a password in it"
    if address.fragment:
        return "without a fragment"
    if address.scheme == "https" or (address.scheme == "http" and is_loopback(host)):
        return ""
    return f"not {address.scheme}://{host}"


class Fetcher:
    """Fetches documents for one scheme. Follows no redirects and keeps no cookies.

    It may be used in several event loops; each has its own connections.
    """

    def __init__(self, egress: Egress | None = None) -> None:
        self.egress = egress or Egress()
        self._sessions: dict[_Route, aiohttp.ClientSession] = {}

    async def get(self, url: str, *, named_by: str = "") -> Document:
        """Return the JSON object at an address. Raises ``FetchFailed``.

        ``named_by`` is the address of the document that names this address, empty if the operator
        does.
        """
        return await self._request("GET", url, named_by=named_by)

    async def post(
        self,
        url: str,
        form: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        named_by: str = "",
    ) -> Document:
        """Post a form, and return the JSON object of the response. Raises ``FetchFailed``."""
        return await self._request("POST", url, named_by=named_by, data=form, headers=headers)

    async def close(self) -> None:
        """Close the connections of this event loop."""
        loop = asyncio.get_running_loop()
        for key in [key for key in self._sessions if key[0] is loop or key[0].is_closed()]:
            session = self._sessions.pop(key)
            if key[0] is loop:
                await session.close()

    async def _request(
        self,
        method: str,
        url: str,
        *,
        named_by: str,
        data: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Document:
        import aiohttp

        session = self._session(self._policy_for(url, named_by), url)
        shown = urlsplit(url)._replace(query="").geturl()
        try:
            async with (
                asyncio.timeout(TIMEOUT),
                session.request(
                    method,
                    url,
                    data=data,
                    headers={
                        "Accept": "application/json",
                        "Accept-Encoding": "identity",
                        **(headers or {}),
                    },
                    allow_redirects=False,
                ) as response,
            ):
                if response.status != 200:
                    raise FetchFailed(f"{shown} answered {response.status}", response.status)
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise FetchFailed(f"{shown} answered with compressed data")
                body = await read_start(response.content, MAX_BYTES + 1)
                if len(body) > MAX_BYTES:
                    raise FetchFailed(f"{shown} answered with more than {MAX_BYTES} bytes")
                age = max_age(",".join(response.headers.getall("Cache-Control", [])))
        except TimeoutError:
            raise FetchFailed(f"{shown} did not answer within {TIMEOUT:g} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            forbidden = find_forbidden(error)
            reason = str(forbidden) if forbidden else type(error).__name__
            raise FetchFailed(f"{shown} cannot be reached: {reason}") from None
        try:
            content = msgspec.json.decode(body)
        except (ValueError, msgspec.DecodeError, RecursionError):
            raise FetchFailed(f"{shown} did not answer with JSON") from None
        if not isinstance(content, dict):
            raise FetchFailed(f"{shown} did not answer with a JSON object")
        return Document(content, age)

    def _policy_for(self, url: str, named_by: str) -> Egress | None:
        """Return the egress policy for an address, ``None`` for an address of the operator.

        Raises ``FetchFailed``.
        """
        if not named_by or (isinstance(url, str) and origin_of(url) == origin_of(named_by)):
            return None
        reason = _unfit(url)
        if reason:
            raise FetchFailed(
                f"{named_by} names an address that is not https or its own origin: {reason}"
            )
        host = urlsplit(url).hostname or ""
        if is_loopback(host) and is_loopback(urlsplit(named_by).hostname or ""):
            return self.egress.adding(LOOPBACK)  # an issuer on this machine may name this machine
        if urlsplit(url).scheme != "https":
            raise FetchFailed(f"{named_by} names an address on this machine: {url[:200]}")
        return self.egress

    def _session(self, egress: Egress | None, url: str) -> aiohttp.ClientSession:
        is_trusted = egress is not None and egress.trusts(urlsplit(url).hostname or "")
        key = (asyncio.get_running_loop(), egress, is_trusted)
        session = self._sessions.get(key)
        if session is None or session.closed:
            session = self._sessions[key] = guarded_session(
                egress,
                trusted=is_trusted,
                options={"auto_decompress": False},
                limit=_MAX_CONNECTIONS,
            )
        return session


# -- cache ------------------------------------------------------------------------------------

KEPT_SECONDS = 3600.0
"""The time for which a stale document is used while its server does not answer."""

RETRY_SECONDS = 2.0
"""The pause after a failure."""

REFETCH_SECONDS = 10.0
MAX_REFETCHES = 5
"""The number of fetches of a fresh document that lacks something: this many at once, then one per
``REFETCH_SECONDS``. Senders of tokens and cards can cause such fetches.
"""


class Ages(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds in seconds of a document's freshness, and the default if its server gives none."""

    minimum: float
    default: float
    maximum: float = 24 * 3600.0


class Cached(Generic[T]):
    """A cached document: fresh for its age, and usable for ``KEPT_SECONDS`` longer.

    ``failure`` is the reason why the last fetch failed, and ``next_attempt`` the time of the next
    one; empty and 0 after a success. ``what`` is the beginning of the warning about a failure;
    empty for no warning.
    """

    def __init__(self, ages: Ages, now: Callable[[], float], what: str = "") -> None:
        self.failure = ""
        self.next_attempt = 0.0
        self._ages = ages
        self._now = now
        self._what = what
        self._value: T | None = None
        self._fresh_until = self._usable_until = 0.0
        self._refetches = float(MAX_REFETCHES)
        self._counted_at = 0.0

    @property
    def known(self) -> T | None:
        """The document, whatever its age."""
        return self._value

    @property
    def fresh(self) -> T | None:
        """The document, unless it is older than its server allows."""
        return self._value if self._now() < self._fresh_until else None

    @property
    def usable(self) -> T | None:
        """The document, unless it is too old to be used."""
        return self._value if self._now() < self._usable_until else None

    @property
    def may_fetch(self) -> bool:
        """True if the pause after a failure is over."""
        return self._now() >= self.next_attempt

    def may_refetch(self) -> bool:
        """Return whether a fresh document may be fetched again for a missing part, and count
        this."""
        now = self._now()
        left = self._refetches + (now - self._counted_at) / REFETCH_SECONDS
        self._refetches, self._counted_at = min(left, float(MAX_REFETCHES)), now
        if self._refetches < 1 or now < self.next_attempt:
            return False
        self._refetches -= 1
        return True

    async def refresh(self, fetch: Callable[[], Awaitable[tuple[T, float | None]]]) -> None:
        """Fetch the document and its permitted age. Stores a ``FetchFailed`` in ``failure``."""
        try:
            value, age = await fetch()
        except FetchFailed as failure:
            if self._what:
                log.warning("%s unavailable: %s", self._what, failure)
            self.failure = str(failure)
            self.next_attempt = self._now() + RETRY_SECONDS
            return
        ages = self._ages
        age = ages.default if age is None else min(max(age, ages.minimum), ages.maximum)
        self._value, self.failure, self.next_attempt = value, "", 0.0
        self._fresh_until = self._now() + age
        self._usable_until = self._fresh_until + KEPT_SECONDS
