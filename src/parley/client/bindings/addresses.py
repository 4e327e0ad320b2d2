"""The addresses of requests: as they are shown, after a redirect, and by which proxy."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

from parley.client.errors import UnexpectedStatus
from parley.client.origin import Origin


def redacted(url: str) -> str:
    """Return ``url`` without query and credentials, which may be secret.

    ``url`` may be ``host:port``, as for gRPC.
    """
    try:
        parts = urlsplit(url if "://" in url or url.startswith("/") else f"//{url}")
    except ValueError:
        before, slashes, rest = url.partition("?")[0].partition("//")
        return before + slashes + rest.rpartition("@")[2]
    host = parts.netloc.rpartition("@")[2]
    scheme = f"{parts.scheme}://" if parts.scheme else ""
    return f"{scheme}{host}{parts.path}" if host else parts.path


def redirect_target(url: str, location: str, status: int) -> str:
    """Return the address of a redirect. Raises ``UnexpectedStatus`` for one not to be followed."""
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
        # An invalid port raises here.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UnexpectedStatus(
            f"{redacted(url)} redirects to {location[:200]!r}, which is no address of the form "
            "https://host/path",
            status=status,
        )
    if parts.scheme == "http" and urlsplit(url).scheme == "https":
        raise UnexpectedStatus(
            f"{redacted(url)} redirects to {redacted(target)}, which is not encrypted",
            status=status,
        )
    return target


def is_same_server(url: str, target: str) -> bool:
    """Return whether a redirect stays on the server, also from HTTP to its HTTPS."""
    try:
        return Origin.of(url).covers(Origin.of(target))
    except ValueError:
        return False


def check_proxy(address: str) -> str:
    """Return the address of a proxy. Raises ``ValueError`` for one of another kind."""
    try:
        parts = urlsplit(address)
        is_usable = parts.scheme == "http" and parts.hostname and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or parts.path not in ("", "/") or parts.query:
        raise ValueError(
            f"the proxy {redacted(address)[:200]!r} is no address of the form "
            "http://user:password@host:port"
        )
    return address


def proxy_for(url: str) -> str | None:
    """Return the environment's proxy for an address."""
    from urllib.request import getproxies, proxy_bypass  # a large import, seldom needed

    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)
