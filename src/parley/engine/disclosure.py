"""Skills that not all callers see: on the extended card of whom, and who may use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from msgspec.structs import replace

from parley.engine.description import AgentDescription
from parley.engine.skill import Skill
from parley.extensions.skill_schemas import SKILL_SCHEMAS, SkillSchema, SkillSchemas
from parley.model.cards import AgentCard, AgentSkill
from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.model.service import Caller
from parley.security.schemes.scheme import Security


class HiddenSkills:
    """The skills of an agent that the public card leaves out.

    A skill with ``listed="extended"``, or a function, is there for callers who get the extended
    card, meet the skill's own requirement, and are allowed by the function. One with
    ``listed=False`` is on no card, and there for those who meet its requirement. To all others they
    do not exist. ``authenticates``: the server identifies callers.
    """

    def __init__(self, agent: AgentDescription, *, authenticates: bool) -> None:
        self._agent = agent
        self._authenticates = authenticates

    @classmethod
    def of(cls, agent: AgentDescription, *, authenticates: bool) -> Self | None:
        """Return the hidden skills of an agent, ``None`` if all see all."""
        if all(skill.listing.is_public for skill in agent.skills.values()):
            return None
        return cls(agent, authenticates=authenticates)

    def may_use(self, skill: Skill, caller: Caller) -> bool:
        """Return whether a skill is there for a caller."""
        listing = skill.listing
        if listing.is_public:
            return True
        if not self._meets(skill, caller):
            return False
        return listing.allows is None or self._is_shown(skill, caller)

    def check(self, skill: Skill, caller: Caller) -> None:
        """Refuse a skill that the caller did not name, without naming it.

        Raises ``InvalidParamsError``.
        """
        if not self.may_use(skill, caller):
            raise InvalidParamsError("this agent has no skill for this message")

    def check_joined(self, skill: Skill, caller: Caller) -> None:
        """Refuse a message to a task of a skill, without naming it.

        The caller owns the task, alone or with others. Raises ``PermissionDeniedError``.
        """
        if not self.may_use(skill, caller):
            raise PermissionDeniedError("the skill of this task is not there for this caller")

    def known_to(self, caller: Caller) -> list[str]:
        """Return the ids of the skills on the card of a caller."""
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
        """Return a hidden skill as the extended card has it."""
        if self._security_of(skill) is not None:  # a server may require something else
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
