"""Agent cards of version 0.3, alone and merged with cards of 1.0 (0.3 §5).

A card has three forms: the JSON of 0.3 (``members_of``), the JSON of its proto
(``proto_members_of``), with the security of 1.0, and the merged document (``write_merged_card``),
with the members of both versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from parley.model.cards import (
    LOCATIONS,
    AgentCard,
    AgentCardSignature,
    AgentInterface,
    AgentProvider,
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
)
from parley.model.struct import A2AStruct, InvalidField, NonEmpty, encode
from parley.wire.json import problems, protojson
from parley.wire.v1_0 import json as latest

_NEEDED = {
    "apiKey": ("location", "name"),
    "http": ("scheme",),
    "oauth2": ("flows",),
    "openIdConnect": ("open_id_connect_url",),
    "mutualTLS": (),
}
_WIRE_NAMES = {"location": "in", "open_id_connect_url": "openIdConnectUrl"}


class Interface(A2AStruct, frozen=True, kw_only=True):
    """One address, with its transport."""

    url: NonEmpty
    transport: NonEmpty


class Extension(A2AStruct, frozen=True, kw_only=True):
    """An extension of the protocol."""

    uri: NonEmpty
    description: str = ""
    required: bool = False
    params: dict[str, Any] = {}


class Capabilities(A2AStruct, frozen=True, kw_only=True):
    """The optional parts of the protocol."""

    streaming: bool = False
    push_notifications: bool = False
    state_transition_history: bool = False
    extensions: tuple[Extension, ...] = ()


class Skill(A2AStruct, frozen=True, kw_only=True):
    """One thing that the agent can do."""

    id: NonEmpty
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    security: tuple[dict[str, tuple[str, ...]], ...] = ()


class ImplicitFlow(A2AStruct, frozen=True, kw_only=True):
    """OAuth 2 implicit."""

    authorization_url: str
    refresh_url: str = ""
    scopes: dict[str, str]


class Flows(A2AStruct, frozen=True, kw_only=True):
    """The OAuth 2 flows of a scheme."""

    authorization_code: AuthorizationCodeOAuthFlow | None = None
    client_credentials: ClientCredentialsOAuthFlow | None = None
    implicit: ImplicitFlow | None = None
    password: ClientCredentialsOAuthFlow | None = None


class Scheme(A2AStruct, frozen=True, kw_only=True):
    """A security scheme of any type."""

    type: str
    description: str = ""
    location: str = msgspec.field(default="", name="in")
    name: str = ""
    scheme: str = ""
    bearer_format: str = ""
    open_id_connect_url: str = ""
    oauth2_metadata_url: str = ""
    flows: Flows | None = None

    def __post_init__(self) -> None:
        needed = _NEEDED.get(self.type)
        if needed is None:
            words = f"expected one of {', '.join(_NEEDED)}; got {self.type[:40]!r}"
            raise InvalidField("type", words)
        faults = [
            f"{_WIRE_NAMES.get(name, name)} is required, but missing"
            for name in needed
            if not getattr(self, name)
        ]
        if self.type == "apiKey" and self.location and self.location not in LOCATIONS:
            known = ", ".join(LOCATIONS)
            faults.append(f"in: expected one of {known}; got {self.location[:40]!r}")
        if faults:
            raise ValueError("; ".join(faults))


class Card(A2AStruct, frozen=True, kw_only=True):
    """A card."""

    protocol_version: NonEmpty
    name: NonEmpty
    description: str
    url: NonEmpty
    preferred_transport: str = ""
    additional_interfaces: tuple[Interface, ...] = ()
    icon_url: str = ""
    provider: AgentProvider | None = None
    version: str
    documentation_url: str = ""
    capabilities: Capabilities
    security_schemes: dict[str, Scheme] = {}
    security: tuple[dict[str, tuple[str, ...]], ...] = ()
    default_input_modes: tuple[str, ...]
    default_output_modes: tuple[str, ...]
    skills: tuple[Skill, ...]
    supports_authenticated_extended_card: bool = False
    signatures: tuple[AgentCardSignature, ...] = ()


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

# The members of a flow that 0.3 requires, and 1.0 leaves out if empty.
_FLOWS = {
    "authorizationCode": {"authorizationUrl": "", "tokenUrl": "", "scopes": {}},
    "clientCredentials": {"tokenUrl": "", "scopes": {}},
    "deviceCode": {},
    "implicit": {"authorizationUrl": "", "scopes": {}},
    "password": {"tokenUrl": "", "scopes": {}},
}
"""The OAuth flows; if a scheme has several the first is used, because 1.0 allows only one."""


def write_card(card: AgentCard) -> bytes:
    """Write a card as JSON of this version."""
    return encode(members_of(card))


def write_merged_card(card: AgentCard) -> bytes:
    """Write a card as JSON that callers of 0.3 and of 1.0 can read.

    A card without an interface of 0.3 has the form of 1.0 alone.
    """
    interfaces = _interfaces_of(card)
    members = _members(card)
    if interfaces:
        members.update(_connection(interfaces))
        members.update(_security(card, members, with_latest=True))
        if card.capabilities.extended_agent_card is not None:
            members["supportsAuthenticatedExtendedCard"] = card.capabilities.extended_agent_card
    return encode(members)


def members_of(card: AgentCard, *, with_latest: bool = False) -> dict[str, Any]:
    """Return the members of a card of 0.3.

    ``with_latest`` adds the 1.0 form of security schemes, which the proto has too.
    """
    members = _bare(card)
    members.update(_security(card, members, with_latest=with_latest))
    members.pop("securityRequirements", None)
    for skill in members["skills"]:
        skill.pop("securityRequirements", None)
    return members


def proto_members_of(card: AgentCard) -> dict[str, Any]:
    """Return the members of a card in the proto of 0.3."""
    members = _bare(card)
    for secured in (members, *members["skills"]):
        if "securityRequirements" in secured:
            secured["security"] = secured.pop("securityRequirements")
    return members


def read_card(members: Mapping[str, Any]) -> AgentCard:
    """Read a card in the form of 0.3 or of its proto.

    If the card is merged, the members of 1.0 are read, with the capability that only 0.3 has.
    Unknown members and unreadable security schemes are left out. Raises ``A2AError`` with the
    problem.
    """
    card: dict[str, Any] = {name: value for name, value in members.items() if value is not None}
    if "supportedInterfaces" in card:
        return latest.read_card(_with_capability(card))
    card["supportedInterfaces"] = _read_interfaces(card)
    return latest.read_card(_with_capability(card))


def _with_capability(card: dict[str, Any]) -> dict[str, Any]:
    """Return a card that declares an extended card among its capabilities."""
    capabilities = card.get("capabilities") or {}
    extended = card.get("supportsAuthenticatedExtendedCard")
    if extended is not None:
        if not isinstance(capabilities, dict):
            problems.report([("capabilities", "expected an object")])
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
    """Return the members of a card of 1.0 with the interfaces of 0.3."""
    members = _members(card)
    del members["supportedInterfaces"]
    extended = members["capabilities"].pop("extendedAgentCard", None)
    if extended is not None:
        members["supportsAuthenticatedExtendedCard"] = extended
    members.update(_connection(_interfaces_of(card)))
    return members


def _interfaces_of(card: AgentCard) -> list[AgentInterface]:
    """Return the interfaces of 0.3. Interfaces with a tenant are left out: 0.3 has no tenants."""
    return [
        each
        for each in card.supported_interfaces
        if not each.tenant and f"{each.protocol_version}.".startswith("0.3.")
    ]


def _connection(interfaces: list[AgentInterface]) -> dict[str, Any]:
    if not interfaces:
        return {"protocolVersion": VERSION, "url": ""}
    return {
        "protocolVersion": VERSION,
        "url": interfaces[0].url,
        "preferredTransport": interfaces[0].protocol_binding,
        # Including the main one (0.3 §5.6.2).
        "additionalInterfaces": [
            {"url": each.url, "transport": each.protocol_binding} for each in interfaces
        ],
    }


def _security(card: AgentCard, members: dict[str, Any], *, with_latest: bool) -> dict[str, Any]:
    """Return schemes and requirements in the form of 0.3; add requirements to members of skills."""
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
    """Return the form of a security scheme in OpenAPI and 0.3, from that in 1.0."""
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
            # Some cards use the name of 1.0.
            binding = each.get("transport") or each.get("protocolBinding") or _JSONRPC
            url = each["url"]
            found.setdefault(
                (str(url), str(binding)),
                {
                    "url": url,
                    "protocolBinding": binding,
                    "protocolVersion": card.get("protocolVersion") or VERSION,
                },
            )
    return list(found.values())
