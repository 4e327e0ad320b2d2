"""The security requirements of a card of the official SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parley.model.cards import AgentCard, SecurityRequirement, SecurityScheme
from parley.model.service import ANONYMOUS
from parley.security.evidence import Evidence
from parley.security.schemes.scheme import Proof, Requirement, Scheme, Security


class VerifiedElsewhere(Scheme):
    """A scheme of a card that something in front of the server verifies: here all pass."""

    def __init__(self, name: str, scheme: SecurityScheme, scopes: frozenset[str]) -> None:
        self.name = name
        self._scheme = scheme
        self._granted = scopes

    def declared(self) -> SecurityScheme:
        """Return the scheme as the card has it."""
        return self._scheme

    def is_presented(self, evidence: Evidence) -> bool:
        """Return true: it was verified before the request came here."""
        return True

    def verify(self, evidence: Evidence) -> Proof:
        """Return that nothing is known of the caller, who may do all."""
        return Proof(ANONYMOUS, self._granted)


def security_of(
    card: AgentCard, given: Scheme | Security | None, *, verified_elsewhere: bool
) -> tuple[Scheme | Security | None, Mapping[str, Security]]:
    """Return what callers must prove to an agent, and for skills of their own beside it.

    What ``given`` says of all skills takes precedence; those with requirements have theirs as well.

    Raises ``ValueError`` for requirements that nothing verifies.
    """
    of_skills = {s.id: s.security_requirements for s in card.skills if s.security_requirements}
    required = card.security_requirements
    if not (required or of_skills):
        return given, {}
    schemes: Mapping[str, Scheme]
    if given is not None:
        schemes = {scheme.name: scheme for scheme in given.security.schemes}
        for skill, needs in of_skills.items():
            if unknown := {name for each in needs for name in each.schemes} - schemes.keys():
                raise ValueError(
                    f"the skill {skill} of the card requires {', '.join(sorted(unknown))}, and "
                    f"security= has {', '.join(sorted(schemes)) or 'no scheme'}: give a scheme of "
                    "this name (name=...), or leave the requirement out of the card"
                )
        return given, {name: _required(needs, schemes) for name, needs in of_skills.items()}
    every = [each for needs in (required, *of_skills.values()) for each in needs]
    if not verified_elsewhere:
        names = {name for each in every for name in each.schemes}
        raise ValueError(
            f"the card requires {', '.join(sorted(names))}: say how that is verified, with "
            "security= and a scheme of parley.security, or with verified_elsewhere=True if "
            "something in front of this server does it"
        )
    schemes = {
        name: VerifiedElsewhere(name, scheme, _scopes_of(name, every))
        for name, scheme in card.security_schemes.items()
    }
    skills = {name: _required(needs, schemes) for name, needs in of_skills.items()}
    return (_required(required, schemes) if required else None), skills


def check_extended(card: AgentCard, extended: AgentCard) -> None:
    """Raise ``ValueError`` where an extended card requires other credentials than the card."""
    of_skills = {skill.id: skill.security_requirements for skill in card.skills}
    pairs = [("the extended card", extended.security_requirements, card.security_requirements)]
    pairs += [
        (f"the skill {s.id} of the extended card", s.security_requirements, of_skills[s.id])
        for s in extended.skills
        if s.id in of_skills
    ]
    for what, required, verified in pairs:
        if required and required != verified:
            names = ", ".join(sorted({name for each in required for name in each.schemes}))
            raise ValueError(
                f"{what} requires {names or 'nothing'}, unlike the card: callers prove the same "
                "for both, so give the card the requirement"
            )


def _scopes_of(name: str, requirements: Iterable[SecurityRequirement]) -> frozenset[str]:
    """Return all scopes of a scheme that some requirements name."""
    found = (each.schemes[name].list for each in requirements if name in each.schemes)
    return frozenset(scope for scopes in found for scope in scopes)


def _required(
    requirements: tuple[SecurityRequirement, ...], schemes: Mapping[str, Scheme]
) -> Security:
    for requirement in requirements:
        if unknown := requirement.schemes.keys() - schemes.keys():
            raise ValueError(
                f"the card requires {', '.join(sorted(unknown))}, which is none of its "
                f"securitySchemes: {', '.join(sorted(schemes)) or 'it has none'}"
            )
    return Security(
        [
            tuple(
                Requirement(schemes[name], each.list) for name, each in requirement.schemes.items()
            )
            for requirement in requirements
        ]
    )
