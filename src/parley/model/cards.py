"""The agent card: identity, skills, capabilities, interfaces and schemes (§4.4, §4.5, §8)."""

from __future__ import annotations

from typing import Any

from parley.model.struct import A2AStruct, NonEmpty, freeze

LOCATIONS = ("header", "query", "cookie")
"""The places of an API key in a request."""


class StringList(A2AStruct, frozen=True, kw_only=True):
    """A list of strings; in a security requirement, the scopes of one scheme."""

    list: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "list")


class SecurityRequirement(A2AStruct, frozen=True, kw_only=True):
    """Schemes that must all be satisfied, each with its scopes."""

    schemes: dict[str, StringList] = {}


class APIKeySecurityScheme(A2AStruct, frozen=True, kw_only=True):
    """A key in a header, query parameter or cookie (§4.5.2)."""

    description: str = ""
    location: str
    name: str

    @property
    def is_known(self) -> bool:
        """True if the location of the key is known."""
        return bool(self.name) and self.location in LOCATIONS


class HTTPAuthSecurityScheme(A2AStruct, frozen=True, kw_only=True):
    """An HTTP authentication scheme, such as Bearer (§4.5.3)."""

    description: str = ""
    scheme: str
    bearer_format: str = ""


class AuthorizationCodeOAuthFlow(A2AStruct, frozen=True, kw_only=True):
    """OAuth 2 authorization code (§4.5.8)."""

    authorization_url: str
    token_url: str
    refresh_url: str = ""
    scopes: dict[str, str]
    pkce_required: bool = False


class ClientCredentialsOAuthFlow(A2AStruct, frozen=True, kw_only=True):
    """OAuth 2 client credentials (§4.5.9)."""

    token_url: str
    refresh_url: str = ""
    scopes: dict[str, str]


class ImplicitOAuthFlow(A2AStruct, frozen=True, kw_only=True):
    """OAuth 2 implicit; deprecated by the specification."""

    authorization_url: str = ""
    refresh_url: str = ""
    scopes: dict[str, str] = {}


class PasswordOAuthFlow(A2AStruct, frozen=True, kw_only=True):
    """OAuth 2 password; deprecated by the specification."""

    token_url: str = ""
    refresh_url: str = ""
    scopes: dict[str, str] = {}


class DeviceCodeOAuthFlow(A2AStruct, frozen=True, kw_only=True):
    """OAuth 2 device code (§4.5.10)."""

    device_authorization_url: str
    token_url: str
    refresh_url: str = ""
    scopes: dict[str, str]


class OAuthFlows(A2AStruct, frozen=True, kw_only=True):
    """Exactly one OAuth 2 flow (§4.5.7)."""

    authorization_code: AuthorizationCodeOAuthFlow | None = None
    client_credentials: ClientCredentialsOAuthFlow | None = None
    implicit: ImplicitOAuthFlow | None = None
    password: PasswordOAuthFlow | None = None
    device_code: DeviceCodeOAuthFlow | None = None

    def __post_init__(self) -> None:
        given = [
            self.authorization_code,
            self.client_credentials,
            self.implicit,
            self.password,
            self.device_code,
        ]
        if sum(flow is not None for flow in given) != 1:
            raise ValueError(
                "flows has exactly one of authorizationCode, clientCredentials, implicit, "
                "password and deviceCode"
            )


class OAuth2SecurityScheme(A2AStruct, frozen=True, kw_only=True):
    """OAuth 2 (§4.5.4)."""

    description: str = ""
    flows: OAuthFlows
    oauth2_metadata_url: str = ""


class OpenIdConnectSecurityScheme(A2AStruct, frozen=True, kw_only=True):
    """OpenID Connect, by its discovery document (§4.5.5)."""

    description: str = ""
    open_id_connect_url: str


class MutualTlsSecurityScheme(A2AStruct, frozen=True, kw_only=True):
    """A client certificate (§4.5.6)."""

    description: str = ""


class SecurityScheme(A2AStruct, frozen=True, kw_only=True):
    """Exactly one kind of security scheme (§4.5.1)."""

    api_key_security_scheme: APIKeySecurityScheme | None = None
    http_auth_security_scheme: HTTPAuthSecurityScheme | None = None
    oauth2_security_scheme: OAuth2SecurityScheme | None = None
    open_id_connect_security_scheme: OpenIdConnectSecurityScheme | None = None
    mtls_security_scheme: MutualTlsSecurityScheme | None = None

    def __post_init__(self) -> None:
        given = [
            self.api_key_security_scheme,
            self.http_auth_security_scheme,
            self.oauth2_security_scheme,
            self.open_id_connect_security_scheme,
            self.mtls_security_scheme,
        ]
        if sum(scheme is not None for scheme in given) != 1:
            raise ValueError(
                "a security scheme has exactly one of apiKeySecurityScheme, "
                "httpAuthSecurityScheme, oauth2SecurityScheme, openIdConnectSecurityScheme and "
                "mtlsSecurityScheme"
            )


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
    """A capability of the agent that callers can use (§4.4.5)."""

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
