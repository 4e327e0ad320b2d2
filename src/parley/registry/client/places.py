"""References to registries, and the errors of registries.

A reference is an address, a domain, a catalog, a file or JSON. The errors are ``ClientError``s:
``RegistryRefused`` (a response with an error), ``NotARegistry`` (a response of something else) and
``AgentNotFound`` (no such entry). ``NoRegistry`` is a ``ValueError``: there is no reference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from parley.client.bindings.http import redacted
from parley.client.errors import ClientError
from parley.client.origin import Origin
from parley.registry.catalog.entries import CATALOG_PATHS
from parley.security.networks import is_loopback


class RegistryRefused(ClientError):
    """A registry rejected a request: ``status`` is the HTTP status, ``code`` its error code."""

    def __init__(
        self, message: str, *, status: int, code: str = "", retry_after: float | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.retry_after = retry_after
        super().__init__(message)


class NotARegistry(ClientError):
    """The reference leads neither to a registry nor to a catalog."""


class AgentNotFound(ClientError):
    """A registry has no entry with this identifier, or hides it from this caller."""


class NoRegistry(ValueError):
    """No registry was named; there is no default."""


VARIABLE = "PARLEY_REGISTRY"
ROUTES = ("search", "explore", "agents")

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d+)?(/\S*)?")

RegistryReference = str | bytes | os.PathLike[str] | Mapping[str, Any]
"""A registry: its address or its domain, the address or the file of a catalog, or a catalog."""

HOW = (
    "name one: registry='https://registry.example.com', a domain that publishes a catalog "
    f"('example.com'), a catalog file ('agents.json'), or set {VARIABLE}"
)


class ReferenceKind(StrEnum):
    """The kind of a reference, as far as its text tells."""

    ADDRESS = "address"
    """The base address of a registry; an address without a path may also be a domain."""
    DOMAIN = "domain"
    """A domain: its catalog names the registry."""
    CATALOG = "catalog"
    """The address of a catalog."""
    FILE = "file"
    JSON = "json"


class ParsedReference(NamedTuple):
    """A parsed reference."""

    kind: ReferenceKind
    url: str = ""
    path: Path | None = None
    document: bytes | Mapping[str, Any] = b""


def parse_reference(
    reference: RegistryReference | None, environ: Mapping[str, str] = os.environ
) -> ParsedReference:
    """Parse a reference; ``None`` means ``PARLEY_REGISTRY``.

    Raises ``NoRegistry`` without any reference, and ``ValueError`` for an invalid one.
    """
    if reference is None or reference == "":
        reference = environ.get(VARIABLE, "").strip()
        if not reference:
            raise NoRegistry(f"no registry to ask: {HOW}")
    if isinstance(reference, Mapping | bytes):
        return ParsedReference(ReferenceKind.JSON, document=reference)
    if isinstance(reference, os.PathLike):
        return ParsedReference(ReferenceKind.FILE, path=Path(reference))
    if not isinstance(reference, str):
        raise TypeError(f"registry must be an address, a file or a catalog, not {reference!r:.100}")
    text = reference.strip()
    if text[:1] in ("{", "["):
        return ParsedReference(ReferenceKind.JSON, document=text.encode())
    if re.match(r"file:", text, re.IGNORECASE):
        from urllib.request import url2pathname  # a slow import, seldom needed

        return ParsedReference(ReferenceKind.FILE, path=Path(url2pathname(urlsplit(text).path)))
    if re.match(r"https?://", text, re.IGNORECASE):
        return _of_url(text)
    if _is_file_name(text):
        return ParsedReference(ReferenceKind.FILE, path=Path(text))
    if host := _HOST.fullmatch(text):
        name = host[1]
        scheme = "http" if is_loopback(name.strip("[]")) else "https"
        found = _of_url(f"{scheme}://{text}")
        is_bare = not host[2] and not (host[3] or "").strip("/") and not is_loopback(name)
        return found._replace(kind=ReferenceKind.DOMAIN) if is_bare else found
    raise NoRegistry(f"{text[:200]!r} is not a registry: {HOW}")


def base_of(url: str) -> str:
    """Return the base address of a registry: without the name of a route, and with a trailing
    slash.

    Some registries are listed by the address of their search route. Raises ``ValueError``.
    """
    try:
        Origin.of(url)
    except ValueError as error:
        raise ValueError(f"{redacted(url)[:200]!r} is not a registry; expected {error}") from None
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise ValueError(
            f"the address of a registry may not have a query or fragment: {redacted(url)[:200]}"
        )
    path = parts.path.rstrip("/")
    before, _, last = path.rpartition("/")
    if last in ROUTES:
        path = before
    return urlunsplit(parts._replace(path=f"{path}/"))


def catalogs_of(url: str) -> list[str]:
    """Return the well-known addresses of a host's catalog: of ARD 0.91, then of 0.9."""
    parts = urlsplit(url)
    return [urlunsplit(parts._replace(path=p, query="", fragment="")) for p in CATALOG_PATHS]


def _of_url(url: str) -> ParsedReference:
    try:
        Origin.of(url)
    except ValueError as error:
        raise NoRegistry(f"{redacted(url)[:200]!r} is not a registry; expected {error}") from None
    if urlsplit(url).path.lower().endswith(".json"):
        return ParsedReference(ReferenceKind.CATALOG, url=url)
    return ParsedReference(ReferenceKind.ADDRESS, url=base_of(url))


def _is_file_name(text: str) -> bool:
    return text.lower().endswith(".json") or text.startswith(("./", "../", "/", "~", ".\\"))
