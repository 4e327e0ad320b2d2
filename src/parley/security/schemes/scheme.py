"""A security scheme: its place on the card, what of a request it reads, and its verdict."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from parley.model.schemes import SecurityRequirement, SecurityScheme, StringList
from parley.model.service import Caller
from parley.security.egress import Egress
from parley.security.evidence import Evidence


class CredentialsRefused(Exception):
    """Credentials that do not prove who sends them.

    ``reason`` is for the server's log and counts, without any part of the credentials; callers
    are told ``description`` only, which says how to get it right.
    """

    def __init__(self, reason: str, description: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.description = description


class Proof(msgspec.Struct, frozen=True):
    """What credentials prove: the caller, and the scopes that they carry."""

    caller: Caller
    scopes: frozenset[str] = frozenset()


class Requirement(msgspec.Struct, frozen=True):
    """A scheme, with the scopes that its credentials must carry."""

    scheme: Scheme
    scopes: tuple[str, ...] = ()


class Security:
    """What a caller has to prove: one of several alternatives, each a combination of schemes.

    ``a | b`` accepts either, ``a & b`` needs both; ``scheme.with_scopes("read")`` needs scopes too.
    An alternative without schemes lets everyone in.
    """

    def __init__(self, alternatives: Sequence[tuple[Requirement, ...]]) -> None:
        self.alternatives = tuple(dict.fromkeys(alternatives))

    def __repr__(self) -> str:
        return " | ".join(
            " & ".join(
                f"{each.scheme!r}.with_scopes{each.scopes!r}" if each.scopes else repr(each.scheme)
                for each in alternative
            )
            or "anonymous"
            for alternative in self.alternatives
        )

    @property
    def security(self) -> Security:
        """The requirement itself: schemes have the same property."""
        return self

    def __or__(self, other: Security | Scheme) -> Security:
        return Security((*self.alternatives, *other.security.alternatives))

    def __and__(self, other: Security | Scheme) -> Security:
        return Security(
            [
                tuple(dict.fromkeys((*mine, *theirs)))
                for mine in self.alternatives
                for theirs in other.security.alternatives
            ]
        )

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The schemes of all alternatives."""
        return tuple(dict.fromkeys(each.scheme for needs in self.alternatives for each in needs))

    @property
    def is_open(self) -> bool:
        """Whether a request without credentials passes."""
        return any(not needs for needs in self.alternatives)

    def is_met(self, caller: Caller) -> bool:
        """Return whether a caller has proved one of the alternatives, scopes included."""
        return any(
            all(
                each.scheme in caller.granted
                and caller.granted[each.scheme].issuperset(each.scopes)
                for each in needs
            )
            for needs in self.alternatives
        )

    def missing_scopes(self, caller: Caller) -> tuple[str, ...] | None:
        """Return the scopes that an alternative lacks whose schemes are all proved.

        ``None`` if no alternative has them all: then credentials are missing, not scopes.
        """
        for needs in self.alternatives:
            if all(each.scheme in caller.granted for each in needs):
                lacking = (set(each.scopes) - caller.granted[each.scheme] for each in needs)
                return tuple(sorted(set().union(*lacking)))
        return None

    def declared(self) -> tuple[SecurityRequirement, ...]:
        """Return the requirements as a card has them (specification §4.5)."""
        return tuple(
            SecurityRequirement(
                schemes={each.scheme.name: StringList(list=each.scopes) for each in needs}
            )
            for needs in self.alternatives
        )


class SchemeResources(msgspec.Struct, frozen=True, kw_only=True):
    """What a server lends the schemes of its agents.

    ``store`` is the server's store, for what is kept there. ``egress`` restricts where keys and
    metadata are fetched from; an issuer that the operator names may be on any host. ``now`` returns
    the time in seconds since the epoch.
    """

    store: Any = None
    egress: Egress = Egress()
    now: Callable[[], float] = time.time


class Scheme(ABC):
    """One way to prove who calls. Two schemes are equal only if they are the same object.

    ``name`` is its key on the card. Schemes with the same ``credential`` read the same one of a
    request, such as the bearer token, and one of them has to accept it; without, a scheme has one
    of its own. ``authorization_servers`` are the issuers of its tokens, and ``scopes`` those that
    a client can ask them for (RFC 9728).
    """

    name: str
    credential: str = ""
    authorization_servers: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()

    # -- what a scheme implements ----------------------------------------------------------------

    @abstractmethod
    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""

    @abstractmethod
    def is_presented(self, evidence: Evidence) -> bool:
        """Return whether a request has credentials of this kind, valid or not. It does no I/O."""

    @abstractmethod
    def verify(self, evidence: Evidence) -> Proof | Awaitable[Proof]:
        """Return what presented credentials prove.

        Raises ``CredentialsRefused``, and ``OverloadedError`` if that cannot be found out now.
        """

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return the value of ``WWW-Authenticate`` that asks for such credentials, or nothing.

        ``error`` is a code of RFC 6750, such as ``invalid_token``.
        """
        return ""

    async def start(self, resources: SchemeResources) -> None:  # noqa: B027
        """Prepare to verify. What a network has to answer may as well wait for the first use."""

    async def close(self) -> None:  # noqa: B027
        """Free what ``start`` and ``verify`` hold."""

    # -- combining ------------------------------------------------------------------------------

    @property
    def security(self) -> Security:
        """The requirement of this scheme alone, without scopes."""
        return Security([(Requirement(self),)])

    def with_scopes(self, *scopes: str) -> Security:
        """Return the requirement of credentials of this scheme that carry all these scopes."""
        return Security([(Requirement(self, tuple(dict.fromkeys(scopes))),)])

    def __or__(self, other: Security | Scheme) -> Security:
        return self.security | other

    def __and__(self, other: Security | Scheme) -> Security:
        return self.security & other


anonymous = Security([()])
"""Lets everyone in: ``scheme | anonymous`` verifies credentials where there are some."""


def card_schemes(securities: Sequence[Security]) -> dict[str, SecurityScheme]:
    """Return the schemes of a card by name. Raises ``ValueError`` if two share a name."""
    found: dict[str, Scheme] = {}
    for scheme in (each for security in securities for each in security.schemes):
        other = found.setdefault(scheme.name, scheme)
        if other is not scheme:
            raise ValueError(
                f"two security schemes of one agent are named {scheme.name!r}: use one object for "
                "both, or give one of them another name=..."
            )
    return {name: scheme.declared() for name, scheme in found.items()}
