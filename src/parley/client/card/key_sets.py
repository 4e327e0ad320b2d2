"""JWK Sets that cards name (``jku``): whose addresses are trusted, and how they are fetched."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from parley.client.bindings.http import REDIRECTS, HttpTransport, redacted
from parley.client.errors import AddressNotAllowed, ClientError
from parley.client.origin import Origin
from parley.security.egress import Egress
from parley.security.key_sets import KeySet, read_keys
from parley.security.networks import is_loopback
from parley.security.outbound import MAX_BYTES, TIMEOUT, FetchFailed, max_age

MAX_URL = 2048


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

    async def fetch(self, url: str, own: Origin | None) -> tuple[KeySet, float | None]:
        """Return the key set at an address, and the seconds that it may be kept.

        Raises ``FetchFailed``.
        """
        transport, shown = self._transport_for(url, own), redacted(url)
        headers = {"Accept": "application/jwk-set+json, application/json"}
        try:
            async with transport.open("GET", url, headers, None, timeout=TIMEOUT) as answer:
                if answer.status in REDIRECTS:
                    raise FetchFailed(
                        f"its key set {shown} redirects, and redirects are not followed"
                    )
                if answer.status != 200:
                    raise FetchFailed(f"its key set {shown} answered {answer.status}")
                body = await answer.read(MAX_BYTES)
                control = answer.headers.get("cache-control", "")
        except AddressNotAllowed as error:
            said = str(error).partition(", which is not allowed")[0]
            raise FetchFailed(
                f"its key set {said}; to allow it: CardTrust(allow_private=[...])"
            ) from None
        except ClientError as error:
            raise FetchFailed(f"its key set cannot be had: {error}") from None
        try:
            content = msgspec.json.decode(body)
            keys = read_keys(content if isinstance(content, dict) else {})
        except (ValueError, RecursionError, FetchFailed) as error:
            said = str(error) if isinstance(error, FetchFailed) else "it is not JSON"
            raise FetchFailed(f"{shown} is no key set: {said}") from None
        return KeySet(keys), max_age(control)

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
