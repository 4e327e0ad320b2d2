"""Verify deliveries as receivers do, written from the documentation of the wire format alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import KeySet

from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig
from tests.kit.webhooks import Told


def asking(url: str, scheme: str, credentials: str = "", **fields: Any) -> Any:
    """Return a webhook configuration with an authentication scheme."""
    authentication = AuthenticationInfo(scheme=scheme, credentials=credentials)
    return TaskPushNotificationConfig(url=url, authentication=authentication, **fields)


def is_signed(told: Told, secret: bytes) -> bool:
    """Return whether a delivery has a signature of a secret."""
    signed = b".".join(
        [told.headers["webhook-id"].encode(), told.headers["webhook-timestamp"].encode(), told.body]
    )
    own = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    return any(
        each.startswith("v1,") and hmac.compare_digest(each[3:], own)
        for each in told.headers.get("webhook-signature", "").split(" ")
    )


def claims_of(
    told: Told, published: Any, *, issuer: str, audience: str, now: float | None = None
) -> dict[str, Any]:
    """Return the claims of a delivery's JWT. Raises a ``JoseError`` or ``AssertionError``."""
    scheme, token = told.headers["authorization"].split(" ")
    assert scheme == "Bearer"
    keys = KeySet.import_key_set(published)
    algorithms = ["ES256", "RS256", "EdDSA", "Ed25519"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # RFC 9864 renames EdDSA
        decoded = jwt.decode(token, keys, algorithms=algorithms)
    jwt.JWTClaimsRegistry(
        None if now is None else int(now),
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": audience},
        exp={"essential": True},
        iat={"essential": True},
        jti={"essential": True, "value": told.headers["webhook-id"]},
        request_body_sha256={"essential": True, "value": hashlib.sha256(told.body).hexdigest()},
    ).validate(decoded.claims)
    assert decoded.header["typ"] == "JWT"
    assert decoded.header["kid"] in {key["kid"] for key in published["keys"]}
    assert decoded.claims["iat"] == int(told.headers["webhook-timestamp"])
    return decoded.claims


class TokenEndpoint:
    """A local token endpoint. ``answer`` replaces its responses."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[dict[str, str], dict[str, str]]] = []
        self.expires_in: Any = 3600
        self.answer: Any = None

    @property
    def last(self) -> str:
        """The token issued last."""
        return f"token-{len(self.asked)}"

    async def take(self, request: web.Request) -> web.StreamResponse:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append((form, {k.lower(): v for k, v in request.headers.items()}))
        if self.answer is not None:
            answer: web.StreamResponse = await self.answer(request)
            return answer
        content = {"access_token": self.last, "token_type": "bearer", "expires_in": self.expires_in}
        return web.json_response(content)

    def credentials(self, **members: str) -> str:
        """Return credentials that name this endpoint."""
        given = {"tokenUrl": self.url, "clientId": "parley", "clientSecret": "s3cr3t-of-client"}
        return json.dumps({**given, **members})


@asynccontextmanager
async def token_endpoint(port: int = 0) -> AsyncIterator[TokenEndpoint]:
    """Run a token endpoint within the context."""
    endpoint = TokenEndpoint()
    app = web.Application()
    app.router.add_post("/token", endpoint.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    bound = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    endpoint.url = f"http://127.0.0.1:{bound}/token"
    try:
        yield endpoint
    finally:
        await runner.cleanup()
