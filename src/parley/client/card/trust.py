"""The signers of agent cards that a client trusts (specification §8.4), and verdicts on cards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from parley.client.origin import Origin
from parley.model.bounded import Bounded
from parley.security.egress import Egress
from parley.security.key_sets import SYMMETRIC, KeySet, KeySetCache, VerificationKey, keys_of
from parley.security.signing.keys import stamp_of

if TYPE_CHECKING:
    from parley.security.signing.cards import CardVerdict

DEFAULT_ALGORITHMS = ("ES256", "RS256", "EdDSA")
MAX_KEY_FILE = 512 * 1024
_MAX_REMEMBERED = 1000

PinnedKeys = Mapping[str, Any] | str | bytes | os.PathLike[str]
"""A JWK, a JWK Set, a key in PEM, or the path of a file with such keys."""

State = Literal["not verified", "trusted", "not trusted", "not signed"]


class CardCheck(msgspec.Struct, frozen=True):
    """A client's verdict on a card, with the reason if it is not trusted.

    ``verdict`` lists the signatures, each with key, algorithm and reason. ``str`` returns all of it
    as text.
    """

    state: State = "not verified"
    reason: str = ""
    verdict: CardVerdict | None = None

    @property
    def is_trusted(self) -> bool:
        """True if a trusted key signed the card."""
        return self.state == "trusted"

    def __str__(self) -> str:
        if self.verdict is not None and self.is_trusted:
            names = dict.fromkeys(f"key {each.kid}, {each.alg}" for each in self.verdict.verified)
            return printable(f"trusted ({'; '.join(names)})")
        lines = [f"{self.state}: {self.reason}" if self.reason else self.state]
        if self.verdict is not None:
            lines += map(str, self.verdict.signatures)
        return "\n".join(map(printable, lines))


def printable(text: str) -> str:
    """Return a text on one line, since cards choose some of the text."""
    return "".join(char if char.isprintable() else " " for char in text)


NOT_VERIFIED = CardCheck(reason="connect(..., trust=True) verifies signatures")


class CardTrust:
    """The trusted signers of agent cards: ``connect(url, trust=CardTrust(...))``.

    One signature by a trusted key is enough. Without pins, trusted keys are those that are
    published (``jku``) at the card's own origin, which is the origin of the caller's address, or at
    one of ``origins``. The addresses of key sets must be encrypted, except on this machine, and
    redirects are not followed.

    ``keys`` pins keys: a JWK, a JWK Set, PEM, or the path of a file with such keys, alone or in a
    list. Then only these are trusted, and nothing is fetched; a changed file is read again.
    ``thumbprints`` pins published keys by their SHA-256 thumbprints (RFC 7638), or by key ids and
    their thumbprints (a mapping).

    ``required``: a card without a trusted signature is rejected (``CardNotTrusted``). Otherwise
    ``RemoteAgent.card_trust`` has the verdict. Pins are always required.

    ``algorithms`` are the accepted algorithms. ``allow_private`` lets ``origins`` be at private
    addresses, or at the hosts and networks of a list.

    The object caches key sets as long as permitted, fetches again for an unknown key, and remembers
    which cards were signed: share one object among connections. Raises ``ValueError`` for keys,
    origins and algorithms that cannot be trusted.
    """

    def __init__(
        self,
        *,
        keys: PinnedKeys | Iterable[PinnedKeys] | None = None,
        thumbprints: Iterable[str] | Mapping[str, str] = (),
        origins: Iterable[str] = (),
        algorithms: Iterable[str] = DEFAULT_ALGORITHMS,
        required: bool = True,
        allow_private: bool | Iterable[str] = False,
    ) -> None:
        from parley.security.signing.cards import allowed_algorithms

        for name, given in (("origins", origins), ("thumbprints", thumbprints)):
            if isinstance(given, str):
                raise ValueError(f"{name} is a list, such as [{given!r}]")
        self.algorithms = allowed_algorithms(algorithms)
        self.origins = tuple(map(Origin.parse, origins))
        self.egress = Egress.allowing(allow_private)
        self.key_sets = KeySetCache()
        self._pins = None if keys is None else [_Pin(each) for each in _each(keys)]
        if self._pins is not None and not self._pins:
            raise ValueError("keys is empty: no card could be trusted; leave it out, or pin a key")
        self._thumbprints = _thumbprints(thumbprints)
        if self._pins is not None and self._thumbprints is not None:
            raise ValueError("give keys, or the thumbprints of published ones, but not both")
        if self._pins is not None and self.origins:
            raise ValueError("give trusted keys, or origins that publish keys, not both")
        is_pinned = self._pins is not None or self._thumbprints is not None
        if is_pinned and not required:
            raise ValueError("pinned keys are required: leave out required=False, or the pins")
        self.required = required
        self.is_pinned = is_pinned
        self._signed: Bounded[str, str] = Bounded(_MAX_REMEMBERED)

    def __repr__(self) -> str:
        return f"CardTrust(required={self.required}, pinned={self.is_pinned})"

    @property
    def pinned(self) -> KeySet | None:
        """The pinned keys, ``None`` without pins. Changed files are read again.

        Raises ``ValueError`` for a file without usable keys.
        """
        if self._pins is None:
            return None
        return KeySet([key for pin in self._pins for key in pin.read()])

    def accepts(self, key: VerificationKey) -> bool:
        """Return whether a published key is trusted."""
        if self._thumbprints is None:
            return True
        thumbprint = key.key.thumbprint()
        return thumbprint in (self._thumbprints.get(key.kid), self._thumbprints.get(thumbprint))

    def remember(self, address: str, kid: str) -> None:
        """Record that the card at an address was signed with this key."""
        self._signed[address] = kid

    def signed_before(self, address: str) -> str | None:
        """Return the key that signed the card at an address before, ``None`` if there was none."""
        return self._signed.get(address)


def trust_of(given: CardTrust | bool | None) -> CardTrust | None:
    """Return the trust for the option ``trust``: ``True`` requires signatures."""
    if given is None or given is False:
        return None
    if given is True:
        return CardTrust()
    if not isinstance(given, CardTrust):
        raise TypeError(f"trust is True or a CardTrust(...), not {type(given).__name__}")
    return given


class _Pin:
    """Pinned keys: values, or a file that is read again when it changes."""

    def __init__(self, given: object) -> None:
        self._path = _path_of(given)
        self._seen: object = None
        self._keys: tuple[VerificationKey, ...] = ()
        if self._path is None:
            self._keys = _public_keys(given, "keys=")
        else:
            self.read()

    def read(self) -> tuple[VerificationKey, ...]:
        """Return the keys. Raises ``ValueError`` for a file without keys."""
        path = self._path
        if path is None:
            return self._keys
        seen = stamp_of(path)
        try:
            if seen is None or seen != self._seen:
                with path.open("rb") as file:
                    text = file.read(MAX_KEY_FILE + 1)
                if len(text) > MAX_KEY_FILE:
                    raise ValueError(f"the key file {path} is larger than {MAX_KEY_FILE:,} bytes")
                self._keys, self._seen = _public_keys(_content(text, path), str(path)), seen
        except OSError as error:
            raise ValueError(f"the key file {path} cannot be read: {error.strerror}") from None
        return self._keys


def _each(given: object) -> list[object]:
    if isinstance(given, str | bytes | os.PathLike | Mapping):
        return [given]
    if not isinstance(given, Iterable):
        raise ValueError("keys are JWKs, JWK Sets, PEM, or paths of files with them")
    return list(given)


def _path_of(given: object) -> Path | None:
    """Return the path of a file with keys, ``None`` for keys."""
    if isinstance(given, os.PathLike):
        return Path(given).expanduser()
    if isinstance(given, str) and "-----BEGIN" not in given and not given.lstrip().startswith("{"):
        return Path(given).expanduser()
    return None


def _content(text: bytes, path: Path) -> object:
    if b"-----BEGIN" in text:
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} has neither a JWK, nor a JWK Set, nor a key in PEM") from None


def _public_keys(given: object, what: str) -> tuple[VerificationKey, ...]:
    """Return the keys of a JWK, a JWK Set or PEM. Raises ``ValueError`` for secrets, and for no
    keys.

    Everyone who knows a secret could sign cards with it.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        given = _content(given.encode(), Path("keys="))
    is_pem = isinstance(given, str | bytes) and (
        "-----BEGIN" in given if isinstance(given, str) else b"-----BEGIN" in given
    )
    if not is_pem and not isinstance(given, Mapping):
        raise ValueError(f"{what} has neither a JWK, nor a JWK Set, nor a key in PEM")
    try:
        found = keys_of(given)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    if any(key.algorithms & frozenset(SYMMETRIC) for key in found):
        raise ValueError(f"{what}: a secret verifies no card; pin the public key of the signer")
    return tuple(found)


def _thumbprints(given: Iterable[str] | Mapping[str, str]) -> dict[str, str] | None:
    """Return thumbprints by key id, or by themselves without ids; ``None`` for no pins."""
    pairs = given.items() if isinstance(given, Mapping) else [(each, each) for each in given]
    found = {}
    for kid, thumbprint in pairs:
        text = thumbprint.rstrip("=") if isinstance(thumbprint, str) else ""
        if len(text) != 43 or not set(text) <= _BASE64URL:
            raise ValueError(
                "a thumbprint is the SHA-256 of a JWK in base64url, 43 characters (RFC 7638); it "
                f"is not {thumbprint!r:.100}"
            )
        found[text if kid == thumbprint else kid] = text
    return found or None


_BASE64URL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
