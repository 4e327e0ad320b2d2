"""Discovery: the metadata of an issuer (OpenID Connect Discovery 1.0, RFC 8414)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec

from parley.model.concurrency import SingleFlight
from parley.security.issuers.fetch import Fetcher, FetchFailed

log = logging.getLogger("parley.security")

OPENID = "/.well-known/openid-configuration"
OAUTH = "/.well-known/oauth-authorization-server"

MIN_AGE = 300.0
MAX_AGE = 24 * 3600.0
DEFAULT_AGE = 3600.0
"""The seconds that metadata is kept: by ``Cache-Control``, within bounds."""

KEPT_SECONDS = 3600.0
"""How long old metadata is used when the issuer does not answer."""

RETRY_SECONDS = 2.0
"""The pause after a failure."""


class Metadata(msgspec.Struct, frozen=True):
    """What an issuer says about itself; ``url`` is where it was found."""

    issuer: str
    url: str
    jwks_uri: str = ""
    introspection_endpoint: str = ""


def openid_url(issuer: str) -> str:
    """Return the address of an issuer's discovery document; that address itself is one too."""
    if issuer.endswith(OPENID):
        return issuer
    return issuer.rstrip("/") + OPENID


def oauth_url(issuer: str) -> str:
    """Return the address of an issuer's metadata (RFC 8414 §3.1)."""
    address = urlsplit(issuer)
    return address._replace(path=OAUTH + address.path.rstrip("/"), query="").geturl()


class Discovery:
    """The metadata of an issuer, from the first of some addresses that has it.

    ``issuer`` is what the document must say of itself, exactly; several are alternatives.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        urls: tuple[str, ...],
        issuers: tuple[str, ...],
        now: Callable[[], float],
    ) -> None:
        self._fetcher = fetcher
        self._urls = urls
        self._issuers = issuers
        self._now = now
        self._found: Metadata | None = None
        self._fresh_until = self._usable_until = self._next_attempt = 0.0
        self._failure = ""
        self._flight = SingleFlight(self._refresh)

    @property
    def known(self) -> Metadata | None:
        """The metadata, if it was fetched before."""
        return self._found

    async def metadata(self) -> Metadata:
        """Return the metadata. Raises ``FetchFailed``."""
        now = self._now()
        if self._found is not None and now < self._fresh_until:
            return self._found
        if now >= self._next_attempt:
            await self._flight.join()
        if self._found is not None and self._now() < self._usable_until:
            return self._found
        raise FetchFailed(self._failure or "the issuer cannot be reached")

    async def close(self) -> None:
        """End what is under way."""
        await self._flight.close()

    async def _refresh(self) -> None:
        try:
            self._found, max_age = await self._fetch()
        except FetchFailed as failure:
            log.warning("metadata of an issuer is unavailable: %s", failure)
            self._failure = str(failure)
            self._next_attempt = self._now() + RETRY_SECONDS
            return
        age = DEFAULT_AGE if max_age is None else min(max(max_age, MIN_AGE), MAX_AGE)
        self._fresh_until = self._now() + age
        self._usable_until = self._fresh_until + KEPT_SECONDS
        self._next_attempt = 0.0

    async def _fetch(self) -> tuple[Metadata, float | None]:
        failure = None
        for url in self._urls:
            try:
                document = await self._fetcher.get(url)
            except FetchFailed as error:
                failure = failure or error
                if error.status not in (400, 404, 405):
                    raise
                continue
            content = document.content
            if content.get("issuer") not in self._issuers:
                raise FetchFailed(
                    f"{url} is the document of the issuer {str(content.get('issuer'))[:200]!r}, "
                    f"not of {' or '.join(map(repr, self._issuers))}"
                )
            jwks_uri = content.get("jwks_uri") or ""
            introspection = content.get("introspection_endpoint") or ""
            if not isinstance(jwks_uri, str) or not isinstance(introspection, str):
                raise FetchFailed(f"{url} has an address that is not a text")
            return Metadata(content["issuer"], url, jwks_uri, introspection), document.max_age
        raise failure or FetchFailed("no address of metadata is known")
