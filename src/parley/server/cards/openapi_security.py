"""The security schemes of a card in the form of OpenAPI (specification §4.5)."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model.cards import AgentCard, OAuthFlows, SecurityScheme

Json = dict[str, Any]


def security_of(card: AgentCard) -> tuple[Json, list[Json]]:
    """Return the security schemes and requirements of a card that OpenAPI can describe."""
    schemes = {}
    for name, scheme in card.security_schemes.items():
        described = _scheme(scheme)
        if described is not None:
            schemes[name] = described
    requirements = [
        {name: list(scopes.list) for name, scopes in need.schemes.items()}
        for need in card.security_requirements
        if all(name in schemes for name in need.schemes)
    ]
    return schemes, requirements


def _scheme(scheme: SecurityScheme) -> Json | None:
    described: Json
    if (key := scheme.api_key_security_scheme) is not None:
        described = {"type": "apiKey", "in": key.location, "name": key.name}
        description = key.description
    elif (http := scheme.http_auth_security_scheme) is not None:
        described = {"type": "http", "scheme": http.scheme.lower()}
        if http.bearer_format:
            described["bearerFormat"] = http.bearer_format
        description = http.description
    elif (oauth := scheme.oauth2_security_scheme) is not None:
        flows = _flows(oauth.flows)
        if not flows:
            return None
        described, description = {"type": "oauth2", "flows": flows}, oauth.description
    elif (connect := scheme.open_id_connect_security_scheme) is not None:
        described = {"type": "openIdConnect", "openIdConnectUrl": connect.open_id_connect_url}
        description = connect.description
    else:
        mutual = scheme.mtls_security_scheme
        described, description = {"type": "mutualTLS"}, mutual.description if mutual else ""
    return {**described, "description": description} if description else described


def _flows(flows: OAuthFlows) -> Json:
    """Return the flows that OpenAPI 3.1 has; it has none for devices."""
    known = ("authorization_code", "client_credentials", "implicit", "password")
    members = {"authorizationUrl", "tokenUrl", "refreshUrl", "scopes"}
    found = {}
    for field in msgspec.structs.fields(flows):
        flow = getattr(flows, field.name)
        if flow is not None and field.name in known:
            described: Json = msgspec.to_builtins(flow)
            found[field.encode_name] = {
                "scopes": {},
                **{key: described[key] for key in members & described.keys()},
            }
    return found
