"""The keys of those who sign messages: from a private file of the operator, or a list.

A key file is a JWK Set (RFC 7517) in which each key has an ``owner``: the ``agentId`` of the
messages that it signs, and the id of their caller. Shared secrets (``oct``) sign with HMAC-SHA256,
public keys (``OKP``, Ed25519) verify those of Ed25519. An entry with a ``jwks_uri`` in place of a
key has the Ed25519 keys that its owner publishes there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, Union

from parley.envelope.declared import KEYS_VARIABLE
from parley.envelope.signatures import ED25519, EnvelopeKey, owner_of, read_key
from parley.model.errors import OverloadedError, an
from parley.security.egress import Egress
from parley.security.issuers import IssuerClient, KeysUnavailable
from parley.security.outbound import Fetcher, checked_url
from parley.security.signing.canonical import AmbiguousJson, read_object
from parley.security.signing.keys import RELOAD_SECONDS, decode, read_private, stamp_of

log = logging.getLogger("parley.security")

MAX_KEYS = 10_000
MAX_BYTES = 8 * 1024 * 1024

_EDDSA = "EdDSA"

GivenKeys = Union["EnvelopeKeys", str, Path, Iterable[EnvelopeKey | Mapping[str, Any]]]
"""A key file, or a list of keys and JWKs with an owner."""


class EnvelopeKeysInvalid(ValueError):
    """The keys of senders cannot be used. The error quotes nothing of them."""


class _Entries:
    """What was read: keys by owner and id, and the addresses at which owners publish theirs."""

    def __init__(self, keys: Iterable[EnvelopeKey], published: Mapping[str, str]) -> None:
        self.keys: dict[str, dict[str, EnvelopeKey]] = {}
        self.published = dict(published)
        for key in keys:
            own = self.keys.setdefault(key.owner, {})
            if key.id in own:
                raise EnvelopeKeysInvalid(
                    f"two keys of {key.owner!r} have the kid {key.id!r}: verifiers take either"
                )
            own[key.id] = key


class EnvelopeKeys:
    """Keys by their owners. A file is read again when it changes.

    A changed file that cannot be used is logged, and the keys of before go on.
    """

    def __init__(self, given: Iterable[EnvelopeKey | Mapping[str, Any]] = ()) -> None:
        self._entries = _entries(given, "keys of EnvelopeBinding")
        self._path: Path | None = None
        self._stamp: object = None
        self._next_look = 0.0
        self._lock = threading.Lock()
        self._fetcher = Fetcher()
        self._now: Callable[[], float] = time.time
        self._sources: dict[str, IssuerClient] = {}

    def __repr__(self) -> str:
        return f"EnvelopeKeys(owners={sorted(self.owners)})"

    @classmethod
    def load(
        cls, given: Any = None, *, environment: Mapping[str, str] | None = None
    ) -> Self | None:
        """Return the keys of a file or a list, else of the file that the environment names.

        ``None`` if there are none. Raises ``EnvelopeKeysInvalid``.
        """
        if isinstance(given, cls):
            return given
        if given is None:
            values = os.environ if environment is None else environment
            given = values.get(KEYS_VARIABLE) or None
        if given is None:
            return None
        if isinstance(given, str | Path):
            return cls.from_file(given)
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            raise EnvelopeKeysInvalid(
                "keys of EnvelopeBinding is the path of a key file, or a list of EnvelopeKey or "
                f"of JWKs with an owner, not {an(type(given).__name__)}"
            )
        return cls(given)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Return the keys of a private file. Raises ``EnvelopeKeysInvalid``."""
        path = Path(path)
        keys = cls()
        keys._stamp = stamp_of(path)
        keys._entries = read_envelope_keys(path)
        keys._path = path
        keys._next_look = time.monotonic() + RELOAD_SECONDS
        return keys

    def start(self, *, egress: Egress, now: Callable[[], float]) -> None:
        """Give what fetching published keys needs: ``now`` returns seconds since 1970."""
        self._fetcher.egress = egress
        self._now = now

    async def close(self) -> None:
        """Close connections to those who publish keys."""
        sources, self._sources = self._sources, {}
        for source in sources.values():
            await source.close()
        await self._fetcher.close()

    @property
    def owners(self) -> frozenset[str]:
        """Whose keys are here."""
        self._look()
        return frozenset(self._entries.keys) | frozenset(self._entries.published)

    def owns(self, id: str) -> bool:
        """Return whether somebody with this id has keys."""
        self._look()
        return id in self._entries.keys or id in self._entries.published

    async def find(self, owner: str, key_id: str) -> EnvelopeKey | None:
        """Return a key of an owner. Without an id there is one only if there is no choice.

        Raises ``OverloadedError`` if published keys cannot be fetched now.
        """
        self._look()
        own = self._entries.keys.get(owner, {})
        url = self._entries.published.get(owner)
        if key_id in own:
            return own[key_id]
        if not key_id and len(own) == 1 and url is None:
            return next(iter(own.values()))
        if url is None or (not key_id and own):
            return None
        return await self._fetch(owner, url, key_id)

    async def _fetch(self, owner: str, url: str, key_id: str) -> EnvelopeKey | None:
        source = self._sources.get(url)
        if source is None:
            source = IssuerClient(self._fetcher, lambda: self._now(), jwks_url=url)
            self._sources[url] = source
        try:
            found = await source.find(key_id or None, _EDDSA)
        except KeysUnavailable as error:
            log.warning("the keys of %r cannot be fetched from %s: %s", owner, url, error)
            raise OverloadedError(
                "the key of this message cannot be fetched now; send it again",
                retry_after=error.retry_after,
            ) from None
        if found is None:
            return None
        public = decode(found.key.as_dict(private=False)["x"])
        if len(public) != 32:  # a key of Ed448
            return None
        return EnvelopeKey(
            id=key_id or found.kid or "published",
            owner=owner,
            algorithm="Ed25519",
            material=public,
            is_public=True,
        )

    def _look(self) -> None:
        """Read the file again if it has changed, at most once in ``RELOAD_SECONDS``."""
        if self._path is None or time.monotonic() < self._next_look:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + RELOAD_SECONDS
            stamp = stamp_of(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._entries = read_envelope_keys(self._path)
                log.info("the keys of senders were read again: %s", ", ".join(self._entries.keys))
        except EnvelopeKeysInvalid as error:
            log.error("the changed keys of senders cannot be used, the old ones go on: %s", error)
        finally:
            self._lock.release()


def read_envelope_keys(path: Path) -> _Entries:
    """Return the keys of a file. Raises ``EnvelopeKeysInvalid``."""
    what = f"the key file {path}"
    try:
        content = read_object(read_private(path, limit=MAX_BYTES), limit=MAX_BYTES, what=what)
    except FileNotFoundError:
        raise EnvelopeKeysInvalid(
            f"there is no key file {path}: make one with `parley keys share {path} --owner ID`"
        ) from None
    except OSError as error:
        raise EnvelopeKeysInvalid(f"{what} cannot be read: {error.strerror}") from None
    except (AmbiguousJson, ValueError) as error:
        raise EnvelopeKeysInvalid(str(error)) from None
    keys = content.get("keys")
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise EnvelopeKeysInvalid(f'{what} is no JWK Set: it has no list of "keys"')
    return _entries(keys, what)


def _entries(given: Iterable[Any], what: str) -> _Entries:
    keys: list[EnvelopeKey] = []
    published: dict[str, str] = {}
    for number, each in enumerate(given, 1):
        if number > MAX_KEYS:
            raise EnvelopeKeysInvalid(f"{what} has more than {MAX_KEYS} keys")
        try:
            if isinstance(each, EnvelopeKey):
                keys.append(each.public if each.algorithm == ED25519 else each)
            elif isinstance(each, Mapping) and "jwks_uri" in each:
                owner = owner_of(each)
                if owner in published:
                    raise ValueError("is the second address of its owner: one publishes all keys")
                published[owner] = checked_url(each["jwks_uri"], "jwks_uri")
            elif isinstance(each, Mapping):
                keys.append(_key(each))
            else:
                raise ValueError("is neither an EnvelopeKey nor a JWK with an owner")
        except ValueError as error:
            raise EnvelopeKeysInvalid(f"key {number} of {what}: {error}") from None
    return _Entries(keys, published)


def _key(jwk: Mapping[str, Any]) -> EnvelopeKey:
    key = read_key(jwk)
    if key.algorithm == ED25519 and not key.is_public:
        raise ValueError(
            f"it has the private half of the key of {key.owner!r}, which only {key.owner!r} should "
            'have: leave "d" out, and replace the key if it was sent to somebody'
        )
    return key
