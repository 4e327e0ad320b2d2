"""The skill that a message names, in the metadata of the message or of its request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.parts import Message

SKILL_KEY = "skill"
"""The metadata key by which a message names its skill, by the skill's id."""


def named_skill(message: Message, metadata: Mapping[str, Any] | None) -> Any:
    """Return what a message, or its request by ``metadata``, names as its skill, if anything."""
    named = (message.metadata or {}).get(SKILL_KEY)
    return (metadata or {}).get(SKILL_KEY) if named is None else named


def unknown_skill(named: Any, known: Iterable[str]) -> InvalidParamsError:
    """Return the error for a skill that an agent does not have."""
    names = ", ".join(known) or "none"
    return InvalidParamsError(
        f"this agent has no skill {str(named)[:100]!r}; it has {names}",
        violations=(FieldViolation(f"message.metadata.{SKILL_KEY}", f"one of {names}"),),
    )
