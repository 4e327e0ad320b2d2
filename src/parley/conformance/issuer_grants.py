"""The grants of an issuer in a test: codes, devices, refresh tokens, exchange, introspection."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from parley.conformance.signing_keys import IssuerTokens, keep
from parley.security.networks import is_loopback

CODE_SECONDS = 60
DEVICE_SECONDS = 600
REFRESH_SECONDS = 24 * 3600
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
TOKEN_TYPES = (
    ACCESS_TOKEN,
    "urn:ietf:params:oauth:token-type:jwt",
    "urn:ietf:params:oauth:token-type:id_token",
)


class OAuthFailure(Exception):
    """An error of RFC 6749 §5.2."""

    def __init__(self, code: str, description: str = "", status: int = 400) -> None:
        super().__init__(code)
        self.code = code
        self.description = description
        self.status = status

    @property
    def response(self) -> Response:
        """The error as a response."""
        headers = {"Cache-Control": "no-store"}
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="issuer"'
        answer = {"error": self.code, "error_description": self.description or self.code}
        return JSONResponse(answer, self.status, headers)


class _Grant(msgspec.Struct, kw_only=True):
    """The grant of a user to a client; all tokens issued from it are one family."""

    client: str
    sub: str = ""
    scope: str
    audience: tuple[str, ...]
    expires_at: float
    nonce: str = ""
    redirect_uri: str = ""
    challenge: str = ""
    is_used: bool = False
    is_revoked: bool = False


class _Device(_Grant, kw_only=True):
    """A device that waits for a decision."""

    user_code: str
    decision: str = "authorization_pending"
    polled_at: float = 0.0


class EndpointRequest:
    """A request to an endpoint: its headers, its body, and the parameters of its query or form."""

    def __init__(self, request: Request, body: bytes) -> None:
        self.headers = request.headers
        self.body = body
        form = request.url.query if request.method == "GET" else body.decode("utf-8", "replace")
        self._pairs = parse_qsl(form, keep_blank_values=True)

    def all(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return [value for key, value in self._pairs if key == name and value]

    def get(self, name: str) -> str:
        """Return the value of a parameter that may be given once, empty without the parameter."""
        values = self.all(name)
        if len(values) > 1:
            raise OAuthFailure("invalid_request", f"{name} is given more than once")
        return values[0] if values else ""

    def need(self, name: str) -> str:
        """Return the value of a required parameter."""
        value = self.get(name)
        if not value:
            raise OAuthFailure("invalid_request", f"{name} is missing")
        return value

    @property
    def audience(self) -> tuple[str, ...]:
        """The audience of the token (RFC 8707, RFC 8693)."""
        return (*self.all("audience"), *self.all("resource"))


class Grants(IssuerTokens):
    """The endpoints of an issuer that grant, read and revoke tokens.

    An endpoint returns its response, or raises ``OAuthFailure``.
    """

    clients: dict[str, str]
    user: str | None
    opaque: bool
    device_interval: int

    def __init__(self) -> None:
        super().__init__()
        self._codes: dict[str, _Grant] = {}
        self._refresh: dict[str, _Grant] = {}
        self._spent: dict[str, _Grant] = {}
        self._devices: dict[str, _Device] = {}
        self._families: dict[str, _Grant] = {}
        self._revoked: dict[str, None] = {}
        self._granting: dict[str, Callable[[str, EndpointRequest], dict[str, Any]]] = {
            "authorization_code": self._by_code,
            "refresh_token": self._by_refresh_token,
            "client_credentials": self._by_client,
            DEVICE_CODE: self._by_device,
            TOKEN_EXCHANGE: self._by_exchange,
        }

    # -- control by the test ----------------------------------------------------------------------

    def rotate(self, *, keep: bool = True) -> None:
        """Sign with a new key. With ``keep`` the former keys stay published."""
        self.keys.rotate(keep=keep)

    def revoke(self, token: str) -> None:
        """Revoke an access token, or a refresh token with all tokens issued from it.

        Introspection reports a revoked token as not active.
        """
        grant = self._refresh.get(token)
        if grant is not None:
            grant.is_revoked = True
        keep(self._revoked, token, None)

    @property
    def user_codes(self) -> list[str]:
        """The user codes of the devices that wait for a decision."""
        waiting = "authorization_pending"
        return [each.user_code for each in self._devices.values() if each.decision == waiting]

    def approve(self, user_code: str, *, user: str = "") -> None:
        """Approve a device code as ``user``, else as ``self.user``. Raises ``KeyError``."""
        device = self._waiting(user_code)
        device.decision, device.sub = "", user or self.user or "ada"

    def deny(self, user_code: str) -> None:
        """Deny a device code. Raises ``KeyError``."""
        self._waiting(user_code).decision = "access_denied"

    def _waiting(self, user_code: str) -> _Device:
        return {each.user_code: each for each in self._devices.values()}[user_code]

    # -- authorization -------------------------------------------------------------------------

    def _authorize(self, asked: EndpointRequest) -> Response:
        """Consent at once, and redirect with a code (RFC 6749 §4.1, RFC 7636, RFC 9207)."""
        redirect_uri = asked.get("redirect_uri")
        client = asked.need("client_id")
        if client not in self.clients:
            raise OAuthFailure("invalid_request", f"no client is named {client!r}")
        if not _may_redirect_to(redirect_uri):
            raise OAuthFailure("invalid_request", "redirect_uri must be https, or on loopback")
        answer = {"state": asked.get("state"), "iss": self.url}
        try:
            answer["code"] = self._code(client, redirect_uri, asked)
        except OAuthFailure as failure:
            answer |= {"error": failure.code, "error_description": failure.description}
        query = urlencode({name: value for name, value in answer.items() if value})
        return RedirectResponse(f"{redirect_uri}{'&' if '?' in redirect_uri else '?'}{query}", 302)

    def _code(self, client: str, redirect_uri: str, asked: EndpointRequest) -> str:
        if asked.get("response_type") != "code":
            raise OAuthFailure("unsupported_response_type", "response_type must be code")
        if asked.get("code_challenge_method") != "S256" or not asked.get("code_challenge"):
            raise OAuthFailure("invalid_request", "code_challenge with S256 is required")
        if self.user is None:
            raise OAuthFailure("access_denied", "the user refused")
        grant = _Grant(
            client=client,
            sub=self.user,
            scope=asked.get("scope"),
            audience=asked.audience,
            expires_at=self.now() + CODE_SECONDS,
            redirect_uri=redirect_uri,
            nonce=asked.get("nonce"),
            challenge=asked.get("code_challenge"),
        )
        code = secrets.token_urlsafe(24)
        keep(self._codes, code, grant)
        return code

    def _begin_device(self, asked: EndpointRequest) -> Response:
        """Begin a device authorisation (RFC 8628 §3.1)."""
        letters = "".join(secrets.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(8))
        device = _Device(
            client=self._client(asked),
            scope=asked.get("scope"),
            audience=asked.audience,
            expires_at=self.now() + DEVICE_SECONDS,
            user_code=f"{letters[:4]}-{letters[4:]}",
        )
        code = secrets.token_urlsafe(24)
        keep(self._devices, code, device)
        verification = f"{self.url}/activate"
        return _no_store(
            {
                "device_code": code,
                "user_code": device.user_code,
                "verification_uri": verification,
                "verification_uri_complete": f"{verification}?user_code={device.user_code}",
                "expires_in": DEVICE_SECONDS,
                "interval": self.device_interval,
            }
        )

    # -- tokens --------------------------------------------------------------------------------

    def _grant_tokens(self, asked: EndpointRequest) -> Response:
        """Grant tokens (RFC 6749 §3.2)."""
        client = self._client(asked)
        grant = self._granting.get(asked.need("grant_type"))
        if grant is None:
            raise OAuthFailure("unsupported_grant_type", " ".join(self._granting))
        return _no_store(grant(client, asked))

    def _by_code(self, client: str, asked: EndpointRequest) -> dict[str, Any]:
        grant = self._codes.get(asked.need("code"))
        if grant is None or grant.client != client or self.now() > grant.expires_at:
            raise OAuthFailure("invalid_grant", "the code is unknown or expired")
        if grant.is_used:
            grant.is_revoked = True
            raise OAuthFailure("invalid_grant", "the code was used before")
        grant.is_used = True
        if asked.get("redirect_uri") != grant.redirect_uri:
            raise OAuthFailure(
                "invalid_grant", "redirect_uri differs from the authorization request"
            )
        digest = hashlib.sha256(asked.need("code_verifier").encode()).digest()
        made = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if not hmac.compare_digest(made, grant.challenge):
            raise OAuthFailure("invalid_grant", "code_verifier does not match the challenge")
        return self._granted(grant, asked)

    def _by_refresh_token(self, client: str, asked: EndpointRequest) -> dict[str, Any]:
        token = asked.need("refresh_token")
        if token in self._spent:
            self._spent[token].is_revoked = True
            raise OAuthFailure("invalid_grant", "the refresh token was used before")
        grant = self._refresh.get(token)
        if grant is None or grant.client != client or token in self._revoked or grant.is_revoked:
            raise OAuthFailure("invalid_grant", "the refresh token is not valid")
        if self.now() > grant.expires_at:
            raise OAuthFailure("invalid_grant", "the refresh token has expired")
        scope = _narrowed(asked.get("scope"), grant.scope)
        del self._refresh[token]
        keep(self._spent, token, grant)
        return self._granted(grant, asked, scope=scope)

    def _by_client(self, client: str, asked: EndpointRequest) -> dict[str, Any]:
        if not self.clients[client]:
            raise OAuthFailure(
                "unauthorized_client", "a client without a secret may not use this grant"
            )
        scope = asked.get("scope")
        token = self.token(
            client,
            scope=scope,
            audience=_one_or_many(asked.audience),
            client=client,
            opaque=self.opaque,
        )
        return self._answer(token, scope)

    def _by_device(self, client: str, asked: EndpointRequest) -> dict[str, Any]:
        code = asked.need("device_code")
        device = self._devices.get(code)
        if device is None or device.client != client:
            raise OAuthFailure("invalid_grant", "the device code is unknown")
        now = self.now()
        if now > device.expires_at:
            raise OAuthFailure("expired_token", "the device code has expired")
        if device.decision:
            is_early = now - device.polled_at < self.device_interval
            device.polled_at = now
            pending = device.decision == "authorization_pending"
            raise OAuthFailure("slow_down" if is_early and pending else device.decision)
        del self._devices[code]
        return self._granted(device, asked)

    def _by_exchange(self, client: str, asked: EndpointRequest) -> dict[str, Any]:
        """Exchange a token (RFC 8693): the client acts for the subject, or impersonates the
        subject.
        """
        for name in ("subject_token_type", "requested_token_type", "actor_token_type"):
            if asked.get(name) and asked.get(name) not in TOKEN_TYPES:
                raise OAuthFailure(
                    "invalid_request", f"{name} must be one of {' '.join(TOKEN_TYPES)}"
                )
        asked.need("subject_token_type")
        subject = self._read(asked.need("subject_token"))
        if subject is None:
            raise OAuthFailure("invalid_request", "the subject token is not valid")
        acting: dict[str, Any] = {"sub": client}
        if asked.get("actor_token"):
            actor = self._read(asked.get("actor_token"))
            if actor is None or not asked.get("actor_token_type"):
                raise OAuthFailure("invalid_request", "the actor token is not valid")
            acting = {"sub": actor["sub"]}
        if "act" in subject:
            acting["act"] = subject["act"]
        scope = _narrowed(asked.get("scope"), subject.get("scope", ""))
        token = self.token(
            subject["sub"],
            scope=scope,
            audience=_one_or_many(asked.audience),
            client=client,
            claims={"act": acting},
            opaque=self.opaque,
        )
        return self._answer(token, scope) | {"issued_token_type": ACCESS_TOKEN}

    def _granted(
        self, grant: _Grant, asked: EndpointRequest, *, scope: str | None = None
    ) -> dict[str, Any]:
        """Return the tokens of a user's grant."""
        scope = grant.scope if scope is None else scope
        token = self.token(
            grant.sub,
            scope=scope,
            audience=_one_or_many(asked.audience or grant.audience),
            client=grant.client,
            opaque=self.opaque,
        )
        keep(self._families, token, grant)
        answer = self._answer(token, scope)
        grant.expires_at = self.now() + REFRESH_SECONDS
        answer["refresh_token"] = secrets.token_urlsafe(24)
        keep(self._refresh, answer["refresh_token"], grant)
        if "openid" in scope.split():
            answer["id_token"] = self._id_token(grant)
        return answer

    def _answer(self, token: str, scope: str) -> dict[str, Any]:
        return {
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": int(self.lifetime),
            "scope": scope,
        }

    def _id_token(self, grant: _Grant) -> str:
        now = int(self.now())
        claims = {
            "iss": self.url,
            "sub": grant.sub,
            "aud": grant.client,
            "azp": grant.client,
            "iat": now,
            "exp": now + int(self.lifetime),
        }
        return self.sign(claims | ({"nonce": grant.nonce} if grant.nonce else {}))

    # -- tokens in use ----------------------------------------------------------------------------

    def _introspect(self, asked: EndpointRequest) -> Response:
        """Return the claims of a token (RFC 7662), to clients with a secret."""
        if not self.clients[self._client(asked)]:
            raise OAuthFailure("invalid_client", "introspection needs a secret", 401)
        claims = self._read(asked.need("token"))
        if claims is None:
            return _no_store({"active": False})
        return _no_store({"active": True, "token_type": "Bearer"} | claims)

    def _revocation(self, asked: EndpointRequest) -> Response:
        """Revoke a token (RFC 7009)."""
        self._client(asked)
        self.revoke(asked.need("token"))
        return Response(status_code=200)

    def _userinfo(self, asked: EndpointRequest) -> Response:
        """Return the claims of the user of an access token."""
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        claims = self._read(token) if scheme.lower() == "bearer" else None
        if claims is None:
            return Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
        return _no_store({"sub": claims["sub"], "name": str(claims["sub"]).title()})

    def _register(self, asked: EndpointRequest) -> Response:
        """Register a client (RFC 7591), without a secret if its authentication method
        is ``none``.
        """
        try:
            wish = json.loads(asked.body)
        except ValueError:
            raise OAuthFailure("invalid_client_metadata", "the body must be JSON") from None
        if not isinstance(wish, dict):
            raise OAuthFailure("invalid_client_metadata", "the body must be a JSON object")
        client = f"client-{secrets.token_hex(4)}"
        is_public = wish.get("token_endpoint_auth_method") == "none"
        self.clients[client] = "" if is_public else secrets.token_urlsafe(16)
        answer = {**wish, "client_id": client, "client_id_issued_at": int(self.now())}
        if not is_public:
            answer |= {"client_secret": self.clients[client], "client_secret_expires_at": 0}
        return JSONResponse(answer, 201, {"Cache-Control": "no-store"})

    def _read(self, token: str) -> dict[str, Any] | None:
        """Return the claims of an active token of this issuer, else ``None``."""
        family = self._families.get(token)
        if token in self._revoked or (family is not None and family.is_revoked):
            return None
        return super()._read(token)

    def _client(self, asked: EndpointRequest) -> str:
        """Return the authenticated client of a request (RFC 6749 §2.3)."""
        scheme, _, credentials = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                name, _, secret = base64.b64decode(credentials).decode().partition(":")
            except ValueError:
                raise OAuthFailure("invalid_client", "malformed credentials", 401) from None
            client, secret = unquote_plus(name), unquote_plus(secret)
        else:
            client, secret = asked.get("client_id"), asked.get("client_secret")
        known = self.clients.get(client)
        if known is None or not hmac.compare_digest(known.encode(), secret.encode()):
            raise OAuthFailure("invalid_client", "the client or its secret is wrong", 401)
        return client


def _may_redirect_to(url: str) -> bool:
    """Return whether a code may be sent to an address; loopback may have any port (RFC
    8252 §7.3).
    """
    try:
        address = urlsplit(url)
    except ValueError:
        return False
    is_local = address.scheme == "http" and is_loopback(address.hostname or "")
    return (is_local or address.scheme == "https") and not address.fragment


def _narrowed(asked: str, granted: str) -> str:
    """Return the requested scope, or the whole granted scope if none is requested."""
    if not set(asked.split()) <= set(granted.split()):
        raise OAuthFailure("invalid_scope", f"the granted scope is: {granted or 'nothing'}")
    return asked or granted


def _one_or_many(audience: tuple[str, ...]) -> str | tuple[str, ...] | None:
    return None if not audience else audience[0] if len(audience) == 1 else audience


def _no_store(answer: Mapping[str, Any]) -> Response:
    return JSONResponse(dict(answer), headers={"Cache-Control": "no-store"})
