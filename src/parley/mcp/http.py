"""The bridge over HTTP: access control and authentication."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from parley.mcp.bridge import McpBridge
from parley.security.evidence import Evidence
from parley.security.schemes.oauth import OpenIdConnect
from parley.security.schemes.scheme import CredentialsRefused
from parley.server.run import serving
from parley.server.settings import TlsOptions

log = logging.getLogger("parley.mcp")

PATH = "/mcp"
"""The path at which the bridge is served."""

MAX_SESSIONS = 1000
"""The most open sessions of the older protocol."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Tokens:
    """Verifies bearer tokens: fixed tokens, and tokens of an OpenID Connect issuer."""

    def __init__(self, fixed: Sequence[str] = (), issuer: OpenIdConnect | None = None) -> None:
        self._fixed = [hashlib.sha256(each.encode()).digest() for each in fixed]
        self._issuer = issuer

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the owner of a token, ``None`` for an invalid token."""
        digest = hashlib.sha256(token.encode()).digest()
        if any([hmac.compare_digest(digest, each) for each in self._fixed]):
            return AccessToken(token=token, client_id=f"token-{digest.hex()[:16]}", scopes=[])
        if self._issuer is None:
            return None
        scope = {"headers": [(b"authorization", f"Bearer {token}".encode())], "query_string": b""}
        try:
            found = self._issuer.verify(Evidence(scope))
            proof = await found if inspect.isawaitable(found) else found
        except CredentialsRefused as error:
            log.info("a token was rejected: %s", error.reason)
            return None
        caller = proof.caller
        return AccessToken(
            token=token,
            client_id=caller.client or caller.id or "",
            subject=caller.id,
            scopes=sorted(proof.scopes),
            claims={"iss": caller.issuer},
        )


def http_app(
    bridge: McpBridge,
    *,
    host: str = "127.0.0.1",
    url: str = "",
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    tokens: Sequence[str] = (),
    oidc: str = "",
    audience: str = "",
) -> Starlette:
    """Return the ASGI app of a bridge: MCP over streamable HTTP at ``/mcp``.

    Requests must name this machine, the host of ``url`` or a host of ``allowed_hosts``; requests
    from web pages must come from there or from ``allowed_origins``. With ``tokens`` or ``oidc`` (an
    issuer, with the ``audience`` of its tokens, by default ``url``) callers must authenticate.

    Raises ``ValueError`` for ``oidc`` without ``url``.
    """
    hosts, origins = _places(host, url, allowed_hosts, allowed_origins)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=hosts, allowed_origins=origins
    )
    if oidc and not url:
        raise ValueError("oidc needs url, by which clients find the issuer")
    resource = f"{url.rstrip('/')}{PATH}"
    issuer = OpenIdConnect(oidc, audience=audience or resource) if oidc else None
    verifier = Tokens(tokens, issuer) if tokens or issuer else None
    auth = {  # as text, so that issuers are not normalized
        "issuer_url": issuer.authorization_servers[0] if issuer else "http://localhost",
        "resource_server_url": resource if issuer else None,  # without it no issuer is published
        "validate_token_resource": False,  # the scheme checks the audience
    }
    app = bridge.server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        transport_security=security,
        max_sessions=MAX_SESSIONS,
        token_verifier=verifier,
        auth=AuthSettings.model_validate(auth) if verifier else None,
    )
    serving = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(each: Starlette) -> Any:
        try:
            async with serving(each) as state:
                yield state
        finally:
            await bridge.aclose()
            if issuer is not None:
                await issuer.close()

    app.router.lifespan_context = lifespan
    return app


def _places(
    host: str, url: str, allowed_hosts: Sequence[str], allowed_origins: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the values that the headers Host and Origin may have."""
    names = [*LOOPBACK, *allowed_hosts]
    if host not in ("", "0.0.0.0", "::"):
        names.append(f"[{host}]" if ":" in host else host)
    origins = list(allowed_origins)
    if url:
        names.append(url.partition("://")[2].partition("/")[0])
        origins.append(url.rstrip("/"))
    hosts = [each for name in names for each in (name, f"{name}:*")]
    origins += [f"http://{name}:*" for name in LOOPBACK]
    return hosts, origins


async def serve_http(
    app: Starlette,
    host: str,
    port: int,
    *,
    tls: TlsOptions | None = None,
    on_listening: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the app until SIGINT or SIGTERM. Raises ``ListenError``."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows, where Ctrl-C raises KeyboardInterrupt
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serving(app, host=host, port=port, tls=tls) as address:
        on_listening(address.rstrip("/"))
        await stopped.wait()
