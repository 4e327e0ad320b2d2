"""JSON cards for tests, and signatures from other implementations."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model.cards import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from parley.security.signing.canonical import canonical
from parley.security.signing.keys import SigningKey, SigningKeys, encode
from parley.wire import versions
from tests.security.signing.key_sets import key_set, private_jwk

CARD = AgentCard(
    name="Käse",
    description="",
    supported_interfaces=(
        AgentInterface(
            url="https://a.example/", protocol_binding="JSONRPC", protocol_version="1.0"
        ),
        AgentInterface(
            url="https://a.example/", protocol_binding="JSONRPC", protocol_version="0.3"
        ),
    ),
    version="1.0.0",
    capabilities=AgentCapabilities(
        streaming=True,
        push_notifications=False,
        extensions=(AgentExtension(uri="urn:x", params={"empty": {}, "n": 1.0, "big": 1e21}),),
    ),
    security_schemes={
        "token": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))
    },
    security_requirements=(SecurityRequirement(schemes={"token": StringList()}),),
    default_input_modes=("text/plain",),
    default_output_modes=("text/plain",),
    skills=(AgentSkill(id="s", name="S", description="does it", tags=()),),
)
LATEST = versions.write_card(CARD, "1.0")
MERGED = versions.write_card(CARD)
OLD = versions.write_card(CARD, "0.3")


def members(card: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(card)
    return found


def keys_of(*algs: str, kid: str = "") -> SigningKeys:
    """Return new keys, all of them active for signing."""
    named = {"kid": kid} if kid else {}
    return SigningKeys.parse(key_set(*(private_jwk(alg, **named) for alg in algs or ("ES256",))))


def signature(payload: bytes, key: SigningKey, **header: Any) -> dict[str, Any]:
    """Return a signature of bytes; its protected header may be wrong."""
    content = {"alg": key.alg, "kid": key.kid, "typ": "JOSE", **header}
    protected = encode(msgspec.json.encode({n: v for n, v in content.items() if v is not None}))
    data = f"{protected}.{encode(payload)}".encode()
    return {"protected": protected, "signature": encode(key.sign(data))}


def signed(card: dict[str, Any], key: SigningKey, payload: Any = None, **header: Any) -> bytes:
    """Return a card with one signature, over its own canonical JSON or over another value's."""
    unsigned = {name: value for name, value in card.items() if name != "signatures"}
    over = canonical(unsigned if payload is None else payload)
    return msgspec.json.encode({**card, "signatures": [signature(over, key, **header)]})
