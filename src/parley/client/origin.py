"""Origins (RFC 6454), which identify the receiver of a request, and addresses of requests."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urljoin, urlsplit, urlunsplit

import msgspec

from parley.client.errors import UnexpectedStatus
from parley.security.egress import normalize_host
from parley.security.networks import is_loopback

PORTS = {"http": 80, "https": 443}
PUBLIC_HEADERS = frozenset(
    {
        "accept",
        "a2a-version",
        "a2a-extensions",
        "x-a2a-extensions",
        "if-none-match",
        "if-modified-since",
    }
)
"""The headers that every origin may get. Any other header may be a credential."""

# URL libraries treat these characters differently, and so may disagree about the host.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f\\]")
_FORM = "https://host or https://host:port"


class Origin(msgspec.Struct, frozen=True):
    """Scheme, host and port: the host in ASCII and lower case, the port always explicit.

    ``str`` returns the form that ``of`` and ``connect(trust_origins=...)`` accept.
    """

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + (
            "" if self.port == PORTS[self.scheme] else f":{self.port}"
        )

    @property
    def is_plaintext(self) -> bool:
        """True if the network can read requests there."""
        return self.scheme == "http" and not is_loopback(self.host)

    @classmethod
    def of(cls, url: str) -> Origin:
        """Return the origin of an address. Raises ``ValueError`` with the expected form."""
        if _AMBIGUOUS.search(url):
            raise ValueError("an address without spaces, control characters and backslashes")
        try:
            # At the end of a word, Python's lower case of Σ differs from IDNA's.
            parts = urlsplit(url.replace("Σ", "σ"))
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme not in PORTS:
            raise ValueError(f"an address of the form {_FORM}")
        return cls(parts.scheme, _host(host), port or PORTS[parts.scheme])

    @classmethod
    def of_grpc(cls, url: str, *, insecure: bool = False, tls: bool = False) -> Origin:
        """Return the origin of a gRPC interface, which may be ``host:port``.

        ``insecure`` and ``tls`` are the connection's settings (see ``is_encrypted``). Raises
        ``ValueError``.
        """
        try:
            parts = urlsplit(url if "://" in url else f"//{url}")
        except ValueError:
            raise ValueError(f"an address of the form {_FORM}") from None
        secure = tls or is_encrypted(parts.scheme, parts.hostname or "", insecure=insecure)
        plain = cls.of(f"{parts.scheme or ('https' if secure else 'http')}://{parts.netloc}")
        return cls("https" if secure else "http", plain.host, plain.port)

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Return the origin for a user's text.

        Without a scheme it is encrypted, except on loopback. Raises ``ValueError`` for a text that
        is not an origin.
        """
        text = text.strip()
        try:
            found = cls.of(text) if "://" in text else cls.of_grpc(text)
        except ValueError as error:
            raise ValueError(f"{_shown(text)} is no origin; give {error}") from None
        rest = urlsplit(text if "://" in text else f"//{text}")
        if rest.path not in ("", "/") or rest.query or rest.fragment or rest.username is not None:
            raise ValueError(
                f"{_shown(text)} is more than an origin; give only scheme, host and port: {found}"
            )
        return found

    def covers(self, other: Origin) -> bool:
        """Return whether credentials for this origin may be sent to the other.

        The other must be the same origin, its encrypted form (HTTPS on port 443 for HTTP on port
        80), or a loopback address if this is ``localhost``.
        """
        if self.host != other.host and not (
            self.host == "localhost" and other.host in ("127.0.0.1", "::1")
        ):
            return False
        here, there = (self.scheme, self.port), (other.scheme, other.port)
        return here == there or (here, there) == (("http", 80), ("https", 443))


def http_address(url: str) -> str:
    """Return the HTTP address for a WebSocket address; other addresses are unchanged."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme)
    return url if scheme is None else urlunsplit(parts._replace(scheme=scheme))


def is_encrypted(scheme: str, host: str, *, insecure: bool = False) -> bool:
    """Return whether gRPC uses TLS for an address, which the scheme decides.

    Without a scheme it does, except on loopback and for ``insecure`` callers.
    """
    return scheme == "https" or not (scheme or insecure or is_loopback(host))


def _host(host: str) -> str:
    if ":" not in host:
        return normalize_host(host)
    try:
        return str(ipaddress.IPv6Address(host))  # including its zone, if any
    except ValueError:
        raise ValueError("an IPv6 address in brackets") from None


def _shown(text: str) -> str:
    """Return a user's text without possible secrets."""
    return repr(text.partition("?")[0].rpartition("@")[2][:200])


# -- addresses --------------------------------------------------------------------------------


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
    """Return the address of a redirect. Raises ``UnexpectedStatus`` if it must not be followed."""
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
        # ``port`` raises for an invalid port.
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
    """Return whether a redirect stays on the server, which includes HTTP to HTTPS."""
    try:
        return Origin.of(url).covers(Origin.of(target))
    except ValueError:
        return False


def check_proxy(address: str) -> str:
    """Return the address of a proxy. Raises ``ValueError`` for another kind of address."""
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
    from urllib.request import getproxies, proxy_bypass  # slow to import, rarely needed

    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)
