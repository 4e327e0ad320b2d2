"""Agents behind every scheme, for a separate process; the argument is the issuer."""

from __future__ import annotations

import os

from parley import Agent, CardDetails, Retention, Turn
from parley.model.service import Caller
from parley.security import (
    ApiKey,
    Basic,
    Bearer,
    ClientCredentialsOAuthFlow,
    Introspection,
    Jwt,
    OAuth2,
    OpenIdConnect,
    anonymous,
)
from parley.security.api_keys import digest_of
from parley.security.schemes.scheme import Scheme, Security

ISSUER = os.environ["LEAKY_ISSUER"]
ADA = Caller(id="ada")
flow = ClientCredentialsOAuthFlow(token_url=f"{ISSUER}/token", scopes={})


def judge(token: str) -> Caller | None:
    """Accept one token, and raise an error for another."""
    if token.startswith("breaks"):
        raise RuntimeError("the author's function fails")
    return ADA if token == os.environ["LEAKY_BEARER"] else None


def check(user: str, password: str) -> Caller | None:
    """Accept one password, and raise an error for another."""
    if password.startswith("breaks"):
        raise RuntimeError("the author's function fails")
    return Caller(id=user) if password == os.environ["LEAKY_PASSWORD"] else None


SCHEMES: dict[str, Scheme | Security] = {
    "openid": OpenIdConnect(ISSUER, audience="vault"),
    "jwt": Jwt(issuer=ISSUER, audience="vault", keys=os.environ["LEAKY_SECRET"].encode()),
    "introspection": OAuth2(
        flow,
        audience="vault",
        issuer=ISSUER,
        introspection=Introspection(
            "service", os.environ["LEAKY_CLIENT_SECRET"], url=f"{ISSUER}/introspect"
        ),
    ),
    "bearer": Bearer(judge),
    "basic": Basic(check),
    "header": ApiKey(keys={digest_of(os.environ["LEAKY_KEY"]): ADA}),
    "query": ApiKey("query", "api_key", keys={digest_of(os.environ["LEAKY_QUERY"]): ADA}),
    "cookie": ApiKey("cookie", "sid", keys={digest_of(os.environ["LEAKY_COOKIE"]): ADA}),
    "stored": ApiKey(),
    "either": OpenIdConnect(ISSUER, audience="vault") | anonymous,
}


def agent(name: str, security: Scheme | Security) -> Agent:
    """Return an agent with a skill that answers and a skill that fails."""
    made = Agent(
        name,
        security=security,
        retention=Retention(history=True),
        card=CardDetails(extended_card={"description": "x"}),
    )

    @made.skill(replies="task")
    async def keep(turn: Turn) -> str:
        turn.log.info("kept for %s", turn.caller)
        await turn.remember("caller", repr(turn.caller))
        return f"kept for {turn.caller.id}"

    @made.skill(replies="task")
    async def fail(turn: Turn) -> str:
        raise RuntimeError(f"failed for {turn.caller!r}")

    return made


AGENTS = {name: agent(name, security) for name, security in SCHEMES.items()}
for _name, _agent in AGENTS.items():
    globals()[f"{_name}_agent"] = _agent
