"""Requests with tokens, in the form that schemes get."""

from __future__ import annotations

import inspect
from typing import Any

from parley.security.egress import Egress
from parley.security.evidence import Evidence
from parley.security.schemes.scheme import Proof, Scheme, SchemeResources


class Clock:
    """A server's clock, set by a test."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def bearing(*tokens: str, certificates: tuple[str, ...] = ()) -> Evidence:
    """Return the evidence of a request with bearer tokens."""
    scope: dict[str, Any] = {
        "headers": [(b"authorization", f"Bearer {token}".encode("latin-1")) for token in tokens],
        "query_string": b"",
        "extensions": {"tls": {"client_cert_chain": list(certificates)}},
    }
    return Evidence(scope)


async def verified(scheme: Scheme, token: str, **options: Any) -> Proof:
    """Return a scheme's result for a token."""
    found = scheme.verify(bearing(token, **options))
    return await found if inspect.isawaitable(found) else found


async def at(scheme: Scheme, clock: Clock, egress: Egress | None = None) -> None:
    """Start a scheme with its own clock."""
    await scheme.start(SchemeResources(now=clock, egress=egress or Egress()))
