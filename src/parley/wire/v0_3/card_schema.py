"""The members of a card of version 0.3, with those that the specification requires (0.3 §5.5).

Cards are read tolerantly (``cards``); this is what a card is checked against.
"""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model.cards import (
    LOCATIONS,
    AgentCardSignature,
    AgentProvider,
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
)
from parley.model.struct import A2AStruct, InvalidField, NonEmpty

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
