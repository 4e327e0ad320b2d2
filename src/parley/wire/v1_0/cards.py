"""Agent cards of version 1.0, as peers may write them (specification §4.4, §8).

Security is read in every form that has one meaning: of 1.0, of 0.3 and OpenAPI, and mixed.
"""

from __future__ import annotations

import re
from typing import Any

from parley.model.cards import LOCATIONS, AgentCard
from parley.wire.json import protojson, tolerance

UNREADABLE = "(unreadable)"
"""The scheme of a requirement that cannot be read. No card declares it, so no credential fits."""

_API_KEY, _HTTP = "apiKeySecurityScheme", "httpAuthSecurityScheme"
_OAUTH2, _OPENID = "oauth2SecurityScheme", "openIdConnectSecurityScheme"
_KINDS = {
    "apikey": _API_KEY,
    "http": _HTTP,
    "httpauth": _HTTP,
    "bearer": _HTTP,
    "basic": _HTTP,
    "oauth": _OAUTH2,
    "oauth2": _OAUTH2,
    "openidconnect": _OPENID,
    "oidc": _OPENID,
    "mutualtls": "mtlsSecurityScheme",
    "mtls": "mtlsSecurityScheme",
}
_MEMBERS = {
    "in": "location",
    "location": "location",
    "name": "name",
    "scheme": "scheme",
    "bearerformat": "bearerFormat",
    "openidconnecturl": "openIdConnectUrl",
    "oauth2metadataurl": "oauth2MetadataUrl",
    "flows": "flows",
    "type": "type",
}
# The kind of a scheme without a type, by a member that only this kind has.
_TELLING = {
    "location": _API_KEY,
    "scheme": _HTTP,
    "openIdConnectUrl": _OPENID,
    "flows": _OAUTH2,
    "flow": _OAUTH2,
}
# Of several flows the first here counts, because 1.0 allows only one.
_FLOWS = {
    "authorizationcode": "authorizationCode",
    "accesscode": "authorizationCode",
    "clientcredentials": "clientCredentials",
    "application": "clientCredentials",
    "devicecode": "deviceCode",
    "implicit": "implicit",
    "password": "password",
}


def read_card(members: dict[str, Any]) -> AgentCard:
    """Read a card tolerantly.

    Unknown members, security schemes of unknown kinds and wrong optional members are left out. A
    requirement stays, whatever it says: an unreadable one names a scheme that no card declares.
    Raises ``A2AError`` that names what is wrong.
    """
    card = _secured(members)
    if isinstance(card.get("skills"), list):
        card["skills"] = [
            tolerance.read_below(f"skills[{index}]", _secured, skill)
            for index, skill in enumerate(card["skills"])
        ]
    schemes = card.pop("security_schemes", None) or {}
    schemes = card.get("securitySchemes") or schemes
    if isinstance(schemes, dict):
        card["securitySchemes"] = {name: _scheme(each) for name, each in schemes.items()}
    return protojson.read_answer(card, AgentCard)


def _secured(secured: Any) -> Any:
    """Return a card or a skill with its requirements in the form of 1.0."""
    if not isinstance(secured, dict):
        return secured
    members = dict(secured)
    names = ("securityRequirements", "security_requirements", "security")
    given = [members.pop(name, None) for name in names]
    needs: Any = next((each for each in given if each not in (None, [])), [])
    needs = needs if isinstance(needs, list) else [needs]
    if needs:
        members["securityRequirements"] = [_requirement(need) for need in needs]
    return members


def _requirement(need: Any) -> dict[str, Any]:
    if isinstance(need, str):
        need = [need]
    schemes = need.get("schemes", need) if isinstance(need, dict) else need
    if isinstance(schemes, list) and schemes and all(isinstance(each, str) for each in schemes):
        schemes = dict.fromkeys(schemes)
    if not isinstance(schemes, dict):
        tolerance.report([("securityRequirements", "expected objects with schemes")])
        schemes = {UNREADABLE: None}
    return {"schemes": {name: {"list": _scopes(each)} for name, each in schemes.items()}}


def _scopes(given: Any) -> list[str]:
    """Return scopes from the form of any version; servers of the Go SDK (2.4) write a list."""
    if isinstance(given, dict):
        given = given.get("list")
    given = [given] if isinstance(given, str) else given
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _scheme(scheme: Any) -> Any:
    """Return a security scheme in the form of 1.0, as far as it can be read."""
    if not isinstance(scheme, dict):
        return scheme  # the reader reports it
    kinds = {
        _KINDS[_spelled(key)]: held
        for key, held in scheme.items()
        if isinstance(held, dict) and _spelled(key) in _KINDS
    }
    type = ""
    if len(kinds) == 1:
        ((kind, scheme),) = kinds.items()
    elif kinds:
        return scheme
    held = {_MEMBERS.get(_spelled(key), key): value for key, value in scheme.items()}
    if not kinds:
        type = _spelled(str(held.pop("type", "")))
        telling = [_TELLING[key] for key in held if key in _TELLING]
        kind = _KINDS.get(type, "") if type else "".join(telling[:1])
    location = held.get("location")
    if kind == _API_KEY and isinstance(location, str) and location.lower() in LOCATIONS:
        held["location"] = location.lower()
    elif kind == _HTTP and not kinds and (type in ("bearer", "basic") or "bearerFormat" in held):
        held = {"scheme": "basic" if type == "basic" else "bearer", **held}
    elif kind == _OAUTH2:
        held["flows"] = _flow(held)
    return {kind: held} if kind else scheme


def _flow(scheme: dict[str, Any]) -> Any:
    """Return the flow of an OAuth scheme that counts, in an object by its name."""
    flows = scheme.get("flows")
    if isinstance(scheme.get("flow"), str) and flows is None:  # as in OpenAPI 2
        flows = {scheme["flow"]: scheme}
    if not isinstance(flows, dict):
        return flows
    known = {_FLOWS.get(_spelled(key), key): flow for key, flow in flows.items()}
    for name in _FLOWS.values():
        flow = known.get(name)
        if isinstance(flow, dict):
            scopes = flow.get("scopes")
            if isinstance(scopes, list):
                flow = {**flow, "scopes": {str(scope): "" for scope in scopes}}
            return {name: flow}
    return known


def _spelled(name: str) -> str:
    """Return a name without its case, its separators and what all members end with."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("securityscheme")
