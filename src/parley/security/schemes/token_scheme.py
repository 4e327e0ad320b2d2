"""What schemes of access tokens share: a cache of verified tokens, challenges, the JWT's checks."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from parley.model.errors import OverloadedError
from parley.security.evidence import Evidence
from parley.security.issuers import IssuerClient, KeysUnavailable
from parley.security.key_sets import ASYMMETRIC, SYMMETRIC, FixedKeys, VerificationKey
from parley.security.outbound import Fetcher
from parley.security.schemes.access_token import AccessToken, ClaimRules, VerifiedTokens, token_of
from parley.security.schemes.bearer import bearer_token
from parley.security.schemes.challenge import bearer_challenge
from parley.security.schemes.jwt_format import read_jwt
from parley.security.schemes.scheme import (
    CredentialsRefused,
    Proof,
    Scheme,
    SchemeResources,
    checked_name,
)

CACHE_SECONDS = 300.0
"""How long a verified JWT is not verified again: a key that is withdrawn counts so long."""

MAX_LEEWAY = 600.0

UNREACHABLE = "the issuer of tokens cannot be reached; try again later"


class TokenVerifier(Protocol):
    """Finds out what a token proves."""

    async def verify(self, token: str) -> AccessToken:
        """Return what a token proves. Raises ``CredentialsRefused``, ``OverloadedError``."""
        ...

    async def close(self) -> None:
        """End what is under way."""
        ...


class TokenScheme(Scheme):
    """A scheme whose credentials are access tokens, sent as bearer tokens (RFC 6750).

    A verified token is known by its hash until its time is over: no network and no signature is
    involved when it comes again.
    """

    credential = "bearer"

    def __init__(self, *, name: str, description: str) -> None:
        self.name = checked_name(name)
        self._description = description
        self._now: Callable[[], float] = time.time
        self._cache = VerifiedTokens(self.now)
        self._fetcher = Fetcher()
        self._users: Counter[asyncio.AbstractEventLoop] = Counter()
        self._verifier: TokenVerifier

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def now(self) -> float:
        """Return the time of the server, in seconds since the epoch."""
        return self._now()

    def is_presented(self, evidence: Evidence) -> bool:
        """Return whether a request has a bearer token."""
        return any(scheme == "bearer" for scheme, _ in evidence.authorization)

    def verify(self, evidence: Evidence) -> Proof | Awaitable[Proof]:
        """Return what the token proves. Raises ``CredentialsRefused``, ``OverloadedError``."""
        token = bearer_token(evidence)
        digest = hashlib.sha256(token.encode()).digest()
        known = self._cache.find(digest)
        if known is None:
            return self._verify(token, digest, evidence)
        known.check_sender(evidence)
        return known.proof

    async def _verify(self, token: str, digest: bytes, evidence: Evidence) -> Proof:
        found = await self._verifier.verify(token)
        self._cache.keep(digest, found)
        found.check_sender(evidence)
        return found.proof

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return the value of ``WWW-Authenticate`` that asks for a token."""
        return bearer_challenge(error=error, scopes=scopes)

    async def start(self, resources: SchemeResources) -> None:
        """Take the server's clock and egress policy; the issuer is asked on the first use."""
        self._users[asyncio.get_running_loop()] += 1
        self._now = resources.now
        self._fetcher.egress = resources.egress

    async def close(self) -> None:
        """End what is under way, and close the connections to the issuer.

        Several servers may use one scheme: the last one of an event loop does so.
        """
        loop = asyncio.get_running_loop()
        self._users[loop] -= 1
        if self._users[loop] <= 0:
            del self._users[loop]
            await self._verifier.close()
            await self._fetcher.close()


class JwtVerifier:
    """Verifies JWTs: form, algorithm, issuer, signature, claims (RFC 7519, RFC 8725, RFC 9068)."""

    def __init__(
        self,
        *,
        issuers: Sequence[str],
        keys: FixedKeys | IssuerClient,
        algorithms: Collection[str],
        rules: ClaimRules,
        now: Callable[[], float],
    ) -> None:
        self._issuers = tuple(issuers)
        self._keys = keys
        self._algorithms = frozenset(algorithms)
        self._rules = rules
        self._now = now

    async def verify(self, token: str) -> AccessToken:
        """Return what a JWT proves. Raises ``CredentialsRefused``, ``OverloadedError``."""
        jwt = read_jwt(token)
        if jwt.alg not in self._algorithms:
            raise CredentialsRefused(
                "a signature algorithm that is not accepted", "the token is not accepted here"
            )
        issuer = jwt.claims.get("iss")
        if issuer not in self._issuers:
            raise _of_another_issuer()
        key = await self._find(jwt.kid, jwt.alg)
        known = self._keys.known if isinstance(self._keys, IssuerClient) else None
        if known is not None and issuer != known.issuer:
            raise _of_another_issuer()
        if key is None:
            raise CredentialsRefused("an unknown signing key", "the token is not accepted here")
        if not key.verifies(jwt.alg, jwt.signing_input, jwt.signature):
            raise CredentialsRefused("a wrong signature", "the token is not accepted here")
        now = self._now()
        self._rules.check_kind(jwt.typ, jwt.claims)
        self._rules.check_times(jwt.claims, now)
        self._rules.check_audience(jwt.claims)
        return token_of(
            jwt.claims, issuer=issuer, now=now, keep_for=CACHE_SECONDS, leeway=self._rules.leeway
        )

    async def close(self) -> None:
        """End fetches that are under way."""
        await self._keys.close()

    async def _find(self, kid: str | None, alg: str) -> VerificationKey | None:
        found = self._keys.find_now(kid, alg)
        if found is not None:
            return found
        try:
            return await self._keys.find(kid, alg)
        except KeysUnavailable as unavailable:
            raise OverloadedError(UNREACHABLE, retry_after=unavailable.retry_after) from None


def _of_another_issuer() -> CredentialsRefused:
    return CredentialsRefused(
        "a token of another issuer",
        "the token is of an issuer that is not accepted here",
        is_foreign=True,
    )


def checked_algorithms(
    algorithms: Collection[str] | None, keys: Sequence[VerificationKey] | None
) -> tuple[str, ...]:
    """Return the algorithms to accept, of one kind. Raises ``ValueError``."""
    is_secret = keys is not None and all(key.algorithms <= frozenset(SYMMETRIC) for key in keys)
    kind = SYMMETRIC if is_secret else ASYMMETRIC
    if algorithms is None:
        return kind
    if isinstance(algorithms, str):
        raise ValueError(f"algorithms= is a list, such as [{algorithms!r}]")
    wrong = [each for each in algorithms if each not in kind]
    if wrong or not algorithms:
        raise ValueError(
            f"algorithms= of {'a secret' if is_secret else 'public keys'} are of "
            f"{', '.join(kind)}; {wrong[0] if wrong else 'none'!r} is not"
        )
    return tuple(algorithms)


def checked_leeway(leeway: float) -> float:
    """Return a leeway. Raises ``ValueError``."""
    if not 0 <= leeway <= MAX_LEEWAY:
        raise ValueError(f"leeway= is from 0 to {MAX_LEEWAY:g} seconds, not {leeway!r}")
    return float(leeway)
