"""The choice of a message's skill, among the skills that its caller may see and use."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from parley.engine.content import not_taken
from parley.engine.description import AgentDescription
from parley.engine.skill import Skill, form_of
from parley.extensions.declared import SKILL_SCHEMAS, SkillSchema, SkillSchemas
from parley.model.cards import AgentCard, AgentSkill
from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.model.operations import named_skill, unknown_skill
from parley.model.parts import Message
from parley.model.service import ANONYMOUS, Caller
from parley.model.typed.value_type import data_of
from parley.model.typed.violations import Mismatch
from parley.security.schemes.scheme import Security


class RoutedMessage(msgspec.Struct, frozen=True):
    """The message for which a router chooses a skill. ``caller`` has all claims."""

    message: Message
    metadata: dict[str, Any]
    caller: Caller

    @property
    def text(self) -> str:
        """The message's text."""
        return self.message.text


def skill_of(
    agent: AgentDescription,
    message: Message,
    metadata: Mapping[str, Any] | None,
    hidden: HiddenSkills | None = None,
    caller: Caller = ANONYMOUS,
    unclear: Callable[[], None] | None = None,
) -> Skill | None:
    """Return the skill that a message names, else the default; ``None`` if the router chooses.

    If no default skill was declared, it is the only skill that fits the message; ``unclear`` is
    called if there is no such skill. A skill that is ``hidden`` from the caller is unknown. Raises
    ``InvalidParamsError`` for an unknown skill.
    """
    named = named_skill(message, metadata)
    if named is None:
        if agent.router is not None:
            return None
        default = agent.default_skill
        if len(agent.skills) > 1 and not default.default:
            fitting = _fitting(agent, message, hidden, caller)
            if len(fitting) == 1:
                return fitting[0]
            if unclear is not None:
                unclear()
        if hidden is not None:
            hidden.check(default, caller)
        return default
    skill = agent.skills.get(named) if isinstance(named, str) else None
    if skill is not None and hidden is not None and not hidden.may_use(skill, caller):
        skill = None
    if skill is None:
        raise unknown_skill(named, agent.skills if hidden is None else hidden.known_to(caller))
    return skill


def _fitting(
    agent: AgentDescription, message: Message, hidden: HiddenSkills | None, caller: Caller
) -> list[Skill]:
    """Return the skills that fit a message; only typed skills if data fits any of them."""
    skills = agent.skills.values()
    seen = [each for each in skills if hidden is None or hidden.may_use(each, caller)]
    fitting = [skill for skill in seen if fits(message, skill, agent.input_modes)]
    typed = [skill for skill in fitting if skill.inputs is not None and skill.inputs.fields]
    return typed if typed and data_of(message) is not UNSET else fitting


def fits(message: Message, skill: Skill, modes: Sequence[str]) -> bool:
    """Return whether a skill accepts the parts of a message, and they match its inputs.

    ``modes`` are the agent's, for a skill that declares none.
    """
    try:
        if skill.inputs is not None:
            skill.inputs.read(message)
    except Mismatch:
        return False
    return not not_taken(skill.input_modes or modes, message.parts)


def skill_elsewhere(
    agent: AgentDescription,
    message: Message,
    metadata: Mapping[str, Any] | None,
    hidden: HiddenSkills | None = None,
    caller: Caller = ANONYMOUS,
) -> Skill:
    """Return the skill of a message in a conversation that was handed over to another agent.

    An unknown skill belongs to the other agent. No router is called.
    """
    named = named_skill(message, metadata)
    skill = agent.skills.get(named) if isinstance(named, str) else None
    if skill is None:
        skill = agent.default_skill
    if hidden is not None:
        hidden.check(skill, caller)
    return skill


async def route(
    agent: AgentDescription, routed: RoutedMessage, in_thread: Callable[..., Awaitable[Any]]
) -> Skill:
    """Return the skill that the agent's router chooses; ``in_thread`` calls a plain router."""
    assert agent.router is not None
    if form_of(agent.router).in_thread:
        chosen = await in_thread(agent.router, routed)
    else:
        chosen = agent.router(routed)
    if inspect.isawaitable(chosen):
        chosen = await chosen
    if chosen is None:
        return agent.default_skill
    if chosen not in agent.skills:
        raise RuntimeError(
            f"the router of {agent.name!r} chose {chosen!r}; there are {list(agent.skills)}"
        )
    return agent.skills[chosen]


class HiddenSkills:
    """The skills of an agent that the public card leaves out.

    A skill with ``listed="extended"``, or a function, exists for callers who get the extended card,
    meet the skill's own requirement, and are accepted by the function. A skill with
    ``listed=False`` is on no card, and exists for callers who meet its requirement. To all other
    callers they do not exist. ``authenticates``: the server identifies callers.
    """

    def __init__(self, agent: AgentDescription, *, authenticates: bool) -> None:
        self._agent = agent
        self._authenticates = authenticates

    @classmethod
    def of(cls, agent: AgentDescription, *, authenticates: bool) -> Self | None:
        """Return the hidden skills of an agent, ``None`` if all skills are public."""
        if all(skill.listing.is_public for skill in agent.skills.values()):
            return None
        return cls(agent, authenticates=authenticates)

    def may_use(self, skill: Skill, caller: Caller) -> bool:
        """Return whether a skill exists for a caller."""
        listing = skill.listing
        if listing.is_public:
            return True
        if not self._meets(skill, caller):
            return False
        return listing.allows is None or self._is_shown(skill, caller)

    def check(self, skill: Skill, caller: Caller) -> None:
        """Reject a message for a hidden skill that the caller did not name, without naming it.

        Raises ``InvalidParamsError``.
        """
        if not self.may_use(skill, caller):
            raise InvalidParamsError("this agent has no skill for this message")

    def check_joined(self, skill: Skill, caller: Caller) -> None:
        """Reject a message to a task of a hidden skill, without naming the skill.

        The caller owns the task, alone or with others. Raises ``PermissionDeniedError``.
        """
        if not self.may_use(skill, caller):
            raise PermissionDeniedError("the skill of this task does not exist for this caller")

    def known_to(self, caller: Caller) -> list[str]:
        """Return the ids of the skills on a caller's card."""
        return [skill.id for skill in self._shown(caller)]

    def card_for(self, caller: Caller) -> AgentCard:
        """Return the card with all skills that a caller sees."""
        card = self._agent.card
        described = {skill.id: skill for skill in card.skills}
        shown = self._shown(caller)
        skills = [described.get(skill.id) or self._described(skill) for skill in shown]
        capabilities = card.capabilities
        schemas = schemas_of(shown)
        if self._agent.declares_schemas and schemas:
            others = (each for each in capabilities.extensions if each.uri != SKILL_SCHEMAS)
            declared = SkillSchemas.of_skills(schemas).declared()
            capabilities = replace(capabilities, extensions=(*others, declared))
        return replace(card, skills=tuple(skills), capabilities=capabilities)

    def _described(self, skill: Skill) -> AgentSkill:
        """Return a hidden skill in the form of the extended card."""
        if self._security_of(skill) is not None:  # the server may replace the requirement
            return skill.described
        return replace(skill.described, security_requirements=())

    def _shown(self, caller: Caller) -> list[Skill]:
        return [
            skill
            for skill in self._agent.skills.values()
            if skill.listing.is_public
            or (self._meets(skill, caller) and self._is_shown(skill, caller))
        ]

    def _is_shown(self, skill: Skill, caller: Caller) -> bool:
        may_see = caller.authenticated or not self._authenticates
        return may_see and skill.listing.is_shown_to(caller)

    def _meets(self, skill: Skill, caller: Caller) -> bool:
        security = self._security_of(skill)
        return security is None or security.is_met(caller)

    def _security_of(self, skill: Skill) -> Security | None:
        rights = self._agent.authorization
        return None if rights is None else rights.skills.get(skill.id)


def schemas_of(skills: Iterable[Skill]) -> dict[str, SkillSchema]:
    """Return the JSON Schemas of typed skills, by their ids."""
    found = {}
    for skill in skills:
        schema = SkillSchema(
            input=skill.inputs.schema if skill.inputs is not None else None,
            output=skill.result.schema if skill.result is not None else None,
        )
        if schema.input is not None or schema.output is not None:
            found[skill.id] = schema
    return found
