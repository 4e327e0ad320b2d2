"""Evidence: the facts of a request about its sender, in the same form for every binding."""

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

    ``store`` is the server's store, for kept data. ``egress`` restricts the addresses from which
    keys and metadata are fetched; an issuer that the operator names may be on any host. ``now``
    returns the time in seconds since the epoch. ``failures`` counts rejected credentials; a scheme
    that delays requests before verification checks it again after the delay.
    """

    store: SecurityStore | None = None
    egress: Egress = Egress()
    now: Callable[[], float] = time.time
    failures: Failures = msgspec.field(default_factory=Failures)


MAX_COOKIES = 100

JUDGED_AGAIN = "parley.judged_again"
"""The key in the ASGI scope that marks a repeated check of an open request. Failures of other
requests from its address do not count against it.
"""


class Evidence:
    """The credentials of a request as they were sent. Nothing is verified.

    ``scope`` is the ASGI scope of the request; HTTP and gRPC requests have the same form. Header
    names are in lower case. ``resources`` belong to the server that received the request, since
    several servers may use a scheme.
    """

    def __init__(self, scope: Mapping[str, Any], resources: SchemeResources | None = None) -> None:
        self.scope = scope
        self.resources = resources

    def now(self) -> float:
        """Return the server's time in seconds since the epoch."""
        return time.time() if self.resources is None else self.resources.now()

    def check_failures(self) -> None:
        """Reject a delayed request if its address has failed too often in the meantime.

        Raises ``TooManyRequestsError``.
        """
        self.check_claims(())

    def check_claims(self, claims: Iterable[Hashable]) -> None:
        """Reject credentials whose claimed ids have failed too often, as ``Failures.check``
        does."""
        if self.resources is not None and JUDGED_AGAIN not in self.scope:
            self.resources.failures.check(self.scope, claims)

    def headers(self, name: bytes) -> list[str]:
        """Return all values of a header."""
        return [value.decode("latin-1") for key, value in self.scope["headers"] if key == name]

    @cached_property
    def authorization(self) -> list[tuple[str, str]]:
        """The ``Authorization`` headers: scheme in lower case, and credentials, of each."""
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
        """The IP address of the peer, empty if it has none.

        With ``trust_proxy``, this may be an address from a proxy header.
        """
        client = self.scope.get("client")
        return client[0] if client else ""

    @property
    def connection_address(self) -> str:
        """The IP address of the connection itself, independent of proxy headers.

        A server other than Parley's may have replaced it with a forwarded address.
        """
        return connection_address(self.scope)

    @property
    def certificate_error(self) -> str:
        """The reason why the handshake did not verify the certificate; empty if it did."""
        return self._tls.get("client_cert_error") or ""

    @property
    def certificate_chain(self) -> tuple[str, ...]:
        """The certificates (PEM) that the peer proved to own, its own certificate first."""
        return tuple(self._tls.get("client_cert_chain") or ())

    @property
    def _tls(self) -> Mapping[str, Any]:
        return (self.scope.get("extensions") or {}).get("tls") or {}
