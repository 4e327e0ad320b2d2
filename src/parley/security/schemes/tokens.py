"""Access tokens: claims, the JWT format, and verification."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from parley.model.errors import OverloadedError
from parley.model.ids import may_be_name
from parley.model.service import Caller
from parley.security.evidence import Evidence
from parley.security.issuers import IssuerClient, KeysUnavailable
from parley.security.key_sets import ASYMMETRIC, SYMMETRIC, FixedKeys, VerificationKey, keys_of
from parley.security.schemes.scheme import CredentialsRefused, Proof
from parley.security.signing.canonical import read_strict
from parley.security.signing.keys import decode, encode

# -- access token -----------------------------------------------------------------------------

MAX_ACTORS = 8
"""The maximum number of actors in a token, services that act for the user (RFC 8693)."""

MAX_SCOPES = 500

_OF_ID_TOKENS = ("nonce", "at_hash", "c_hash", "s_hash")
_OF_ACCESS_TOKENS = ("scope", "scp", "client_id", "roles", "entitlements")

_NOT_HERE = "the token is not accepted here"


class AccessToken(msgspec.Struct, frozen=True):
    """A valid token: its proof, its expiry, and the certificate to which it is bound."""

    proof: Proof
    until: float
    thumbprint: str = ""

    def check_sender(self, evidence: Evidence) -> None:
        """Reject a certificate-bound token from a sender without that certificate (RFC 8705 §3)."""
        if not self.thumbprint:
            return
        import ssl

        chain = evidence.certificate_chain
        try:
            own = ssl.PEM_cert_to_DER_cert(chain[0]) if chain else b""
        except ValueError:
            own = b""
        made = encode(hashlib.sha256(own).digest())
        if not own or not hmac.compare_digest(made.encode(), self.thumbprint.encode()):
            raise CredentialsRefused(
                "a token that is bound to another certificate",
                "the token is bound to a client certificate: present that certificate",
            )


class ClaimRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for the claims of a token. ``leeway`` is in seconds. Raises ``ValueError``."""

    audiences: frozenset[str]
    leeway: float
    accept_id_tokens: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.leeway <= MAX_LEEWAY:
            raise ValueError(f"leeway= is from 0 to {MAX_LEEWAY:g} seconds, not {self.leeway!r}")

    def check_kind(self, typ: str, claims: Mapping[str, Any]) -> None:
        """Reject a JWT that is not an access token (RFC 9068 §4, RFC 8725 §3.11).

        ``typ`` is from the header.
        """
        kind = typ.lower().removeprefix("application/")
        if kind == "at+jwt":
            return
        if kind not in ("", "jwt"):
            raise CredentialsRefused("a JWT that is no access token", _NOT_HERE)
        if not self.accept_id_tokens and is_id_token(claims):
            raise CredentialsRefused(
                "an ID token in place of an access token",
                "this is an ID token: send the access token",
            )

    def check_times(self, claims: Mapping[str, Any], now: float, *, needs_exp: bool = True) -> None:
        """Reject a token that has expired, or is not valid yet."""
        exp, nbf, iat = (_time(claims, name) for name in ("exp", "nbf", "iat"))
        if exp is None and needs_exp:
            raise CredentialsRefused("a token without an expiry", _NOT_HERE)
        if exp is not None and now >= exp + self.leeway:
            raise CredentialsRefused("an expired token", "the token is expired")
        if (nbf is not None and now + self.leeway < nbf) or (
            iat is not None and now + self.leeway < iat
        ):
            raise CredentialsRefused("a token that is not valid yet", "the token is not valid yet")

    def check_audience(self, claims: Mapping[str, Any]) -> None:
        """Reject a token for another audience. If no audiences are set, all are accepted."""
        if not self.audiences:
            return
        named = claims.get("aud")
        named = [named] if isinstance(named, str) else named
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise CredentialsRefused("a token without an audience", _NOT_HERE)
        if self.audiences.isdisjoint(named):
            raise CredentialsRefused(
                "a token for another audience",
                "the token is for another audience than this agent",
                is_foreign=True,
            )


def is_id_token(claims: Mapping[str, Any]) -> bool:
    """Return whether claims belong to an ID token, for issuers that do not set ``typ``."""
    if claims.get("typ") == "ID" or any(name in claims for name in _OF_ID_TOKENS):
        return True
    audience = claims.get("aud")
    azp = claims.get("azp")
    is_for_client = azp == audience or (isinstance(audience, list) and azp in audience)
    is_bare = not any(name in claims for name in _OF_ACCESS_TOKENS)
    return azp is not None and is_for_client and is_bare


def token_of(
    claims: Mapping[str, Any], *, issuer: str, now: float, keep_for: float, leeway: float
) -> AccessToken:
    """Return the access token for valid claims. Raises ``CredentialsRefused``."""
    scopes = scopes_of(claims)
    client = _name(claims, "azp") or _name(claims, "client_id")
    subject = _name(claims, "sub") or client
    if not subject:
        raise CredentialsRefused("a token without a subject", _NOT_HERE)
    caller = Caller(
        id=subject,
        authenticated=True,
        claims=dict(claims),
        issuer=issuer,
        client=client,
        actors=actors_of(claims),
        scopes=scopes,
    )
    exp = _time(claims, "exp")
    until = now + keep_for if exp is None else min(exp + leeway, now + keep_for)
    return AccessToken(Proof(caller, scopes), until, _thumbprint(claims))


def scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes of a token, from ``scope`` and ``scp``, texts or lists."""
    found: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name, "")
        each = value.split(" ") if isinstance(value, str) else value
        if not isinstance(each, list) or not all(isinstance(scope, str) for scope in each):
            raise CredentialsRefused("malformed scopes", _NOT_HERE)
        found.update(filter(None, each))
    if len(found) > MAX_SCOPES:
        raise CredentialsRefused("too many scopes", f"a token has at most {MAX_SCOPES} scopes")
    return frozenset(found)


def actors_of(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the actors for the subject, the current one first (RFC 8693 §4.1)."""
    found: list[str] = []
    act = claims.get("act")
    while act is not None:
        if len(found) == MAX_ACTORS:
            raise CredentialsRefused("too many actors", f"at most {MAX_ACTORS} actors are accepted")
        name = ""
        if isinstance(act, dict):
            name = _name(act, "sub") or _name(act, "client_id")
        if not name:
            raise CredentialsRefused("malformed actors", _NOT_HERE)
        found.append(name)
        act = act.get("act")
    return tuple(found)


def audiences_of(audience: str | Collection[str], what: str) -> frozenset[str]:
    """Return an operator's audiences. Raises ``ValueError`` if there are none."""
    found = frozenset([audience] if isinstance(audience, str) else audience)
    if not found or not all(isinstance(each, str) and each for each in found):
        raise ValueError(
            f"{what} needs audience=: the name of this agent in the tokens of the issuer; without "
            "it tokens for other agents would be accepted"
        )
    return found


def _name(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name, "")
    if not isinstance(value, str) or not may_be_name(value):
        raise CredentialsRefused(f"a malformed {name}", _NOT_HERE)
    return value


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e12:
        raise CredentialsRefused(f"a malformed {name}", _NOT_HERE)
    return float(value)


def _thumbprint(claims: Mapping[str, Any]) -> str:
    """Return the thumbprint of the certificate to which a token is bound.

    A token that is bound to anything else is not a bearer token (RFC 9449 §7.2).
    """
    bound = claims.get("cnf")
    if bound is None:
        return ""
    thumbprint = bound.get("x5t#S256") if isinstance(bound, dict) else None
    if not isinstance(thumbprint, str) or not thumbprint or len(bound) != 1:
        raise CredentialsRefused(
            "a token that is bound to a key", "the token is bound to a key: it is no bearer token"
        )
    return thumbprint


# -- jwt format -------------------------------------------------------------------------------

MAX_TOKEN = 16 * 1024
MAX_HEADER = 4 * 1024
"""The maximum number of characters of a token's header."""

_MALFORMED = "the token is malformed"


class SignedJwt(msgspec.Struct, frozen=True):
    """The parts of a JWT. Nothing is verified."""

    alg: str
    kid: str | None
    typ: str
    claims: dict[str, Any]
    signing_input: bytes
    signature: bytes


def read_jwt(token: str) -> SignedJwt:
    """Return the parts of a token. Raises ``CredentialsRefused``."""
    if len(token) > MAX_TOKEN:
        raise _refused("a token that is too long")
    parts = token.split(".")
    if len(parts) != 3 or len(parts[0]) > MAX_HEADER:
        raise CredentialsRefused("something other than a signed JWT", _MALFORMED, is_foreign=True)
    header = _object(parts[0])
    claims = _object(parts[1])
    alg, kid, typ = header.get("alg"), header.get("kid"), header.get("typ", "")
    if not isinstance(alg, str) or not isinstance(typ, str):
        raise _refused("a malformed header of a JWT")
    if kid is not None and not isinstance(kid, str):
        raise _refused("a malformed key id")
    if "crit" in header or "b64" in header:
        raise _refused("a JWT with critical headers")
    signature = _decoded(parts[2]) if parts[2] else b""
    return SignedJwt(alg, kid, typ, claims, f"{parts[0]}.{parts[1]}".encode(), signature)


def _object(part: str) -> dict[str, Any]:
    try:
        value = read_strict(_decoded(part), "it")
        msgspec.json.encode(value)  # fails for half of a surrogate pair
    except (ValueError, TypeError):
        raise _refused("a JWT whose parts are not JSON, or have a member twice") from None
    if not isinstance(value, dict):
        raise _refused("a JWT whose parts are not JSON objects")
    return value


def _decoded(part: str) -> bytes:
    """Return the bytes of base64url; only the canonical spelling is accepted."""
    try:
        return decode(part)
    except ValueError:
        raise _refused("a JWT whose parts are not base64url") from None


def _refused(reason: str) -> CredentialsRefused:
    return CredentialsRefused(reason, _MALFORMED)


# -- verification -----------------------------------------------------------------------------

CACHE_SECONDS = 300.0
"""The time for which a JWT is not verified again: a withdrawn key is accepted this long."""

MAX_LEEWAY = 600.0

UNREACHABLE = "the issuer of tokens cannot be reached; try again later"


class JwtVerifier:
    """Verifies JWTs: form, algorithm, issuer, signature, claims (RFC 7519, RFC 8725, RFC 9068).

    ``keys`` are the keys of an operator or of an issuer. Raises ``ValueError``.
    """

    def __init__(
        self,
        *,
        issuers: Sequence[str],
        keys: Any,
        algorithms: Collection[str] | None,
        rules: ClaimRules,
        now: Callable[[], float],
    ) -> None:
        self._issuers = tuple(issuers)
        named = None if isinstance(keys, IssuerClient) else keys_of(keys)
        self._keys: FixedKeys | IssuerClient = keys if named is None else FixedKeys(named)
        self._algorithms = _checked_algorithms(algorithms, named)
        self._rules = rules
        self._now = now

    async def verify(self, token: str) -> AccessToken:
        """Return the access token for a JWT. Raises ``CredentialsRefused``, ``OverloadedError``."""
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
        """Cancel the fetches in progress."""
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


def _checked_algorithms(
    algorithms: Collection[str] | None, keys: Sequence[VerificationKey] | None
) -> frozenset[str]:
    """Return the accepted algorithms, all of one kind. Raises ``ValueError``."""
    is_secret = keys is not None and all(key.algorithms <= frozenset(SYMMETRIC) for key in keys)
    kind = SYMMETRIC if is_secret else ASYMMETRIC
    if algorithms is None:
        return frozenset(kind)
    if isinstance(algorithms, str):
        raise ValueError(f"algorithms= is a list, such as [{algorithms!r}]")
    wrong = [each for each in algorithms if each not in kind]
    if wrong or not algorithms:
        raise ValueError(
            f"algorithms= of {'a secret' if is_secret else 'public keys'} are of "
            f"{', '.join(kind)}; {wrong[0] if wrong else 'none'!r} is not"
        )
    return frozenset(algorithms)
