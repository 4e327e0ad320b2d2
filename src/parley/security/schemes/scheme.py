"""A security scheme: its place on the card, what of a request it reads, and its verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from parley.model.ids import RIGHT_NAME, may_be_name
from parley.model.schemes import SecurityRequirement, SecurityScheme, StringList
from parley.model.service import ANONYMOUS, Caller
from parley.security.evidence import Evidence
from parley.security.resources import SchemeResources as SchemeResources


class CredentialsRefused(Exception):
    """Credentials that do not prove who sends them.

    ``reason`` is for the server's log and counts, without any part of the credentials; callers
    are told ``description`` only, which says how to get it right. ``is_foreign``: they may be for
    another scheme that reads the same credential, such as a token of another issuer.
    """

    def __init__(self, reason: str, description: str = "", *, is_foreign: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.description = description
        self.is_foreign = is_foreign


class Proof(msgspec.Struct, frozen=True):
    """What credentials prove: the caller, and the scopes that they carry."""

    caller: Caller
    scopes: frozenset[str] = frozenset()


class Granted(dict["Scheme", frozenset[str]]):
    """The scopes that were granted, by scheme; ``proofs`` is what each scheme proved."""

    def __init__(self, proofs: Mapping[Scheme, Proof]) -> None:
        super().__init__({scheme: proof.scopes for scheme, proof in proofs.items()})
        self.proofs = dict(proofs)


def caller_proved_by(proofs: Mapping[Scheme, Proof]) -> Caller:
    """Return the caller whom schemes prove together; anonymous without any.

    The first scheme says who it is, and the others may add the application.
    """
    caller = ANONYMOUS
    for proof in proofs.values():
        if caller is ANONYMOUS:
            caller = proof.caller
        elif not caller.client:
            caller = replace(caller, client=proof.caller.client)
    if not proofs:
        return caller
    granted = Granted(proofs)
    return replace(caller, granted=granted, scopes=frozenset().union(*granted.values()))


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

    def claimed(self, evidence: Evidence) -> str:
        """Return the id that presented credentials claim, unverified; empty if they name none.

        Failures are counted for it. It costs next to nothing, and raises nothing.
        """
        return ""

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return the value of ``WWW-Authenticate`` that asks for such credentials, or nothing.

        ``error`` is a code of RFC 6750, such as ``invalid_token``.
        """
        return ""

    async def knows(self, id: str, resources: SchemeResources) -> bool:
        """Return whether somebody with this id has credentials, as far as that is known here."""
        return False

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


def security_of(given: Scheme | Security, what: str) -> Security:
    """Return a requirement, whose place is ``what``. Raises ``TypeError`` for anything else."""
    if not isinstance(given, Scheme | Security):
        raise TypeError(
            f"{what} is a scheme of parley.security, such as ApiKey() or Bearer(judge), or several "
            f"that are combined with & and |, not {given!r:.100}"
        )
    return given.security


def checked_name(name: str) -> str:
    """Return the name of a scheme, which is part of the identity of its callers.

    Raises ``ValueError``.
    """
    if not isinstance(name, str) or not name or not may_be_name(name):
        raise ValueError(
            f"the name of a security scheme, its key on the card, is text of {RIGHT_NAME}; it is "
            f"not {name!r:.200}"
        )
    return name


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
