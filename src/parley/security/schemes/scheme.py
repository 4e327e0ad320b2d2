"""A security scheme: its entry on the card, the credentials that it reads, and its verdict."""

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
    """Return a challenge with one more parameter in front."""
    scheme, _, parameters = challenge.partition(" ")
    return f'{scheme} {name}="{_quoted(value)}"' + (f", {parameters}" if parameters else "")


def _quoted(value: str) -> str:
    printable = "".join(char for char in value if " " <= char <= "~")
    return printable.replace("\\", "\\\\").replace('"', '\\"')


# -- scheme -----------------------------------------------------------------------------------

DIFFERENT_PEOPLE = "the credentials belong to different people: send the credentials of one"


class CredentialsRefused(Exception):
    """The credentials do not prove a caller.

    ``reason`` is for the server's log and counters, and contains no part of the credentials.
    ``description`` is for the caller, and says what valid credentials are. ``is_foreign`` means
    that the credentials may be for another scheme that reads them too, such as a token of another
    issuer.
    """

    def __init__(self, reason: str, description: str = "", *, is_foreign: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.description = description
        self.is_foreign = is_foreign


def refused_again(refusal: CredentialsRefused) -> CredentialsRefused:
    """Return a copy of an error for another request, since an instance is raised only once."""
    return CredentialsRefused(refusal.reason, refusal.description, is_foreign=refusal.is_foreign)


class Proof(msgspec.Struct, frozen=True):
    """The proof by credentials: the caller, and the scopes that were granted."""

    caller: Caller
    scopes: frozenset[str] = frozenset()


def proof_of(caller: Caller, name: str, what: str) -> Proof:
    """Return the proof for a caller, by the scheme with this name.

    Raises ``TypeError``, beginning with ``what``, if ``caller`` is not a ``Caller``.
    """
    if not isinstance(caller, Caller):
        raise TypeError(f"{what} {an(type(caller).__name__)}")
    caller = replace(caller, authenticated=True, issuer=caller.issuer or name)
    return Proof(caller, caller.scopes)


async def asked(
    function: Callable[..., Caller | Awaitable[Caller | None] | None], *given: str
) -> Caller | None:
    """Return the result of an author's function; a plain ``def`` runs in a thread."""
    if inspect.iscoroutinefunction(function):
        found: Caller | None = await function(*given)
        return found
    returned = await asyncio.to_thread(function, *given)
    return await returned if inspect.isawaitable(returned) else returned


class Granted(dict["Scheme", frozenset[str]]):
    """The granted scopes, by scheme.

    ``proofs`` has the proof of each scheme. ``own`` are the schemes that proved the caller; the
    others proved its application.
    """

    def __init__(self, proofs: Mapping[Scheme, Proof], own: Collection[Scheme]) -> None:
        super().__init__({scheme: proof.scopes for scheme, proof in proofs.items()})
        self.proofs = dict(proofs)
        self.own = own


def caller_proved_by(proofs: Mapping[Scheme, Proof]) -> Caller:
    """Return the caller that schemes prove together, the anonymous caller if there are none.

    The caller is the person, or the first application if there is no person. An application next to
    a person becomes ``client``. The caller has only the scopes of its own credentials. If one
    credential satisfies several schemes, the first scheme determines the caller. Raises
    ``UnauthenticatedError`` for credentials of different people.
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
    """A scheme, and the scopes that its credentials need."""

    scheme: Scheme
    scopes: tuple[str, ...] = ()


class Security:
    """A requirement for callers: alternatives, each a combination of schemes.

    ``a | b`` accepts either, ``a & b`` needs both; ``scheme.with_scopes("read")`` needs scopes too.
    An alternative without schemes accepts everyone.
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
        """The requirement itself. Schemes have the same property."""
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
        """True if requests without credentials are accepted."""
        return any(not needs for needs in self.alternatives)

    def is_met(self, caller: Caller) -> bool:
        """Return whether a caller has proved one of the alternatives, including its scopes."""
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
        """Return the missing scopes of an alternative whose schemes are all proved.

        Returns ``None`` if there is no such alternative: then credentials are missing, not scopes.
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
        """Return the requirements in the form of a card (specification §4.5)."""
        return tuple(
            SecurityRequirement(
                schemes={each.scheme.name: StringList(list=each.scopes) for each in needs}
            )
            for needs in self.alternatives
        )


def _is_of(caller: Caller, needs: Collection[Requirement]) -> bool:
    """Return whether one of the schemes proved the caller itself.

    A scheme that only proved the caller's application does not count.
    """
    granted = caller.granted
    return (
        not needs
        or not isinstance(granted, Granted)
        or any(each.scheme in granted.own for each in needs)
    )


class Scheme(ABC):
    """A method of authentication. Two schemes are equal only if they are the same object.

    ``name`` is its key on the card. Schemes with the same ``credential`` read the same credential
    of a request, such as the bearer token, and one of them has to accept it; a scheme without has
    its own credential. ``authorization_servers`` are the issuers of its tokens, and ``scopes`` the
    scopes that a client can request from them (RFC 9728).
    """

    name: str
    credential: str = ""
    authorization_servers: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()

    # -- methods of a scheme ---------------------------------------------------------------------

    @abstractmethod
    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""

    @abstractmethod
    def is_presented(self, evidence: Evidence) -> bool:
        """Return whether a request has credentials of this kind, valid or not. Does no I/O."""

    @abstractmethod
    def verify(self, evidence: Evidence) -> Proof | Awaitable[Proof]:
        """Return the proof of the presented credentials.

        Raises ``CredentialsRefused``, and ``OverloadedError`` if verification is impossible now.
        """

    def claimed(self, evidence: Evidence) -> str:
        """Return the unverified id in the presented credentials, empty if they name none.

        Failures are counted by it. It must be cheap, and must not raise.
        """
        return ""

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return the ``WWW-Authenticate`` value that asks for such credentials; may be empty.

        ``error`` is a code of RFC 6750, such as ``invalid_token``.
        """
        return ""

    async def knows(self, id: str, resources: SchemeResources) -> bool:
        """Return whether the id is known to have credentials for this scheme."""
        return False

    async def start(self, resources: SchemeResources) -> None:  # noqa: B027
        """Prepare the verification. Requests to a network should be left to the first use."""

    async def close(self) -> None:  # noqa: B027
        """Release the resources of ``start`` and ``verify``."""

    # -- combining ------------------------------------------------------------------------------

    @property
    def security(self) -> Security:
        """The requirement of this scheme alone, without scopes."""
        return Security([(Requirement(self),)])

    def with_scopes(self, *scopes: str) -> Security:
        """Return the requirement of this scheme with all these scopes."""
        return Security([(Requirement(self, tuple(dict.fromkeys(scopes))),)])

    def __or__(self, other: Security | Scheme) -> Security:
        return self.security | other

    def __and__(self, other: Security | Scheme) -> Security:
        return self.security & other


def security_of(given: Scheme | Security, what: str) -> Security:
    """Return a requirement. Raises ``TypeError``, which names ``what``, for any other object."""
    if not isinstance(given, Scheme | Security):
        raise TypeError(
            f"{what} is a scheme of parley.security, such as ApiKey() or Bearer(judge), or several "
            f"that are combined with & and |, not {given!r:.100}"
        )
    return given.security


def checked_name(name: str) -> str:
    """Return the name of a scheme, which becomes part of its callers' identity.

    Raises ``ValueError``.
    """
    if not isinstance(name, str) or not name or not may_be_name(name):
        raise ValueError(
            f"the name of a security scheme, its key on the card, is text of {RIGHT_NAME}; it is "
            f"not {name!r:.200}"
        )
    return name


anonymous = Security([()])
"""Accepts everyone: ``scheme | anonymous`` verifies credentials if there are some."""


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
