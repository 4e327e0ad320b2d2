"""Introspection: the issuer says what a token means (RFC 7662)."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import quote_plus

import msgspec

from parley.model.concurrency import SingleFlight
from parley.model.errors import OverloadedError
from parley.security.issuers import IssuerClient
from parley.security.outbound import FetchFailed, checked_url
from parley.security.schemes.access_token import AccessToken, ClaimRules, token_of
from parley.security.schemes.jwt_format import MAX_TOKEN, read_jwt
from parley.security.schemes.scheme import CredentialsRefused
from parley.security.schemes.token_scheme import UNREACHABLE

log = logging.getLogger("parley.security")

REFUSED_SECONDS = 5.0
"""How long a token that is not active is not asked about again."""

RETRY_SECONDS = 1.0
"""The pause after a failure."""

MAX_REFUSED = 4096
MAX_UNDER_WAY = 200
"""The tokens that are asked about at the same time."""

_ABOUT_TOKEN = frozenset({400, 413, 414, 422})
"""Answers about one token: other tokens are asked about without a pause."""

NOT_ACTIVE = "the token is not active"


class Introspection(msgspec.Struct, frozen=True):
    """Where tokens are introspected, and the client as which this server asks.

    Without ``url`` it is the ``introspection_endpoint`` of the issuer's metadata. ``cache_for`` is
    how many seconds an active token is not asked about again, at most until its time is over; a
    token that is revoked counts so long.
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
        """The header of this server's client (RFC 6749 §2.3.1)."""
        pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


class IntrospectionVerifier:
    """Asks the issuer about tokens, once for all who send the same meanwhile."""

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
        self._refused: dict[bytes, tuple[float, str, str]] = {}
        self._asking: dict[bytes, _Question] = {}
        self._next_attempt = 0.0

    async def verify(self, token: str) -> AccessToken:
        """Return what a token proves. Raises ``CredentialsRefused``, ``OverloadedError``."""
        if len(token) > MAX_TOKEN:
            raise CredentialsRefused("a token that is too long", NOT_ACTIVE)
        self._check_issuer(token)
        digest = hashlib.sha256(token.encode()).digest()
        until, reason, description = self._refused.get(digest, (0.0, "", ""))
        if self._now() < until:
            raise CredentialsRefused(reason, description)
        question = self._asking.get(digest)
        if question is None:
            wait = self._next_attempt - self._now()
            if wait > 0 or len(self._asking) >= MAX_UNDER_WAY:
                raise OverloadedError(UNREACHABLE, retry_after=max(wait, 1.0))
            question = self._asking[digest] = _Question(lambda: self._answer(token, digest))
        try:
            return await question.answer()
        except CredentialsRefused as refusal:
            self._refused.pop(digest, None)
            kept = (self._now() + REFUSED_SECONDS, refusal.reason, refusal.description)
            self._refused[digest] = kept
            while len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
            raise

    def _check_issuer(self, token: str) -> None:
        """Refuse a JWT of another issuer, which is none of this one's business."""
        if not self._issuer or token.count(".") != 2:
            return
        try:
            issuer = read_jwt(token).claims.get("iss", self._issuer)
        except CredentialsRefused:
            return  # of a form that only its issuer knows
        if issuer != self._issuer:
            raise CredentialsRefused("a token of another issuer", NOT_ACTIVE, is_foreign=True)

    async def close(self) -> None:
        """End what is under way."""
        for question in list(self._asking.values()):
            await question.close()
        await self._client.close()

    async def _answer(self, token: str, digest: bytes) -> AccessToken:
        """Ask about a token, which is under way until its answer is there."""
        try:
            return await self._ask(token)
        finally:
            self._asking.pop(digest, None)

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
            raise CredentialsRefused("a token that is no bearer token", NOT_ACTIVE)
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


class _Question:
    """A question that is asked once, whatever becomes of those who wait for its answer."""

    def __init__(self, ask: Callable[[], Awaitable[AccessToken]]) -> None:
        self._ask = ask
        self._found: AccessToken | None = None
        self._error: Exception | None = None
        self._flight = SingleFlight(self._run)

    async def answer(self) -> AccessToken:
        """Return the answer, or raise what was raised."""
        await self._flight.join()
        if self._found is not None:
            return self._found
        if isinstance(self._error, CredentialsRefused):
            raise CredentialsRefused(
                self._error.reason, self._error.description, is_foreign=self._error.is_foreign
            )
        raise OverloadedError(UNREACHABLE, retry_after=RETRY_SECONDS)

    async def close(self) -> None:
        """Cancel it."""
        await self._flight.close()

    async def _run(self) -> None:
        try:
            self._found = await self._ask()
        except (CredentialsRefused, OverloadedError) as error:
            self._error = error
