"""Agent cards of version 0.3, alone and beside those of 1.0 (0.3 §5).

There are three forms of one card: the JSON of 0.3 (``members_of``), the form of its proto
(``proto_members_of``), in which security is said as in 1.0, and the merged document, in which
members of 0.3 and of 1.0 stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parley.model.cards import AgentCard, AgentInterface
from parley.model.encoding import encode
from parley.wire.json import protojson, tolerance
from parley.wire.v1_0 import cards as latest

VERSION = "0.3.0"

_JSONRPC = "JSONRPC"

_TYPES = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
_TYPE_OF = {member: type for type, member in _TYPES.items()}

# What 0.3 requires of a flow, and 1.0 leaves out where it is empty.
_FLOWS = {
    "authorizationCode": {"authorizationUrl": "", "tokenUrl": "", "scopes": {}},
    "clientCredentials": {"tokenUrl": "", "scopes": {}},
    "deviceCode": {},
    "implicit": {"authorizationUrl": "", "scopes": {}},
    "password": {"tokenUrl": "", "scopes": {}},
}
"""The OAuth flows; where a card has several, the first counts, because 1.0 has one a scheme."""


def write_card(card: AgentCard) -> bytes:
    """Return a card as JSON of this version."""
    return encode(members_of(card))


def write_merged_card(card: AgentCard) -> bytes:
    """Return a card as JSON that callers of this version and of later ones can read.

    A card without an interface of this version is that of 1.0 alone.
    """
    offered = _interfaces_of(card)
    members = _members(card)
    if offered:
        members.update(_connection(offered))
        members.update(_security(card, members, with_latest=True))
        if card.capabilities.extended_agent_card is not None:
            members["supportsAuthenticatedExtendedCard"] = card.capabilities.extended_agent_card
    return encode(members)


def members_of(card: AgentCard, *, with_latest: bool = False) -> dict[str, Any]:
    """Return a card as the members of a JSON object of this version.

    ``with_latest``: security schemes are in the form of 1.0 too, which is that of the proto.
    """
    members = _bare(card)
    members.update(_security(card, members, with_latest=with_latest))
    members.pop("securityRequirements", None)
    for skill in members["skills"]:
        skill.pop("securityRequirements", None)
    return members


def proto_members_of(card: AgentCard) -> dict[str, Any]:
    """Return a card as the members of the JSON of the proto of this version."""
    members = _bare(card)
    for lease_owner in (members, *members["skills"]):
        if "securityRequirements" in lease_owner:
            lease_owner["security"] = lease_owner.pop("securityRequirements")
    return members


def read_card(members: Mapping[str, Any]) -> AgentCard:
    """Return the card that a JSON object holds, in the form of this version or of its proto.

    Of a card that is merged with that of a later version, that one is read, with what it leaves to
    the members of this.
    Unknown members, and security schemes that cannot be read, are passed over.
    Raises ``A2AError`` that names what is wrong.
    """
    card: dict[str, Any] = {name: value for name, value in members.items() if value is not None}
    if "supportedInterfaces" in card:
        return latest.read_card(_with_capability(card))
    card["supportedInterfaces"] = _read_interfaces(card)
    card = _with_capability(card)
    schemes = card.get("securitySchemes")
    if isinstance(schemes, dict):
        card["securitySchemes"] = {name: _read_scheme(each) for name, each in schemes.items()}
    skills = card.get("skills")
    if isinstance(skills, list):
        card["skills"] = [_read_security(skill) for skill in skills]
    return latest.read_card(_read_security(card))


def _with_capability(card: dict[str, Any]) -> dict[str, Any]:
    """Return a card that says in its capabilities whether there is an extended one."""
    capabilities = card.get("capabilities") or {}
    extended = card.get("supportsAuthenticatedExtendedCard")
    if extended is not None:
        if not isinstance(capabilities, dict):
            tolerance.note([("capabilities", "expected an object")])
            capabilities = {}
        capabilities = {"extendedAgentCard": extended, **capabilities}
    return {**card, "capabilities": capabilities}


# -- writing -----------------------------------------------------------------------------------


def _members(card: AgentCard) -> dict[str, Any]:
    members: dict[str, Any] = protojson.parse(encode(card))
    for extension in members["capabilities"].get("extensions", ()):
        extension.setdefault("uri", "")  # 0.3 requires it
    return members


def _bare(card: AgentCard) -> dict[str, Any]:
    """Return the members of a card of 1.0 with the addresses of 0.3."""
    members = _members(card)
    del members["supportedInterfaces"]
    extended = members["capabilities"].pop("extendedAgentCard", None)
    if extended is not None:
        members["supportsAuthenticatedExtendedCard"] = extended
    members.update(_connection(_interfaces_of(card)))
    return members


def _interfaces_of(card: AgentCard) -> list[AgentInterface]:
    """Return the interfaces of this version. One that needs a tenant is none: 0.3 names none."""
    return [
        each
        for each in card.supported_interfaces
        if not each.tenant and f"{each.protocol_version}.".startswith("0.3.")
    ]


def _connection(offered: list[AgentInterface]) -> dict[str, Any]:
    if not offered:
        return {"protocolVersion": VERSION, "url": ""}
    return {
        "protocolVersion": VERSION,
        "url": offered[0].url,
        "preferredTransport": offered[0].protocol_binding,
        # The main one too (0.3 §5.6.2).
        "additionalInterfaces": [
            {"url": each.url, "transport": each.protocol_binding} for each in offered
        ],
    }


def _security(card: AgentCard, members: dict[str, Any], *, with_latest: bool) -> dict[str, Any]:
    """Return schemes and requirements as 0.3 has them; add those of skills to their members."""
    for skill, given in zip(card.skills, members["skills"], strict=True):
        if skill.security_requirements:
            given["security"] = _requirements(given["securityRequirements"])
    security: dict[str, Any] = {}
    if card.security_requirements:
        security["security"] = _requirements(members["securityRequirements"])
    if card.security_schemes:
        schemes: dict[str, dict[str, Any]] = members["securitySchemes"]
        security["securitySchemes"] = {
            name: {**(scheme if with_latest else {}), **_scheme(scheme)}
            for name, scheme in schemes.items()
        }
    return security


def _requirements(given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: list(scopes.get("list", ())) for name, scopes in need.get("schemes", {}).items()}
        for need in given
    ]


def _scheme(scheme: dict[str, Any]) -> dict[str, Any]:
    """Return a security scheme as OpenAPI and 0.3 have it, of one that is as in 1.0."""
    ((member, held),) = scheme.items()
    members = {"type": _TYPE_OF[member], **held}
    if member == "apiKeySecurityScheme":
        members["in"] = members.pop("location")
    elif member == "oauth2SecurityScheme":
        members["flows"] = {
            name: {**_FLOWS[name], **flow} for name, flow in members["flows"].items()
        }
    return members


# -- reading -----------------------------------------------------------------------------------


def _read_interfaces(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    main = {"url": card.get("url"), "transport": card.get("preferredTransport") or _JSONRPC}
    more = card.get("additionalInterfaces")
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    for each in (main, *(more if isinstance(more, list) else ())):
        if isinstance(each, dict) and isinstance(each.get("url"), str) and each["url"]:
            url, binding = each["url"], each.get("transport") or _JSONRPC
            found.setdefault(
                (str(url), str(binding)),
                {
                    "url": url,
                    "protocolBinding": binding,
                    "protocolVersion": card.get("protocolVersion") or VERSION,
                },
            )
    return list(found.values())


def _read_security(lease_owner: Any) -> Any:
    """Return a card or a skill with its ``security`` as 1.0 has it."""
    needs = lease_owner.get("security") if isinstance(lease_owner, dict) else None
    if not isinstance(needs, list):
        return lease_owner
    return {**lease_owner, "securityRequirements": [_read_requirement(need) for need in needs]}


def _read_requirement(need: Any) -> Any:
    if not isinstance(need, dict) or isinstance(need.get("schemes"), dict):
        return need
    return {"schemes": {name: {"list": scopes} for name, scopes in need.items()}}


def _read_scheme(scheme: Any) -> Any:
    if not isinstance(scheme, dict) or not _TYPE_OF.keys().isdisjoint(scheme):
        return scheme
    member = _TYPES.get(str(scheme.get("type")))
    if member is None:
        return scheme
    held = {name: value for name, value in scheme.items() if name != "type"}
    if member == "apiKeySecurityScheme" and "in" in held:
        held["location"] = held.pop("in")
    flows = held.get("flows")
    if member == "oauth2SecurityScheme" and isinstance(flows, dict):
        first = [name for name in _FLOWS if isinstance(flows.get(name), dict)][:1]
        held["flows"] = {name: flows[name] for name in first}
    return {member: held}
