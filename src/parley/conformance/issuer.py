"""An issuer of tokens for tests: OpenID Connect and OAuth 2.0, on a port of this machine.

    async with Issuer(audience="bank") as issuer:
        agent = Agent("Bank", security=OpenIdConnect(issuer.url, audience="bank"))
        token = issuer.token(sub="ada")

It consents at once, for ``issuer.user``, and does what it is told to do wrong.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from parley.conformance.background_server import BackgroundServer
from parley.conformance.issuer_grants import Grants
from parley.conformance.signing_keys import IssuerKeys, signed

ENDPOINTS = (
    "discovery", "metadata", "jwks", "authorize", "token", "device", "introspect", "revoke",
    "userinfo", "register",
)  # fmt: skip
"""The endpoints, as ``requests`` counts them and ``fail``, ``hang`` and ``lie`` name them."""

CLIENTS = {"app": "", "service": "secret"}
"""The clients of an issuer that is given none: a public one, and one with a secret."""

MAX_REQUESTS_KEPT = 1000


class Issuer:
    """An issuer with all flows. ``async with`` and ``with`` serve it; ``app`` is its ASGI app.

    ``clients`` are ids and secrets, empty for public clients. ``audience`` is that of access
    tokens for which a client names none. ``alg`` signs; ``opaque`` makes access tokens that only
    introspection reads. ``url`` is for an app that is served some other way.
    """

    def __init__(
        self,
        *,
        audience: str = "agent",
        clients: Mapping[str, str] = CLIENTS,
        user: str | None = "ada",
        alg: str = "ES256",
        opaque: bool = False,
        lifetime: float = 300,
        device_interval: int = 5,
        url: str = "",
    ) -> None:
        self.url = url
        self.audience = audience
        self.clients = dict(clients)
        self.user = user
        self.alg = alg
        self.opaque = opaque
        self.lifetime = lifetime
        self.device_interval = device_interval
        self.keys = IssuerKeys()
        self.requests: Counter[str] = Counter()
        self.received: list[tuple[str, dict[str, str]]] = []
        self.max_age: int | None = 300
        self._skew = 0.0
        self._faults: dict[str, list[_Fault]] = {}
        self._hanging: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._grants = Grants(self)
        self._server: BackgroundServer | None = None
        self.keys.current(alg)
        self.app = Starlette(routes=self._routes())

    # -- serving -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        server = BackgroundServer(self.app)
        try:
            server.start()
        except BaseException:
            server.stop()
            raise
        self._server = server
        self.url = self.url or server.url
        return self

    def __exit__(self, *_: object) -> None:
        self.recover()
        if self._server is not None:
            self._server.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    # -- tokens --------------------------------------------------------------------------------

    def token(
        self,
        sub: str = "ada",
        *,
        scope: str = "",
        audience: str | Sequence[str] | None = None,
        client: str = "app",
        claims: Mapping[str, Any] | None = None,
        alg: str = "",
        expires_in: float | None = None,
        issuer: str = "",
        skew: float = 0,
        forged: bool = False,
        typ: str = "at+jwt",
        header: Mapping[str, Any] | None = None,
        payload: bytes | None = None,
        opaque: bool = False,
    ) -> str:
        """Return an access token: a genuine one, or one that is wrong in some way.

        A claim or member of the header that is ``None`` is left out. ``issuer`` is another issuer,
        ``skew`` the seconds that the clock of the signer is ahead. ``forged`` signs with a key that
        is not the issuer's, under the id of one that is. ``alg="none"`` does not sign, and
        ``"HS256"`` takes the public key (PEM) for the secret. ``payload`` replaces the claims.
        """
        now = self.now() + skew
        lifetime = self.lifetime if expires_in is None else expires_in
        made: dict[str, Any] = {
            "iss": issuer or self.url,
            "sub": sub,
            "aud": self.audience if audience is None else audience,
            "client_id": client,
            "scope": scope,
            "iat": int(now),
            "exp": int(now + lifetime),
            "jti": secrets.token_hex(8),
        }
        if not scope:
            del made["scope"]
        if not isinstance(made["aud"], str):
            made["aud"] = list(made["aud"])
        made |= claims or {}
        made = {name: value for name, value in made.items() if value is not None}
        if opaque:
            return self._grants.keep_opaque(made)
        return self.sign(
            made if payload is None else payload, alg=alg, typ=typ, header=header, forged=forged
        )

    def sign(
        self,
        claims: Mapping[str, Any] | bytes,
        *,
        alg: str = "",
        typ: str = "JWT",
        header: Mapping[str, Any] | None = None,
        forged: bool = False,
    ) -> str:
        """Return a JWT with these claims; the options are those of ``token``."""
        alg = alg or self.alg
        if alg == "none" or alg.startswith("HS"):
            published = self.keys.current(self.alg)
            key: Any = published.as_pem(private=False)
        else:
            published = self.keys.current(alg)
            key = self.keys.foreign(alg) if forged else published
        made = {"alg": alg, "typ": typ, "kid": published.kid} | dict(header or {})
        made = {name: value for name, value in made.items() if value is not None}
        return signed(made, claims, key)

    def rotate(self, *, keep: bool = True) -> None:
        """Sign with a new key. ``keep`` still publishes the former ones."""
        self.keys.rotate(keep=keep)

    def revoke(self, token: str) -> None:
        """Revoke a token: introspection says that it is not active."""
        self._grants.revoke(token)

    # -- people --------------------------------------------------------------------------------

    def approve(self, user_code: str, *, user: str = "") -> None:
        """Approve a device code as ``user``, else as ``self.user``. Raises ``KeyError``."""
        self._grants.decide(user_code, user or self.user or "ada")

    def deny(self, user_code: str) -> None:
        """Refuse a device code. Raises ``KeyError``."""
        self._grants.decide(user_code, None)

    @property
    def user_codes(self) -> list[str]:
        """The device codes that wait for somebody's decision, as shown to the user."""
        return self._grants.user_codes

    # -- time ----------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time of the issuer's clock, in seconds since the epoch."""
        return time.time() + self._skew

    def advance(self, span: timedelta | float) -> None:
        """Move the issuer's clock, back for a negative span."""
        self._skew += span.total_seconds() if isinstance(span, timedelta) else span

    # -- faults --------------------------------------------------------------------------------

    def fail(
        self,
        endpoint: str,
        *,
        status: int = 503,
        times: int | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer the next ``times`` requests (``None``: all) with a status, body and headers."""
        made = dict(headers or {})
        self._add(endpoint, _Fault(times, lambda _: Response(body, status, made)))

    def hang(self, endpoint: str, *, times: int | None = None) -> None:
        """Do not answer, until ``recover``."""
        self._add(endpoint, _Fault(times, None))

    def lie(self, endpoint: str, *, times: int | None = None, **members: Any) -> None:
        """Replace members of the answer: ``lie("discovery", issuer="https://evil.example")``.

        A member that is ``None`` is left out.
        """

        def change(response: Response) -> Response:
            answer = msgspec.json.decode(response.body) | members
            answer = {name: value for name, value in answer.items() if value is not None}
            return JSONResponse(answer, response.status_code)

        self._add(endpoint, _Fault(times, change))

    def grow(self, endpoint: str, *, size: int = 50_000_000, keys: int = 0) -> None:
        """Answer with ``size`` bytes of JSON, or with a key set of ``keys`` keys."""
        if keys:
            key = self.keys.current(self.alg).as_dict(private=False)
            made = [{**key, "kid": f"grown-{number}"} for number in range(keys)]
            self.lie(endpoint, keys=made)
        else:
            self.lie(endpoint, padding="x" * size)

    def recover(self, endpoint: str = "") -> None:
        """End the faults of an endpoint, or of all. Requests that hang are answered."""
        if endpoint:
            self._faults.pop(_known(endpoint), None)
        else:
            self._faults.clear()
        hanging, self._hanging = self._hanging, []
        for loop, future in hanging:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_end, future)

    def _add(self, endpoint: str, fault: _Fault) -> None:
        self._faults.setdefault(_known(endpoint), []).append(fault)

    # -- endpoints -----------------------------------------------------------------------------

    def _routes(self) -> list[Route]:
        grants = self._grants
        return [
            self._route("/.well-known/openid-configuration", "discovery", self._discovery),
            self._route("/.well-known/oauth-authorization-server", "metadata", self._metadata),
            self._route("/jwks", "jwks", self._jwks),
            self._route("/authorize", "authorize", grants.authorize),
            self._route("/token", "token", grants.token, "POST"),
            self._route("/device_authorization", "device", grants.device, "POST"),
            self._route("/introspect", "introspect", grants.introspect, "POST"),
            self._route("/revoke", "revoke", grants.revocation, "POST"),
            self._route("/userinfo", "userinfo", grants.userinfo),
            self._route("/register", "register", grants.register, "POST"),
        ]

    def _route(
        self, path: str, name: str, answer: Callable[..., Response], method: str = "GET"
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            self.requests[name] += 1
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.received = [*self.received[1 - MAX_REQUESTS_KEPT :], (name, headers)]
            body = await request.body()
            fault = self._next_fault(name)
            if fault is None:
                return answer(request, body)
            if fault.change is not None:
                return fault.change(answer(request, body))
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._hanging.append((loop, future))
            await future
            return answer(request, body)

        return Route(path, endpoint, methods=[method])

    def _next_fault(self, endpoint: str) -> _Fault | None:
        for fault in self._faults.get(endpoint, ()):
            if fault.left != 0:
                if fault.left is not None:
                    fault.left -= 1
                return fault
        return None

    def _discovery(self, request: Request, body: bytes) -> Response:
        about = {
            "userinfo_endpoint": f"{self._own(request)}/userinfo",
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.alg],
            "claims_supported": ["sub", "name"],
        }
        return JSONResponse(self._about(request) | about)

    def _metadata(self, request: Request, body: bytes) -> Response:
        return JSONResponse(self._about(request))

    def _about(self, request: Request) -> dict[str, Any]:
        own = self._own(request)
        methods = ["client_secret_basic", "client_secret_post", "none"]
        return {
            "issuer": own,
            "jwks_uri": f"{own}/jwks",
            "authorization_endpoint": f"{own}/authorize",
            "token_endpoint": f"{own}/token",
            "device_authorization_endpoint": f"{own}/device_authorization",
            "introspection_endpoint": f"{own}/introspect",
            "revocation_endpoint": f"{own}/revoke",
            "registration_endpoint": f"{own}/register",
            "scopes_supported": ["openid", "profile", "offline_access"],
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": list(self._grants.supported),
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": methods,
            "introspection_endpoint_auth_methods_supported": methods[:2],
            "revocation_endpoint_auth_methods_supported": methods,
            "authorization_response_iss_parameter_supported": True,
        }

    def _jwks(self, request: Request, body: bytes) -> Response:
        caching = {} if self.max_age is None else {"Cache-Control": f"max-age={self.max_age}"}
        return JSONResponse(self.keys.published(), headers=caching)

    def _own(self, request: Request) -> str:
        """Return the issuer's address; an app that is served some other way learns it here."""
        if not self.url:
            address = urlsplit(str(request.url))
            self.url = f"{address.scheme}://{address.netloc}"
        return self.url


class _Fault:
    """What an endpoint does instead, ``None`` for nothing; ``left`` is how often."""

    def __init__(self, left: int | None, change: Callable[[Response], Response] | None) -> None:
        self.left = left
        self.change = change


def _known(endpoint: str) -> str:
    if endpoint not in ENDPOINTS:
        raise ValueError(f"an endpoint is one of {', '.join(ENDPOINTS)}, not {endpoint!r}")
    return endpoint


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
