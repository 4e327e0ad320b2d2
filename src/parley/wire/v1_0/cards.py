"""Agent cards of version 1.0, as others may write them (specification §4.4, §8)."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.model.schemes import SecurityScheme
from parley.wire import protojson


def read_card(members: dict[str, Any]) -> AgentCard:
    """Return the card that a JSON object holds.

    Unknown members, and security schemes that cannot be read, are passed over.
    Raises ``A2AError`` that names what is wrong.
    """
    try:
        return protojson.decode(msgspec.json.encode(members), AgentCard)
    except A2AError:
        schemes = members.get("securitySchemes")
        if not isinstance(schemes, dict):
            raise
        readable = {name: scheme for name, scheme in schemes.items() if _is_readable(scheme)}
        return protojson.decode(
            msgspec.json.encode({**members, "securitySchemes": readable}), AgentCard
        )


def _is_readable(scheme: object) -> bool:
    try:
        protojson.decode(msgspec.json.encode(scheme), SecurityScheme)
    except A2AError:
        return False
    return True
