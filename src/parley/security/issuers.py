"""Token issuers: metadata (OpenID Connect, RFC 8414), keys, and token introspection."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from parley.model.bounded import Bounded
from parley.model.concurrency import SingleFlight
from parley.security.key_sets import KEY_AGES, KeySet, VerificationKey, read_keys
from parley.security.outbound import (
    REFETCH_SECONDS,
    RETRY_SECONDS,
    Ages,
    Cached,
    Document,
    Fetcher,
    FetchFailed,
)

OPENID = "/.well-known/openid-configuration"
OAUTH = "/.well-known/oauth-authorization-server"

METADATA_AGES = Ages(minimum=300.0, default=3600.0)
"""The time during which metadata is fresh."""

_MAX_MISSING = 1000


class KeysUnavailable(Exception):
    """The keys are unavailable now. ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Metadata(msgspec.Struct, frozen=True):
    """The metadata of an issuer. ``url`` is the address from which it was fetched."""

    issuer: str
    url: str
    jwks_uri: str = ""
    introspection_endpoint: str = ""


def openid_url(issuer: str) -> str:
    """Return the address of an issuer's discovery document. Accepts that address too."""
    if issuer.endswith(OPENID):
        return issuer
    return issuer.rstrip("/") + OPENID


def oauth_url(issuer: str) -> str:
    """Return the address of an issuer's metadata (RFC 8414 §3.1)."""
    address = urlsplit(issuer)
    return address._replace(path=OAUTH + address.path.rstrip("/"), query="").geturl()


MAX_LIFE = 10 * 365 * 86400.0


def lifetime_of(answer: Mapping[str, Any]) -> float | None:
    """Return the lifetime in seconds of the token in an issuer's answer, if it states one."""
    try:
        seconds = float(answer.get("expires_in", -1))
    except (TypeError, ValueError, OverflowError):
        return None
    return min(seconds, MAX_LIFE) if seconds >= 0 else None


class ClientIdentity(msgspec.Struct, frozen=True):
    """The authentication of a client to an issuer (RFC 6749 §2.3). A public client has no
    secret."""

    id: str
    secret: str = ""
    method: str = ""

    def __repr__(self) -> str:
        return f"ClientIdentity({self.id!r})"

    def apply(
        self, form: Mapping[str, str], methods: tuple[str, ...] = ()
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the headers and the form of a request that authenticates this client.

        ``methods`` are the methods that the issuer supports, empty if unknown.
        """
        method = self.method
        if not method and self.secret:
            posts = "client_secret_post" in methods and "client_secret_basic" not in methods
            method = "client_secret_post" if posts else "client_secret_basic"
        if self.secret and method == "client_secret_basic":
            pair = f"{quote(self.id, safe='')}:{quote(self.secret, safe='')}"
            basic = base64.b64encode(pair.encode()).decode()
            return {"Authorization": f"Basic {basic}"}, dict(form)
        own = {"client_id": self.id} if self.id else {}
        if self.secret and method == "client_secret_post":
            own["client_secret"] = self.secret
        return {}, {**form, **own}


class IssuerClient:
    """Fetches and caches the metadata and keys of one issuer, and introspects tokens.

    The metadata is at the first of ``metadata_urls`` that has it, and its issuer must equal one of
    ``names``. Keys are fetched from ``jwks_url``, tokens are introspected at ``introspection_url``;
    the default for both is the address in the metadata. ``named_by`` is the address of the document
    that names ``jwks_url``, empty if the operator names it.

    For an unknown key id the keys are fetched again, by one request for all waiting callers, and
    within limits. Beyond the limits a token is neither valid nor invalid: its key may be new.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        now: Callable[[], float],
        *,
        names: tuple[str, ...] = (),
        metadata_urls: tuple[str, ...] = (),
        jwks_url: str = "",
        introspection_url: str = "",
        named_by: str = "",
    ) -> None:
        self._fetcher = fetcher
        self._now = now
        self._names = names
        self._metadata_urls = metadata_urls
        self._jwks_url = jwks_url
        self._introspection_url = introspection_url
        self._named_by = named_by
        self._metadata = Cached[Metadata](METADATA_AGES, now, "metadata of an issuer is")
        self._keys = Cached[KeySet](KEY_AGES, now, "keys of an issuer are")
        self._missing: Bounded[tuple[str | None, str], float] = Bounded(_MAX_MISSING)
        self._metadata_flight = SingleFlight(lambda: self._metadata.refresh(self._fetch_metadata))
        self._keys_flight = SingleFlight(lambda: self._keys.refresh(self._fetch_keys))

    async def close(self) -> None:
        """Cancel the requests in progress."""
        await self._keys_flight.close()
        await self._metadata_flight.close()

    # -- metadata ------------------------------------------------------------------------------

    @property
    def known(self) -> Metadata | None:
        """The metadata, if it has been fetched."""
        return self._metadata.known

    async def metadata(self) -> Metadata:
        """Return the metadata. Raises ``FetchFailed``."""
        kept = self._metadata
        if kept.fresh is None and kept.may_fetch:
            await self._metadata_flight.join()
        found = kept.usable
        if found is None:
            raise FetchFailed(kept.failure or "the issuer cannot be reached")
        return found

    async def _fetch_metadata(self) -> tuple[Metadata, float | None]:
        failure = None
        for url in self._metadata_urls:
            try:
                document = await self._fetcher.get(url)
            except FetchFailed as error:
                failure = failure or error
                if error.status not in (400, 404, 405):
                    raise
                continue
            content = document.content
            if content.get("issuer") not in self._names:
                raise FetchFailed(
                    f"{url} is the document of the issuer {str(content.get('issuer'))[:200]!r}, "
                    f"not of {' or '.join(map(repr, self._names))}"
                )
            jwks_uri = content.get("jwks_uri") or ""
            introspection = content.get("introspection_endpoint") or ""
            if not isinstance(jwks_uri, str) or not isinstance(introspection, str):
                raise FetchFailed(f"{url} has an address that is not text")
            return Metadata(content["issuer"], url, jwks_uri, introspection), document.max_age
        raise failure or FetchFailed("no address of metadata is known")

    async def _endpoint(self, name: str, given: str) -> tuple[str, str]:
        """Return an address, and the address of the document that names it (empty: the operator).

        Raises ``FetchFailed``.
        """
        if given:
            return given, self._named_by
        metadata = await self.metadata()
        if not (url := getattr(metadata, name)):
            raise FetchFailed(f"{metadata.url} names no {name}")
        return url, metadata.url

    # -- introspection -------------------------------------------------------------------------

    async def introspect(self, form: Mapping[str, str], headers: Mapping[str, str]) -> Document:
        """Return the issuer's answer about a token (RFC 7662). Raises ``FetchFailed``."""
        url, named_by = await self._endpoint("introspection_endpoint", self._introspection_url)
        return await self._fetcher.post(url, form, headers=headers, named_by=named_by)

    # -- keys ----------------------------------------------------------------------------------

    def find_now(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Return a key if it is known and fresh, without I/O."""
        keys = self._keys.fresh
        return None if keys is None else keys.find(kid, alg)

    async def find(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Return a key, ``None`` if the issuer has none. Raises ``KeysUnavailable``."""
        kept = self._keys
        if kept.usable is None:
            if kept.may_fetch:
                await self._keys_flight.join()
        elif kept.fresh is None and kept.may_fetch:
            self._keys_flight.begin()  # the old keys stay in use meanwhile
        keys = kept.usable
        if keys is None:
            raise KeysUnavailable(kept.failure, max(kept.next_attempt - self._now(), 1.0))
        found = keys.find(kid, alg)
        if found is None and not keys.has(kid):
            found = await self._look_again(kid, alg)
        return found

    async def _look_again(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Fetch the keys again because a key is unknown. Raises ``KeysUnavailable``."""
        kept = self._keys
        if self._now() < self._missing.get((kid, alg), 0.0):
            return None
        if not self._keys_flight.is_under_way and not kept.may_refetch():
            raise KeysUnavailable("too many unknown keys were requested", REFETCH_SECONDS)
        await self._keys_flight.join()
        if kept.next_attempt:
            raise KeysUnavailable(kept.failure, RETRY_SECONDS)
        found = None if kept.known is None else kept.known.find(kid, alg)
        if found is None:
            self._missing[kid, alg] = self._now() + REFETCH_SECONDS
        return found

    async def _fetch_keys(self) -> tuple[KeySet, float | None]:
        url, named_by = await self._endpoint("jwks_uri", self._jwks_url)
        document = await self._fetcher.get(url, named_by=named_by)
        return KeySet(read_keys(document.content)), document.max_age
