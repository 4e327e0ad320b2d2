"""Agents behind every security scheme, and the credentials that each must reject."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from parley import Agent, CardDetails, Rights, Turn
from parley.extensions import TaskSearch
from parley.model.service import Caller
from parley.security import (
    Access,
    ApiKey,
    Basic,
    Bearer,
    ClientCredentialsOAuthFlow,
    Introspection,
    Jwt,
    OAuth2,
    OpenIdConnect,
    Security,
)
from parley.security.schemes.scheme import Scheme
from parley.testing import Issuer

AUDIENCE = "vault"
KEY = "k3y-of-ada"
COOKIE = "c00kie-of-ada"
PASSWORD = "pass:word of ada"
TOKEN = "t0ken-of-ada"
HASH = Basic.hash(PASSWORD)

Headers = Mapping[str, str]
Make = Callable[[Issuer], Headers]


def bearer(token: str) -> Headers:
    """Return the headers for a bearer token."""
    return {"authorization": f"Bearer {token}"}


def basic(user: str, password: str) -> Headers:
    """Return the headers for HTTP Basic."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def of_issuer(**wrong: Any) -> Make:
    """Return a function that makes an issuer's token with a given fault."""
    return lambda issuer: bearer(issuer.token("ada", **wrong))


def always(headers: Headers) -> Make:
    """Return a function that makes the same headers for every issuer."""
    return lambda _: headers


def id_token(issuer: Issuer) -> Headers:
    """Return an ID token: it tells an application about its user, and agents must reject it."""
    claims = {"iss": issuer.url, "sub": "ada", "aud": AUDIENCE, "azp": AUDIENCE, "nonce": "n"}
    now = int(issuer.now())
    return bearer(issuer.sign({**claims, "iat": now, "exp": now + 60, "at_hash": "x"}))


def revoked(issuer: Issuer) -> Headers:
    """Return a token that has just been revoked."""
    token = issuer.token("ada")
    issuer.revoke(token)
    return bearer(token)


def cut(issuer: Issuer) -> Headers:
    """Return a token without the last characters of its signature."""
    return bearer(issuer.token("ada")[:-4])


def swapped(issuer: Issuer) -> Headers:
    """Return a token with the claims of one token and the signature of another."""
    head, _, signature = issuer.token("bob").split(".")
    _, claims, _ = issuer.token("ada").split(".")
    return bearer(f"{head}.{claims}.{signature}")


def unsigned(issuer: Issuer) -> Headers:
    """Return a token without its signature."""
    return bearer(issuer.token("ada").rpartition(".")[0] + ".")


JWTS: dict[str, Make] = {
    "expired": of_issuer(expires_in=-120),
    "not yet valid": of_issuer(skew=3600),
    "wrong audience": of_issuer(audience="hotel"),
    "no audience": of_issuer(claims={"aud": None}),
    "wrong issuer": of_issuer(issuer="https://evil.example"),
    "wrong key": of_issuer(forged=True),
    "unknown key": of_issuer(header={"kid": "unknown"}),
    "alg none": of_issuer(alg="none"),
    "key confused": of_issuer(alg="HS256"),
    "id token": id_token,
    "cut": cut,
    "swapped": swapped,
    "unsigned": unsigned,
}
MALFORMED: dict[str, Make] = {
    "missing": always({}),
    "no token": always({"authorization": "Bearer"}),
    "no jwt": always(bearer("x.y.z")),
    "long": always(bearer("x" * 6000)),
}


class Guard(NamedTuple):
    """A guard of an agent: the security, and the credentials that it accepts and rejects."""

    security: Callable[[Issuer], Scheme | Security]
    valid: Make
    refused: Mapping[str, Make]
    challenge: str


def _flow(issuer: Issuer) -> ClientCredentialsOAuthFlow:
    return ClientCredentialsOAuthFlow(token_url=f"{issuer.url}/token", scopes={})


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _keys(key: str) -> Mapping[str, Caller]:
    return {_digest(key): Caller(id="ada")}


def _introspecting(issuer: Issuer) -> OAuth2:
    asks = Introspection("service", "secret", url=f"{issuer.url}/introspect")
    return OAuth2(_flow(issuer), audience=AUDIENCE, issuer=issuer.url, introspection=asks)


def _both(issuer: Issuer) -> Security:
    scheme = OpenIdConnect(issuer.url, audience=AUDIENCE)
    return ApiKey(keys=_keys(KEY)) & scheme


KEYED = {"x-api-key": KEY}
GUARDS: dict[str, Guard] = {
    "openid": Guard(
        lambda issuer: OpenIdConnect(issuer.url, audience=AUDIENCE),
        of_issuer(),
        MALFORMED | JWTS | {"basic": always(basic("ada", PASSWORD))},
        "Bearer",
    ),
    "jwt": Guard(
        lambda issuer: Jwt(
            issuer=issuer.url, audience=AUDIENCE, jwks_url=f"{issuer.url}/jwks", name="jwt"
        ),
        of_issuer(),
        MALFORMED | JWTS,
        "Bearer",
    ),
    "oauth2": Guard(
        lambda issuer: OAuth2(_flow(issuer), audience=AUDIENCE, issuer=issuer.url),
        of_issuer(),
        MALFORMED | JWTS,
        "Bearer",
    ),
    "introspection": Guard(
        _introspecting,
        of_issuer(opaque=True),
        MALFORMED
        | {
            "unknown": always(bearer("made-up")),
            "revoked": revoked,
            "wrong audience": of_issuer(opaque=True, audience="hotel"),
            "expired": of_issuer(opaque=True, expires_in=-120),
            "wrong issuer": of_issuer(opaque=True, issuer="https://evil.example"),
            "wrong key": of_issuer(forged=True),
            "alg none": of_issuer(alg="none"),
        },
        "Bearer",
    ),
    "bearer": Guard(
        lambda _: Bearer({TOKEN: Caller(id="ada")}.get),
        always(bearer(TOKEN)),
        MALFORMED | {"unknown": always(bearer(TOKEN + "x")), "prefix": always(bearer(TOKEN[:-1]))},
        "Bearer",
    ),
    "key": Guard(
        lambda _: ApiKey(keys=_keys(KEY)),
        always(KEYED),
        {
            "missing": always({}),
            "unknown": always({"x-api-key": KEY + "x"}),
            "its hash": always({"x-api-key": _digest(KEY)}),
            "empty": always({"x-api-key": " "}),
            "as a bearer token": always(bearer(KEY)),
            "as a cookie": always({"cookie": f"X-API-Key={KEY}"}),
        },
        "ApiKey",
    ),
    "cookie": Guard(
        lambda _: ApiKey("cookie", "sid", keys=_keys(COOKIE)),
        always({"cookie": f"a=b; sid={COOKIE}"}),
        {
            "missing": always({}),
            "unknown": always({"cookie": "sid=x"}),
            "twice": always({"cookie": f"sid={COOKIE}; sid={COOKIE}"}),
            "as a header": always({"sid": COOKIE}),
        },
        "ApiKey",
    ),
    "basic": Guard(
        lambda _: Basic({"ada": HASH}),
        always(basic("ada", PASSWORD)),
        {
            "missing": always({}),
            "wrong password": always(basic("ada", PASSWORD + "x")),
            "no password": always(basic("ada", "")),
            "wrong user": always(basic("bob", PASSWORD)),
            "its hash": always(basic("ada", HASH)),
            "malformed": always({"authorization": "Basic ada:secret"}),
        },
        "Basic",
    ),
    "both": Guard(
        _both,
        lambda issuer: {**KEYED, **bearer(issuer.token("ada"))},
        {
            "missing": always({}),
            "key alone": always(KEYED),
            "token alone": of_issuer(),
            "wrong token": lambda issuer: {**KEYED, **bearer(issuer.token(forged=True))},
            "wrong key": lambda issuer: {"x-api-key": "x", **bearer(issuer.token())},
        },
        "Bearer",
    ),
    "either": Guard(
        lambda issuer: OpenIdConnect(issuer.url, audience=AUDIENCE) | ApiKey(keys=_keys(KEY)),
        of_issuer(),
        {
            "missing": always({}),
            # A wrong credential is rejected, even next to a right one.
            "wrong token and a key": lambda issuer: {**KEYED, **bearer(issuer.token(forged=True))},
            "wrong key and a token": lambda issuer: {"x-api-key": "x", **bearer(issuer.token())},
        },
        "Bearer",
    ),
}


class Counts:
    """Counts how often the agent's code ran."""

    def __init__(self) -> None:
        self.runs = 0


def guarded(security: Scheme | Security, counts: Counts) -> Agent:
    """Return an agent with everything that a caller can reach; ``counts`` counts its runs."""

    def policy(access: Access) -> bool:
        counts.runs += 1
        return True

    agent = Agent(
        "Vault",
        security=security,
        rights=Rights(policy=policy),
        card=CardDetails(extended_card={"description": "for members"}),
        extensions=[TaskSearch()],
    )

    @agent.skill(replies="task")
    async def keep(turn: Turn) -> str:
        counts.runs += 1
        return f"{turn.caller.id}: {turn.text}"

    return agent
