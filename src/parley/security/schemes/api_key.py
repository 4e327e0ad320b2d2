"""API keys in a header, a query parameter or a cookie (specification §4.5.2); creation of keys."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary, ref

import msgspec

from parley.model.cards import APIKeySecurityScheme, SecurityScheme
from parley.model.errors import OverloadedError, StoreError, an
from parley.model.service import Caller
from parley.security.api_keys import (
    STORE_SECRET,
    ApiKeyRecord,
    digest_of,
    id_in,
    is_digest,
    is_issued,
    new_key,
)
from parley.security.credentials import Slots, VerdictCache, checked_seconds
from parley.security.evidence import Evidence, SchemeResources
from parley.security.exposed_secrets import hide_parameter
from parley.security.limits.usage import SecurityStore
from parley.security.schemes.scheme import (
    CredentialsRefused,
    Proof,
    Scheme,
    asked,
    challenge,
    checked_name,
    proof_of,
)

log = logging.getLogger("parley.security")

Location = Literal["header", "query", "cookie"]

Keys = Mapping[str, Caller] | Callable[[str], Caller | Awaitable[Caller | None] | None]
"""Callers by the SHA-256 of their keys (hexadecimal digits), or a function that finds them."""

CACHE_SECONDS = 4.0
"""With the one-second recheck of open requests, a revoked key is valid for five seconds at most."""

MAX_KEY_LENGTH = 4096

MAX_CALLS = 16
"""The number of concurrent calls of a function that finds keys; further calls wait."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_TAKEN = frozenset({"authorization", "cookie", "host", "proxy-authorization", "content-length"})
_UNKNOWN = "the API key is not accepted here"
_OWNER = "a key belongs to a Caller, not to"


class ApiKey(Scheme):
    """A key in a header, a query parameter or a cookie, by ``key_name``.

    Without ``keys`` it accepts the keys that ``parley keys create`` has stored in the server's
    store. ``keys`` is a mapping from the SHA-256 of a key (64 hexadecimal digits) to its caller,
    with ``scopes``; or a function of such a hash that returns the caller or ``None``. A plain
    ``def`` runs in a thread.

    A verdict about a key is cached for ``cache_seconds``: this is the longest time that a revoked
    key is still accepted. The process that revokes it rejects it at once. Expired keys are always
    rejected.
    """

    def __init__(
        self,
        location: Location = "header",
        key_name: str = "X-API-Key",
        *,
        name: str = "apiKey",
        keys: Keys | None = None,
        cache_seconds: float = CACHE_SECONDS,
        description: str = "",
    ) -> None:
        if location not in ("header", "query", "cookie"):
            raise ValueError(f"a key is in a 'header', a 'query' or a 'cookie', not {location!r}")
        if not isinstance(key_name, str) or not _TOKEN.fullmatch(key_name):
            raise ValueError(
                f"key_name has 1 to 100 letters, digits and signs such as - and _, not {key_name!r}"
            )
        if location == "header" and key_name.lower() in _TAKEN:
            raise ValueError(
                f"a key cannot be in the header {key_name}, which has a form of its own; "
                "parley.security.Bearer takes tokens from Authorization"
            )
        self.name = checked_name(name)
        self._location: Location = location
        self._key_name = key_name
        self._header = key_name.lower().encode("ascii")
        self.credential = f"{location} {key_name.lower() if location == 'header' else key_name}"
        self._description = description
        self._seconds = checked_seconds(cache_seconds)
        self._proofs = _proofs(keys, name) if isinstance(keys, Mapping) else None
        self._function = None if isinstance(keys, Mapping) else keys
        if self._function is not None and not callable(self._function):
            raise TypeError(
                "keys is a mapping from SHA-256 hashes of keys to callers, or a function of such "
                f"a hash, not {an(type(keys).__name__)}"
            )
        self._verdicts: VerdictCache[Proof] = VerdictCache(self._seconds)
        self._slots = Slots(MAX_CALLS)
        self._stored: WeakKeyDictionary[SecurityStore, _StoredKeys] = WeakKeyDictionary()
        if location == "query":
            hide_parameter(key_name)

    def __repr__(self) -> str:
        return f"ApiKey({self._location!r}, {self._key_name!r}, name={self.name!r})"

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            api_key_security_scheme=APIKeySecurityScheme(
                location=self._location, name=self._key_name, description=self._description
            )
        )

    def is_presented(self, evidence: Evidence) -> bool:
        """Return whether a request has a key, valid or not."""
        return bool(self._values(evidence))

    def claimed(self, evidence: Evidence) -> str:
        """Return the id of the presented key, if it has one."""
        values = self._values(evidence)
        return id_in(values[0]) if len(values) == 1 else ""

    def verify(self, evidence: Evidence) -> Proof | Awaitable[Proof]:
        """Return the key's proof. Raises ``CredentialsRefused``, ``OverloadedError``."""
        key = self._key(evidence)
        if self._proofs is not None:
            found = self._proofs.get(digest_of(key))
            if found is None:
                raise CredentialsRefused("an unknown API key", _UNKNOWN)
            return found
        if self._function is not None:
            proof = self._verdicts.get(digest := digest_of(key), evidence.now())
            return proof if isinstance(proof, Proof) else self._find(digest, evidence)
        return self._stored_keys(evidence).verify(key, evidence.now())

    def challenge(
        self, evidence: Evidence | None = None, *, error: str = "", scopes: Sequence[str] = ()
    ) -> str:
        """Return the value of ``WWW-Authenticate`` that asks for a key."""
        parameters = {"in": self._location, "name": self._key_name, "error": error}
        return challenge("ApiKey", **parameters, scope=" ".join(scopes))

    async def knows(self, id: str, resources: SchemeResources) -> bool:
        """Return whether an id has keys: in the mapping, or in the server's store."""
        if self._proofs is not None:
            return any(proof.caller.id == id for proof in self._proofs.values())
        if self._function is not None or resources.store is None:
            return False
        return bool(await resources.store.api_keys(id))

    async def start(self, resources: SchemeResources) -> None:
        """Prepare the look-up in the server's store."""
        if self._proofs is None and self._function is None:
            store = resources.store
            await self._of(store).start()
            if store is not None and not store.has_operators:
                log.warning(
                    "%s accepts the keys of the server's store, which is in memory, where parley "
                    "keys cannot create any: use a sqlite:/// or postgresql:// store, or keys=",
                    self,
                )

    def _values(self, evidence: Evidence) -> list[str]:
        if self._location == "header":
            return evidence.headers(self._header)
        if self._location == "cookie" and "cross-site" in evidence.headers(b"sec-fetch-site"):
            return []  # a page of another site caused the request: the user did not present the key
        pairs = evidence.query if self._location == "query" else evidence.cookies
        return [value for name, value in pairs if name == self._key_name]

    def _key(self, evidence: Evidence) -> str:
        """Return the only key of a request. Raises ``CredentialsRefused``."""
        values = self._values(evidence)
        what = {"query": "query parameter"}.get(self._location, self._location)
        if len(values) != 1:
            raise CredentialsRefused("several API keys", f"send one {what} {self._key_name}")
        key = values[0].strip()
        if not key or len(key) > MAX_KEY_LENGTH:
            raise CredentialsRefused(
                "a malformed API key", f"send the key as the {what} {self._key_name}"
            )
        return key

    # -- keys of the author's function ----------------------------------------------------------

    async def _find(self, digest: str, evidence: Evidence) -> Proof:
        proof = await self._verdicts.find(
            digest, evidence.now(), lambda: self._ask(digest, evidence)
        )
        if proof is None:
            raise CredentialsRefused("an unknown API key", _UNKNOWN)
        return proof

    async def _ask(self, digest: str, evidence: Evidence) -> Proof | None:
        assert self._function is not None
        async with self._slots.one():
            evidence.check_failures()
            caller = await asked(self._function, digest)
        return None if caller is None else proof_of(caller, self.name, _OWNER)

    # -- keys of the store ----------------------------------------------------------------------

    def _stored_keys(self, evidence: Evidence) -> _StoredKeys:
        return self._of(None if evidence.resources is None else evidence.resources.store)

    def _of(self, store: SecurityStore | None) -> _StoredKeys:
        """Return the keys of a store, since one agent may be served several times."""
        if store is None:
            raise RuntimeError(f"{self} verifies keys of a store, and was started without a store")
        found = self._stored.get(store)
        if found is None:
            found = self._stored[store] = _StoredKeys(store, self.name, self._seconds)
        return found


class _Known(msgspec.Struct, frozen=True):
    """A key of the store, and its proof."""

    record: ApiKeyRecord
    proof: Proof


class _StoredKeys:
    """The keys of one store, for one scheme.

    It lives as long as the store; the store holds no reference to the scheme.
    """

    def __init__(self, store: SecurityStore, name: str, seconds: float) -> None:
        self._store: Callable[[], Any] = ref(store)
        self._name = name
        self._known: VerdictCache[_Known] = VerdictCache(seconds)
        self._secret = b""
        store.listen_api_keys(self._known.forget)

    async def start(self) -> None:
        """Read the secret for the tags of ids."""
        if not self._secret:
            self._secret = await self._store().secret(STORE_SECRET)

    def verify(self, key: str, now: float) -> Proof | Awaitable[Proof]:
        """Return the proof of a key. Raises ``CredentialsRefused``, ``OverloadedError``."""
        id = id_in(key)
        if not id:
            raise CredentialsRefused("a malformed API key", _UNKNOWN)
        known = self._known.get(id, now)
        if isinstance(known, _Known):
            return _judged(known, key, now)
        return self._look_up(id, key, now)

    async def _look_up(self, id: str, key: str, now: float) -> Proof:
        try:
            await self.start()
            # An invented id costs no query: its tag needs the store's secret.
            known = None
            if is_issued(key, self._secret):
                known = await self._known.find(id, now, lambda: self._read(id))
        except StoreError:
            log.exception("API keys cannot be verified")
            raise OverloadedError(
                "API keys cannot be verified now; try again", retry_after=1
            ) from None
        if known is None:
            raise CredentialsRefused("an unknown API key", _UNKNOWN)
        return _judged(known, key, now)

    async def _read(self, id: str) -> _Known | None:
        record: ApiKeyRecord | None = await self._store().api_key(id)
        if record is None:
            return None
        claims: dict[str, object] = {"key": record.id, "label": record.label}
        caller = Caller(id=record.owner, claims=claims, scopes=frozenset(record.scopes))
        return _Known(record, proof_of(caller, self._name, _OWNER))


def _judged(known: _Known, key: str, now: float) -> Proof:
    """Return the proof of a key whose id is known. Raises ``CredentialsRefused``."""
    record = known.record
    if not hmac.compare_digest(digest_of(key), record.digest):
        raise CredentialsRefused(f"a wrong secret for the API key {record.id}", _UNKNOWN)
    if record.revoked_at is not None:
        raise CredentialsRefused(f"the revoked API key {record.id}", "the API key was revoked")
    if record.expires_at is not None and record.expires_at <= now * 1000:
        raise CredentialsRefused(f"the expired API key {record.id}", "the API key has expired")
    return known.proof


def _proofs(keys: Mapping[str, Caller], name: str) -> dict[str, Proof]:
    """Return the proofs of the keys of a mapping, by hash. Raises ``ValueError``."""
    found = {}
    for digest, caller in keys.items():
        if not is_digest(digest):
            raise ValueError(
                "keys maps hashes, not keys, to callers: hashlib.sha256(key).hexdigest(), 64 "
                "hexadecimal digits in lower case"
            )
        found[digest] = proof_of(caller, name, _OWNER)
    return found


async def create_key(
    store: SecurityStore,
    *,
    owner: str,
    scopes: Iterable[str] = (),
    label: str = "",
    expires_in: float | None = None,
) -> tuple[str, ApiKeyRecord]:
    """Create a key in an open store, valid for ``expires_in`` seconds, or until it is revoked.

    Returns the key and its record. The key cannot be shown again. Raises ``ValueError`` and
    ``StoreError``.
    """
    now = store.now()
    secret = await store.secret(STORE_SECRET)
    expires_at = None if expires_in is None else now + round(expires_in * 1000)
    key, record = new_key(
        secret, owner=owner, scopes=scopes, label=label, now=now, expires_at=expires_at
    )
    await store.add_api_key(record)
    return key, record
