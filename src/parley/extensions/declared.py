"""Extensions that are only data on the card. Other modules implement their behaviour.

``server.http.files`` receives and serves files, ``engine.service`` detects repeated messages, and
``engine.typed`` reads inputs and checks results. See ``docs/extensions/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.cards import AgentCard
from parley.model.extensions import FILE_TRANSFER as FILE_TRANSFER
from parley.model.extensions import IDEMPOTENT_SEND, SKILL_SCHEMAS, Extension

COMPOSITION = "urn:parley:composition:v1"


class CompositionPicture(Extension):
    """A picture on the card of the parts of a composition. Compositions declare it.

    ``svg`` is the same picture for web pages.
    """

    uri = COMPOSITION
    description = "A picture of the parts of this agent, in the language of Mermaid."

    def __init__(self, mermaid: str, svg: str) -> None:
        super().__init__(params={"mermaid": mermaid})
        self.mermaid = mermaid
        self.svg = svg


class FileTransfer(Extension):
    """Files are uploaded to and downloaded from the server of the agent.

    ``upload_url`` is the address that begins an upload, ``max_bytes`` the size of the largest file,
    and ``inline_bytes`` the size up to which a file should be sent in a message.
    """

    uri = FILE_TRANSFER
    description = (
        "Files that are too large for a message are uploaded to the server, and downloaded from it."
    )

    def __init__(self, *, upload_url: str = "", max_bytes: int, inline_bytes: int) -> None:
        params: dict[str, Any] = {"maxBytes": max_bytes, "inlineBytes": inline_bytes}
        if upload_url:
            params = {"uploadUrl": upload_url, **params}
        super().__init__(params=params)


class IdempotentSend(Extension):
    """A repeated message gets the first answer again, for callers that request it."""

    uri = IDEMPOTENT_SEND
    description = (
        "A message that is sent again with the same messageId gets the same answer as before."
    )


__all__ = ["SKILL_SCHEMAS", "SkillSchema", "SkillSchemas", "schemas_on"]


class SkillSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON Schemas of one skill: of its input, and of its result."""

    input: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


class SkillSchemas(Extension):
    """The JSON Schemas of typed skills, on the card.

    Agents with typed skills declare it automatically.
    """

    uri = SKILL_SCHEMAS
    description = (
        "The card has the JSON Schemas of what skills take and return; the input goes into the "
        "first data part of a message."
    )

    @classmethod
    def of_skills(cls, schemas: Mapping[str, SkillSchema]) -> SkillSchemas:
        """Return the declaration for schemas by skill id."""
        return cls(params={"skills": msgspec.to_builtins(dict(schemas))})


def schemas_on(card: AgentCard) -> dict[str, SkillSchema]:
    """Return the schemas on a card by skill id. Malformed schemas are left out."""
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
