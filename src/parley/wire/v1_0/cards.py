"""Agent cards of version 1.0, as others may write them (specification §4.4, §8)."""

from __future__ import annotations

from typing import Any

from parley.model.cards import AgentCard
from parley.wire.json import protojson


def read_card(members: dict[str, Any]) -> AgentCard:
    """Return the card that a JSON object holds.

    What is wrong is left out where the rest is a card without it: unknown members, security schemes
    of unknown kinds, optional members of another kind.
    Raises ``A2AError`` that names what is wrong.
    """
    return protojson.read_answer(members, AgentCard)
