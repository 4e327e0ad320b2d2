"""Cards of the envelope protocol: an agent's names, capabilities, addresses and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, to_builtins
from msgspec.structs import replace

from parley.envelope.codec import MAX_DEPTH, parse
from parley.envelope.declared import MAX_WINDOWS, MaintenanceWindow, check_window, window_of
from parley.envelope.messages import BINDING, Count
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
from parley.model.errors import A2AError, FieldViolation, InvalidParamsError, InvalidRequestError
from parley.model.extensions import ENVELOPE_CARD, SKILL_SCHEMAS
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.model.struct import A2AStruct, NonEmpty, Timestamp, encode
from parley.wire.json import protojson
from parley.wire.json.problems import logging_problems, report

MAX_CARD_BYTES = 1024 * 1024
MAX_CAPABILITIES = 1000

Share = Annotated[float, Meta(ge=0, le=1)]


class CardAgentInfo(A2AStruct, frozen=True, kw_only=True):
    """The identity of an agent. ``id`` is the ``agentId`` of its messages."""

    id: NonEmpty
    name: str = ""
    type: str = ""
    version: str = ""
    description: str = ""
    vendor: str = ""
    license: str = ""


class CardPerformance(A2AStruct, frozen=True, kw_only=True):
    """The performance of a capability: latency in ms, concurrency, and success rate."""

    average_response_time: Count | None = None
    max_concurrent_requests: Count | None = None
    reliability: Share | None = None


class CardCapability(A2AStruct, frozen=True, kw_only=True):
    """An action of the agent, by its ``name``, with the JSON Schemas of its input and output.

    ``performance`` is declared by the author.
    """

    name: NonEmpty
    display_name: str = ""
    description: str = ""
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    performance: CardPerformance | None = None


class CardEndpoints(A2AStruct, frozen=True, kw_only=True):
    """The addresses of the agent: a WebSocket, an address for POST, and a health check."""

    primary: str = ""
    backup: str = ""
    health_check: str = ""


class CardSecurity(A2AStruct, frozen=True, kw_only=True):
    """The requirements for callers. ``auth_methods`` are, for example, ``bearer-token``,
    ``mutual-tls``.
    """

    auth_methods: tuple[str, ...] = ()
    required_permissions: tuple[str, ...] = ()
    data_classification: str = ""


class CardRateLimits(A2AStruct, frozen=True, kw_only=True):
    """The limits of one caller."""

    requests_per_minute: Count | None = None
    concurrent_connections: Count | None = None


class CardAvailability(A2AStruct, frozen=True, kw_only=True):
    """When the agent works: ``schedule`` is text for people, the windows are enforced.

    A window is read from a text such as ``Sunday 02:00-04:00 UTC`` too.
    """

    schedule: str = ""
    maintenance_windows: tuple[MaintenanceWindow, ...] = ()


class CardConstraints(A2AStruct, frozen=True, kw_only=True):
    """The limits that hold for callers."""

    rate_limits: CardRateLimits | None = None
    availability: CardAvailability | None = None


class CardMetadata(A2AStruct, frozen=True, kw_only=True):
    """Facts about the card. ``documentation`` is an address."""

    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    tags: tuple[str, ...] = ()
    documentation: str = ""


class EnvelopeCard(A2AStruct, frozen=True, kw_only=True):
    """The card of an agent in the envelope protocol."""

    agent_info: CardAgentInfo
    capabilities: tuple[CardCapability, ...] = ()
    endpoints: CardEndpoints = CardEndpoints()
    security: CardSecurity = CardSecurity()
    constraints: CardConstraints = CardConstraints()
    metadata: CardMetadata = CardMetadata()

    def capability(self, name: str) -> CardCapability | None:
        """Return the capability of a name."""
        return next((each for each in self.capabilities if each.name == name), None)


def read_card(
    data: bytes | str | Mapping[str, Any], *, max_bytes: int = MAX_CARD_BYTES
) -> EnvelopeCard:
    """Read a card tolerantly: members that are unknown or wrong are left out, and logged.

    Raises ``A2AError`` with the reason for a card without ``agentInfo.id``, and for JSON that is
    too large or ambiguous.
    """
    if isinstance(data, Mapping):
        try:
            data = encode(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"the card is not JSON: {error}") from None
    elif isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    members = parse(data, max_depth=MAX_DEPTH, max_bytes=max_bytes, what="the card")
    if not isinstance(members, dict):
        raise InvalidRequestError("a card is a JSON object")
    info = members.get("agentInfo")
    id = info.get("id") if isinstance(info, dict) else None
    if not isinstance(id, str) or not id or not may_be_name(id):
        _refuse("agentInfo.id", f"required: the agent's id, with {RIGHT_NAME}")
    listed = members.get("capabilities")
    if isinstance(listed, list) and len(listed) > MAX_CAPABILITIES:
        _refuse("capabilities", f"at most {MAX_CAPABILITIES} are read")
    with logging_problems(f"the envelope card of {ascii(id)[:100]}"):
        try:
            windows = windows_of(members)
        except InvalidParamsError as error:
            report((each.field, each.description) for each in error.violations)
        else:
            if windows:
                constraints = members["constraints"]
                listed = [to_builtins(each) for each in windows]
                availability = {**constraints["availability"], "maintenanceWindows": listed}
                constraints = {**constraints, "availability": availability}
                members = {**members, "constraints": constraints}
        return protojson.read_answer(members, EnvelopeCard)


def windows_of(members: Mapping[str, Any]) -> tuple[MaintenanceWindow, ...]:
    """Return the maintenance windows of a card, which may be texts.

    Raises ``InvalidParamsError`` that names a window that cannot be enforced.
    """
    given: Any = members
    for name in ("constraints", "availability", "maintenanceWindows"):
        given = given.get(name) if isinstance(given, Mapping) else None
    if given is None:
        return ()
    where = "constraints.availability.maintenanceWindows"
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) > MAX_WINDOWS:
        _refuse(where, f"expected a list of at most {MAX_WINDOWS} windows")
    windows = []
    for number, each in enumerate(given):
        try:
            if isinstance(each, str):
                windows.append(window_of(each))
            else:
                windows.append(protojson.read(each, MaintenanceWindow))
                check_window(windows[-1])
        except (A2AError, ValueError) as error:
            _refuse(f"{where}[{number}]", str(error))
    return tuple(windows)


def write_card(card: EnvelopeCard) -> bytes:
    """Return a card as JSON. Defaults are left out."""
    return encode(card)


def _refuse(field: str, description: str) -> None:
    violation = FieldViolation(field, description)
    error: A2AError = InvalidParamsError(f"{field}: {description}", violations=(violation,))
    raise error


PROTOCOL_VERSION = "1.0"
"""The version of A2A whose operations the binding carries."""

BEARER, MUTUAL_TLS, API_KEY = "bearer-token", "mutual-tls", "api-key"
BASIC, OAUTH2, OPENID_CONNECT = "basic", "oauth2", "openid-connect"

_JSON = ("application/json", "text/plain")


_POSTED = {"ws": "http", "wss": "https"}
_SOCKETS = {"http": "ws", "https": "wss"}


def _with_scheme(url: str, schemes: Mapping[str, str]) -> str:
    """Return an address with the scheme of the other transport."""
    scheme, separator, rest = url.partition(":")
    return schemes.get(scheme, scheme) + separator + rest


def agent_card_of(card: EnvelopeCard) -> AgentCard:
    """Return the equivalent A2A card: for registries, and for A2A clients.

    It has each address once, with the scheme of HTTP.
    """
    info, given = card.agent_info, (card.endpoints.primary, card.endpoints.backup)
    urls = dict.fromkeys(_with_scheme(url, _POSTED) for url in given if url)
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
    """Return the equivalent envelope card of an A2A card.

    The agent's id is ``agent_id``, else the id that the card declares for the protocol, else its
    name.
    """
    declared = _declared(card)
    info = declared.agent_info if declared is not None else CardAgentInfo(id=card.name)
    interfaces = [each for each in card.supported_interfaces if each.protocol_binding == BINDING]
    urls = list(dict.fromkeys(_with_scheme(each.url, _POSTED) for each in interfaces))
    urls = [url for url in urls if url.startswith(("http:", "https:"))]
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
            primary=_with_scheme(urls[0], _SOCKETS) if urls else "",
            backup=urls[-1] if urls else "",
            health_check=found.endpoints.health_check,
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
        uri=ENVELOPE_CARD,
        description="The members of the envelope card that this card lacks.",
        params=members,
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
    """Return the card in an extension's params, ``None`` without a readable one."""
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

    Any of them is enough, with the required permissions as its scopes.
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
