"""The choice of credentials: from what a card requires to what is sent (specification §4.5, §8.4).

The first alternative counts whose schemes all have a credential. A message to a skill needs what
the agent requires and what the skill requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from parley.client.auth.credential import Credential
from parley.model.cards import AgentCard, SecurityRequirement, SecurityScheme
from parley.model.operations import SendMessageRequest, named_skill
from parley.model.struct import A2AStruct

MAX_ALTERNATIVES = 64
"""The combinations of an agent's and a skill's alternatives that are looked at."""

Alternative = Mapping[str, tuple[str, ...]]
"""The scopes that are needed, by the name of the scheme."""


class Chosen(NamedTuple):
    """A credential for one scheme of a card, with the scopes that are needed."""

    credential: Credential
    name: str
    scheme: SecurityScheme | None
    scopes: tuple[str, ...]


def skill_of(request: A2AStruct | None) -> str:
    """Return the skill that a message names, empty for none."""
    if not isinstance(request, SendMessageRequest):
        return ""
    named = named_skill(request.message, request.metadata)
    return named if isinstance(named, str) else ""


def alternatives(card: AgentCard, skill: str) -> list[Alternative]:
    """Return the alternatives of a card for a message to a skill; none if nothing is required."""
    own = [_scopes_of(each) for each in card.security_requirements]
    of_skill = next(
        (
            [_scopes_of(each) for each in offered.security_requirements]
            for offered in card.skills
            if skill and offered.id == skill
        ),
        [],
    )
    if not own or not of_skill:
        return own or of_skill
    joined = (_joined(mine, theirs) for mine in own for theirs in of_skill)
    return list(islice(joined, MAX_ALTERNATIVES))


def choose_credentials(
    card: AgentCard, skill: str, given: Sequence[Credential]
) -> list[Chosen] | None:
    """Return the credentials to send; ``None`` if the card requires others.

    Without credentials an alternative without schemes counts; with some it counts last.
    """
    wanted = alternatives(card, skill)
    if not wanted:
        return _unasked(card, given)
    for alternative in sorted(wanted, key=lambda each: not each) if given else wanted:
        found = _for_alternative(card, alternative, given)
        if found is not None:
            return found
    return None


def _for_alternative(
    card: AgentCard, alternative: Alternative, given: Sequence[Credential]
) -> list[Chosen] | None:
    found: list[Chosen] = []
    for name, scopes in alternative.items():
        scheme = card.security_schemes.get(name)
        fitting = scheme and next((each for each in given if each.fits(scheme)), None)
        if not fitting:
            return None
        found.append(Chosen(fitting, name, scheme, scopes))
    return found


def _unasked(card: AgentCard, given: Sequence[Credential]) -> list[Chosen]:
    """Return what to send to an agent that declares no requirement."""
    found = []
    for credential in given:
        for name, scheme in card.security_schemes.items():
            if credential.fits(scheme):
                found.append(Chosen(credential, name, scheme, ()))
                break
        else:
            if not card.security_schemes and credential.fits_without_scheme(frozenset()):
                found.append(Chosen(credential, "", None, ()))
    return found


def describe(card: AgentCard, skill: str = "") -> str:
    """Return what a card requires, in words."""
    each = [
        " and ".join(
            _kind(name, card.security_schemes.get(name))
            + (f" with the scopes {' '.join(scopes)}" if scopes else "")
            for name, scopes in alternative.items()
        )
        for alternative in alternatives(card, skill)
        if alternative
    ]
    return " or ".join(dict.fromkeys(each))[:500]


def remedies(card: AgentCard, skill: str = "") -> list[str]:
    """Return the values of ``auth`` that would do."""
    schemes = [
        card.security_schemes.get(name)
        for alternative in alternatives(card, skill)
        for name in alternative
    ]
    return list(dict.fromkeys(_argument(scheme) for scheme in schemes if scheme is not None))


def is_unreadable(card: AgentCard, skill: str = "") -> bool:
    """Return whether a card requires credentials, and only such as it does not describe."""
    needs = alternatives(card, skill)
    return bool(needs) and not any(
        all(_is_known(card.security_schemes.get(name)) for name in need) for need in needs
    )


def _is_known(scheme: SecurityScheme | None) -> bool:
    place = None if scheme is None else scheme.api_key_security_scheme
    return scheme is not None and (place is None or place.is_known)


def _kind(name: str, scheme: SecurityScheme | None) -> str:
    if scheme is None:
        return f"the scheme {name!r}, which the card does not define in a form that is known here"
    if scheme.api_key_security_scheme is not None:
        place = scheme.api_key_security_scheme
        where = (
            f"{place.location} {place.name}" if place.is_known else "the card does not say where"
        )
        return f"an API key ({where})"
    if scheme.http_auth_security_scheme is not None:
        return f"HTTP {scheme.http_auth_security_scheme.scheme}"
    if scheme.open_id_connect_security_scheme is not None:
        return "OpenID Connect"
    if scheme.mtls_security_scheme is not None:
        return "a client certificate"
    return f"OAuth 2.0 ({_flow(scheme)})"


def _flow(scheme: SecurityScheme) -> str:
    flows: Any = scheme.oauth2_security_scheme and scheme.oauth2_security_scheme.flows
    names = ("authorization_code", "client_credentials", "device_code", "password", "implicit")
    return next((name.replace("_", " ") for name in names if getattr(flows, name, None)), "")


def _argument(scheme: SecurityScheme) -> str:
    if scheme.api_key_security_scheme is not None:
        return "ApiKey(...)"
    if scheme.mtls_security_scheme is not None:
        return "ClientCertificate(...)"
    if scheme.http_auth_security_scheme is not None:
        basic = scheme.http_auth_security_scheme.scheme.lower() == "basic"
        return "Basic(...)" if basic else "Bearer(...)"
    match _flow(scheme):
        case "client credentials":
            return "ClientCredentials(...)"
        case "device code":
            return "DeviceCode(...)"
        case _:
            return "AuthorizationCode(...)"


def _scopes_of(requirement: SecurityRequirement) -> Alternative:
    return {name: tuple(scopes.list) for name, scopes in requirement.schemes.items()}


def _joined(mine: Alternative, theirs: Alternative) -> Alternative:
    names: Iterable[str] = (*mine, *theirs)
    return {
        name: tuple(dict.fromkeys((*mine.get(name, ()), *theirs.get(name, ())))) for name in names
    }
