"""The keys of an issuer in a test, and the tokens that they sign, genuine and forged."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

Key = ECKey | OKPKey | RSAKey

MAX_KEYS = 8
"""The most published keys of one algorithm: the current key, and former keys."""

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


class IssuerKeys:
    """Keys by algorithm, the current key last. They are created on first use."""

    def __init__(self) -> None:
        self._keys: dict[str, list[Key]] = {}
        self._foreign: dict[str, Key] = {}

    def current(self, alg: str) -> Key:
        """Return the current signing key of an algorithm."""
        if alg not in self._keys:
            self._keys[alg] = [new_key(alg)]
        return self._keys[alg][-1]

    def foreign(self, alg: str) -> Key:
        """Return an unpublished key with the id of the current key."""
        if alg not in self._foreign:
            self._foreign[alg] = new_key(alg)
        key = self._foreign[alg].as_dict(private=True)
        return type(self.current(alg)).import_key({**key, "kid": self.current(alg).kid or ""})

    def rotate(self, *, keep: bool) -> None:
        """Sign with new keys; with ``keep`` the former keys stay published."""
        for alg, keys in self._keys.items():
            self._keys[alg] = [*(keys[1 - MAX_KEYS :] if keep else ()), new_key(alg)]

    def published(self) -> dict[str, Any]:
        """Return the key set (RFC 7517)."""
        keys = [key for each in self._keys.values() for key in each]
        return {"keys": [key.as_dict(private=False) for key in keys]}

    def read(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a token signed with one of these keys, else ``None``."""
        signing_input, _, signature = token.rpartition(".")
        try:
            header, payload = (json.loads(_decoded(each)) for each in signing_input.split("."))
            for key in self._keys.get(header["alg"], ()):
                verify = JWSRegistry.algorithms[header["alg"]].verify
                if key.kid == header["kid"]:
                    is_own = verify(signing_input.encode(), _decoded(signature), key)
                    return payload if is_own and isinstance(payload, dict) else None
        except (ValueError, KeyError, TypeError):
            return None
        return None


MAX_GRANT_RECORDS = 10_000
"""The most records of one kind that an issuer keeps; then the oldest is dropped."""


class IssuerTokens:
    """The tokens of an issuer, signed with its keys and dated by its clock."""

    url: str
    audience: str
    alg: str
    lifetime: float

    def __init__(self) -> None:
        self.keys = IssuerKeys()
        self._tokens: dict[str, dict[str, Any]] = {}
        self._skew = 0.0

    def token(
        self,
        sub: str = "ada",
        *,
        scope: str = "",
        audience: str | Sequence[str] | None = None,
        client: str = "app",
        claims: Mapping[str, Any] | None = None,
        alg: str = "",
        expires_in: float | None = None,
        issuer: str = "",
        skew: float = 0,
        forged: bool = False,
        typ: str = "at+jwt",
        header: Mapping[str, Any] | None = None,
        payload: bytes | None = None,
        opaque: bool = False,
    ) -> str:
        """Return an access token: genuine, or wrong in a chosen way.

        A claim or header member with the value ``None`` is left out. ``issuer`` is another issuer,
        ``skew`` the seconds that the signer's clock is ahead. ``forged`` signs with a foreign key
        under the id of a key of the issuer. ``alg="none"`` does not sign, and ``"HS256"`` uses the
        public key (PEM) as the secret. ``payload`` replaces the claims.
        """
        now = self.now() + skew
        lifetime = self.lifetime if expires_in is None else expires_in
        made: dict[str, Any] = {
            "iss": issuer or self.url,
            "sub": sub,
            "aud": self.audience if audience is None else audience,
            "client_id": client,
            "scope": scope,
            "iat": int(now),
            "exp": int(now + lifetime),
            "jti": secrets.token_hex(8),
        }
        if not scope:
            del made["scope"]
        if not isinstance(made["aud"], str):
            made["aud"] = list(made["aud"])
        made |= claims or {}
        made = {name: value for name, value in made.items() if value is not None}
        if opaque:
            token = secrets.token_urlsafe(24)
            keep(self._tokens, token, made)
            return token
        return self.sign(
            made if payload is None else payload, alg=alg, typ=typ, header=header, forged=forged
        )

    def sign(
        self,
        claims: Mapping[str, Any] | bytes,
        *,
        alg: str = "",
        typ: str = "JWT",
        header: Mapping[str, Any] | None = None,
        forged: bool = False,
    ) -> str:
        """Return a JWT with these claims; the options have the meaning that they have
        in ``token``.
        """
        alg = alg or self.alg
        if alg == "none" or alg.startswith("HS"):
            published = self.keys.current(self.alg)
            key: Any = published.as_pem(private=False)
        else:
            published = self.keys.current(alg)
            key = self.keys.foreign(alg) if forged else published
        made = {"alg": alg, "typ": typ, "kid": published.kid} | dict(header or {})
        made = {name: value for name, value in made.items() if value is not None}
        return signed(made, claims, key)

    def _read(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a token of this issuer that has not expired, else ``None``."""
        claims = self._tokens.get(token) or self.keys.read(token)
        is_active = claims is not None and self.now() < claims.get("exp", float("inf"))
        return claims if is_active else None

    def now(self) -> float:
        """Return the time of the issuer's clock, in seconds since the epoch."""
        return time.time() + self._skew

    def advance(self, span: timedelta | float) -> None:
        """Move the issuer's clock, back for a negative span."""
        self._skew += span.total_seconds() if isinstance(span, timedelta) else span


def keep(records: dict[str, Any], key: str, value: Any) -> None:
    """Store a record; drop the oldest record if there are too many."""
    records[key] = value
    while len(records) > MAX_GRANT_RECORDS:
        del records[next(iter(records))]


def new_key(alg: str) -> Key:
    """Return a new key for an algorithm, with an id. Raises ``ValueError`` for an unknown
    algorithm.
    """
    about: Any = {"kid": secrets.token_hex(8), "use": "sig", "alg": alg}
    if alg in _CURVES:
        return ECKey.generate_key(_CURVES[alg], about)
    if alg in ("EdDSA", "Ed25519"):
        return OKPKey.generate_key("Ed25519", about)
    if alg[:2] in ("RS", "PS") and alg[2:] in ("256", "384", "512"):
        return RSAKey.generate_key(2048, about)
    raise ValueError(f"an issuer signs with RS256, PS256, ES256, EdDSA and the like, not {alg!r}")


def signed(header: Mapping[str, Any], claims: Mapping[str, Any] | bytes, key: Any) -> str:
    """Return a JWT; ``key`` is a key of an issuer, or any secret for HS256."""
    alg = header["alg"]
    payload = claims if isinstance(claims, bytes) else _json(claims)
    signing_input = f"{_base64(_json(header))}.{_base64(payload)}"
    if alg == "none":
        return f"{signing_input}."
    if isinstance(key, bytes):
        import hashlib
        import hmac

        digest = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}[alg]
        signature = hmac.new(key, signing_input.encode(), getattr(hashlib, digest)).digest()
    else:
        signature = JWSRegistry.algorithms[alg].sign(signing_input.encode(), key)
    return f"{signing_input}.{_base64(signature)}"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(value), separators=(",", ":")).encode()


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _decoded(value: str) -> bytes:
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
