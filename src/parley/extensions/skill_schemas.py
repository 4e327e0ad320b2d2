"""JSON Schemas of what skills take and return (``docs/extensions/skill-schemas.md``).

This only declares the extension: ``engine/typed/`` reads inputs and checks results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.cards import AgentCard
from parley.model.extensions import SKILL_SCHEMAS, Extension

__all__ = ["SKILL_SCHEMAS", "SkillSchema", "SkillSchemas", "schemas_on"]


class SkillSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON Schemas of one skill: of its input, and of its result."""

    input: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


class SkillSchemas(Extension):
    """The card has the JSON Schemas of typed skills.

    Agents with typed skills declare it by themselves.
    """

    uri = SKILL_SCHEMAS
    description = (
        "The card has the JSON Schema of what skills take and return; the input goes into the "
        "first data part of a message."
    )

    @classmethod
    def of_skills(cls, schemas: Mapping[str, SkillSchema]) -> SkillSchemas:
        """Return the declaration of schemas, by the ids of their skills."""
        return cls(params={"skills": msgspec.to_builtins(dict(schemas))})


def schemas_on(card: AgentCard) -> dict[str, SkillSchema]:
    """Return the schemas on a card, by the ids of their skills. What is malformed is left out."""
    found: dict[str, SkillSchema] = {}
    for extension in card.capabilities.extensions:
        if extension.uri != SKILL_SCHEMAS:
            continue
        skills = (extension.params or {}).get("skills")
        for skill_id, schemas in (skills if isinstance(skills, dict) else {}).items():
            try:
                found[skill_id] = msgspec.convert(schemas, SkillSchema)
            except msgspec.ValidationError:
                continue
    return found
