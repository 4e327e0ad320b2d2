"""HTTP Bearer with a token that a function of the operator's judges (RFC 6750)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from parley.model.cards import HTTPAuthSecurityScheme, SecurityScheme
from parley.model.service import Caller
from parley.security.evidence import Evidence
from parley.security.schemes.challenge import bearer_challenge
from parley.security.schemes.scheme import CredentialsRefused, Proof, Scheme, checked_name

Judge = Callable[[str], Caller | Awaitable[Caller | None] | None]
"""Returns the caller of a token, ``None`` for a token that it does not accept."""


class Bearer(Scheme):
    """A bearer token of any kind. ``judge`` returns whose it is, with its ``scopes``, or ``None``.

    It runs on the event loop for every request: what takes time is an ``async def``.
    """

    credential = "bearer"

    def __init__(
        self, judge: Judge, *, name: str = "bearer", format: str = "", description: str = ""
    ) -> None:
        if not callable(judge):
            raise TypeError(f"Bearer takes a function of a token, not {judge!r}")
        self.name = checked_name(name)
        self._judge = judge
        self._format = format
        self._description = description

    def __repr__(self) -> str:
        return f"Bearer({self.name!r})"

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(
                scheme="Bearer", bearer_format=self._format, description=self._description
            )
        )

    def is_presented(self, evidence: Evidence) -> bool:
        """Return whether a request has a bearer token."""
        return any(scheme == "bearer" for scheme, _ in evidence.authorization)

    async def verify(self, evidence: Evidence) -> Proof:
        """Return what the token proves. Raises ``CredentialsRefused``."""
        token = bearer_token(evidence)
        caller = self._judge(token)
        if inspect.isawaitable(caller):
            caller = await caller
        if caller is None:
            raise CredentialsRefused("an unknown token", "the bearer token is not accepted here")
        caller = replace(caller, authenticated=True, issuer=caller.issuer or self.name)
        return Proof(caller, caller.scopes)

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return the value of ``WWW-Authenticate`` that asks for a token."""
        return bearer_challenge(error=error, scopes=scopes)


def bearer_token(evidence: Evidence) -> str:
    """Return the only bearer token of a request. Raises ``CredentialsRefused``."""
    found = [credentials for scheme, credentials in evidence.authorization if scheme == "bearer"]
    if len(found) != 1 or len(evidence.authorization) != 1:
        raise CredentialsRefused("several Authorization headers", "send one Authorization header")
    if not found[0] or not found[0].isascii() or " " in found[0]:
        raise CredentialsRefused("a malformed bearer token", "send Authorization: Bearer <token>")
    return found[0]
