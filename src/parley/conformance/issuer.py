"""An issuer of tokens for tests: OpenID Connect and OAuth 2.0, on a port of this machine.

    async with Issuer(audience="bank") as issuer:
        agent = Agent("Bank", security=OpenIdConnect(issuer.url, audience="bank"))
        token = issuer.token(sub="ada")

It consents at once, for ``issuer.user``, and simulates the faults that a test requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from parley.conformance.background_server import BackgroundServer
from parley.conformance.faults import FaultGate
from parley.conformance.issuer_grants import EndpointRequest, Grants, OAuthFailure

CLIENTS = {"app": "", "service": "secret"}
"""The default clients of an issuer: a public client, and a client with a secret."""

_POSTED = frozenset(("token", "device", "introspect", "revoke", "register"))


class Issuer(Grants):
    """An issuer with all flows. ``async with`` and ``with`` serve it; ``app`` is its ASGI app.

    ``clients`` maps ids to secrets, empty for public clients. ``audience`` is the audience of
    access tokens for which a client names none. ``alg`` is the signing algorithm; ``opaque`` makes
    access tokens that only introspection reads. ``url`` is the address of an app that is served
    otherwise.
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
        super().__init__()
        self.url = url
        self.audience = audience
        self.clients = dict(clients)
        self.user = user
        self.alg = alg
        self.opaque = opaque
        self.lifetime = lifetime
        self.device_interval = device_interval
        self.requests: Counter[str] = Counter()
        self.max_age: int | None = 300
        self._endpoints: dict[str, tuple[str, Callable[[EndpointRequest], Response]]] = {
            "discovery": ("/.well-known/openid-configuration", self._discovery),
            "metadata": ("/.well-known/oauth-authorization-server", self._metadata),
            "jwks": ("/jwks", self._jwks),
            "authorize": ("/authorize", self._authorize),
            "token": ("/token", self._grant_tokens),
            "device": ("/device_authorization", self._begin_device),
            "introspect": ("/introspect", self._introspect),
            "revoke": ("/revoke", self._revocation),
            "userinfo": ("/userinfo", self._userinfo),
            "register": ("/register", self._register),
        }
        self._faults: dict[str, list[_Fault]] = {}
        self._gate = FaultGate()
        self._server: BackgroundServer | None = None
        self.keys.current(alg)
        self.app = Starlette(routes=[self._route(name) for name in self._endpoints])

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
        """Leave requests unanswered until ``recover``."""
        self._add(endpoint, _Fault(times, None))

    def lie(self, endpoint: str, *, times: int | None = None, **members: Any) -> None:
        """Replace members of the response: ``lie("discovery", issuer="https://evil.example")``.

        A member with the value ``None`` is left out.
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
        """End the faults of an endpoint, or of all endpoints. Requests that hang are answered."""
        if endpoint:
            self._faults.pop(self._known(endpoint), None)
        else:
            self._faults.clear()
        gate, self._gate = self._gate, FaultGate()
        gate.open()

    def _add(self, endpoint: str, fault: _Fault) -> None:
        self._faults.setdefault(self._known(endpoint), []).append(fault)

    def _known(self, endpoint: str) -> str:
        if endpoint not in self._endpoints:
            known = ", ".join(self._endpoints)
            raise ValueError(f"unknown endpoint {endpoint!r}; the endpoints are {known}")
        return endpoint

    # -- endpoints -----------------------------------------------------------------------------

    def _route(self, name: str) -> Route:
        path, answer = self._endpoints[name]

        async def endpoint(request: Request) -> Response:
            self.requests[name] += 1
            self.url = self.url or str(request.base_url).rstrip("/")
            asked = EndpointRequest(request, await request.body())
            fault = self._next_fault(name)
            if fault is not None and fault.change is None:
                await self._gate.wait()
            try:
                response = answer(asked)
            except OAuthFailure as failure:
                response = failure.response
            return fault.change(response) if fault and fault.change else response

        return Route(path, endpoint, methods=["POST" if name in _POSTED else "GET"])

    def _next_fault(self, endpoint: str) -> _Fault | None:
        for fault in self._faults.get(endpoint, ()):
            if fault.left != 0:
                if fault.left is not None:
                    fault.left -= 1
                return fault
        return None

    def _discovery(self, asked: EndpointRequest) -> Response:
        about = {
            "userinfo_endpoint": f"{self.url}/userinfo",
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.alg],
            "claims_supported": ["sub", "name"],
        }
        return JSONResponse(self._about() | about)

    def _metadata(self, asked: EndpointRequest) -> Response:
        return JSONResponse(self._about())

    def _about(self) -> dict[str, Any]:
        methods = ["client_secret_basic", "client_secret_post", "none"]
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "device_authorization_endpoint": f"{self.url}/device_authorization",
            "introspection_endpoint": f"{self.url}/introspect",
            "revocation_endpoint": f"{self.url}/revoke",
            "registration_endpoint": f"{self.url}/register",
            "scopes_supported": ["openid", "profile", "offline_access"],
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": list(self._granting),
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": methods,
            "introspection_endpoint_auth_methods_supported": methods[:2],
            "revocation_endpoint_auth_methods_supported": methods,
            "authorization_response_iss_parameter_supported": True,
        }

    def _jwks(self, asked: EndpointRequest) -> Response:
        caching = {} if self.max_age is None else {"Cache-Control": f"max-age={self.max_age}"}
        return JSONResponse(self.keys.published(), headers=caching)


class _Fault:
    """The fault of an endpoint, ``None`` for no fault; ``left`` is how many more times."""

    def __init__(self, left: int | None, change: Callable[[Response], Response] | None) -> None:
        self.left = left
        self.change = change
