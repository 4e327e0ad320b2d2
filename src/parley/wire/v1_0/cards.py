"""Agent cards of version 1.0, as peers may write them (specification §4.4, §8)."""

from __future__ import annotations

from typing import Any

from parley.model.cards import AgentCard
from parley.wire.json import protojson


def read_card(members: dict[str, Any]) -> AgentCard:
    """Read a card tolerantly.

    Unknown members, security schemes of unknown kinds and wrong optional members are left out.
    Raises ``A2AError`` that names what is wrong.
    """
    return protojson.read_answer(members, AgentCard)
