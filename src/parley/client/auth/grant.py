"""Grants: credentials that an issuer exchanges for tokens, cached and renewed before expiry."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from parley.client.auth.credentials import Credential, Use, takes_token
from parley.client.auth.issuers import CLIENT_AUTH, TokenIssuer, TokenRefused
from parley.client.bindings.http import redacted
from parley.client.bindings.request_auth import RequestParameters, check_secret
from parley.client.origin import Origin
from parley.model.bounded import Bounded
from parley.model.cards import OAuthFlows, SecurityScheme
from parley.model.concurrency import KeyedLocks
from parley.security.issuers import ClientIdentity, lifetime_of

# -- tokens -----------------------------------------------------------------------------------

MAX_TOKENS = 256
"""The maximum number of tokens in one credential's cache."""

LEEWAY = 60.0
"""A token is renewed this many seconds before its expiry, or a tenth of its lifetime if shorter."""

MAX_TOKEN_BYTES = 64 * 1024


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An access token with its refresh token. Times are seconds since the epoch.

    ``scopes`` are the granted scopes, if the issuer states them.
    """

    access_token: str
    obtained_at: float
    expires_at: float | None = None
    refresh_token: str = ""
    scopes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at}, scopes={self.scopes})"

    def is_fresh(self, now: float) -> bool:
        """Return whether the token is valid long enough for one more request."""
        if self.expires_at is None:
            return True
        return now < self.expires_at - min(LEEWAY, (self.expires_at - self.obtained_at) / 10)


def read_token(
    answer: Mapping[str, Any], where: str, *, now: float, previous: Token | None = None
) -> Token:
    """Return the token in an issuer's answer (RFC 6749 §5.1). Raises ``TokenRefused``.

    If an answer has no refresh token or scopes, they are copied from the ``previous`` token.
    """
    access = answer.get("access_token")
    kind = answer.get("token_type", "Bearer")
    if not isinstance(access, str) or not access or len(access) > MAX_TOKEN_BYTES:
        raise TokenRefused(f"{where} answered without an access token")
    if not isinstance(kind, str) or kind.lower() not in ("bearer", "n_a"):
        raise TokenRefused(f"{where} gives tokens of the type {kind!r:.40}; expected Bearer")
    try:
        check_secret("the access token", access)
        if not access.isascii() or " " in access:
            raise ValueError
    except ValueError:
        raise TokenRefused(f"{where} gives a token that no header can carry") from None
    life = lifetime_of(answer)
    refresh, scope = answer.get("refresh_token"), answer.get("scope")
    return Token(
        access_token=access,
        obtained_at=now,
        expires_at=None if life is None else now + life,
        refresh_token=refresh
        if isinstance(refresh, str) and refresh
        else (previous.refresh_token if previous else ""),
        scopes=tuple(scope.split())
        if isinstance(scope, str)
        else (previous.scopes if previous else ()),
    )


class TokenKey(NamedTuple):
    """The key that distinguishes the tokens of one credential."""

    origin: str
    issuer: str
    client: str
    scopes: tuple[str, ...]
    audience: str
    resource: str
    subject: str = ""


class TokenCache:
    """The tokens of one credential. Concurrent callers wait for one request to the issuer."""

    def __init__(self) -> None:
        self._tokens: Bounded[TokenKey, Token] = Bounded(MAX_TOKENS)
        self._locks = KeyedLocks()

    def all(self) -> tuple[Token, ...]:
        """Return all tokens."""
        return tuple(self._tokens.values())

    async def get(
        self,
        key: TokenKey,
        obtain: Callable[[Token | None], Awaitable[Token]],
        *,
        now: Callable[[], float],
        refused: str = "",
    ) -> Token:
        """Return a fresh token from the cache, or from ``obtain``.

        ``obtain`` gets the cached token, if any. ``refused`` is an access token that a server
        rejected; it is not returned again.
        """
        held = self._tokens.get(key)
        if held is not None and held.access_token != refused and held.is_fresh(now()):
            self._tokens[key] = held
            return held
        # A credential may be used on several event loops; a lock belongs to one of them.
        async with self._locks.of((asyncio.get_running_loop(), key)):
            held = self._tokens.get(key)
            if held is not None and held.access_token != refused and held.is_fresh(now()):
                return held
            token = await obtain(held)
            self.put(key, token)
            return token

    def put(self, key: TokenKey, token: Token) -> None:
        """Cache a token."""
        self._tokens[key] = token


# -- grant ------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
PATIENCE = 30.0
"""A rejected token that is younger than this, and cannot be renewed, is not requested again."""


class Grant(Credential):
    """A client of an issuer, and its tokens: one for each agent, issuer and set of scopes.

    ``scopes`` are requested in addition to the agent's. ``issuer`` names the issuer, overriding the
    card; ``token_url`` names only the token endpoint. ``audience`` and ``resource`` (RFC 8707) name
    the target of the token, for issuers that need it. ``client_auth`` is ``client_secret_basic``,
    ``client_secret_post``, ``tls_client_auth`` or ``none``; the default is a supported method.
    """

    interactive = False

    def __init__(
        self,
        client_id: str,
        client_secret: str = "",
        *,
        scopes: Sequence[str] | str = (),
        issuer: str = "",
        token_url: str = "",
        audience: str = "",
        resource: str = "",
        client_auth: str = "",
    ) -> None:
        if client_auth not in CLIENT_AUTH:
            raise ValueError(f"client_auth is one of {', '.join(filter(None, CLIENT_AUTH))}")
        if not isinstance(client_id, str) or not isinstance(client_secret, str):
            raise TypeError("a client has an id and a secret of text")
        for url in filter(None, (issuer, token_url)):
            try:
                Origin.of(url)
            except ValueError as error:
                raise ValueError(f"an issuer has {error}, unlike {redacted(url)!r:.200}") from None
        self.client_id = client_id
        self.scopes = tuple(scopes.split() if isinstance(scopes, str) else scopes)
        self.issuer = issuer
        self.token_url = token_url
        self.audience = audience
        self.resource = resource
        self._client_auth = client_auth
        self._secret = client_secret
        self._cache = TokenCache()
        self._now: Callable[[], float] = time.time

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client_id!r})"

    # -- implemented by grants -----------------------------------------------------------------

    @abstractmethod
    async def ask(self, use: Use, issuer: TokenIssuer, scopes: tuple[str, ...]) -> Token:
        """Return a new token of the issuer. Raises ``TokenRefused``."""

    def suits(self, flows: OAuthFlows) -> bool:
        """Return whether a card's flow is the flow of this grant."""
        return False

    # -- a credential --------------------------------------------------------------------------

    @property
    def names_issuer(self) -> bool:
        """True if the user has named the issuer."""
        return bool(self.issuer or self.token_url)

    def names(self, origin: Origin) -> bool:
        """Return whether the user named an issuer at this origin."""
        return any(Origin.of(url).covers(origin) for url in (self.issuer, self.token_url) if url)

    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme accepts a token, and the scheme or the user names an issuer."""
        oauth = scheme.oauth2_security_scheme
        if oauth is not None:
            known = self.names_issuer or bool(oauth.oauth2_metadata_url)
            return known or self.suits(oauth.flows)
        if scheme.open_id_connect_security_scheme is not None:
            return True
        return takes_token(scheme) and self.names_issuer

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether a server asks for a token, and the user has named the issuer."""
        return self.names_issuer and "bearer" in challenges

    async def attach(self, use: Use) -> RequestParameters:
        """Return the header with a fresh token."""
        token = await self._token(use)
        return RequestParameters({"Authorization": f"Bearer {token.access_token}"}, {})

    async def renew(self, use: Use, sent: RequestParameters, *, widened: bool) -> bool:
        """Return whether another token than the rejected one is available."""
        refused = sent.headers.get("Authorization", "").removeprefix("Bearer ")
        if not refused:
            return True
        if self.interactive and not widened and self._is_new(refused):
            return False
        return (await self._token(use, refused=refused)).access_token != refused

    def _is_new(self, access_token: str) -> bool:
        """Return whether a person has just logged in for a token that cannot be renewed."""
        for token in self._cache.all():
            if token.access_token == access_token and not token.refresh_token:
                return self._now() - token.obtained_at < PATIENCE
        return False

    async def _token(self, use: Use, *, refused: str = "") -> Token:
        issuer = await self.find_issuer(use)
        scopes = self.wanted_scopes(use, issuer)
        key = TokenKey(
            use.origin,
            issuer.key,
            self.client_id,
            tuple(sorted(scopes)),
            self.audience,
            self.resource or use.resource,
            await self.subject(),
        )

        async def obtain(held: Token | None) -> Token:
            if held is not None and held.refresh_token:
                try:
                    return await self.refresh(use, issuer, held)
                except TokenRefused as error:
                    if error.is_transient:
                        raise
                    logger.info("a token is not renewed; requesting a new one: %s", error)
            logger.info("asking %s for a token for %s", issuer.key, use.origin)
            return await self.ask(use, issuer, scopes)

        return await self._cache.get(key, obtain, now=self._now, refused=refused)

    # -- shared by grants ----------------------------------------------------------------------

    async def find_issuer(self, use: Use) -> TokenIssuer:
        """Return the issuer of tokens."""
        return await use.issuers.find(
            use.scheme, issuer=self.issuer, token_url=self.token_url, hinted=use.hinted
        )

    def wanted_scopes(self, use: Use, issuer: TokenIssuer) -> tuple[str, ...]:
        """Return the scopes to request."""
        return tuple(dict.fromkeys((*use.scopes, *self.scopes)))

    async def subject(self) -> str:
        """Return the key that distinguishes the tokens of several users."""
        return ""

    async def refresh(self, use: Use, issuer: TokenIssuer, held: Token) -> Token:
        """Exchange a refresh token for a new token. The issuer may replace the refresh token
        too."""
        form = {"grant_type": "refresh_token", "refresh_token": held.refresh_token}
        url = issuer.refresh_url or issuer.token_url
        return await self.token_for(use, issuer, form, (), url=url, previous=held)

    async def token_for(
        self,
        use: Use,
        issuer: TokenIssuer,
        form: dict[str, str],
        scopes: tuple[str, ...],
        *,
        url: str = "",
        previous: Token | None = None,
        client: ClientIdentity | None = None,
    ) -> Token:
        """Send a request to the token endpoint, and return the token in the answer."""
        url = url or issuer.token_url
        whole = {**form, **self.target(use, scopes)}
        answer = await use.issuers.http.ask_for_token(
            url, whole, client or self.identity, methods=issuer.auth_methods
        )
        token = read_token(answer, url.partition("?")[0], now=self._now(), previous=previous)
        missing = set(use.scopes) - set(token.scopes) if token.scopes else set()
        if missing:
            logger.info("the token lacks the scopes %s", " ".join(sorted(missing)))
        return token

    @property
    def identity(self) -> ClientIdentity:
        """The authentication of this client to issuers."""
        return ClientIdentity(self.client_id, self._secret, self._client_auth)

    def target(self, use: Use, scopes: tuple[str, ...]) -> dict[str, str]:
        """Return the request members that name the target of a token."""
        return {
            "scope": " ".join(scopes),
            "audience": self.audience,
            "resource": self.resource or use.resource,
        }


class ClientCredentials(Grant):
    """A client that acts for itself (RFC 6749 §4.4)."""

    def suits(self, flows: OAuthFlows) -> bool:
        """Return whether a card's flow is client credentials."""
        return flows.client_credentials is not None

    async def ask(self, use: Use, issuer: TokenIssuer, scopes: tuple[str, ...]) -> Token:
        """Return a token for the client."""
        return await self.token_for(use, issuer, {"grant_type": "client_credentials"}, scopes)


class TokenExchange(Grant):
    """A token of a user, exchanged for a token for this agent (RFC 8693).

    ``subject_token`` is a text, or a function that returns the current token. ``actor_token`` is
    the same for the party that acts for the user.
    """

    is_personal = True

    def __init__(
        self,
        subject_token: str | Callable[[], str | Awaitable[str]],
        *,
        client_id: str = "",
        client_secret: str = "",
        subject_token_type: str = ACCESS_TOKEN,
        actor_token: str | Callable[[], str | Awaitable[str]] = "",
        actor_token_type: str = ACCESS_TOKEN,
        requested_token_type: str = "",
        **options: Any,
    ) -> None:
        super().__init__(client_id, client_secret, **options)
        if not subject_token:
            raise ValueError("a token exchange needs the user's token: subject_token=...")
        self._subject = subject_token
        self._subject_type = subject_token_type
        self._actor = actor_token
        self._actor_type = actor_token_type
        self._requested = requested_token_type

    def suits(self, flows: OAuthFlows) -> bool:
        """Return whether a card's flow names a token endpoint."""
        return flows.implicit is None

    async def subject(self) -> str:
        """Return a digest of the user's token."""
        import hashlib

        text = f"{await _current(self._subject)} {await _current(self._actor)}"
        return hashlib.sha256(text.encode()).hexdigest()

    async def ask(self, use: Use, issuer: TokenIssuer, scopes: tuple[str, ...]) -> Token:
        """Exchange the user's token."""
        actor = await _current(self._actor)
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": await _current(self._subject),
            "subject_token_type": self._subject_type,
            "actor_token": actor,
            "actor_token_type": self._actor_type if actor else "",
            "requested_token_type": self._requested,
        }
        return await self.token_for(use, issuer, form, scopes)


async def _current(token: str | Callable[[], str | Awaitable[str]]) -> str:
    if not callable(token):
        return token
    found = token()
    return await found if inspect.isawaitable(found) else found
