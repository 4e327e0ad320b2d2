"""Choose the skill of a message. Admission calls it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from parley.engine.description import AgentDescription
from parley.engine.disclosure import HiddenSkills
from parley.engine.skill import Skill, form_of
from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.parts import Message
from parley.model.service import ANONYMOUS, Caller

SKILL_KEY = "skill"
"""The metadata key by which a message names its skill, by the skill's id."""


class RoutedMessage(msgspec.Struct, frozen=True):
    """The message that a router chooses a skill for. ``caller`` has all claims."""

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
) -> Skill | None:
    """Return the skill that a message names, else the default; ``None`` if the router chooses.

    A skill that is ``hidden`` from the caller is unknown. Raises ``InvalidParamsError`` for an
    unknown skill.
    """
    named = (message.metadata or {}).get(SKILL_KEY)
    if named is None and metadata:
        named = metadata.get(SKILL_KEY)
    if named is None:
        if agent.router is not None:
            return None
        if hidden is not None:
            hidden.check(agent.default_skill, caller)
        return agent.default_skill
    skill = agent.skills.get(named) if isinstance(named, str) else None
    if skill is not None and hidden is not None and not hidden.may_use(skill, caller):
        skill = None
    if skill is None:
        known = ", ".join(agent.skills if hidden is None else hidden.known_to(caller)) or "none"
        raise InvalidParamsError(
            f"this agent has no skill {str(named)[:100]!r}; it has {known}",
            violations=(FieldViolation(f"message.metadata.{SKILL_KEY}", f"one of {known}"),),
        )
    return skill


def skill_elsewhere(
    agent: AgentDescription,
    message: Message,
    metadata: Mapping[str, Any] | None,
    hidden: HiddenSkills | None = None,
    caller: Caller = ANONYMOUS,
) -> Skill:
    """Return the skill of a message that another agent answers: the conversation was handed to it.

    A skill that this agent does not have is the other agent's, and no router is asked.
    """
    named = (message.metadata or {}).get(SKILL_KEY) or (metadata or {}).get(SKILL_KEY)
    skill = agent.skills.get(named) if isinstance(named, str) else None
    if skill is None:
        skill = agent.default_skill
    if hidden is not None:
        hidden.check(skill, caller)
    return skill


async def route(
    agent: AgentDescription, routed: RoutedMessage, in_thread: Callable[..., Awaitable[Any]]
) -> Skill:
    """Return the skill that the agent's router chooses; ``in_thread`` calls a blocking router."""
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
