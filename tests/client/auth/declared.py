"""Agents that require tokens of the test issuer, and the tokens that they received."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

import parley
from parley import Agent, Caller, Rights, Turn
from parley.model.cards import (
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
    DeviceCodeOAuthFlow,
    OAuth2SecurityScheme,
    OAuthFlows,
    OpenIdConnectSecurityScheme,
    SecurityScheme,
)
from parley.security import Scheme
from parley.security.evidence import Evidence
from parley.security.schemes.scheme import CredentialsRefused, Proof, bearer_challenge
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.testing import Issuer

AUDIENCE = "bank"


class Tokens(Scheme):
    """Accepts tokens of an issuer, and declares any scheme that a test needs."""

    def __init__(self, issuer: Issuer, declared: SecurityScheme, name: str = "tokens") -> None:
        self.name = name
        self.issuer = issuer
        self.scheme = declared
        self.seen: list[str] = []
        self.refused: set[str] = set()
        self.challenged: dict[str, str] = {}

    def declared(self) -> SecurityScheme:
        return self.scheme

    def is_presented(self, evidence: Evidence) -> bool:
        return any(scheme == "bearer" for scheme, _ in evidence.authorization)

    def verify(self, evidence: Evidence) -> Proof:
        token = evidence.authorization[0][1]
        self.seen.append(token)
        keys = KeySet.import_key_set(self.issuer.keys.published())
        try:
            claims = jwt.decode(token, keys, algorithms=["ES256"]).claims
        except (JoseError, ValueError) as error:
            raise CredentialsRefused(str(error)) from None
        if token in self.refused or claims["exp"] < self.issuer.now():
            raise CredentialsRefused("expired")
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if claims["iss"] != self.issuer.url or AUDIENCE not in audience:
            raise CredentialsRefused("for somebody else")
        scopes = frozenset(claims.get("scope", "").split())
        who = Caller(id=claims["sub"], scopes=scopes, client=claims.get("client_id", ""))
        return Proof(who, scopes)

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        return bearer_challenge(error=error, scopes=scopes, **self.challenged)


def openid(issuer: Issuer) -> SecurityScheme:
    url = f"{issuer.url}/.well-known/openid-configuration"
    return SecurityScheme(
        open_id_connect_security_scheme=OpenIdConnectSecurityScheme(open_id_connect_url=url)
    )


def oauth(issuer: Issuer, flow: str, *, metadata: bool = False, **urls: str) -> SecurityScheme:
    """Return a scheme with one flow of an issuer; ``urls`` replace its addresses."""
    own = {
        "token_url": f"{issuer.url}/token",
        "authorization_url": f"{issuer.url}/authorize",
        "device_authorization_url": f"{issuer.url}/device_authorization",
    } | urls
    kinds: dict[str, Any] = {
        "authorization_code": AuthorizationCodeOAuthFlow,
        "client_credentials": ClientCredentialsOAuthFlow,
        "device_code": DeviceCodeOAuthFlow,
    }
    kind = kinds[flow]
    members = {name: url for name, url in own.items() if name in kind.__struct_fields__}
    return SecurityScheme(
        oauth2_security_scheme=OAuth2SecurityScheme(
            flows=OAuthFlows(**{flow: kind(scopes={}, **members)}),
            oauth2_metadata_url=f"{issuer.url}/.well-known/oauth-authorization-server"
            if metadata
            else "",
        )
    )


def bank(tokens: Scheme, *, needs: Sequence[str] = ()) -> Agent:
    """Return an agent that requires a token; one skill and one operation require more scopes."""
    security = tokens.with_scopes(*needs)
    agent = Agent(
        "Bank",
        security=security,
        rights=Rights(operations={"CancelTask": tokens.with_scopes("cancel")}),
    )

    @agent.skill
    async def balance(turn: Turn) -> str:
        return f"{turn.caller.id}: 42"

    @agent.skill(security=tokens.with_scopes("pay"))
    async def pay(turn: Turn) -> str:
        await turn.ask("Really?")
        return "paid"

    return agent


@asynccontextmanager
async def served(agent: Agent, **options: Any) -> AsyncIterator[str]:
    """Serve an agent with all bindings, and yield its address."""
    app = parley.asgi(agent, drain=0.0, **options)
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        yield url
