"""Whom a client trusts to sign agent cards (specification §8.4), and what became of a card."""

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
    """A client's verdict about a card, and why it is not trusted, if it is not.

    ``verdict`` has each signature: its key, its algorithm, and its reason. ``str`` is all of it in
    words.
    """

    state: State = "not verified"
    reason: str = ""
    verdict: CardVerdict | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether a trusted key signed the card."""
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
    """Return a text on one line: cards choose some of the words."""
    return "".join(char if char.isprintable() else " " for char in text)


NOT_VERIFIED = CardCheck(reason="connect(..., trust=True) verifies signatures")


class CardTrust:
    """Which signatures of agent cards a client trusts: ``connect(url, trust=CardTrust(...))``.

    One signature that a trusted key made is enough. Without pins, keys are trusted that are
    published (``jku``) at the card's own origin, which is the origin of the caller's address,
    or at one of ``origins``. The addresses of key sets are encrypted, except on this machine, and
    no redirect is followed.

    ``keys`` pins keys: a JWK, a JWK Set, PEM, or the path of a file with such keys, alone or in a
    list. Only these are trusted then, and nothing is fetched; a file is read again when it changes.
    ``thumbprints`` pins published keys by their SHA-256 thumbprints (RFC 7638), or by key ids and
    their thumbprints (a mapping).

    ``required``: a card without a trusted signature is refused (``CardNotTrusted``). Without it,
    ``RemoteAgent.card_trust`` has the verdict. Pins are always required.

    ``algorithms`` are accepted. ``allow_private`` lets ``origins`` be at private addresses,
    or at the hosts and networks of a list.

    It keeps key sets as long as they may be kept, looks a key up again that is unknown, and
    remembers which cards were signed: share one among connections. Raises ``ValueError`` for keys,
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
            raise ValueError(
                "give keys, and only they are trusted, or origins that publish keys, but not both"
            )
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
        """The keys that are pinned, ``None`` without pins. Files are read again if they changed.

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
        """Note that the card of an address was signed, with which key."""
        self._signed[address] = kid

    def signed_before(self, address: str) -> str | None:
        """Return the key that signed the card of an address before, ``None`` if it was not seen."""
        return self._signed.get(address)


def trust_of(given: CardTrust | bool | None) -> CardTrust | None:
    """Return the trust that an option asks for: ``True`` requires signatures."""
    if given is None or given is False:
        return None
    if given is True:
        return CardTrust()
    if not isinstance(given, CardTrust):
        raise TypeError(f"trust is True or a CardTrust(...), not {type(given).__name__}")
    return given


class _Pin:
    """Keys of an operator: as given, or in a file that is read again when it changes."""

    def __init__(self, given: object) -> None:
        self._path = _path_of(given)
        self._seen: object = None
        self._keys: tuple[VerificationKey, ...] = ()
        if self._path is None:
            self._keys = _public_keys(given, "keys=")
        else:
            self.read()

    def read(self) -> tuple[VerificationKey, ...]:
        """Return the keys. Raises ``ValueError`` for a file that has none."""
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
    """Return the keys of a JWK, a JWK Set or PEM. Raises ``ValueError`` for secrets, and for none.

    All who knew the secret could sign cards.
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
    """Return thumbprints by key ids, those without by themselves; ``None`` for none."""
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
