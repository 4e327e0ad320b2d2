"""Evidence: a request's facts about its sender, whatever binding it came over."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from parley.security.egress import Egress
from parley.security.failures import Failures
from parley.security.limits.usage import SecurityStore
from parley.security.networks import connection_address


class SchemeResources(msgspec.Struct, frozen=True, kw_only=True):
    """The server's resources for the schemes of its agents.

    ``store`` is the server's store, for kept data. ``egress`` restricts where keys and
    metadata are fetched from; an issuer that the operator names may be on any host. ``now`` returns
    the time in seconds since the epoch. ``failures`` counts refused credentials: a scheme that
    makes requests wait before it verifies them asks it again then.
    """

    store: SecurityStore | None = None
    egress: Egress = Egress()
    now: Callable[[], float] = time.time
    failures: Failures = msgspec.field(default_factory=Failures)


MAX_COOKIES = 100

JUDGED_AGAIN = "parley.judged_again"
"""The key in the scope of a request that was let in, and whose credentials are judged again: others
that failed from its address do not count.
"""


class Evidence:
    """The credentials of a request, as they were sent; nothing is verified.

    ``scope`` is the request's ASGI scope: HTTP and gRPC requests have the same form. Header names
    are in lower case. ``resources`` are those of the server that the request came to: one scheme
    may serve several.
    """

    def __init__(self, scope: Mapping[str, Any], resources: SchemeResources | None = None) -> None:
        self.scope = scope
        self.resources = resources

    def now(self) -> float:
        """Return the server's time in seconds since the epoch."""
        return time.time() if self.resources is None else self.resources.now()

    def check_failures(self) -> None:
        """Refuse a request that waited while others from its address failed.

        Raises ``TooManyRequestsError``.
        """
        self.check_claims(())

    def check_claims(self, claims: Iterable[Hashable]) -> None:
        """Refuse a request with credentials that claim ids, as ``Failures.check`` does."""
        if self.resources is not None and JUDGED_AGAIN not in self.scope:
            self.resources.failures.check(self.scope, claims)

    def headers(self, name: bytes) -> list[str]:
        """Return all values of a header."""
        return [value.decode("latin-1") for key, value in self.scope["headers"] if key == name]

    @cached_property
    def authorization(self) -> list[tuple[str, str]]:
        """The ``Authorization`` headers, each as its scheme in lower case and its credentials."""
        found = []
        for value in self.headers(b"authorization"):
            scheme, _, credentials = value.strip().partition(" ")
            found.append((scheme.lower(), credentials.strip()))
        return found

    @cached_property
    def query(self) -> list[tuple[str, str]]:
        """The query parameters."""
        return parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)

    @cached_property
    def cookies(self) -> list[tuple[str, str]]:
        """The first cookies."""
        pairs = "; ".join(self.headers(b"cookie")).split(";", MAX_COOKIES)[:MAX_COOKIES]
        parts = (pair.partition("=") for pair in pairs)
        return [(name.strip(), value.strip()) for name, _, value in parts]

    @property
    def address(self) -> str:
        """The IP address of the connection's other end; empty if it has none.

        Where proxy headers are believed (``trust_proxy``), it may be the one that they name.
        """
        client = self.scope.get("client")
        return client[0] if client else ""

    @property
    def connection_address(self) -> str:
        """The IP address of the connection itself, whatever proxy headers say.

        Another server than this package's may have put a forwarded address in its place.
        """
        return connection_address(self.scope)

    @property
    def certificate_error(self) -> str:
        """Why the handshake did not verify the certificate; empty if it did."""
        return self._tls.get("client_cert_error") or ""

    @property
    def certificate_chain(self) -> tuple[str, ...]:
        """The certificates (PEM) that the other end proved to have, its own first."""
        return tuple(self._tls.get("client_cert_chain") or ())

    @property
    def _tls(self) -> Mapping[str, Any]:
        return (self.scope.get("extensions") or {}).get("tls") or {}
