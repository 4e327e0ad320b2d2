"""Access tokens: what their claims must say, and the caller whom they name (RFC 9068, RFC 7662)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from parley.model.ids import may_be_name
from parley.model.service import Caller
from parley.security.evidence import Evidence
from parley.security.schemes.scheme import CredentialsRefused, Proof

MAX_ACTORS = 8
"""The actors of a token: those that a user's call was handed on by."""

MAX_SCOPES = 500

_OF_ID_TOKENS = ("nonce", "at_hash", "c_hash", "s_hash")
_OF_ACCESS_TOKENS = ("scope", "scp", "client_id", "roles", "entitlements")

_NOT_HERE = "the token is not accepted here"


class AccessToken(msgspec.Struct, frozen=True):
    """A valid token: what it proves, until when, and the certificate that it is bound to."""

    proof: Proof
    until: float
    thumbprint: str = ""

    def check_sender(self, evidence: Evidence) -> None:
        """Refuse a token that is bound to a certificate which its sender has not (RFC 8705 §3)."""
        if not self.thumbprint:
            return
        chain = evidence.certificate_chain
        try:
            own = ssl.PEM_cert_to_DER_cert(chain[0]) if chain else b""
        except ValueError:
            own = b""
        made = base64.urlsafe_b64encode(hashlib.sha256(own).digest()).rstrip(b"=").decode()
        if not own or not hmac.compare_digest(made.encode(), self.thumbprint.encode()):
            raise CredentialsRefused(
                "a token that is bound to another certificate",
                "the token is bound to a client certificate: call with that",
            )


class ClaimRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the claims of a token must say. ``leeway`` is in seconds."""

    audiences: frozenset[str]
    leeway: float
    accept_id_tokens: bool = False

    def check_kind(self, typ: str, claims: Mapping[str, Any]) -> None:
        """Refuse a JWT that is something else than an access token (RFC 9068 §4, RFC 8725 §3.11).

        ``typ`` is that of its header.
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
        """Refuse a token whose time is over, or has not come."""
        exp, nbf, iat = (_time(claims, name) for name in ("exp", "nbf", "iat"))
        if exp is None and needs_exp:
            raise CredentialsRefused("a token without an end", _NOT_HERE)
        if exp is not None and now >= exp + self.leeway:
            raise CredentialsRefused("an expired token", "the token is expired")
        if (nbf is not None and now + self.leeway < nbf) or (
            iat is not None and now + self.leeway < iat
        ):
            raise CredentialsRefused("a token of the future", "the token is not valid yet")

    def check_audience(self, claims: Mapping[str, Any]) -> None:
        """Refuse a token for somebody else. Without audiences every one is accepted."""
        if not self.audiences:
            return
        named = claims.get("aud")
        named = [named] if isinstance(named, str) else named
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise CredentialsRefused("a token without an audience", _NOT_HERE)
        if self.audiences.isdisjoint(named):
            raise CredentialsRefused(
                "a token for another audience", "the token is for another audience than this agent"
            )


def is_id_token(claims: Mapping[str, Any]) -> bool:
    """Return whether claims are those of an ID token, for issuers that do not say so in ``typ``."""
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
    """Return what valid claims prove. Raises ``CredentialsRefused``."""
    scopes = scopes_of(claims)
    client = _name(claims, "azp") or _name(claims, "client_id")
    subject = _name(claims, "sub") or client
    if not subject:
        raise CredentialsRefused("a token of nobody", _NOT_HERE)
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
    """Return the scopes of a token: of ``scope`` and ``scp``, texts or lists."""
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
    """Return who acts for the subject, the current one first (RFC 8693 §4.1)."""
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
    """Return the audiences that an operator names. Raises ``ValueError`` for none."""
    found = frozenset([audience] if isinstance(audience, str) else audience)
    if not found or not all(isinstance(each, str) and each for each in found):
        raise ValueError(
            f"{what} needs audience=: the name of this agent in the tokens of the issuer, without "
            "which it would accept tokens that are meant for others"
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
    """Return the thumbprint of the certificate that a token is bound to.

    A token that is bound to something else is no bearer token (RFC 9449 §7.2).
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


class TokenCache:
    """Valid tokens by their hashes, the last ``size`` that were used."""

    def __init__(self, now: Callable[[], float], size: int = 4096) -> None:
        self._now = now
        self._size = size
        self._kept: dict[bytes, AccessToken] = {}

    def find(self, digest: bytes) -> AccessToken | None:
        """Return a token whose time is not over."""
        found = self._kept.pop(digest, None)
        if found is None or self._now() >= found.until:
            return None
        self._kept[digest] = found  # the last ones are at the end
        return found

    def keep(self, digest: bytes, token: AccessToken) -> None:
        """Keep a token, in place of the one that was not used for longest."""
        self._kept[digest] = token
        while len(self._kept) > self._size:
            del self._kept[next(iter(self._kept))]

    def __len__(self) -> int:
        return len(self._kept)
