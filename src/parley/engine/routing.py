"""Choose the skill of a message. Admission calls it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from parley.engine.content import not_taken
from parley.engine.description import AgentDescription
from parley.engine.disclosure import HiddenSkills
from parley.engine.skill import Skill, form_of
from parley.engine.typed.message_data import data_of
from parley.engine.typed.mismatch import Mismatch
from parley.model.parts import Message
from parley.model.requests import named_skill, unknown_skill
from parley.model.service import ANONYMOUS, Caller


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
    unclear: Callable[[], None] | None = None,
) -> Skill | None:
    """Return the skill that a message names, else the default; ``None`` if the router chooses.

    If no skill was declared the default, it is the only skill that the message fits; ``unclear`` is
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
    """Return the skills that a message fits; typed ones alone, if data fits any of them."""
    skills = agent.skills.values()
    seen = [each for each in skills if hidden is None or hidden.may_use(each, caller)]
    fitting = [skill for skill in seen if fits(message, skill, agent.input_modes)]
    typed = [skill for skill in fitting if skill.inputs is not None and skill.inputs.fields]
    return typed if typed and data_of(message) is not UNSET else fitting


def fits(message: Message, skill: Skill, modes: Sequence[str]) -> bool:
    """Return whether a skill takes the parts of a message, and they have its inputs.

    ``modes`` are those of its agent, for a skill without any.
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
    """Return the skill of a message that another agent answers: the conversation was handed to it.

    A skill that this agent does not have is the other agent's, and no router is asked.
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
