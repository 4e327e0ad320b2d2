"""A security scheme: its place on the card, what of a request it reads, and its verdict."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from parley.model.cards import SecurityRequirement, SecurityScheme, StringList
from parley.model.errors import UnauthenticatedError, an
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.model.service import ANONYMOUS, Caller
from parley.security.evidence import Evidence
from parley.security.evidence import SchemeResources as SchemeResources

# -- challenge --------------------------------------------------------------------------------


def challenge(scheme: str, **parameters: str) -> str:
    """Return a challenge; parameters without a value are left out."""
    given = (f'{name}="{_quoted(value)}"' for name, value in parameters.items() if value)
    return f"{scheme} {', '.join(given)}".strip()


def bearer_challenge(*, error: str = "", scopes: Sequence[str] = (), **parameters: str) -> str:
    """Return the challenge for a bearer token (RFC 6750 §3)."""
    return challenge("Bearer", error=error, scope=" ".join(scopes), **parameters)


def with_parameter(challenge: str, name: str, value: str) -> str:
    """Return a challenge with one more parameter, which comes first."""
    scheme, _, parameters = challenge.partition(" ")
    return f'{scheme} {name}="{_quoted(value)}"' + (f", {parameters}" if parameters else "")


def _quoted(value: str) -> str:
    printable = "".join(char for char in value if " " <= char <= "~")
    return printable.replace("\\", "\\\\").replace('"', '\\"')


# -- scheme -----------------------------------------------------------------------------------

DIFFERENT_PEOPLE = "the credentials are those of different people: send those of one"


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


def refused_again(refusal: CredentialsRefused) -> CredentialsRefused:
    """Return the same refusal for another request: an error is raised once."""
    return CredentialsRefused(refusal.reason, refusal.description, is_foreign=refusal.is_foreign)


class Proof(msgspec.Struct, frozen=True):
    """What credentials prove: the caller, and the scopes that they carry."""

    caller: Caller
    scopes: frozenset[str] = frozenset()


def proof_of(caller: Caller, name: str, what: str) -> Proof:
    """Return what credentials of a caller prove, by the scheme of a name.

    Raises ``TypeError``, which begins with ``what``, for anything else than a caller.
    """
    if not isinstance(caller, Caller):
        raise TypeError(f"{what} {an(type(caller).__name__)}")
    caller = replace(caller, authenticated=True, issuer=caller.issuer or name)
    return Proof(caller, caller.scopes)


async def asked(
    function: Callable[..., Caller | Awaitable[Caller | None] | None], *given: str
) -> Caller | None:
    """Return what an author's function returns; a plain ``def`` runs in a thread."""
    if inspect.iscoroutinefunction(function):
        found: Caller | None = await function(*given)
        return found
    returned = await asyncio.to_thread(function, *given)
    return await returned if inspect.isawaitable(returned) else returned


class Granted(dict["Scheme", frozenset[str]]):
    """The scopes that were granted, by scheme.

    ``proofs`` is what each scheme proved; ``own`` are the schemes that proved the caller, the
    others its application.
    """

    def __init__(self, proofs: Mapping[Scheme, Proof], own: Collection[Scheme]) -> None:
        super().__init__({scheme: proof.scopes for scheme, proof in proofs.items()})
        self.proofs = dict(proofs)
        self.own = own


def caller_proved_by(proofs: Mapping[Scheme, Proof]) -> Caller:
    """Return the caller whom schemes prove together; anonymous without any.

    It is the person, and of several applications the first; an application beside a person is the
    ``client``. Only the scopes of its own credentials are the caller's. Raises
    ``UnauthenticatedError`` for credentials of different people. One credential may be that of
    several: then the first scheme says who it is.
    """
    if not proofs:
        return ANONYMOUS
    found = [proof.caller for proof in proofs.values()]
    caller, client, own = found[0], found[0].client, proofs
    if len(found) > 1:
        people: dict[str, set[str]] = {}
        for scheme, proof in proofs.items():
            if not proof.caller.is_application:
                people.setdefault(scheme.credential or scheme.name, set()).add(proof.caller.id)
        same = set.intersection(*people.values()) if people else set()
        if people and not same:
            raise UnauthenticatedError(DIFFERENT_PEOPLE)
        caller = next((one for one in found if not one.is_application and one.id in same), caller)
        client = caller.client or next((one.client for one in found if one.client), "")
        who = (caller.id, caller.is_application)
        own = {
            scheme: proof
            for scheme, proof in proofs.items()
            if (proof.caller.id, proof.caller.is_application) == who
        }
    scopes: frozenset[str] = frozenset().union(*[proof.scopes for proof in own.values()])
    return replace(caller, client=client, granted=Granted(proofs, own), scopes=scopes)


class Requirement(msgspec.Struct, frozen=True):
    """A scheme, with the scopes that its credentials must carry."""

    scheme: Scheme
    scopes: tuple[str, ...] = ()


class Security:
    """The proof that a caller needs: alternatives, each a combination of schemes.

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
            and _is_of(caller, needs)
            for needs in self.alternatives
        )

    def missing_scopes(self, caller: Caller) -> tuple[str, ...] | None:
        """Return the scopes that an alternative lacks whose schemes are all proved.

        ``None`` if no alternative has them all: then credentials are missing, not scopes.
        """
        for needs in self.alternatives:
            if all(each.scheme in caller.granted for each in needs):
                is_own = _is_of(caller, needs)
                lacking = {
                    scope
                    for each in needs
                    for scope in each.scopes
                    if not (is_own and scope in caller.granted[each.scheme])
                }
                if lacking or is_own:
                    return tuple(sorted(lacking))
        return None

    def declared(self) -> tuple[SecurityRequirement, ...]:
        """Return the requirements as a card has them (specification §4.5)."""
        return tuple(
            SecurityRequirement(
                schemes={each.scheme.name: StringList(list=each.scopes) for each in needs}
            )
            for needs in self.alternatives
        )


def _is_of(caller: Caller, needs: Collection[Requirement]) -> bool:
    """Return whether one of the schemes proved the caller: what only its application proved says
    nothing of it.
    """
    granted = caller.granted
    return (
        not needs
        or not isinstance(granted, Granted)
        or any(each.scheme in granted.own for each in needs)
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
