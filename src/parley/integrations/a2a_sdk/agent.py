"""A card and an executor of the official SDK as an agent: skills, security, installed version."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.engine.agent_options import CardDetails, Execution
from parley.engine.content import KINDS
from parley.integrations.a2a_sdk.execution import ExecutorRun
from parley.integrations.serving import needs
from parley.llm.model import Json
from parley.model.cards import AgentCard, AgentSkill, SecurityRequirement, SecurityScheme
from parley.model.service import ANONYMOUS
from parley.security.evidence import Evidence
from parley.security.schemes.scheme import Proof, Requirement, Scheme, Security
from parley.wire.versions import LATEST, read_card

if TYPE_CHECKING:
    from parley.integrations.a2a_sdk.sdk_0_3 import Sdk03
    from parley.integrations.a2a_sdk.sdk_1 import Sdk1

log = logging.getLogger("parley.integrations.a2a_sdk")


def agent(
    executor: Any,
    card: Any,
    *,
    extended_card: Any = None,
    details: CardDetails | None = None,
    request_context_builder: Any = None,
    durable: bool = False,
    verified_elsewhere: bool = False,
    **options: Any,
) -> Agent:
    """Return an agent that runs an ``AgentExecutor`` of the official SDK, described by its card.

    The name, the skills, the modes, the provider, the extensions and the capabilities come from the
    card; addresses and protocol versions come from the server. ``options`` are options of
    ``Agent``, and take precedence.

    A task and its message are durable from the first event that the executor enqueues. With
    ``durable`` they are durable before the executor runs; a ``Message`` then completes the task.
    Without it, an executor may reply with a ``Message`` and no task, however long it takes.

    ``extended_card`` adds to the card for authenticated callers: its name, texts, provider and
    skills are shown, and its skills can be called. Addresses, versions, capabilities and
    credentials come from the agent's card, because callers need them to read the extended card.

    ``details`` take precedence over the card, except for defaults of ``CardDetails``.

    ``request_context_builder`` makes the ``RequestContext``, by default the SDK's own. A card with
    security requirements needs ``security``, which verifies the credentials, or
    ``verified_elsewhere``: a gateway in front of the server verifies them.

    Raises ``ImportError`` without the SDK, ``TypeError`` for a wrong executor or card of the
    installed version, ``ValueError`` for a card that cannot be served.
    """
    sdk = installed()
    if not all(callable(getattr(executor, name, None)) for name in ("execute", "cancel")):
        raise TypeError(
            f"the executor must be an AgentExecutor, with execute and cancel, not {executor!r:.200}"
        )
    described = _read(sdk, card)
    settings = _options_of(described)
    public = described.skills or (_only_skill(described),)
    hidden: tuple[AgentSkill, ...] = ()
    if details is not None:
        usual, given = asdict(CardDetails()), asdict(details)
        own = {name: value for name, value in given.items() if value != usual[name]}
        settings["card"] = replace(settings["card"], **own)
    if extended_card is not None:
        extended = _read(sdk, extended_card)
        check_extended(described, extended)
        listed = {skill.id: skill for skill in public}
        hidden = tuple(skill for skill in extended.skills if skill.id not in listed)
        differences = _differences(extended, listed)
        settings["card"] = replace(settings["card"], extended_card=differences)
        schemes = {**extended.security_schemes, **described.security_schemes}
        described = replace(described, skills=(*public, *hidden), security_schemes=schemes)
    security, of_skills = security_of(
        described, options.pop("security", None), verified_elsewhere=verified_elsewhere
    )
    settings["extensions"] += tuple(options.pop("extensions", ()))
    turns = options.pop("execution", None) or Execution()
    if turns.direct_reply_timeout == Execution().direct_reply_timeout:
        # The executor's first event decides between a task and a direct reply.
        turns = replace(turns, direct_reply_timeout=86_400.0)
    settings["execution"] = turns
    served = Agent(described.name, security=security, **{**settings, **options})
    builder = request_context_builder or sdk.builder()

    async def execute(turn: Turn) -> object:
        return await ExecutorRun(sdk, executor, builder, turn).run()

    for index, skill in enumerate((*public, *hidden)):
        served.skill(
            id=skill.id,
            name=skill.name,
            description=skill.description,
            tags=skill.tags,
            examples=skill.examples,
            input_modes=_modes(skill.input_modes),
            output_modes=_modes(skill.output_modes),
            security=of_skills.get(skill.id),
            replies="task" if durable else None,
            listed="extended" if skill in hidden else True,
            default=index == 0,
        )(execute)
    _call_on_cancel(served)
    return served


def _call_on_cancel(served: Agent) -> None:
    """Let cancellation of a waiting task call the function as well."""
    for name, skill in served.skills.items():
        served.skills[name] = replace(skill, runs_on_cancel=True)


def _read(sdk: Sdk03 | Sdk1, card: Any) -> AgentCard:
    members = dict(sdk.card(card))
    if not (members.get("supportedInterfaces") or members.get("url")):
        nowhere = {"url": "http://localhost", "protocolBinding": "JSONRPC"}
        members["supportedInterfaces"] = [{**nowhere, "protocolVersion": LATEST}]
    return read_card(members)


def _options_of(card: AgentCard) -> Json:
    """Return the description of an agent on its card, as options of ``Agent``."""
    can = card.capabilities
    return {
        "description": card.description,
        "version": card.version,
        "card": CardDetails(
            provider=card.provider,
            documentation_url=card.documentation_url,
            icon_url=card.icon_url,
            streaming=bool(can.streaming),
            push_notifications=bool(can.push_notifications),
        ),
        "input_modes": _modes(card.default_input_modes),
        "output_modes": _modes(card.default_output_modes),
        "extensions": can.extensions,
    }


def _differences(card: AgentCard, public: Mapping[str, AgentSkill]) -> Json:
    """Return the texts of an extended card that differ, about the agent and its public skills."""
    fields = ("name", "description", "version", "provider", "documentation_url", "icon_url")
    skills = [
        replace(skill, security_requirements=public[skill.id].security_requirements)
        for skill in card.skills
        if skill.id in public
    ]
    return {**{name: getattr(card, name) for name in fields}, "skills": tuple(skills)}


def _modes(modes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modes that Parley can check: media types, and kinds of parts."""
    known = tuple(mode for mode in modes if mode.count("/") == 1 or mode in KINDS)
    if len(known) < len(modes):
        unknown = [mode for mode in modes if mode not in known]
        log.warning("the card's modes that are not media types are left out: %s", unknown)
    return known


def _only_skill(card: AgentCard) -> AgentSkill:
    """Return the default skill of an agent whose card names no skill."""
    return AgentSkill(
        id="execute", name=card.name, description=card.description or card.name, tags=("agent",)
    )


class VerifiedElsewhere(Scheme):
    """A scheme of the card that a gateway in front of the server verifies: here all
    requests pass.
    """

    def __init__(self, name: str, scheme: SecurityScheme, scopes: frozenset[str]) -> None:
        self.name = name
        self._scheme = scheme
        self._granted = scopes

    def declared(self) -> SecurityScheme:
        """Return the scheme as declared on the card."""
        return self._scheme

    def is_presented(self, evidence: Evidence) -> bool:
        """Return true: the gateway has verified the request."""
        return True

    def verify(self, evidence: Evidence) -> Proof:
        """Return a proof without an identity: the caller may do everything."""
        return Proof(ANONYMOUS, self._granted)


def security_of(
    card: AgentCard, given: Scheme | Security | None, *, verified_elsewhere: bool
) -> tuple[Scheme | Security | None, Mapping[str, Security]]:
    """Return the security requirements of an agent, and the additional requirements of its skills.

    Requirements in ``given`` for all skills take precedence; skills with their own requirements
    have both.

    Raises ``ValueError`` for requirements without a verifier.
    """
    of_skills = {s.id: s.security_requirements for s in card.skills if s.security_requirements}
    required = card.security_requirements
    every = [each for needs in (required, *of_skills.values()) for each in needs]
    if not every:
        return given, {}
    schemes: Mapping[str, Scheme]
    if given is not None:
        schemes = {scheme.name: scheme for scheme in given.security.schemes}
        for skill, needs in of_skills.items():
            if unknown := {name for each in needs for name in each.schemes} - schemes.keys():
                raise ValueError(
                    f"the skill {skill} of the card requires {', '.join(sorted(unknown))}, but "
                    f"security= has {', '.join(sorted(schemes)) or 'no scheme'}: give a scheme of "
                    "this name (name=...), or remove the requirement from the card"
                )
    elif not verified_elsewhere:
        names = {name for each in every for name in each.schemes}
        raise ValueError(
            f"the card requires {', '.join(sorted(names))}: verify it with "
            "security= and a scheme of parley.security, or give verified_elsewhere=True if "
            "a gateway in front of this server verifies it"
        )
    else:
        schemes = {
            name: VerifiedElsewhere(name, scheme, _scopes_of(name, every))
            for name, scheme in card.security_schemes.items()
        }
        given = _required(required, schemes) if required else None
    return given, {name: _required(needs, schemes) for name, needs in of_skills.items()}


def check_extended(card: AgentCard, extended: AgentCard) -> None:
    """Raise ``ValueError`` if an extended card requires other credentials than the card."""
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
                f"{what} requires {names or 'nothing'}, unlike the card: both need the same "
                "credentials, so give the card the requirement"
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
                f"the card requires {', '.join(sorted(unknown))}, which is not among its "
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


@cache
def installed() -> Sdk03 | Sdk1:
    """Return the installed version.

    Raises ``ImportError`` with installation advice.
    """
    with needs("a2a-sdk"):
        import a2a.server.agent_execution  # noqa: F401, what a2a-sdk without its server lacks
        import a2a.types as types

    if hasattr(types, "MessageSendParams"):
        from parley.integrations.a2a_sdk.sdk_0_3 import Sdk03

        return Sdk03()
    from parley.integrations.a2a_sdk.sdk_1 import Sdk1

    return Sdk1()
