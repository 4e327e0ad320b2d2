"""Whether an agent card is what the schema of the protocol says (``card get --validate``)."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.wire import versions
from parley.wire.json import protojson
from parley.wire.json.tolerance import collecting_problems


def problems(raw: bytes) -> list[str]:
    """Return what is wrong with a card, one thing each; nothing when it is valid.

    Members that the schema does not know are allowed. What a client passes over for the sake of
    calling the agent all the same, such as security schemes that cannot be read, is a problem.
    """
    members = json.loads(raw)
    try:
        if "supportedInterfaces" in members:
            card = protojson.decode(raw, AgentCard)
        else:
            with collecting_problems() as notes:
                card = versions.read_card(members)
            if notes:
                return [f"{path}: {text}" if path else text for path, text in notes]
    except A2AError as error:
        return [f"{wrong.field}: {wrong.description}" for wrong in error.violations] or [
            error.message
        ]
    found: list[str] = []
    if not card.supported_interfaces:
        found.append("supportedInterfaces: there is none, so the agent cannot be called")
    for place, offered in enumerate(card.supported_interfaces):
        parts = urlsplit(offered.url)
        is_grpc = offered.protocol_binding.upper() == "GRPC"
        if not is_grpc and (parts.scheme not in ("http", "https") or not parts.hostname):
            found.append(f"supportedInterfaces[{place}].url: {offered.url!r} is not absolute")
    for place, skill in enumerate(card.skills):
        if any(other.id == skill.id for other in card.skills[:place]):
            found.append(f"skills[{place}].id: {skill.id!r} is the id of another skill")
    named = {name for need in card.security_requirements for name in need.schemes}
    unknown = sorted(named - card.security_schemes.keys())
    return found + [
        f"securityRequirements: {n!r} is not among the securitySchemes" for n in unknown
    ]
