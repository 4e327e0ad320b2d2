"""Cards of the envelope protocol from cards of A2A, and back.

An A2A card has no place for some members. They stand in the params of the extension
``urn:parley:envelope-card:v1``, so that nothing is lost on the way there and back.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from parley.envelope.cards import (
    CardAgentInfo,
    CardCapability,
    CardEndpoints,
    CardMetadata,
    CardSecurity,
    EnvelopeCard,
    read_card,
)
from parley.envelope.messages import BINDING
from parley.model.cards import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    HTTPAuthSecurityScheme,
    MutualTlsSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from parley.model.errors import A2AError
from parley.model.extensions import ENVELOPE_CARD, SKILL_SCHEMAS
from parley.model.ids import may_be_name
from parley.model.struct import encode

PROTOCOL_VERSION = "1.0"
"""The version of A2A whose operations the binding carries."""

BEARER, MUTUAL_TLS, API_KEY = "bearer-token", "mutual-tls", "api-key"
BASIC, OAUTH2, OPENID_CONNECT = "basic", "oauth2", "openid-connect"

_JSON = ("application/json", "text/plain")


def agent_card_of(card: EnvelopeCard) -> AgentCard:
    """Return the A2A card that says the same: for registries, and for clients of A2A."""
    info = card.agent_info
    urls = dict.fromkeys(url for url in (card.endpoints.primary, card.endpoints.backup) if url)
    tags = card.metadata.tags or ((info.type,) if info.type else ())
    schemes, requirements = _schemes(card.security)
    return AgentCard(
        name=info.name or info.id,
        description=info.description,
        version=info.version,
        provider=AgentProvider(organization=info.vendor, url="") if info.vendor else None,
        documentation_url=card.metadata.documentation or None,
        supported_interfaces=tuple(
            AgentInterface(url=url, protocol_binding=BINDING, protocol_version=PROTOCOL_VERSION)
            for url in urls
        ),
        capabilities=AgentCapabilities(streaming=True, extensions=_extensions(card)),
        security_schemes=schemes,
        security_requirements=requirements,
        default_input_modes=_JSON,
        default_output_modes=_JSON,
        skills=tuple(
            AgentSkill(
                id=each.name,
                name=each.display_name or each.name,
                description=each.description,
                tags=tags,
            )
            for each in card.capabilities
        ),
    )


def envelope_card_of(card: AgentCard, *, agent_id: str = "") -> EnvelopeCard:
    """Return the envelope card that says the same as an A2A card.

    The agent's id is ``agent_id``, else the one that the card declares for the protocol, else its
    name.
    """
    declared = _declared(card)
    info = declared.agent_info if declared is not None else CardAgentInfo(id=card.name)
    urls = [each.url for each in card.supported_interfaces if each.protocol_binding == BINDING]
    sockets = [url for url in urls if url.startswith(("ws:", "wss:"))]
    posts = [url for url in urls if url.startswith(("http:", "https:"))]
    # One address is for both, and a card may have it with either scheme.
    primary = sockets[0] if sockets else "ws" + posts[0].removeprefix("http") if posts else ""
    backup = posts[0] if posts else "http" + primary.removeprefix("ws") if primary else ""
    found = declared or EnvelopeCard(
        agent_info=info,
        security=_security(card),
        metadata=CardMetadata(tags=tuple(dict.fromkeys(t for s in card.skills for t in s.tags))),
    )
    kept = {each.name: each for each in found.capabilities}
    return replace(
        found,
        agent_info=replace(
            info,
            id=agent_id or info.id,
            name=info.name or card.name,
            version=card.version,
            description=card.description,
            vendor=card.provider.organization if card.provider is not None else "",
        ),
        capabilities=tuple(_capability(each, kept, card) for each in card.skills),
        endpoints=CardEndpoints(
            primary=primary, backup=backup, health_check=found.endpoints.health_check
        ),
        metadata=replace(found.metadata, documentation=card.documentation_url or ""),
    )


def _extensions(card: EnvelopeCard) -> tuple[AgentExtension, ...]:
    members: dict[str, Any] = msgspec.json.decode(encode(card))
    schemas = {}
    for each in members.get("capabilities", ()):
        given = {"input": each.pop("inputSchema", None), "output": each.pop("outputSchema", None)}
        kept = {name: schema for name, schema in given.items() if schema is not None}
        if kept:
            schemas[each["name"]] = kept
        each.pop("description", None)
    info = members["agentInfo"]
    for name in ("version", "description", "vendor"):
        info.pop(name, None)
    endpoints = members.pop("endpoints", {})
    if "healthCheck" in endpoints:
        members["endpoints"] = {"healthCheck": endpoints["healthCheck"]}
    declared = AgentExtension(
        uri=ENVELOPE_CARD, description="What an envelope card says beyond this one.", params=members
    )
    if not schemas:
        return (declared,)
    return declared, AgentExtension(uri=SKILL_SCHEMAS, params={"skills": schemas})


def _params(card: AgentCard, uri: str) -> dict[str, Any]:
    for each in card.capabilities.extensions:
        if each.uri == uri and each.params:
            return each.params
    return {}


def _declared(card: AgentCard) -> EnvelopeCard | None:
    """Return what a card declares for the protocol, ``None`` where that is nothing or wrong."""
    members = _params(card, ENVELOPE_CARD)
    try:
        return read_card(members) if members else None
    except A2AError:
        return None


def _capability(
    skill: AgentSkill, kept: dict[str, CardCapability], card: AgentCard
) -> CardCapability:
    schemas = _params(card, SKILL_SCHEMAS).get("skills")
    of_skill = schemas.get(skill.id) if isinstance(schemas, dict) else None
    given = of_skill if isinstance(of_skill, dict) else {}
    known = kept.get(skill.id) or CardCapability(name=skill.id, display_name=skill.name)
    return replace(
        known,
        description=skill.description,
        input_schema=_schema(given.get("input")),
        output_schema=_schema(given.get("output")),
    )


def _schema(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _schemes(
    security: CardSecurity,
) -> tuple[dict[str, SecurityScheme], tuple[SecurityRequirement, ...]]:
    """Return the schemes for the methods that A2A can name without more than the method.

    One of them is enough, with the required permissions as its scopes.
    """
    known = {
        BEARER: SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer")),
        BASIC: SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Basic")),
        MUTUAL_TLS: SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme()),
    }
    schemes = {name: known[name] for name in security.auth_methods if name in known}
    scopes = StringList(list=security.required_permissions)
    return schemes, tuple(SecurityRequirement(schemes={name: scopes}) for name in schemes)


def auth_method_of(scheme: SecurityScheme) -> str:
    """Return the name that ``authMethods`` has for a security scheme of A2A."""
    http = scheme.http_auth_security_scheme
    if http is not None:
        return {"bearer": BEARER, "basic": BASIC}.get(http.scheme.lower(), http.scheme.lower())
    if scheme.mtls_security_scheme is not None:
        return MUTUAL_TLS
    if scheme.api_key_security_scheme is not None:
        return API_KEY
    return OAUTH2 if scheme.oauth2_security_scheme is not None else OPENID_CONNECT


def _security(card: AgentCard) -> CardSecurity:
    methods = dict.fromkeys(auth_method_of(each) for each in card.security_schemes.values())
    scopes = [
        frozenset(scope for held in each.schemes.values() for scope in held.list)
        for each in card.security_requirements
    ]
    # Permissions that every way in needs.
    needed = frozenset.intersection(*scopes) if scopes else frozenset()
    return CardSecurity(
        auth_methods=tuple(name for name in methods if may_be_name(name)),
        required_permissions=tuple(sorted(needed)),
    )
