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
    card = _with_scopes(members)
    if isinstance(card.get("skills"), list):
        card["skills"] = [_with_scopes(skill) for skill in card["skills"]]
    return protojson.read_answer(card, AgentCard)


def _with_scopes(secured: Any) -> Any:
    """Return a card or a skill whose requirements have their scopes in an object.

    Servers of the Go SDK (2.4) write ``{"schemes": {"oauth2": ["read"]}}``.
    """
    needs = secured.get("securityRequirements") if isinstance(secured, dict) else None
    if not isinstance(needs, list):
        return dict(secured) if isinstance(secured, dict) else secured
    return {**secured, "securityRequirements": [_requirement(need) for need in needs]}


def _requirement(need: Any) -> Any:
    schemes = need.get("schemes") if isinstance(need, dict) else None
    if not isinstance(schemes, dict):
        return need
    return {
        **need,
        "schemes": {
            name: {"list": scopes} if isinstance(scopes, list) else scopes
            for name, scopes in schemes.items()
        },
    }
