"""Logins of ``parley auth login``: stored values, their credentials, and the sign-in."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from parley.client.auth.credentials import (
    ApiKeyCredential,
    BasicCredential,
    BearerCredential,
    Credential,
    Use,
    alternatives,
    takes_token,
)
from parley.client.auth.grant import ClientCredentials, Grant, Token, TokenKey
from parley.client.auth.issuers import IssuerHttp, Issuers, TokenIssuer, TokenRefused
from parley.client.auth.login import AuthorizationCode, DeviceCode, DevicePrompt, Login, log_prompt
from parley.client.auth.storage import LoginStorage, StorageUnusable
from parley.client.bindings.http import HttpTransport
from parley.client.bindings.request_auth import RequestParameters, check_secret
from parley.client.errors import NotEncrypted
from parley.client.origin import Origin
from parley.model.cards import AgentCard, SecurityScheme
from parley.security.issuers import ClientIdentity
from parley.security.networks import is_loopback

logger = logging.getLogger(__name__)


class KeptLogin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored login for one origin.

    ``kind`` is ``token``, ``client``, ``api_key``, ``basic`` or ``bearer``; ``secret`` is the API
    key, the password, or the bearer token. Times are seconds since the epoch.
    """

    origin: str
    kind: str
    address: str = ""
    user: str = ""
    secret: str = ""
    issuer: str = ""
    token_url: str = ""
    refresh_url: str = ""
    revocation_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    client_auth: str = ""
    auth_methods: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    audience: str = ""
    resource: str = ""
    access_token: str = ""
    refresh_token: str = ""
    obtained_at: float = 0.0
    expires_at: float | None = None

    def __repr__(self) -> str:
        return f"KeptLogin({self.kind} for {self.origin})"

    @property
    def token(self) -> Token | None:
        """The access token, if there is one."""
        if not self.access_token:
            return None
        return Token(
            access_token=self.access_token,
            obtained_at=self.obtained_at,
            expires_at=self.expires_at,
            refresh_token=self.refresh_token,
            scopes=self.scopes,
        )

    def with_token(self, token: Token) -> KeptLogin:
        """Return the login with another token."""
        return msgspec.structs.replace(
            self,
            access_token=token.access_token,
            refresh_token=token.refresh_token,
            obtained_at=token.obtained_at,
            expires_at=token.expires_at,
            scopes=token.scopes or self.scopes,
        )


class Logins:
    """The logins in a storage, by origin."""

    def __init__(self, storage: LoginStorage | None = None) -> None:
        self._storage = storage or LoginStorage()

    @property
    def place(self) -> str:
        """A description of the storage."""
        return self._storage.place

    def find(self, origin: Origin) -> KeptLogin | None:
        """Return the login for an origin. Raises ``StorageUnusable``."""
        text = self._storage.get(str(origin))
        if text is None and is_loopback(origin.host) and origin.host != "localhost":
            # A login for localhost applies to this machine under any of its addresses.
            origin = msgspec.structs.replace(origin, host="localhost")
            text = self._storage.get(str(origin))
        if text is None:
            return None
        try:
            found = msgspec.json.decode(text, type=KeptLogin)
        except msgspec.MsgspecError:
            raise StorageUnusable(
                f"the login for {origin} in {self.place} cannot be read: log out, and in again"
            ) from None
        # A login applies to its own origin only.
        return found if found.origin == str(origin) else None

    def put(self, login: KeptLogin) -> None:
        """Store a login, replacing the login for its origin."""
        self._storage.put(login.origin, msgspec.json.encode(login).decode())

    def remove(self, origin: Origin) -> bool:
        """Remove the login for an origin. Return whether there was one."""
        return self._storage.remove(str(origin))

    def all(self) -> list[KeptLogin]:
        """Return all logins."""
        found = (self.find(Origin.parse(origin)) for origin in self._storage.origins())
        return [login for login in found if login is not None]


def credential_of(login: KeptLogin, logins: Logins) -> Credential:
    """Return the credential for a stored login."""
    match login.kind:
        case "api_key":
            return ApiKeyCredential(login.secret)
        case "basic":
            return BasicCredential(login.user, login.secret)
        case "bearer":
            return BearerCredential(login.secret)
        case _:
            return KeptGrant(login, logins)


class KeptGrant(Grant):
    """The token of a stored login, renewed without a person, and stored again."""

    def __init__(self, login: KeptLogin, logins: Logins) -> None:
        super().__init__(
            login.client_id,
            login.client_secret,
            scopes=login.scopes if login.kind == "client" else (),
            audience=login.audience,
            resource=login.resource,
            client_auth=login.client_auth,
        )
        self._login = login
        self._logins = logins

    @property
    def advice(self) -> str:  # type: ignore[override]
        """The command that renews the login."""
        return f"parley auth login {self._login.address or self._login.origin}"

    def names(self, origin: Origin) -> bool:
        """Return whether the user logged in at this origin, which is trusted since then."""
        urls = (self._login.token_url, self._login.refresh_url)
        return any(Origin.of(url).covers(origin) for url in urls if url)

    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme accepts a token."""
        return takes_token(scheme)

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether a server asks for a token, or for nothing yet."""
        return not challenges or "bearer" in challenges

    async def find_issuer(self, use: Use) -> TokenIssuer:
        """Return the issuer of the login, independent of the current card."""
        login = self._login
        return TokenIssuer(
            url=login.issuer,
            token_url=login.token_url,
            refresh_url=login.refresh_url,
            auth_methods=login.auth_methods,
            is_named=True,
        )

    def wanted_scopes(self, use: Use, issuer: TokenIssuer) -> tuple[str, ...]:
        """Return the scopes of the login; only the scopes of a client may be extended."""
        if self._login.kind == "client":
            return super().wanted_scopes(use, issuer)
        return ()

    async def _token(self, use: Use, *, refused: str = "") -> Token:
        held = self._login.token
        if held is not None and not self._cache.all():
            issuer = await self.find_issuer(use)
            scopes = tuple(sorted(self.wanted_scopes(use, issuer)))
            if self._login.kind != "client" or set(scopes) <= set(self._login.scopes):
                key = TokenKey(
                    use.origin,
                    issuer.key,
                    self.client_id,
                    scopes,
                    self.audience,
                    self.resource or use.resource,
                )
                self._cache.put(key, held)
        return await super()._token(use, refused=refused)

    async def refresh(self, use: Use, issuer: TokenIssuer, held: Token) -> Token:
        """Return a new token for the refresh token, or the new token of another process."""
        newer = await self._kept_by_others(held)
        if newer is not None and newer.is_fresh(self._now()):
            return newer
        if newer is not None and newer.refresh_token:
            held = newer
        try:
            token = await super().refresh(use, issuer, held)
        except TokenRefused:
            # The issuer accepts a refresh token once, and another process may have used it.
            newer = await self._kept_by_others(held)
            if newer is None or not newer.is_fresh(self._now()):
                raise
            return newer
        await self._keep(token)
        return token

    async def ask(self, use: Use, issuer: TokenIssuer, scopes: tuple[str, ...]) -> Token:
        """Return a new token for a client. Other logins need a person."""
        if self._login.kind != "client":
            raise TokenRefused(
                f"the login for {self._login.origin} has ended; log in again: {self.advice}"
            )
        token = await self.token_for(use, issuer, {"grant_type": "client_credentials"}, scopes)
        await self._keep(token)
        return token

    async def renew(self, use: Use, sent: RequestParameters, *, widened: bool) -> bool:
        """Return whether another token than the rejected one is available."""
        if self._login.kind != "client":
            refused = sent.headers.get("Authorization", "").removeprefix("Bearer ")
            if widened or not (self._login.refresh_token or not refused):
                return False  # more scopes need a new login
        return await super().renew(use, sent, widened=widened)

    async def _kept_by_others(self, held: Token) -> Token | None:
        """Return the token in the storage, if it is a different one.

        A token of another issuer or client is returned without its refresh token, which belongs to
        that issuer.
        """
        try:
            found = await self._find()
        except StorageUnusable as error:
            logger.warning("the stored login could not be read again: %s", error)
            return None
        token = None if found is None else found.token
        if found is None or token is None or token.access_token == held.access_token:
            return None
        return token if self._is_same(found) else msgspec.structs.replace(token, refresh_token="")

    async def _keep(self, token: Token) -> None:
        """Store a new token, unless the user has logged out or in again meanwhile."""
        self._login = self._login.with_token(token)
        try:
            found = await self._find()
            if found is not None and self._is_same(found):
                await asyncio.to_thread(self._logins.put, self._login)
        except StorageUnusable as error:
            logger.warning("the renewed login could not be stored: %s", error)

    async def _find(self) -> KeptLogin | None:
        return await asyncio.to_thread(self._logins.find, Origin.parse(self._login.origin))

    def _is_same(self, other: KeptLogin) -> bool:
        """Return whether a login belongs to the same client of the same issuer."""
        mine = self._login
        return (mine.kind, mine.issuer, mine.token_url, mine.client_id) == (
            other.kind,
            other.issuer,
            other.token_url,
            other.client_id,
        )


# -- sign in ----------------------------------------------------------------------------------

CODE, DEVICE, CLIENT = "authorization-code", "device-code", "client-credentials"
API_KEY, BASIC, BEARER = "api-key", "basic", "bearer"
FLOWS = (CODE, DEVICE, CLIENT, API_KEY, BASIC, BEARER)


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a sign-in: ``flow`` is one of ``FLOWS``; the rest is as for grants."""

    flow: str
    scheme: SecurityScheme | None = None
    scopes: tuple[str, ...] = ()
    client_id: str = ""
    client_secret: str = ""
    issuer: str = ""
    token_url: str = ""
    audience: str = ""
    resource: str = ""

    def __repr__(self) -> str:
        return f"SignIn({self.flow!r})"


def has_browser() -> bool:
    """Return whether a browser can be opened on this machine's screen."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in ("win32", "darwin") or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def pick_scheme(
    card: AgentCard, flow: str = ""
) -> tuple[str, SecurityScheme | None, tuple[str, ...]]:
    """Return the flow, the scheme and the scopes for a sign-in to the agent of a card.

    ``flow`` is the user's choice. If no scheme fits, the returned flow is the choice, which may be
    empty.
    """
    required = [(name, scopes) for each in alternatives(card, "") for name, scopes in each.items()]
    others = [(name, ()) for name in card.security_schemes]
    for name, scopes in (*required, *others):
        scheme = card.security_schemes.get(name)
        if scheme is None:
            continue
        possible = _flows_of(scheme)
        if flow in possible or (not flow and possible):
            return flow or possible[0], scheme, scopes
    return flow, None, ()


def _flows_of(scheme: SecurityScheme) -> list[str]:
    """Return the sign-in flows of a scheme, the best first."""
    person = [CODE, DEVICE] if has_browser() else [DEVICE, CODE]
    http = scheme.http_auth_security_scheme
    if scheme.api_key_security_scheme is not None:
        return [API_KEY]
    if http is not None:
        return {"basic": [BASIC], "bearer": [BEARER, *person, CLIENT]}.get(http.scheme.lower(), [])
    if scheme.open_id_connect_security_scheme is not None:
        return [*person, CLIENT, BEARER]
    oauth = scheme.oauth2_security_scheme
    if oauth is None:
        return []
    if oauth.flows.authorization_code is not None:
        declared = [CODE] if not oauth.oauth2_metadata_url else person
    elif oauth.flows.device_code is not None:
        declared = [DEVICE]
    elif oauth.flows.client_credentials is not None:
        declared = [CLIENT]
    else:
        declared = []
    return list(dict.fromkeys([*declared, *person, CLIENT, BEARER]))


async def sign_in(
    wish: SignIn,
    origin: Origin,
    *,
    address: str,
    http: HttpTransport,
    insecure: bool = False,
    open_url: Callable[[str], Any] | None = None,
    prompt: Callable[[DevicePrompt], Any] | None = None,
) -> KeptLogin:
    """Return a new login for an agent. Raises ``AuthenticationRequired``."""
    check_encrypted(origin, insecure)
    issuers = Issuers(
        IssuerHttp(http, trusts=lambda one: origin.covers(one), is_local=is_loopback(origin.host))
    )
    options: dict[str, Any] = {
        "scopes": wish.scopes,
        "issuer": wish.issuer,
        "token_url": wish.token_url,
        "audience": wish.audience,
        "resource": wish.resource,
    }
    grant: Grant
    if wish.flow == CLIENT:
        grant = ClientCredentials(wish.client_id, wish.client_secret, **options)
    elif wish.flow == DEVICE:
        options["prompt"] = prompt or log_prompt
        grant = DeviceCode(wish.client_id, wish.client_secret, **options)
    else:
        grant = AuthorizationCode(wish.client_id, wish.client_secret, open_url=open_url, **options)
    named = [Origin.of(url) for url in (wish.issuer, wish.token_url) if url]
    issuers.http.trust(named)
    use = Use(origin=str(origin), issuers=issuers, scheme=wish.scheme)
    try:
        issuer = await grant.find_issuer(use)
        asked = grant.wanted_scopes(use, issuer)
        token = await grant.ask(use, issuer, asked)
    finally:
        await issuers.http.aclose()
    client = grant.client_of(issuer) if isinstance(grant, Login) else grant.identity
    return KeptLogin(
        origin=str(origin),
        kind="client" if wish.flow == CLIENT else "token",
        address=address,
        issuer=issuer.url,
        token_url=issuer.token_url,
        refresh_url=issuer.refresh_url,
        revocation_url=issuer.revocation_url,
        auth_methods=issuer.auth_methods,
        client_id=client.id,
        client_secret=client.secret,
        client_auth=client.method,
        scopes=asked,
        audience=wish.audience,
        resource=wish.resource,
    ).with_token(token)


async def sign_out(login: KeptLogin, http: HttpTransport) -> bool:
    """Ask the issuer to revoke the tokens of a login (RFC 7009). Return whether it did."""
    tokens = [(login.refresh_token, "refresh_token"), (login.access_token, "access_token")]
    if not login.revocation_url or not any(token for token, _ in tokens):
        return False
    asked = Origin.of(login.revocation_url)
    issuers = IssuerHttp(http, trusts=lambda one: one == asked)
    client = ClientIdentity(login.client_id, login.client_secret, login.client_auth)
    done = []
    try:
        for token, kind in tokens:
            if token:
                form = {"token": token, "token_type_hint": kind}
                status, _ = await issuers.post_form(
                    login.revocation_url, form, client, methods=login.auth_methods
                )
                done.append(status == 200)
    except TokenRefused:
        return False
    finally:
        await issuers.aclose()
    return all(done)


def check_encrypted(origin: Origin, insecure: bool) -> None:
    """Raise ``NotEncrypted`` for an agent to which no credentials would be sent."""
    if origin.is_plaintext and not insecure:
        raise NotEncrypted(
            f"no credentials are sent to {origin}, which is not encrypted; log in to its https "
            "address"
        )


def kept_secret(
    origin: Origin, kind: str, secret: str, *, address: str, user: str = ""
) -> KeptLogin:
    """Return a login with an API key, a password or a bearer token."""
    kinds = {API_KEY: "api_key", BASIC: "basic", BEARER: "bearer"}
    return KeptLogin(
        origin=str(origin), kind=kinds[kind], address=address, user=user, secret=secret
    )


def check_usable(login: KeptLogin) -> None:
    """Raise ``AuthenticationRequired`` for a secret that no request can carry."""
    try:
        check_secret("the entered text", login.secret)
        if login.kind == "basic":
            BasicCredential(login.user, login.secret)
    except ValueError as error:
        raise TokenRefused(str(error)) from None


def scopes_of(scopes: Sequence[str]) -> tuple[str, ...]:
    """Return distinct scopes from texts, each of which may contain several."""
    return tuple(dict.fromkeys(word for each in scopes for word in each.split()))
