"""Catalogs in files and at addresses, fetched within limits."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.errors import ClientError, ResponseTooLarge
from parley.model.catalog.entries import CATALOG, CATALOG_PATH
from parley.security.loopback import is_loopback

MAX_BYTES = 8 * 1024 * 1024
"""The size of a catalog."""

TIMEOUT = 30.0

_ACCEPT = {"Accept": f"{CATALOG}, application/json;q=0.9"}
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w-]+(\.[\w-]+)*)(:\d{1,5})?(/\S*)?")


class CatalogDocument(NamedTuple):
    """The bytes of a catalog, where they are from, and the media type they came with."""

    body: bytes
    where: str
    media_type: str = ""

    @property
    def is_fetched(self) -> bool:
        """Whether it came from an address."""
        return _ADDRESS.match(self.where) is not None


def catalog_address(reference: str) -> str:
    """Return the address of the catalog of a host, or an address that names one itself."""
    url = reference.strip()
    if not _ADDRESS.match(url):
        if not _HOST.fullmatch(url):
            raise UsageFailure(f"{reference[:200]!r} is no address", hint="https://example.com")
        host = urlsplit(f"//{url}").hostname or ""
        url = f"{'http' if is_loopback(host) else 'https'}://{url}"
    try:
        path = urlsplit(url).path
    except ValueError:
        raise UsageFailure(f"{reference[:200]!r} is no address") from None
    if path.endswith(".json") or "/.well-known/" in path:
        return url
    return url.partition("?")[0].partition("#")[0].rstrip("/") + CATALOG_PATH


async def read_document(call: AgentCall, reference: str) -> CatalogDocument:
    """Return the catalog that a file has (``-`` for standard input), or an address."""
    document = _from_file(reference)
    if document is not None:
        return document
    async with call.http() as http:
        return await fetch(http, catalog_address(reference))


def _from_file(reference: str) -> CatalogDocument | None:
    """Return the catalog in a file, ``None`` for a reference that names none."""
    if reference == "-":
        return CatalogDocument(_bounded(sys.stdin.buffer.read(MAX_BYTES + 1), "-"), "-")
    path = Path(reference)
    if _ADDRESS.match(reference) or not (path.suffix == ".json" or path.is_file()):
        return None
    try:
        with path.open("rb") as file:
            return CatalogDocument(_bounded(file.read(MAX_BYTES + 1), reference), reference)
    except OSError as error:
        words = f"{reference} cannot be read: {error.strerror}"
        raise CommandFailure("PARLEY_ERR_CATALOG_NOT_FOUND", words) from None


async def fetch(http: HttpTransport, url: str) -> CatalogDocument:
    """Return the catalog at an address. Raises ``CommandFailure``."""
    try:
        reply = await http.get(url, _ACCEPT, timeout=TIMEOUT, limit=MAX_BYTES)
    except ResponseTooLarge as error:
        raise CommandFailure("PARLEY_ERR_CATALOG", str(error)) from None
    except ClientError as error:
        raise CommandFailure(
            "A2ACLI_ERR_UNREACHABLE", str(error), hint="is the server running there?"
        ) from None
    if reply.status != 200:
        raise CommandFailure(
            "PARLEY_ERR_CATALOG_NOT_FOUND",
            f"{redacted(url)} answers with status {reply.status}, and not with a catalog",
            hint="a Parley server publishes one if it has a publisher: "
            "parley serve agent.py --publisher example.com",
        )
    media_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    return CatalogDocument(reply.body, reply.url, media_type)


def _bounded(body: bytes, name: str) -> bytes:
    if len(body) > MAX_BYTES:
        raise CommandFailure("PARLEY_ERR_CATALOG", f"{name} has more than {MAX_BYTES} bytes")
    return body
