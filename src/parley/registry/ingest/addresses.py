"""Addresses that documents of others name: which may be fetched, and in which form."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from parley.model.catalog.entries import CATALOG_PATH
from parley.security.egress import Place, normalize_host
from parley.security.egress.places import places
from parley.security.loopback import is_loopback, literal_address

MAX_ADDRESS = 2000
"""In bytes; an index keeps no longer one."""

SCHEMES = ("https", "http")
_KEPT = "/%:@!$&'()*+,;=?~[]|^`{}"
"""Characters of paths and queries that stay as they are written; others are encoded."""


class UnfitAddress(ValueError):
    """An address is none that a registry fetches. The message says why."""


class PlainHosts:
    """The hosts that may be asked over http: this machine, and what the operator names."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed: tuple[Place, ...] = places(allowed)

    def allows(self, host: str, port: int) -> bool:
        """Return whether a host may be asked over http."""
        if is_this_machine(host):
            return True
        literal = literal_address(host)
        addresses = () if literal is None else (literal,)
        return any(each.has(host, addresses, port) for each in self._allowed)


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine by its name or address."""
    return is_loopback(host) or host.lower().rstrip(".").endswith(".localhost")


def host_of(url: str) -> str:
    """Return the host of an address in lower case, empty for none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".").lower()
    except ValueError:
        return ""


def origin_text(url: str) -> str:
    """Return the scheme, host and port of a checked address, as they are written in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_well_known_catalog(url: str) -> bool:
    """Return whether an address is the well-known one of a catalog: its host chose the content."""
    parts = urlsplit(url)
    return parts.path == CATALOG_PATH and not parts.query


def checked_address(text: str, *, near: str = "", plain: PlainHosts | None = None) -> str:
    """Return an address in one form: absolute, with its host in lower case, without a fragment.

    ``near`` is the address that it is relative to. Raises ``UnfitAddress`` for one that is neither
    https nor http to a host that ``plain`` allows.
    """
    if not isinstance(text, str) or len(text) > MAX_ADDRESS or len(near) > MAX_ADDRESS:
        raise UnfitAddress(f"an address has at most {MAX_ADDRESS} characters")
    shown = text[:200]
    if not text.isprintable() or any(char in text for char in ' \\<>"'):
        raise UnfitAddress(f"{shown!r} is no address")
    try:
        parts = urlsplit(urljoin(near, text) if near else text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UnfitAddress(f"{shown!r} is no address") from None
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES or not host:
        raise UnfitAddress(f"{shown!r} is no https address")
    if parts.username is not None or parts.password is not None:
        raise UnfitAddress("an address has no name and no password in it")
    try:
        name = normalize_host(host)
    except ValueError as error:
        raise UnfitAddress(f"the host of {shown!r} is not {error}") from None
    if scheme == "http" and not (plain or PlainHosts()).allows(name, port or 80):
        raise UnfitAddress(f"{shown!r} is not encrypted: https is needed, http is for this machine")
    shape = f"[{name}]" if ":" in name else name
    if port and port != (443 if scheme == "https" else 80):
        shape += f":{port}"
    path, query = quote(parts.path or "/", _KEPT), quote(parts.query, _KEPT)
    whole = urlunsplit((scheme, shape, path, query, ""))
    if len(whole) > MAX_ADDRESS:
        raise UnfitAddress(f"an address has at most {MAX_ADDRESS} characters")
    return whole
