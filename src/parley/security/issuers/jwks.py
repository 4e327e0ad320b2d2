"""Keys that verify tokens: those of an operator, and those that an issuer publishes (RFC 7517)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from parley.model.concurrency import SingleFlight
from parley.security.issuers.fetch import Document, FetchFailed

log = logging.getLogger("parley.security")

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
SYMMETRIC = ("HS256", "HS384", "HS512")
ASYMMETRIC = (*RSA_ALGORITHMS, "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448")

MAX_KEYS = 100
"""The keys of a set. A longer one is refused as a whole."""

MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8200
MIN_SECRET_BYTES = 32

MIN_AGE, DEFAULT_AGE, MAX_AGE = 60.0, 600.0, 24 * 3600.0
"""The seconds that keys are fresh: by ``Cache-Control``, within bounds."""

KEPT_SECONDS = 3600.0
"""How long keys are used that are no longer fresh, while the issuer does not answer."""

REFETCH_SECONDS = 10.0
MAX_REFETCHES = 5
"""The fetches for the sake of unknown keys: so many at once, and then one in ``REFETCH_SECONDS``.
Whoever sends a token can ask for one.
"""

_MAX_MISSING = 1000

RETRY_SECONDS = 2.0
"""The pause after a failure."""

_CURVES = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA", "Ed25519"),
    ("OKP", "Ed448"): ("EdDSA", "Ed448"),
}
_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}


class VerificationKey(msgspec.Struct, frozen=True):
    """A key, and the algorithms that it may verify: a key never verifies those of another kind."""

    kid: str
    algorithms: frozenset[str]
    key: Any

    def __repr__(self) -> str:
        return f"VerificationKey({self.kid!r}, {sorted(self.algorithms)})"

    def verifies(self, alg: str, signing_input: bytes, signature: bytes) -> bool:
        """Return whether a signature is this key's, by an algorithm that is one of its own."""
        from joserfc.jws import JWSRegistry

        try:
            return JWSRegistry.algorithms[alg].verify(signing_input, signature, self.key)
        except ValueError:  # a signature of an impossible form
            return False


class KeysUnavailable(Exception):
    """The keys cannot be had now. ``retry_after`` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class KeySet:
    """Keys by their ids."""

    def __init__(self, keys: Iterable[VerificationKey]) -> None:
        self.keys = tuple(keys)

    def find(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Return the key of a token; one without a key id has it only if there is no choice."""
        fitting = [key for key in self.keys if alg in key.algorithms]
        if kid is None:
            return fitting[0] if len(fitting) == 1 else None
        named = [key for key in fitting if key.kid == kid]
        named = named or [key for key in fitting if not key.kid]
        return named[0] if len(named) == 1 else None

    def has(self, kid: str | None) -> bool:
        """Return whether there is a key with an id, whatever it verifies."""
        return kid is not None and any(key.kid == kid for key in self.keys)


class FixedKeys:
    """The keys that an operator names."""

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


class PublishedKeys:
    """The keys that an issuer publishes, kept as long as it allows, within bounds.

    A key that is unknown is looked for once more, by one request for all who wait, and within
    limits. Beyond them nothing is known about a token: it may be of a new key. While the issuer
    does not answer, the old keys count for ``KEPT_SECONDS``.
    """

    def __init__(self, fetch: Callable[[], Awaitable[Document]], now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._now = now
        self._keys: KeySet | None = None
        self._fresh_until = self._usable_until = self._next_attempt = 0.0
        self._missing: dict[tuple[str | None, str], float] = {}
        self._refetches = float(MAX_REFETCHES)
        self._counted_at = 0.0
        self._failure = ""
        self._flight = SingleFlight(self._refresh)

    def find_now(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Return a key if it is known and fresh."""
        if self._keys is None or self._now() >= self._fresh_until:
            return None
        return self._keys.find(kid, alg)

    async def find(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Return a key, ``None`` if the issuer has none like it. Raises ``KeysUnavailable``."""
        now = self._now()
        if self._keys is None or now >= self._usable_until:
            if now >= self._next_attempt:
                await self._flight.join()
            if self._keys is None or self._now() >= self._usable_until:
                wait = max(self._next_attempt - self._now(), 1.0)
                raise KeysUnavailable(self._failure, wait)
        elif now >= self._fresh_until and now >= self._next_attempt:
            self._flight.begin()  # and go on with the keys that are there
        found = self._keys.find(kid, alg)
        if found is None and not self._keys.has(kid):
            found = await self._look_again(kid, alg)
        return found

    async def _look_again(self, kid: str | None, alg: str) -> VerificationKey | None:
        """Fetch the keys for the sake of one that is unknown. Raises ``KeysUnavailable``."""
        now = self._now()
        if now < self._missing.get((kid, alg), 0.0):
            return None
        if not self._flight.is_under_way:
            left = self._refetches + (now - self._counted_at) / REFETCH_SECONDS
            self._refetches, self._counted_at = min(left, float(MAX_REFETCHES)), now
            if self._refetches < 1 or now < self._next_attempt:
                raise KeysUnavailable("too many unknown keys were looked for", REFETCH_SECONDS)
            self._refetches -= 1
        await self._flight.join()
        if self._next_attempt:
            raise KeysUnavailable(self._failure, RETRY_SECONDS)
        found = self._keys.find(kid, alg) if self._keys is not None else None
        if found is None:
            self._missing[kid, alg] = self._now() + REFETCH_SECONDS
            while len(self._missing) > _MAX_MISSING:
                del self._missing[next(iter(self._missing))]
        return found

    async def close(self) -> None:
        """End what is under way."""
        await self._flight.close()

    async def _refresh(self) -> None:
        try:
            document = await self._fetch()
            keys = read_keys(document.content)
        except FetchFailed as failure:
            log.warning("keys of an issuer are unavailable: %s", failure)
            self._failure = str(failure)
            self._next_attempt = self._now() + RETRY_SECONDS
            return
        age = document.max_age
        age = DEFAULT_AGE if age is None else min(max(age, MIN_AGE), MAX_AGE)
        self._keys = KeySet(keys)
        self._fresh_until = self._now() + age
        self._usable_until = self._fresh_until + KEPT_SECONDS
        self._next_attempt = 0.0


def read_keys(content: Mapping[str, Any]) -> list[VerificationKey]:
    """Return the usable keys of a published set. Raises ``FetchFailed``.

    A key that is not understood is left out (RFC 7517 §5), and so is one for encryption, a weak
    one, and a secret: what is published is no secret.
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
    """Return about how many bits a number in base64 has."""
    return len(value.lstrip("A").rstrip("=")) * 6


def keys_of(given: Any) -> list[VerificationKey]:
    """Return the keys that an operator names, all of one kind: public keys, or one secret.

    They are JWKs, a key set, PEM, or the bytes of a secret, alone or in a list. Raises
    ``ValueError``, without the keys in it.
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
        raise ValueError("keys= are public keys or secrets: who reads both can be confused")
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
            with warnings.catch_warnings():  # of weak keys, which are refused below
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
