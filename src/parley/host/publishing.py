"""Whether a server publishes a catalog, and as whom: from options and the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from parley.model.catalog.entries import CATALOG_PATH
from parley.model.catalog.urn import is_within
from parley.security.networks import is_loopback, is_plain_public
from parley.server.cards.publication import NAMESPACE, Publication

log = logging.getLogger("parley.host")

PUBLISHER_VARIABLE = "PARLEY_PUBLISHER"
NAMESPACE_VARIABLE = "PARLEY_NAMESPACE"


def read_publication(
    publisher: str | None,
    namespace: str | None = None,
    unlisted: Iterable[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
) -> Publication | None:
    """Return the publication of a server, ``None`` if it publishes nothing.

    ``None`` for an option leaves it to the environment. Raises ``ValueError`` for what is no domain
    or namespace, and for options that mean nothing without a publisher.
    """
    unlisted = unlisted if isinstance(unlisted, str) else tuple(unlisted)
    domain = environ.get(PUBLISHER_VARIABLE, "") if publisher is None else publisher
    if domain == "":
        given = [*(["namespace"] if namespace else []), *(["unlisted"] if unlisted else [])]
        if given:
            raise ValueError(
                f"{given[0]}= is about the catalog of a server, which publishes one if it has a "
                "publisher= (a domain such as example.com)"
            )
        return None
    if namespace is None:
        namespace = environ.get(NAMESPACE_VARIABLE) or NAMESPACE
    return Publication.of(domain, namespace, unlisted)


def log_publication(publication: Publication, url: str | None, tenants: Iterable[str] = ()) -> None:
    """Log whose names a catalog shows, and warn of an address that registries do not trust."""
    listed = sorted(set(tenants) - publication.unlisted)
    if listed:
        log.info(
            "the catalog names the tenants %s; unlisted= (--unlisted) leaves out one",
            ", ".join(listed),
        )
    parts = urlsplit(url or "")
    host = parts.hostname
    if url is not None and is_plain_public(url):
        log.warning(
            "the catalog is at %s, which is not encrypted: registries do not trust it, and list "
            "none of its agents; give an https:// address (url)",
            url,
        )
    if parts.path.strip("/"):
        log.warning(
            "registries look for a catalog at %s://%s%s, and it is below %s: have the proxy pass "
            "that path on, or set the DNS records that parley catalog dns --url %s prints",
            parts.scheme,
            parts.netloc.rpartition("@")[2],
            CATALOG_PATH,
            parts.path,
            url,
        )
    is_here = is_loopback(host or "") and publication.publisher.endswith(".localhost")
    if host and not is_here and not is_within(host, publication.publisher):
        log.warning(
            "the agents are published as those of %s, and the catalog is at %s, which is not below "
            "that domain: registries that read it there do not list them; serve it below the "
            "domain (url), or prove the domain to the registry and publish the agents there",
            publication.publisher,
            host,
        )
