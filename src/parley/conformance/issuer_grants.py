"""The grants of an issuer in a test: codes, devices, refresh tokens, exchange, introspection."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from parley.conformance.signing_keys import IssuerKeys
from parley.security.networks import is_loopback

CODE_SECONDS = 60
DEVICE_SECONDS = 600
REFRESH_SECONDS = 24 * 3600
MAX_GRANT_RECORDS = 10_000
"""The records of one kind that an issuer keeps: the oldest are forgotten."""

DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
TOKEN_TYPES = (
    ACCESS_TOKEN,
    "urn:ietf:params:oauth:token-type:jwt",
    "urn:ietf:params:oauth:token-type:id_token",
)


class IssuerState(Protocol):
    """The parts of an issuer that its grants use."""

    url: str
    keys: IssuerKeys
    audience: str
    clients: dict[str, str]
    user: str | None
    opaque: bool
    lifetime: float
    device_interval: int

    def now(self) -> float:
        """Return the time."""
        ...

    def token(
        self,
        sub: str = "",
        *,
        scope: str = "",
        audience: str | Sequence[str] | None = None,
        client: str = "",
        claims: Mapping[str, Any] | None = None,
        opaque: bool = False,
    ) -> str:
        """Return an access token."""
        ...

    def sign(self, claims: Mapping[str, Any] | bytes, *, typ: str = "JWT") -> str:
        """Return a JWT."""
        ...


class OAuthFailure(Exception):
    """An error of RFC 6749 §5.2."""

    def __init__(self, code: str, description: str = "", status: int = 400) -> None:
        super().__init__(code)
        self.code = code
        self.description = description
        self.status = status

    @property
    def response(self) -> Response:
        """The error as an answer."""
        headers = {"Cache-Control": "no-store"}
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="issuer"'
        answer = {"error": self.code, "error_description": self.description or self.code}
        return JSONResponse(answer, self.status, headers)


class _Grant:
    """What somebody has granted a client; all tokens that come of it are one family."""

    def __init__(
        self, client: str, sub: str, scope: str, audience: tuple[str, ...], expires_at: float
    ) -> None:
        self.client = client
        self.sub = sub
        self.scope = scope
        self.audience = audience
        self.expires_at = expires_at
        self.nonce = self.redirect_uri = self.challenge = ""
        self.is_used = self.is_revoked = False


class _Device(_Grant):
    """A device that waits for a decision."""

    user_code = ""
    decision = "authorization_pending"
    polled_at = 0.0


class Grants:
    """The endpoints at which tokens are granted, read and revoked."""

    def __init__(self, issuer: IssuerState) -> None:
        self._issuer = issuer
        self._codes: dict[str, _Grant] = {}
        self._refresh: dict[str, _Grant] = {}
        self._spent: dict[str, _Grant] = {}
        self._devices: dict[str, _Device] = {}
        self._tokens: dict[str, dict[str, Any]] = {}
        self._families: dict[str, _Grant] = {}
        self._revoked: dict[str, None] = {}
        self.supported: dict[str, Callable[[str, _Form], dict[str, Any]]] = {
            "authorization_code": self._by_code,
            "refresh_token": self._by_refresh_token,
            "client_credentials": self._by_client,
            DEVICE_CODE: self._by_device,
            TOKEN_EXCHANGE: self._by_exchange,
        }

    # -- for the test --------------------------------------------------------------------------

    def keep_opaque(self, claims: dict[str, Any]) -> str:
        """Return a token without a meaning that introspection reads."""
        token = secrets.token_urlsafe(24)
        _keep(self._tokens, token, claims)
        return token

    def revoke(self, token: str) -> None:
        """Revoke an access token, or a refresh token with all that came of it."""
        grant = self._refresh.get(token)
        if grant is not None:
            grant.is_revoked = True
        _keep(self._revoked, token, None)

    @property
    def user_codes(self) -> list[str]:
        """The codes that wait for a decision."""
        waiting = "authorization_pending"
        return [each.user_code for each in self._devices.values() if each.decision == waiting]

    def decide(self, user_code: str, user: str | None) -> None:
        """Approve as a user, or deny. Raises ``KeyError``."""
        for device in self._devices.values():
            if device.user_code == user_code:
                device.decision = "access_denied" if user is None else ""
                device.sub = user or ""
                return
        raise KeyError(user_code)

    # -- authorization -------------------------------------------------------------------------

    def authorize(self, request: Request, body: bytes) -> Response:
        """Consent at once, and redirect with a code (RFC 6749 §4.1, RFC 7636, RFC 9207)."""
        asked = _Form(parse_qsl(request.url.query, keep_blank_values=True))
        redirect_uri = asked.get("redirect_uri")
        try:
            client = asked.need("client_id")
            if client not in self._issuer.clients:
                raise OAuthFailure("invalid_request", f"no client is named {client!r}")
            if not _may_redirect_to(redirect_uri):
                raise OAuthFailure("invalid_request", "redirect_uri is https, or on loopback")
        except OAuthFailure as failure:
            return failure.response
        answer = {"state": asked.get("state"), "iss": self._issuer.url}
        try:
            answer["code"] = self._code(client, redirect_uri, asked)
        except OAuthFailure as failure:
            answer |= {"error": failure.code, "error_description": failure.description}
        query = urlencode({name: value for name, value in answer.items() if value})
        return RedirectResponse(f"{redirect_uri}{'&' if '?' in redirect_uri else '?'}{query}", 302)

    def _code(self, client: str, redirect_uri: str, asked: _Form) -> str:
        if asked.get("response_type") != "code":
            raise OAuthFailure("unsupported_response_type", "response_type is code")
        if asked.get("code_challenge_method") != "S256" or not asked.get("code_challenge"):
            raise OAuthFailure("invalid_request", "code_challenge with S256 is required")
        if self._issuer.user is None:
            raise OAuthFailure("access_denied", "the user refused")
        grant = _Grant(
            client,
            self._issuer.user,
            asked.get("scope"),
            asked.audience,
            self._issuer.now() + CODE_SECONDS,
        )
        grant.redirect_uri, grant.nonce = redirect_uri, asked.get("nonce")
        grant.challenge = asked.get("code_challenge")
        code = secrets.token_urlsafe(24)
        _keep(self._codes, code, grant)
        return code

    def device(self, request: Request, body: bytes) -> Response:
        """Begin a device authorisation (RFC 8628 §3.1)."""
        form = _Form.of(body)
        try:
            client = self._client(request, form)
        except OAuthFailure as failure:
            return failure.response
        device = _Device(
            client, "", form.get("scope"), form.audience, self._issuer.now() + DEVICE_SECONDS
        )
        letters = "".join(secrets.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(8))
        device.user_code = f"{letters[:4]}-{letters[4:]}"
        code = secrets.token_urlsafe(24)
        _keep(self._devices, code, device)
        verification = f"{self._issuer.url}/activate"
        return _no_store(
            {
                "device_code": code,
                "user_code": device.user_code,
                "verification_uri": verification,
                "verification_uri_complete": f"{verification}?user_code={device.user_code}",
                "expires_in": DEVICE_SECONDS,
                "interval": self._issuer.device_interval,
            }
        )

    # -- tokens --------------------------------------------------------------------------------

    def token(self, request: Request, body: bytes) -> Response:
        """Grant tokens (RFC 6749 §3.2)."""
        form = _Form.of(body)
        try:
            client = self._client(request, form)
            grant = self.supported.get(form.need("grant_type"))
            if grant is None:
                raise OAuthFailure("unsupported_grant_type", " ".join(self.supported))
            return _no_store(grant(client, form))
        except OAuthFailure as failure:
            return failure.response

    def _by_code(self, client: str, form: _Form) -> dict[str, Any]:
        grant = self._codes.get(form.need("code"))
        if grant is None or grant.client != client or self._issuer.now() > grant.expires_at:
            raise OAuthFailure("invalid_grant", "the code is unknown, or its time is over")
        if grant.is_used:
            grant.is_revoked = True
            raise OAuthFailure("invalid_grant", "the code was used before")
        grant.is_used = True
        if form.get("redirect_uri") != grant.redirect_uri:
            raise OAuthFailure("invalid_grant", "redirect_uri is not the one of the request")
        digest = hashlib.sha256(form.need("code_verifier").encode()).digest()
        made = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if not hmac.compare_digest(made, grant.challenge):
            raise OAuthFailure("invalid_grant", "code_verifier does not fit the challenge")
        return self._granted(grant, form)

    def _by_refresh_token(self, client: str, form: _Form) -> dict[str, Any]:
        token = form.need("refresh_token")
        if token in self._spent:
            self._spent[token].is_revoked = True
            raise OAuthFailure("invalid_grant", "the refresh token was used before")
        grant = self._refresh.get(token)
        if grant is None or grant.client != client or token in self._revoked or grant.is_revoked:
            raise OAuthFailure("invalid_grant", "the refresh token is not valid")
        if self._issuer.now() > grant.expires_at:
            raise OAuthFailure("invalid_grant", "the refresh token's time is over")
        scope = _narrowed(form.get("scope"), grant.scope)
        del self._refresh[token]
        _keep(self._spent, token, grant)
        return self._granted(grant, form, scope=scope)

    def _by_client(self, client: str, form: _Form) -> dict[str, Any]:
        if not self._issuer.clients[client]:
            raise OAuthFailure("unauthorized_client", "a client without a secret has no grant")
        scope = form.get("scope")
        token = self._issuer.token(
            client,
            scope=scope,
            audience=_one_or_many(form.audience),
            client=client,
            opaque=self._issuer.opaque,
        )
        return self._answer(token, scope)

    def _by_device(self, client: str, form: _Form) -> dict[str, Any]:
        code = form.need("device_code")
        device = self._devices.get(code)
        if device is None or device.client != client:
            raise OAuthFailure("invalid_grant", "the device code is unknown")
        now = self._issuer.now()
        if now > device.expires_at:
            raise OAuthFailure("expired_token", "the device code's time is over")
        if device.decision:
            is_early = now - device.polled_at < self._issuer.device_interval
            device.polled_at = now
            pending = device.decision == "authorization_pending"
            raise OAuthFailure("slow_down" if is_early and pending else device.decision)
        del self._devices[code]
        return self._granted(device, form)

    def _by_exchange(self, client: str, form: _Form) -> dict[str, Any]:
        """Exchange a token (RFC 8693): the client acts for its subject, or becomes it."""
        for name in ("subject_token_type", "requested_token_type", "actor_token_type"):
            if form.get(name) and form.get(name) not in TOKEN_TYPES:
                raise OAuthFailure("invalid_request", f"{name} is one of {' '.join(TOKEN_TYPES)}")
        form.need("subject_token_type")
        subject = self.read(form.need("subject_token"))
        if subject is None:
            raise OAuthFailure("invalid_request", "the subject token is not valid")
        acting: dict[str, Any] = {"sub": client}
        if form.get("actor_token"):
            actor = self.read(form.get("actor_token"))
            if actor is None or not form.get("actor_token_type"):
                raise OAuthFailure("invalid_request", "the actor token is not valid")
            acting = {"sub": actor["sub"]}
        if "act" in subject:
            acting["act"] = subject["act"]
        scope = _narrowed(form.get("scope"), subject.get("scope", ""))
        token = self._issuer.token(
            subject["sub"],
            scope=scope,
            audience=_one_or_many(form.audience),
            client=client,
            claims={"act": acting},
            opaque=self._issuer.opaque,
        )
        return self._answer(token, scope) | {"issued_token_type": ACCESS_TOKEN}

    def _granted(self, grant: _Grant, form: _Form, *, scope: str | None = None) -> dict[str, Any]:
        """Return the tokens of a user's grant."""
        scope = grant.scope if scope is None else scope
        token = self._issuer.token(
            grant.sub,
            scope=scope,
            audience=_one_or_many(form.audience or grant.audience),
            client=grant.client,
            opaque=self._issuer.opaque,
        )
        _keep(self._families, token, grant)
        answer = self._answer(token, scope)
        grant.expires_at = self._issuer.now() + REFRESH_SECONDS
        answer["refresh_token"] = secrets.token_urlsafe(24)
        _keep(self._refresh, answer["refresh_token"], grant)
        if "openid" in scope.split():
            answer["id_token"] = self._id_token(grant)
        return answer

    def _answer(self, token: str, scope: str) -> dict[str, Any]:
        return {
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": int(self._issuer.lifetime),
            "scope": scope,
        }

    def _id_token(self, grant: _Grant) -> str:
        now = int(self._issuer.now())
        claims = {
            "iss": self._issuer.url,
            "sub": grant.sub,
            "aud": grant.client,
            "azp": grant.client,
            "iat": now,
            "exp": now + int(self._issuer.lifetime),
        }
        return self._issuer.sign(claims | ({"nonce": grant.nonce} if grant.nonce else {}))

    # -- tokens that were granted --------------------------------------------------------------

    def introspect(self, request: Request, body: bytes) -> Response:
        """Say what a token means (RFC 7662), to clients with a secret."""
        form = _Form.of(body)
        try:
            client = self._client(request, form)
            if not self._issuer.clients[client]:
                raise OAuthFailure("invalid_client", "introspection needs a secret", 401)
            claims = self.read(form.need("token"))
        except OAuthFailure as failure:
            return failure.response
        if claims is None:
            return _no_store({"active": False})
        return _no_store({"active": True, "token_type": "Bearer"} | claims)

    def revocation(self, request: Request, body: bytes) -> Response:
        """Revoke a token (RFC 7009)."""
        form = _Form.of(body)
        try:
            self._client(request, form)
            self.revoke(form.need("token"))
        except OAuthFailure as failure:
            return failure.response
        return Response(status_code=200)

    def userinfo(self, request: Request, body: bytes) -> Response:
        """Say who the user of an access token is."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        claims = self.read(token) if scheme.lower() == "bearer" else None
        if claims is None:
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        return _no_store({"sub": claims["sub"], "name": str(claims["sub"]).title()})

    def register(self, request: Request, body: bytes) -> Response:
        """Register a client (RFC 7591): a public one if it wants no secret."""
        try:
            asked = json.loads(body)
        except ValueError:
            return OAuthFailure("invalid_client_metadata", "the body is JSON").response
        if not isinstance(asked, dict):
            return OAuthFailure("invalid_client_metadata", "the body is a JSON object").response
        client = f"client-{secrets.token_hex(4)}"
        is_public = asked.get("token_endpoint_auth_method") == "none"
        self._issuer.clients[client] = "" if is_public else secrets.token_urlsafe(16)
        answer = {**asked, "client_id": client, "client_id_issued_at": int(self._issuer.now())}
        if not is_public:
            answer["client_secret"] = self._issuer.clients[client]
            answer["client_secret_expires_at"] = 0
        return JSONResponse(answer, 201, {"Cache-Control": "no-store"})

    def read(self, token: str) -> dict[str, Any] | None:
        """Return the claims of an active token of this issuer, else ``None``."""
        family = self._families.get(token)
        if token in self._revoked or (family is not None and family.is_revoked):
            return None
        claims = self._tokens.get(token)
        if claims is None:
            claims = self._issuer.keys.read(token)
        if claims is None or self._issuer.now() >= claims.get("exp", float("inf")):
            return None
        return claims

    def _client(self, request: Request, form: _Form) -> str:
        """Return the authenticated client of a request (RFC 6749 §2.3)."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                name, _, secret = base64.b64decode(credentials).decode().partition(":")
            except ValueError:
                raise OAuthFailure("invalid_client", "malformed credentials", 401) from None
            client, secret = unquote_plus(name), unquote_plus(secret)
        else:
            client, secret = form.get("client_id"), form.get("client_secret")
        known = self._issuer.clients.get(client)
        if known is None or not hmac.compare_digest(known.encode(), secret.encode()):
            raise OAuthFailure("invalid_client", "the client or its secret is wrong", 401)
        return client


class _Form:
    """The parameters of a request."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = list(pairs)

    @classmethod
    def of(cls, body: bytes) -> _Form:
        """Return the parameters of a body."""
        return cls(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))

    def all(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return [value for key, value in self._pairs if key == name and value]

    def get(self, name: str) -> str:
        """Return the value of a parameter that is there at most once, empty without it."""
        values = self.all(name)
        if len(values) > 1:
            raise OAuthFailure("invalid_request", f"{name} is given more than once")
        return values[0] if values else ""

    def need(self, name: str) -> str:
        """Return the value of a parameter that must be there."""
        value = self.get(name)
        if not value:
            raise OAuthFailure("invalid_request", f"{name} is missing")
        return value

    @property
    def audience(self) -> tuple[str, ...]:
        """Where the token is for (RFC 8707, RFC 8693)."""
        return (*self.all("audience"), *self.all("resource"))


def _may_redirect_to(url: str) -> bool:
    """Return whether a code may go there; a loopback address may have any port (RFC 8252 §7.3)."""
    try:
        address = urlsplit(url)
    except ValueError:
        return False
    is_local = address.scheme == "http" and is_loopback(address.hostname or "")
    return (is_local or address.scheme == "https") and not address.fragment


def _narrowed(asked: str, granted: str) -> str:
    """Return the scope that is asked for, all that is granted for none."""
    if not set(asked.split()) <= set(granted.split()):
        raise OAuthFailure("invalid_scope", f"granted is: {granted or 'nothing'}")
    return asked or granted


def _one_or_many(audience: tuple[str, ...]) -> str | tuple[str, ...] | None:
    return None if not audience else audience[0] if len(audience) == 1 else audience


def _no_store(answer: Mapping[str, Any]) -> Response:
    return JSONResponse(dict(answer), headers={"Cache-Control": "no-store"})


def _keep(records: dict[str, Any], key: str, value: Any) -> None:
    records[key] = value
    while len(records) > MAX_GRANT_RECORDS:
        del records[next(iter(records))]
