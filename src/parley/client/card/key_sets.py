"""JWK Sets that cards name (``jku``): fetched within limits, kept, and looked at again once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from parley.client.bindings.http import REDIRECTS, HttpTransport, redacted
from parley.client.errors import AddressNotAllowed, ClientError
from parley.client.origin import Origin
from parley.security.egress import Egress
from parley.security.loopback import is_loopback

if TYPE_CHECKING:
    from parley.security.issuers.jwks import KeySet

MAX_BYTES = 512 * 1024
"""The size of a key set."""

TIMEOUT = 5.0
"""Seconds for a request and its answer."""

MIN_AGE, DEFAULT_AGE, MAX_AGE = 60.0, 600.0, 24 * 3600.0
"""The seconds that a key set is kept: by ``Cache-Control``, within bounds."""

KEPT_SECONDS = 3600.0
"""How long keys are used that are no longer fresh, while their server does not answer."""

MAX_REFETCHES = 5
REFETCH_SECONDS = 10.0
"""The fetches for the sake of unknown keys: so many at once, and then one in that many seconds."""

RETRY_SECONDS = 2.0
"""The pause after a failure."""

MAX_KEPT = 64
MAX_URL = 2048


class KeySetUnavailable(Exception):
    """A key set cannot be had, or must not be asked for. The message says why."""


class Fetched(NamedTuple):
    """A key set as it was fetched, and the seconds that it may be kept."""

    keys: KeySet
    max_age: float


class _Kept:
    """A key set, and the requests that may still be made for the sake of unknown keys."""

    def __init__(self) -> None:
        self.keys: KeySet | None = None
        self.fresh_until = self.usable_until = self.next_attempt = 0.0
        self.left = float(MAX_REFETCHES)
        self.counted_at = 0.0
        self.failure = ""

    def may_refetch(self, now: float) -> bool:
        """Return whether an unknown key may be looked for, and count it."""
        self.left = min(self.left + (now - self.counted_at) / REFETCH_SECONDS, MAX_REFETCHES)
        self.counted_at = now
        if self.left < 1 or now < self.next_attempt:
            return False
        self.left -= 1
        return True


class KeySetCache:
    """The last key sets by address, for all connections of a ``CardTrust``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def find(
        self,
        url: str,
        kid: str,
        fetch: Callable[[], Awaitable[Fetched]],
        *,
        looks_again: bool = True,
    ) -> KeySet:
        """Return the keys at an address; with ``looks_again`` they are fetched again if one lacks.

        Raises ``KeySetUnavailable``.
        """
        kept = self._kept.setdefault(url, _Kept())
        self._kept.move_to_end(url)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        now = self._clock()
        is_known = kept.keys is not None and kept.keys.has(kid)
        if now >= kept.fresh_until:
            if now >= kept.next_attempt:
                await self._refresh(kept, fetch)
        elif looks_again and not is_known and kept.may_refetch(now):
            await self._refresh(kept, fetch)
        if kept.keys is None or self._clock() >= kept.usable_until:
            raise KeySetUnavailable(kept.failure)
        return kept.keys

    async def _refresh(self, kept: _Kept, fetch: Callable[[], Awaitable[Fetched]]) -> None:
        try:
            fetched = await fetch()
        except KeySetUnavailable as error:
            kept.failure, kept.next_attempt = str(error), self._clock() + RETRY_SECONDS
            return
        now = self._clock()
        kept.keys, kept.failure, kept.next_attempt = fetched.keys, "", 0.0
        kept.fresh_until = now + fetched.max_age
        kept.usable_until = kept.fresh_until + KEPT_SECONDS


class KeySetClient:
    """Fetches key sets for the cards of one agent, without credentials and without redirects.

    ``http`` fetched the card, so it dials the card's ``own`` origin. Others are dialled if
    ``egress`` allows their addresses.
    """

    def __init__(self, http: HttpTransport, egress: Egress) -> None:
        self._http = http
        self._egress = egress
        self._guarded: HttpTransport | None = None
        self._network: HttpTransport | None = None

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        for transport in (self._guarded, self._network):
            if transport is not None:
                await transport.close()

    async def fetch(self, url: str, own: Origin | None) -> Fetched:
        """Return the key set at an address. Raises ``KeySetUnavailable``."""
        from parley.security.issuers.fetch import FetchFailed
        from parley.security.issuers.jwks import KeySet, read_keys

        transport, shown = self._transport_for(url, own), redacted(url)
        headers = {"Accept": "application/jwk-set+json, application/json"}
        try:
            async with transport.open("GET", url, headers, None, timeout=TIMEOUT) as answer:
                if answer.status in REDIRECTS:
                    raise KeySetUnavailable(
                        f"its key set {shown} redirects, and redirects are not followed"
                    )
                if answer.status != 200:
                    raise KeySetUnavailable(f"its key set {shown} answered {answer.status}")
                body = await answer.read(MAX_BYTES)
                control = answer.headers.get("cache-control", "").lower()
        except AddressNotAllowed as error:
            said = str(error).partition(", which is not allowed")[0]
            raise KeySetUnavailable(
                f"its key set {said}; to allow it: CardTrust(allow_private=[...])"
            ) from None
        except ClientError as error:
            raise KeySetUnavailable(f"its key set cannot be had: {error}") from None
        try:
            content = msgspec.json.decode(body)
            keys = read_keys(content if isinstance(content, dict) else {})
        except (ValueError, RecursionError, FetchFailed) as error:
            said = str(error) if isinstance(error, FetchFailed) else "it is not JSON"
            raise KeySetUnavailable(f"{shown} is no key set: {said}") from None
        return Fetched(KeySet(keys), _max_age(control))

    def _transport_for(self, url: str, own: Origin | None) -> HttpTransport:
        http = self._http
        if not http.carries(url):  # the agent is in this process, and the keys are not
            if self._network is None:
                self._network = HttpTransport(connect_timeout=http.connect_timeout)
            http = self._network
        elif own is not None and own.covers(Origin.of(url)):
            return http
        if self._guarded is None:
            self._guarded = http.guarded(self._egress)
        return self._guarded


def checked_jku(url: str, own: Origin | None, trusted: tuple[Origin, ...]) -> str:
    """Return why keys at an address are not trusted, empty if they are."""
    if not url:
        return "it names no key set (jku), and its key is not pinned"
    if len(url) > MAX_URL:
        return "the address of its key set is too long"
    try:
        origin, parts = Origin.of(url), urlsplit(url)
    except ValueError as error:
        return f"the address of its key set is not {error}"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return f"the address of its key set has a name, a password or a fragment: {redacted(url)}"
    if origin.scheme != "https" and not is_loopback(origin.host):
        return f"its key set {redacted(url)} is not encrypted; it has an https address"
    if own is not None and own.covers(origin):
        return ""
    if any(each.covers(origin) for each in trusted):
        return ""
    whose = f"the card's is {own}" if own is not None else "the card was not fetched from any"
    return (
        f"its key set is at another origin, {origin} ({whose}); if you trust that one: "
        f"CardTrust(origins=[{str(origin)!r}])"
    )


def _max_age(control: str) -> float:
    for directive in control.split(","):
        name, _, value = directive.strip().partition("=")
        if name in ("no-store", "no-cache"):
            return MIN_AGE
        if name == "max-age" and value.strip('"').isdecimal():
            return min(max(float(value.strip('"')[:9]), MIN_AGE), MAX_AGE)
    return DEFAULT_AGE
