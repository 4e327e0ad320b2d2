"""What an operator names as a source, and which addresses of this machine that opens."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from parley.registry.ingest.addresses import UnfitAddress, checked_address, is_this_machine
from parley.registry.ingest.fetching import WebFetcher
from parley.registry.ingest.finding import site_address
from parley.registry.records import Source, SourceKind


def source_of(text: str, fetcher: WebFetcher) -> Source:
    """Return the source that an operator names: a catalog's address, or a site's.

    ``acme.com`` and ``https://acme.com/`` are sites, whose catalogs are looked for; an address that
    ends with ``.json`` is a catalog. Raises ``ValueError``.
    """
    given = text.strip()
    try:
        if "://" in given and urlsplit(given).path.endswith(".json"):
            return Source(url=checked_address(given, plain=fetcher.plain), kind=SourceKind.CATALOG)
        return Source(url=site_address(given, fetcher), kind=SourceKind.SITE)
    except UnfitAddress as error:
        raise ValueError(str(error)) from None


def places_of_this_machine(sources: Iterable[str]) -> list[str]:
    """Return the hosts, with their ports, of sources on this machine, for an egress policy.

    An operator who names them wants them read.
    """
    found: dict[str, None] = {}
    for text in sources:
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname or "", parts.port
        except ValueError:
            continue
        if is_this_machine(host):
            port = port or (443 if parts.scheme == "https" else 80)
            shape = f"[{host}]" if ":" in host else host
            found[f"{shape}:{port}"] = None
    return list(found)
