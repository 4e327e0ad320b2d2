"""The agent card: identity, skills, capabilities and interfaces (specification §4.4, §8)."""

from __future__ import annotations

from typing import Any

from parley.model.schemes import SecurityRequirement, SecurityScheme
from parley.model.struct import A2AStruct, NonEmpty, freeze


class AgentInterface(A2AStruct, frozen=True, kw_only=True):
    """One address of an agent, with its binding and protocol version (§4.4.6)."""

    url: NonEmpty
    protocol_binding: NonEmpty
    tenant: str = ""
    protocol_version: str


class AgentProvider(A2AStruct, frozen=True, kw_only=True):
    """The provider of the agent (§4.4.2)."""

    url: str
    organization: str


class AgentExtension(A2AStruct, frozen=True, kw_only=True):
    """An extension of the protocol that the agent supports (§4.4.4)."""

    uri: str = ""
    description: str = ""
    required: bool = False
    params: dict[str, Any] | None = None


class AgentCapabilities(A2AStruct, frozen=True, kw_only=True):
    """The optional parts of the protocol that the agent supports (§4.4.3)."""

    streaming: bool | None = None
    push_notifications: bool | None = None
    extensions: tuple[AgentExtension, ...] = ()
    extended_agent_card: bool | None = None

    def __post_init__(self) -> None:
        freeze(self, "extensions")


class AgentSkill(A2AStruct, frozen=True, kw_only=True):
    """One thing that the agent can do (§4.4.5)."""

    id: NonEmpty
    name: str
    description: str
    tags: tuple[str, ...]
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    security_requirements: tuple[SecurityRequirement, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "tags", "examples", "input_modes", "output_modes", "security_requirements")


class AgentCardSignature(A2AStruct, frozen=True, kw_only=True):
    """A JSON Web Signature over the card (§4.4.7)."""

    protected: NonEmpty
    signature: NonEmpty
    header: dict[str, Any] | None = None


class AgentCard(A2AStruct, frozen=True, kw_only=True):
    """An agent's description of itself (§4.4.1)."""

    name: NonEmpty
    description: str
    supported_interfaces: tuple[AgentInterface, ...]
    provider: AgentProvider | None = None
    version: str
    documentation_url: str | None = None
    capabilities: AgentCapabilities
    security_schemes: dict[str, SecurityScheme] = {}
    security_requirements: tuple[SecurityRequirement, ...] = ()
    default_input_modes: tuple[str, ...]
    default_output_modes: tuple[str, ...]
    skills: tuple[AgentSkill, ...]
    signatures: tuple[AgentCardSignature, ...] = ()
    icon_url: str | None = None

    def __post_init__(self) -> None:
        freeze(
            self,
            "supported_interfaces",
            "security_requirements",
            "default_input_modes",
            "default_output_modes",
            "skills",
            "signatures",
        )
