"""Hosts of URLs: one form for each, and what they are without being resolved."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

MAX_NAME_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_LOCAL_NAMES = ("localhost", "local", "localdomain", "internal", "intranet", "lan", "home.arpa")


def normalize_host(host: str) -> str:
    """Return the host of a URL as it is looked up: in ASCII, in lower case.

    Raises ``ValueError`` for an invalid host, and for addresses in forms that only some programs
    accept (2130706433, 0x7f.1, 127.1).
    """
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise ValueError("an IPv6 address in brackets, without a zone") from None
    if not host.isascii() or "xn--" in host.lower():
        host = _in_ascii(host)
    name = host.lower().removesuffix(".")
    if is_number(name):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise ValueError("an IPv4 address as four numbers, such as 192.0.2.1") from None
    if len(name) > MAX_NAME_LENGTH or not all(map(_LABEL.fullmatch, name.split("."))):
        raise ValueError(
            "a name of labels of up to 63 letters, digits and hyphens, with dots between them"
        )
    return name


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL."""
    try:
        address = urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
    except ValueError:
        return ""
    return f"{address.scheme}://{address.hostname}:{port}"


def bare_name(host: str) -> str:
    """Return a host as the lists of a policy have it, whatever is wrong with it."""
    name = host.strip("[]")
    if not name.isascii():
        try:
            return normalize_host(name)
        except ValueError:
            return name.lower()
    return name.lower().removesuffix(".")


def is_local_name(name: str) -> bool:
    """Return whether a name is known in a local network only."""
    return "." not in name or any(
        name == each or name.endswith(f".{each}") for each in _LOCAL_NAMES
    )


def is_number(host: str) -> bool:
    """Return whether a name may be taken for an address: its last label is a number."""
    last = host.removesuffix(".").rpartition(".")[2].lower()
    return last.isdigit() or (last.startswith("0x") and set(last[2:]) <= set("0123456789abcdef"))


def literal_of(host: str) -> str | None:
    """Return the address of a host that is one, in its old forms too (127.1, 0x7f.1)."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not is_number(host):
        return None
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return host  # malformed


def _in_ascii(host: str) -> str:
    """Return an internationalized name as it is looked up. Raises ``ValueError``."""
    import yarl  # which the HTTP client uses

    try:
        url = yarl.URL(f"http://{host}/")
        return (url.host and url.raw_host) or ""  # the first reads what the second writes
    except ValueError:
        raise ValueError("a name that can be written in ASCII (IDNA)") from None
