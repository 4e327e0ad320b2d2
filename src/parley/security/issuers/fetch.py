"""Fetches small JSON documents: keys, metadata of issuers, introspected tokens.

An address that the operator names may be on any host. One that a document names is on the issuer's
own origin, or it is https and passes the egress policy: an issuer must not lead the server into
its own network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from parley.security.egress import Egress, find_forbidden, origin_of
from parley.security.egress.policy import LOOPBACK
from parley.security.loopback import is_loopback
from parley.security.response_limits import bounded_connector

if TYPE_CHECKING:
    import aiohttp

MAX_BYTES = 512 * 1024
"""The size of a document."""

TIMEOUT = 5.0
"""Seconds for a request and its answer."""

_MAX_CONNECTIONS = 32

_Route = tuple[asyncio.AbstractEventLoop, Egress | None, bool]
"""A loop, the policy for its connections, and whether they go to hosts that it trusts."""


class FetchFailed(Exception):
    """A document could not be had. The message says why, for the server's log.

    ``status`` is that of an answer, 0 without one.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Document(msgspec.Struct, frozen=True):
    """A JSON object, and the seconds that it may be kept; ``None`` if nothing was said of that."""

    content: dict[str, Any]
    max_age: float | None = None


def checked_url(url: str, what: str) -> str:
    """Return an address that an operator names: https, or http on this machine.

    Raises ``ValueError``.
    """
    reason = _unfit(url)
    if reason:
        raise ValueError(f"{what} is an https address (http on this machine only), {reason}")
    return url


def is_url(text: str) -> bool:
    """Return whether a text is an address that could be fetched."""
    return not _unfit(text)


def _unfit(url: str) -> str:
    """Return what is wrong with an address, empty for a right one."""
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
    """Fetches documents for one scheme. It follows no redirect, and keeps no cookie.

    It may be used in several event loops: each has its own connections.
    """

    def __init__(self, egress: Egress | None = None) -> None:
        self.egress = egress or Egress()
        self._sessions: dict[_Route, aiohttp.ClientSession] = {}

    async def get(self, url: str, *, named_by: str = "") -> Document:
        """Return the JSON object at an address. Raises ``FetchFailed``.

        ``named_by`` is the address whose document names this one; without it, the operator does.
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
        """Post a form, and return the JSON object of the answer. Raises ``FetchFailed``."""
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
                body = await _read(response, shown)
                max_age = _max_age(response.headers.getall("Cache-Control", []))
        except TimeoutError:
            raise FetchFailed(f"{shown} did not answer within {TIMEOUT:g} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            forbidden = find_forbidden(error)
            reason = str(forbidden) if forbidden else type(error).__name__
            raise FetchFailed(f"{shown} cannot be reached: {reason}") from None
        try:
            content = msgspec.json.decode(body)
        except (ValueError, msgspec.DecodeError, RecursionError):
            raise FetchFailed(f"{shown} answered with something else than JSON") from None
        if not isinstance(content, dict):
            raise FetchFailed(f"{shown} answered with something else than a JSON object")
        return Document(content, max_age)

    def _policy_for(self, url: str, named_by: str) -> Egress | None:
        """Return the policy for an address; none for what the operator names.

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
            return self.egress.adding(LOOPBACK)  # an issuer of this machine may name this machine
        if urlsplit(url).scheme != "https":
            raise FetchFailed(f"{named_by} names an address on this machine: {url[:200]}")
        return self.egress

    def _session(self, egress: Egress | None, url: str) -> aiohttp.ClientSession:
        import aiohttp

        is_trusted = egress is not None and egress.trusts(urlsplit(url).hostname or "")
        key = (asyncio.get_running_loop(), egress, is_trusted)
        session = self._sessions.get(key)
        if session is None or session.closed:
            limit = _MAX_CONNECTIONS
            if egress is None:
                connector = bounded_connector(limit=limit)
            else:
                connector = egress.connector(trusted=is_trusted, limit=limit)
            session = self._sessions[key] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT),
            )
        return session


async def _read(response: aiohttp.ClientResponse, shown: str) -> bytes:
    body = b""
    while piece := await response.content.read(64 * 1024):
        body += piece
        if len(body) > MAX_BYTES:
            raise FetchFailed(f"{shown} answered with more than {MAX_BYTES} bytes")
    return body


def _max_age(headers: list[str]) -> float | None:
    """Return the seconds that ``Cache-Control`` allows."""
    found = None
    for directive in ",".join(headers).lower().split(","):
        name, _, value = directive.strip().partition("=")
        if name in ("no-store", "no-cache"):
            return 0.0
        if name == "max-age" and value.strip('"').isdecimal():
            found = float(value.strip('"')[:9])
    return found
