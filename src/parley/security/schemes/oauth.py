"""Schemes for access tokens of an issuer: JWT, OpenID Connect, OAuth 2.0, introspection."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import quote_plus

import msgspec

from parley.model.bounded import Bounded
from parley.model.cards import (
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
    DeviceCodeOAuthFlow,
    HTTPAuthSecurityScheme,
    OAuth2SecurityScheme,
    OAuthFlows,
    OpenIdConnectSecurityScheme,
    SecurityScheme,
)
from parley.model.concurrency import end
from parley.model.errors import OverloadedError
from parley.security.evidence import Evidence, SchemeResources
from parley.security.issuers import OPENID, IssuerClient, oauth_url, openid_url
from parley.security.outbound import Fetcher, FetchFailed, checked_url, is_url
from parley.security.schemes.http import BearerScheme, bearer_token
from parley.security.schemes.scheme import CredentialsRefused, Proof, checked_name, refused_again
from parley.security.schemes.tokens import (
    MAX_TOKEN,
    UNREACHABLE,
    AccessToken,
    ClaimRules,
    JwtVerifier,
    audiences_of,
    read_jwt,
    token_of,
)

# -- access tokens ---------------------------------------------------------------------------

MAX_VERIFIED = 4096
"""The number of cached verified tokens, the most recent ones."""


class TokenScheme(BearerScheme):
    """A scheme whose credentials are access tokens, sent as bearer tokens (RFC 6750).

    A verified token is cached by its hash until it expires: a repeated token needs no network
    request and no signature check.
    """

    def __init__(self, *, name: str, description: str) -> None:
        self.name = checked_name(name)
        self._description = description
        self._now: Callable[[], float] = time.time
        self._verified: Bounded[bytes, AccessToken] = Bounded(MAX_VERIFIED)
        self._fetcher = Fetcher()
        self._users: Counter[asyncio.AbstractEventLoop] = Counter()
        self._verifier: JwtVerifier | IntrospectionVerifier

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def now(self) -> float:
        """Return the time of the server, in seconds since the epoch."""
        return self._now()

    def verify(self, evidence: Evidence) -> Proof | Awaitable[Proof]:
        """Return the token's proof. Raises ``CredentialsRefused``, ``OverloadedError``."""
        token = bearer_token(evidence)
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verified.use(digest)
        if known is None or self.now() >= known.until:
            return self._verify(token, digest, evidence)
        known.check_sender(evidence)
        return known.proof

    async def _verify(self, token: str, digest: bytes, evidence: Evidence) -> Proof:
        found = await self._verifier.verify(token)
        self._verified[digest] = found
        found.check_sender(evidence)
        return found.proof

    async def start(self, resources: SchemeResources) -> None:
        """Use the server's clock and egress policy. The issuer is first contacted on first use."""
        self._users[asyncio.get_running_loop()] += 1
        self._now = resources.now
        self._fetcher.egress = resources.egress

    async def close(self) -> None:
        """Cancel the requests in progress, and close the connections to the issuer.

        If several servers of an event loop use the scheme, the last one closes it.
        """
        loop = asyncio.get_running_loop()
        self._users[loop] -= 1
        if self._users[loop] <= 0:
            del self._users[loop]
            await self._verifier.close()
            await self._fetcher.close()


# -- jwt --------------------------------------------------------------------------------------


class Jwt(TokenScheme):
    """A JWT of ``issuer`` for ``audience``, sent as a bearer token.

    Its key is one of the keys at ``jwks_url``, which are fetched and kept up to date, or one of
    ``keys``: JWKs, a key set, PEM, or the bytes of a secret. ``algorithms`` may restrict the
    algorithms that fit the keys; a secret is never used as a public key, nor a public key as a
    secret. ``leeway`` is the permitted clock difference in seconds. ID tokens are rejected, unless
    ``accept_id_tokens``.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Collection[str],
        jwks_url: str = "",
        keys: Any = None,
        algorithms: Collection[str] | None = None,
        leeway: float = 60,
        accept_id_tokens: bool = False,
        name: str = "jwt",
        description: str = "",
    ) -> None:
        super().__init__(name=name, description=description)
        if not issuer:
            raise ValueError("Jwt needs issuer=: the iss of its tokens")
        if bool(jwks_url) == (keys is not None):
            raise ValueError("Jwt needs jwks_url=, where the issuer's keys are, or keys=")
        if keys is None:
            checked_url(jwks_url, "jwks_url=")
            keys = IssuerClient(self._fetcher, self.now, jwks_url=jwks_url)
        self.authorization_servers = (issuer,) if is_url(issuer) else ()
        self._verifier = JwtVerifier(
            issuers=[issuer],
            keys=keys,
            algorithms=algorithms,
            rules=ClaimRules(
                audiences=audiences_of(audience, "Jwt"),
                leeway=leeway,
                accept_id_tokens=accept_id_tokens,
            ),
            now=self.now,
        )

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(
                scheme="Bearer", bearer_format="JWT", description=self._description
            )
        )


# -- open id connect --------------------------------------------------------------------------


class OpenIdConnect(TokenScheme):
    """A JWT for ``audience`` from the OpenID Connect issuer at ``url``.

    ``url`` is the address of the issuer or of its discovery document. The issuer's keys are fetched
    for the first token, and kept up to date. ``algorithms``, ``leeway`` and ``accept_id_tokens``
    are as for ``Jwt``.
    """

    def __init__(
        self,
        url: str,
        *,
        audience: str | Collection[str],
        algorithms: Collection[str] | None = None,
        leeway: float = 60,
        accept_id_tokens: bool = False,
        name: str = "openid",
        description: str = "",
    ) -> None:
        super().__init__(name=name, description=description)
        checked_url(url, "the address of an OpenID Connect issuer")
        self._url = openid_url(url)
        # Issuers with and without a trailing slash have the same discovery document.
        issuer = self._url.removesuffix(OPENID)
        issuers = (url, *{issuer, f"{issuer}/"} - {url})
        self.authorization_servers = (issuer if url.endswith(OPENID) else url,)
        self._verifier = JwtVerifier(
            issuers=issuers,
            keys=IssuerClient(self._fetcher, self.now, names=issuers, metadata_urls=(self._url,)),
            algorithms=algorithms,
            rules=ClaimRules(
                audiences=audiences_of(audience, "OpenIdConnect"),
                leeway=leeway,
                accept_id_tokens=accept_id_tokens,
            ),
            now=self.now,
        )

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it. Clients find the rest in the discovery document."""
        return SecurityScheme(
            open_id_connect_security_scheme=OpenIdConnectSecurityScheme(
                open_id_connect_url=self._url, description=self._description
            )
        )


# -- introspection ----------------------------------------------------------------------------

log = logging.getLogger("parley.security")

REFUSED_SECONDS = 5.0
"""The time for which an inactive token is rejected without asking again."""

RETRY_SECONDS = 1.0
"""The pause after a failure."""

MAX_REFUSED = 4096
MAX_UNDER_WAY = 200
"""The number of concurrent introspection requests."""

_ABOUT_TOKEN = frozenset({400, 413, 414, 422})
"""Statuses that concern one token only: there is no pause for other tokens."""

NOT_ACTIVE = "the token is not active"


class Introspection(msgspec.Struct, frozen=True):
    """The introspection endpoint for tokens, and this server's client credentials.

    Without ``url`` the ``introspection_endpoint`` of the issuer's metadata is used. ``cache_for``
    is the number of seconds for which an active token is not asked about again, until it expires at
    the latest; a revoked token is accepted that long.
    """

    client_id: str
    client_secret: str
    url: str = ""
    cache_for: float = 60

    def __post_init__(self) -> None:
        if not self.client_id or not self.client_secret:
            raise ValueError("Introspection needs client_id= and client_secret= of this server")
        if self.url:
            checked_url(self.url, "the address of Introspection")
        if not 0 <= self.cache_for <= 3600:
            raise ValueError(f"cache_for= is from 0 to 3600 seconds, not {self.cache_for!r}")

    def __repr__(self) -> str:
        return f"Introspection({self.client_id!r}, url={self.url!r})"

    @property
    def authorization(self) -> str:
        """The ``Authorization`` header of this server's client (RFC 6749 §2.3.1)."""
        pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


Refusal = CredentialsRefused | OverloadedError
_Asked = tuple[asyncio.AbstractEventLoop, bytes]
"""The event loop of a request, and the hash of its token."""


class IntrospectionVerifier:
    """Introspects tokens at the issuer. Concurrent requests with the same token share one call."""

    def __init__(
        self,
        introspection: Introspection,
        client: IssuerClient,
        *,
        issuer: str,
        rules: ClaimRules,
        now: Callable[[], float],
        name: str = "",
    ) -> None:
        self._introspection = introspection
        self._client = client
        self._issuer = issuer
        self._rules = rules
        self._now = now
        self._name = name
        self._refused: Bounded[bytes, tuple[float, CredentialsRefused]] = Bounded(MAX_REFUSED)
        self._asking: dict[_Asked, asyncio.Task[AccessToken | Refusal]] = {}
        self._next_attempt = 0.0

    async def verify(self, token: str) -> AccessToken:
        """Return the proof of a token. Raises ``CredentialsRefused``, ``OverloadedError``."""
        if len(token) > MAX_TOKEN:
            raise CredentialsRefused("a token that is too long", NOT_ACTIVE)
        self._check_issuer(token)
        digest = hashlib.sha256(token.encode()).digest()
        until, refusal = self._refused.get(digest, (0.0, None))
        if refusal is not None and self._now() < until:
            raise refused_again(refusal)
        asked = asyncio.get_running_loop(), digest
        answering = self._asking.get(asked)
        if answering is None:
            wait = self._next_attempt - self._now()
            if wait > 0 or len(self._asking) >= MAX_UNDER_WAY:
                raise OverloadedError(UNREACHABLE, retry_after=max(wait, 1.0))
            answering = self._asking[asked] = asyncio.create_task(self._answer(token, asked))
        await asyncio.wait((answering,))  # continues if its waiters are cancelled
        if answering.cancelled():
            raise OverloadedError(UNREACHABLE, retry_after=RETRY_SECONDS)
        answer = answering.result()
        if isinstance(answer, CredentialsRefused):
            self._refused[digest] = (self._now() + REFUSED_SECONDS, answer)
            raise refused_again(answer)
        if isinstance(answer, OverloadedError):
            raise OverloadedError(UNREACHABLE, retry_after=RETRY_SECONDS)
        return answer

    def _check_issuer(self, token: str) -> None:
        """Reject a JWT of another issuer without asking this one."""
        if not self._issuer or token.count(".") != 2:
            return
        try:
            issuer = read_jwt(token).claims.get("iss", self._issuer)
        except CredentialsRefused:
            return  # an opaque token, which only its issuer can read
        if issuer != self._issuer:
            raise CredentialsRefused("a token of another issuer", NOT_ACTIVE, is_foreign=True)

    async def close(self) -> None:
        """Cancel the requests in progress on this event loop."""
        loop = asyncio.get_running_loop()
        await end([each for asked, each in self._asking.items() if asked[0] is loop])
        await self._client.close()

    async def _answer(self, token: str, asked: _Asked) -> AccessToken | Refusal:
        """Ask the issuer about a token. Concurrent requests wait for the same answer."""
        try:
            return await self._ask(token)
        except (CredentialsRefused, OverloadedError) as refusal:
            return refusal
        finally:
            self._asking.pop(asked, None)

    async def _ask(self, token: str) -> AccessToken:
        form = {"token": token, "token_type_hint": "access_token"}
        headers = {"Authorization": self._introspection.authorization}
        try:
            document = await self._client.introspect(form, headers)
        except FetchFailed as failure:
            log.warning("tokens cannot be introspected: %s (%s)", failure, self._name)
            if failure.status not in _ABOUT_TOKEN:
                self._next_attempt = self._now() + RETRY_SECONDS
            raise OverloadedError(UNREACHABLE, retry_after=RETRY_SECONDS) from None
        claims = document.content
        if claims.get("active") is not True:
            raise CredentialsRefused("a token that is not active", NOT_ACTIVE)
        if self._issuer and claims.get("iss", self._issuer) != self._issuer:
            raise CredentialsRefused("a token of another issuer", NOT_ACTIVE)
        if str(claims.get("token_type", "bearer")).lower() not in ("bearer", "access_token"):
            raise CredentialsRefused("a token that is not a bearer token", NOT_ACTIVE)
        now = self._now()
        self._rules.check_times(claims, now, needs_exp=False)
        self._rules.check_audience(claims)
        claims = {name: value for name, value in claims.items() if name != "active"}
        return token_of(
            claims,
            issuer=self._issuer or self._name,
            now=now,
            keep_for=self._introspection.cache_for,
            leeway=self._rules.leeway,
        )


# -- oauth2 -----------------------------------------------------------------------------------

Flow = AuthorizationCodeOAuthFlow | ClientCredentialsOAuthFlow | DeviceCodeOAuthFlow

_FIELDS = {
    AuthorizationCodeOAuthFlow: "authorization_code",
    ClientCredentialsOAuthFlow: "client_credentials",
    DeviceCodeOAuthFlow: "device_code",
}
_ADDRESSES = ("authorization_url", "device_authorization_url", "token_url", "refresh_url")


class OAuth2(TokenScheme):
    """An access token that clients obtain by ``flow``, as declared on the card.

    Tokens are JWTs of ``issuer`` for ``audience``. The issuer's keys come from its metadata (at
    ``metadata_url`` or at its well-known addresses, RFC 8414 and OpenID Connect), from
    ``jwks_url``, or from ``keys``. With ``introspection`` tokens may have any form, and the issuer
    is asked about each (RFC 7662); ``audience=""`` then accepts all tokens that the issuer accepts.
    ``algorithms``, ``leeway`` and ``accept_id_tokens`` are as for ``Jwt``.

    A scheme on a card has one flow: for several, declare several schemes, and combine them with
    ``|``.
    """

    def __init__(
        self,
        flow: Flow,
        *,
        audience: str | Collection[str],
        issuer: str = "",
        metadata_url: str = "",
        jwks_url: str = "",
        keys: Any = None,
        introspection: Introspection | None = None,
        algorithms: Collection[str] | None = None,
        leeway: float = 60,
        accept_id_tokens: bool = False,
        name: str = "oauth2",
        description: str = "",
    ) -> None:
        super().__init__(name=name, description=description)
        if type(flow) not in _FIELDS:
            raise TypeError(
                "OAuth2 takes an AuthorizationCodeOAuthFlow, ClientCredentialsOAuthFlow or "
                f"DeviceCodeOAuthFlow, not {type(flow).__name__}"
            )
        for field in _ADDRESSES:
            if getattr(flow, field, ""):
                checked_url(getattr(flow, field), f"{field}= of the flow")
        if metadata_url:
            checked_url(metadata_url, "metadata_url=")
        self.authorization_servers = (issuer,) if is_url(issuer) else ()
        self.scopes = tuple(flow.scopes)
        self._flow = flow
        self._metadata_url = metadata_url
        self._issuer = issuer
        rules = ClaimRules(
            audiences=frozenset()
            if introspection is not None and audience == ""
            else audiences_of(audience, "OAuth2"),
            leeway=leeway,
            accept_id_tokens=accept_id_tokens,
        )
        if introspection is not None:
            if jwks_url or keys is not None or algorithms is not None:
                raise ValueError(
                    "introspection= verifies tokens without keys: leave out jwks_url=, keys= and "
                    "algorithms="
                )
            self._verifier = IntrospectionVerifier(
                introspection,
                self._client(introspection_url=introspection.url),
                issuer=issuer,
                rules=rules,
                now=self.now,
                name=name,
            )
        else:
            self._verifier = self._by_signature(jwks_url, keys, algorithms, rules)

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            oauth2_security_scheme=OAuth2SecurityScheme(
                flows=OAuthFlows(**{_FIELDS[type(self._flow)]: self._flow}),  # type: ignore[arg-type]
                oauth2_metadata_url=self._metadata_url,
                description=self._description,
            )
        )

    def _by_signature(
        self, jwks_url: str, keys: Any, algorithms: Collection[str] | None, rules: ClaimRules
    ) -> JwtVerifier:
        if not self._issuer:
            raise ValueError(
                "OAuth2 verifies tokens by issuer=, the iss of its JWTs, or by introspection="
            )
        if keys is not None and jwks_url:
            raise ValueError("OAuth2 takes jwks_url= or keys=, not both")
        if jwks_url:
            checked_url(jwks_url, "jwks_url=")
        return JwtVerifier(
            issuers=[self._issuer],
            keys=self._client(jwks_url=jwks_url) if keys is None else keys,
            algorithms=algorithms,
            rules=rules,
            now=self.now,
        )

    def _client(self, *, jwks_url: str = "", introspection_url: str = "") -> IssuerClient:
        """Return the client of the issuer. Addresses that are not given come from its metadata."""
        if jwks_url or introspection_url:
            return IssuerClient(
                self._fetcher, self.now, jwks_url=jwks_url, introspection_url=introspection_url
            )
        if not self._issuer:
            raise ValueError("OAuth2 needs issuer=, whose metadata has the missing addresses")
        checked_url(self._issuer, "issuer=")
        own = (oauth_url(self._issuer), openid_url(self._issuer))
        urls = (self._metadata_url,) if self._metadata_url else own
        return IssuerClient(self._fetcher, self.now, names=(self._issuer,), metadata_urls=urls)
