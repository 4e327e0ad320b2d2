"""Keys that verify signatures: an operator's keys, and published key sets (RFC 7517)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from parley.model.bounded import Bounded
from parley.security.outbound import Ages, Cached, FetchFailed

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
SYMMETRIC = ("HS256", "HS384", "HS512")
ASYMMETRIC = (*RSA_ALGORITHMS, "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448")

MAX_KEYS = 100
"""The maximum number of keys in a set. A longer set is rejected as a whole."""

MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8200
MIN_SECRET_BYTES = 32

KEY_AGES = Ages(minimum=60.0, default=600.0)
"""The time during which keys are fresh."""

_MAX_KEPT = 64

_CURVES = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA", "Ed25519"),
    ("OKP", "Ed448"): ("EdDSA", "Ed448"),
}
_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}


class VerificationKey(msgspec.Struct, frozen=True):
    """A key, and the algorithms that it may verify, all of the same kind."""

    kid: str
    algorithms: frozenset[str]
    key: Any

    def __repr__(self) -> str:
        return f"VerificationKey({self.kid!r}, {sorted(self.algorithms)})"

    def verifies(self, alg: str, signing_input: bytes, signature: bytes) -> bool:
        """Return whether this key made a signature, with an algorithm of this key."""
        from joserfc.jws import JWSRegistry

        try:
            return JWSRegistry.algorithms[alg].verify(signing_input, signature, self.key)
        except ValueError:  # a signature of an impossible form
            return False


class KeySet:
    """Keys by their ids."""

    def __init__(self, keys: Iterable[VerificationKey]) -> None:
        self.keys = tuple(keys)

    def find(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Return the key with this id. Without an id, return the only key that fits, if there is
        one."""
        fitting = [key for key in self.keys if alg in key.algorithms]
        if kid is None:
            return fitting[0] if len(fitting) == 1 else None
        named = [key for key in fitting if key.kid == kid]
        named = named or [key for key in fitting if not key.kid]
        return named[0] if len(named) == 1 else None

    def has(self, kid: str | None) -> bool:
        """Return whether there is a key with this id, for any algorithm."""
        return kid is not None and any(key.kid == kid for key in self.keys)


class FixedKeys:
    """The keys in an operator's settings."""

    def __init__(self, keys: Iterable[VerificationKey]) -> None:
        self._keys = KeySet(keys)

    def find_now(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Return a key."""
        return self._keys.find(kid, alg)

    async def find(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Return a key."""
        return self._keys.find(kid, alg)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class KeySetCache:
    """A cache of key sets by address, shared by all that verify signatures."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: Bounded[str, Cached[KeySet]] = Bounded(_MAX_KEPT)

    async def find(
        self,
        url: str,
        kid: str,
        fetch: Callable[[], Awaitable[tuple[KeySet, float | None]]],
        *,
        looks_again: bool = True,
    ) -> KeySet:
        """Return the keys at an address. With ``looks_again``, a missing key causes one new fetch.

        Raises ``FetchFailed``.
        """
        kept = self._kept[url] = self._kept.get(url) or Cached(KEY_AGES, self._clock)
        fresh = kept.fresh
        if fresh is None:
            if kept.may_fetch:
                await kept.refresh(fetch)
        elif looks_again and not fresh.has(kid) and kept.may_refetch():
            await kept.refresh(fetch)
        keys = kept.usable
        if keys is None:
            raise FetchFailed(kept.failure)
        return keys


def read_keys(content: Mapping[str, Any]) -> list[VerificationKey]:
    """Return the usable keys of a published set. Raises ``FetchFailed``.

    Keys of an unknown type are left out (RFC 7517 §5), and so are encryption keys, weak keys and
    secrets: a published secret is no secret.
    """
    keys = content.get("keys")
    if not isinstance(keys, list):
        raise FetchFailed("the key set has no list of keys")
    if len(keys) > MAX_KEYS:
        raise FetchFailed(f"the key set has {len(keys)} keys; at most {MAX_KEYS} are read")
    found = (_read_key(key) for key in keys if isinstance(key, dict))
    return [key for key in found if key is not None]


def _read_key(jwk: Mapping[str, Any]) -> VerificationKey | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    kty, kid, operations = jwk.get("kty"), jwk.get("kid", ""), jwk.get("key_ops")
    names = _PUBLIC.get(kty) if isinstance(kty, str) else None
    if names is None or jwk.get("use", "sig") != "sig" or not isinstance(kid, str):
        return None
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    public: dict[str, Any] = {"kty": kty, **{name: jwk.get(name) for name in names}}
    if not all(isinstance(value, str) and len(value) < 4096 for value in public.values()):
        return None
    if kty == "RSA":
        if not MIN_RSA_BITS <= _bits(public["n"]) <= MAX_RSA_BITS or _bits(public["e"]) > 33:
            return None
        algorithms = frozenset(RSA_ALGORITHMS)
    else:
        algorithms = frozenset(_CURVES.get((str(kty), public["crv"]), ()))
    alg = jwk.get("alg")
    if alg is not None:
        if not isinstance(alg, str):
            return None
        same = {"EdDSA", "Ed25519", "Ed448"} if alg in ("EdDSA", "Ed25519", "Ed448") else {alg}
        algorithms &= same
    if not algorithms:
        return None
    try:
        key = import_key(public)
        key.get_op_key("verify")
    except (ValueError, TypeError, KeyError, JoseError, UnsupportedAlgorithm):
        return None
    return VerificationKey(kid, algorithms, key)


def _bits(value: str) -> int:
    """Return the approximate number of bits of a number in base64."""
    return len(value.lstrip("A").rstrip("=")) * 6


def keys_of(given: Any) -> list[VerificationKey]:
    """Return an operator's keys, all of one kind: public keys or secrets.

    Accepts JWKs, a key set, PEM, or the bytes of a secret, alone or in a list. Raises
    ``ValueError`` without quoting the keys.
    """
    each = given if isinstance(given, (list, tuple)) else [given]
    found: list[VerificationKey] = []
    for key in each:
        if isinstance(key, Mapping) and "keys" in key:
            try:
                found += read_keys(key)
            except FetchFailed as failure:
                raise ValueError(str(failure)) from None
        else:
            found.append(_operators_key(key))
    if not found:
        raise ValueError("keys= has no key that verifies signatures")
    if len({key.algorithms <= frozenset(SYMMETRIC) for key in found}) > 1:
        raise ValueError(
            "keys= are public keys or secrets, not both: a verifier of both can be confused"
        )
    return found


def _operators_key(key: Any) -> VerificationKey:
    from joserfc.errors import JoseError
    from joserfc.jwk import OctKey

    if isinstance(key, str):
        key = key.encode()
    if isinstance(key, bytes) and b"-----BEGIN" in key:
        return _pem_key(key)
    if isinstance(key, bytes):
        key = {"kty": "oct", "k": _base64(key)}
    if not isinstance(key, Mapping):
        raise ValueError("a key is a JWK (a dict), PEM, or the bytes of a secret")
    if key.get("kty") != "oct":
        found = _read_key(key)
        if found is None:
            raise ValueError(
                "a key of keys= is no public key for signatures: RSA of 2048 bits or more, P-256, "
                "P-384, P-521, Ed25519 or Ed448"
            )
        return found
    text = key.get("k")
    text = text if isinstance(text, str) else ""
    size = len(text) * 3 // 4
    if size < MIN_SECRET_BYTES:
        raise ValueError(f"a secret of keys= has at least {MIN_SECRET_BYTES} bytes, not {size}")
    try:
        secret = OctKey.import_key({"kty": "oct", "k": text})
    except (ValueError, TypeError, JoseError):
        raise ValueError("the secret of keys= is malformed") from None
    alg = key.get("alg")
    algorithms = frozenset(SYMMETRIC) if alg is None else frozenset(SYMMETRIC) & {alg}
    if not algorithms:
        raise ValueError(f"a secret of keys= is for {', '.join(SYMMETRIC)}, not for {alg!r}")
    return VerificationKey(str(key.get("kid", "")), algorithms, secret)


def _pem_key(pem: bytes) -> VerificationKey:
    import warnings

    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    for kind in (RSAKey, ECKey, OKPKey):
        try:
            with warnings.catch_warnings():  # about weak keys, which are rejected below
                warnings.simplefilter("ignore")
                jwk = kind.import_key(pem).as_dict(private=False)
        except (ValueError, TypeError, KeyError, JoseError, AttributeError):
            continue
        found = _read_key(jwk)
        if found is not None:
            return found
    raise ValueError(
        "a PEM of keys= is no public key for signatures: RSA of 2048 bits or more, P-256, P-384, "
        "P-521, Ed25519 or Ed448"
    )


def _base64(value: bytes) -> str:
    import base64

    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
