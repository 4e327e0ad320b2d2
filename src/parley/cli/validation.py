"""Validation of an agent card (``card validate``, ``card get --validate``)."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.security.exposed_secrets import exposed, plain_urls
from parley.wire import versions
from parley.wire.json import protojson
from parley.wire.json.tolerance import collecting_problems


def exposures(raw: bytes) -> list[str]:
    """Return what a card should not tell everyone, and addresses that are not encrypted."""
    members = json.loads(raw)
    found = [
        f"{path}: this looks like {kind}, and everyone may read a card: take it out, and revoke it "
        "where it is valid"
        for path, kind in exposed(members)
    ]
    return found + [
        f"{path}: http://{urlsplit(url).hostname} is not encrypted, so others read the credentials "
        "that are sent there: use https://"
        for path, url in plain_urls(members)
    ]


def problems(raw: bytes) -> list[str]:
    """Return the problems of a card; none if it is valid.

    Unknown members are allowed. Everything else that a client only tolerates, such as an unreadable
    security scheme, is a problem.
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
    for index, offered in enumerate(card.supported_interfaces):
        parts = urlsplit(offered.url)
        binding = offered.protocol_binding.upper()
        schemes = ("http", "https") if binding in ("JSONRPC", "HTTP+JSON") else (parts.scheme,)
        is_absolute = bool(parts.scheme and parts.hostname) and parts.scheme in schemes
        if binding != "GRPC" and not is_absolute:
            found.append(f"supportedInterfaces[{index}].url: {offered.url!r} is not absolute")
    for index, skill in enumerate(card.skills):
        if any(other.id == skill.id for other in card.skills[:index]):
            found.append(f"skills[{index}].id: {skill.id!r} is the id of another skill")
    required = {name for need in card.security_requirements for name in need.schemes}
    unknown = sorted(required - card.security_schemes.keys())
    return found + [
        f"securityRequirements: {n!r} is not among the securitySchemes" for n in unknown
    ]
