"""Verifies the JWT of a delivery, by the keys that the agent's server publishes."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from parley.push.receiving.request import DeliveredRequest, NotificationRefused, Verified
from parley.push.receiving.verification import check_age, credentials_of


class VerifyJwt:
    """``JWT``: a token that the agent's server signs with its keys, over id, time, task and body.

    ``issuer`` is the server's public address, as its card has it. Its keys are at ``jwks_url``,
    by default ``/.well-known/jwks.json`` of the issuer; they are fetched, kept, and fetched again
    when a key is new. ``keys`` gives them instead (JWKs or PEM). Nothing in a token says where keys
    are. ``audience`` is the address of this webhook, or what its configuration states instead;
    several are alternatives. ``leeway`` is how far clocks may be apart, in seconds.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Collection[str],
        jwks_url: str = "",
        keys: Any = None,
        algorithms: Collection[str] = ("ES256", "RS256", "EdDSA"),
        leeway: float = 60.0,
    ) -> None:
        from parley.security.issuers.fetch import Fetcher, checked_url
        from parley.security.issuers.jwks import ASYMMETRIC, FixedKeys, PublishedKeys, keys_of
        from parley.security.schemes.token_scheme import published_keys

        self._issuer = issuer.rstrip("/")
        self._audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        self._algorithms = frozenset(algorithms)
        self._leeway = leeway
        self._now: Callable[[], float] = time.time
        if not self._issuer or not self._audiences or not all(self._audiences):
            raise ValueError(
                "VerifyJwt needs issuer=, the address of the agent's server, and audience=, the "
                "address of this webhook"
            )
        if not self._algorithms or not self._algorithms <= set(ASYMMETRIC):
            raise ValueError(f"algorithms= are some of {', '.join(ASYMMETRIC)}")
        if not 0 <= leeway <= 600:
            raise ValueError(f"leeway= is between 0 and 600 seconds, not {leeway:g}")
        self._fetcher = Fetcher()
        self._keys: FixedKeys | PublishedKeys
        if keys is not None:
            if jwks_url:
                raise ValueError("VerifyJwt takes jwks_url= or keys=, not both")
            self._keys = FixedKeys(keys_of(keys))
        else:
            url = checked_url(jwks_url or _jwks_url(self._issuer), "the address of the keys")
            self._keys = published_keys(self._fetcher, lambda: self._now(), jwks_url=url)

    def __repr__(self) -> str:
        return f"VerifyJwt(issuer={self._issuer!r})"

    async def verify(self, request: DeliveredRequest, max_age: float) -> Verified:
        """Verify the token, and that it is about this delivery, for here and now."""
        from parley.security.schemes.jwt_format import read_jwt
        from parley.security.schemes.scheme import CredentialsRefused

        token = credentials_of(request.header("authorization"), "bearer")
        if token is None:
            raise NotificationRefused(401, "there is no JWT")
        try:
            jwt = read_jwt(token.decode("latin-1"))
        except CredentialsRefused as refused:
            raise NotificationRefused(401, refused.reason) from None
        if jwt.alg not in self._algorithms:
            raise NotificationRefused(401, "a JWT with an algorithm that is not accepted")
        if jwt.claims.get("iss") != self._issuer:
            raise NotificationRefused(401, "a JWT of another issuer")
        key = await self._key(jwt.kid, jwt.alg)
        if key is None or not key.verifies(jwt.alg, jwt.signing_input, jwt.signature):
            raise NotificationRefused(401, "a JWT of an unknown key, or wrongly signed")
        return self._check_claims(request, jwt.claims, max_age)

    async def close(self) -> None:
        """End fetches that are under way."""
        await self._keys.close()
        await self._fetcher.close()

    async def _key(self, kid: str | None, alg: str) -> Any:
        from parley.security.issuers.jwks import KeysUnavailable

        try:
            return self._keys.find_now(kid, alg) or await self._keys.find(kid, alg)
        except KeysUnavailable as unavailable:
            raise NotificationRefused(
                503,
                f"the keys of {self._issuer} cannot be had: {unavailable}",
                retry_after=max(1, round(unavailable.retry_after)),
            ) from None

    def _check_claims(
        self, request: DeliveredRequest, claims: dict[str, Any], max_age: float
    ) -> Verified:
        named = claims.get("aud")
        audiences = named if isinstance(named, list) else [named]
        if not any(each in self._audiences for each in audiences):
            raise NotificationRefused(403, "a JWT for another audience")
        issued, expires = _time_of(claims, "iat"), _time_of(claims, "exp")
        if request.now >= expires + self._leeway:
            raise NotificationRefused(403, "a JWT that has expired")
        check_age(issued, request.now, max_age)  # not later: ids are forgotten
        if issued > request.now + self._leeway:
            raise NotificationRefused(403, "a JWT of a time to come")
        id, task_id = claims.get("jti"), claims.get("taskId")
        if not isinstance(id, str) or not id or request.id not in ("", id):
            raise NotificationRefused(401, "a JWT of another delivery")
        digest = hashlib.sha256(request.body).hexdigest().encode()
        given = claims.get("request_body_sha256")
        if not isinstance(given, str) or not hmac.compare_digest(
            given.encode("utf-8", "replace"), digest
        ):
            raise NotificationRefused(401, "a JWT of another body")
        if task_id is not None and not isinstance(task_id, str):
            raise NotificationRefused(401, "a JWT whose task is no text")
        return Verified("JWT", id=id, task_id=task_id or "")


def _time_of(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e11:
        raise NotificationRefused(401, f"a JWT without {name}")
    return float(value)


def _jwks_url(issuer: str) -> str:
    """Return where a server publishes its keys: at the root of its origin."""
    parts = urlsplit(issuer)
    return f"{parts.scheme}://{parts.netloc}/.well-known/jwks.json"
