"""Choose the skill of a message. Admission calls it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from parley.engine.description import AgentDescription
from parley.engine.skill import Skill, form_of
from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.parts import Message
from parley.model.service import Caller

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
    agent: AgentDescription, message: Message, metadata: Mapping[str, Any] | None
) -> Skill | None:
    """Return the skill that a message names, else the default; ``None`` if the router chooses.

    Raises ``InvalidParamsError`` for an unknown skill.
    """
    named = (message.metadata or {}).get(SKILL_KEY)
    if named is None and metadata:
        named = metadata.get(SKILL_KEY)
    if named is None:
        return agent.default_skill if agent.router is None else None
    skill = agent.skills.get(named) if isinstance(named, str) else None
    if skill is None:
        known = ", ".join(agent.skills)
        raise InvalidParamsError(
            f"this agent has no skill {str(named)[:100]!r}; it has {known}",
            violations=(FieldViolation(f"message.metadata.{SKILL_KEY}", f"one of {known}"),),
        )
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
