"""Signatures of agent cards (specification §8.4)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from parley.model.bounded import Bounded
from parley.security.key_sets import ASYMMETRIC, KeySet
from parley.security.signing.canonical import (
    SIGNATURES,
    AmbiguousJson,
    CardForm,
    NotCanonical,
    canonical,
    exact,
    has_latest_form,
    read_object,
    received,
    stripped,
    stripped_as_received,
)
from parley.security.signing.keys import ALGORITHMS, SigningKey, SigningKeys, decode, encode

# -- card verification ------------------------------------------------------------------------

MAX_VERIFIED_BYTES = 2 * 1024 * 1024
MAX_SIGNATURES = 32
MAX_PROTECTED = 8 * 1024
MAX_SIGNATURE = 2 * 1024
"""The maximum length of a protected header and of a signature."""

MAX_NAME = 2048
"""The maximum length of a ``kid`` and of a ``jku``."""

_TYPES = ("JOSE", "JOSE+JSON", "JWT")  # PyJWT always writes JWT


class CardUnverifiable(ValueError):
    """The signatures of a card cannot be checked: the card is not an unambiguous JSON object."""


class CardSignature(msgspec.Struct, frozen=True):
    """A signature of a card, parsed but not verified.

    ``problem`` is the reason why no key can verify it; empty if there is none.
    """

    number: int
    kid: str = ""
    alg: str = ""
    jku: str = ""
    protected: str = ""
    signature: bytes = b""
    problem: str = ""


class SignatureVerdict(msgspec.Struct, frozen=True):
    """The result for one signature: the signed form of the card, or the reason for distrust.

    ``members`` are the signed members; ``reason`` is empty for a verified signature.
    """

    number: int
    kid: str
    alg: str
    jku: str
    form: CardForm | None = None
    reason: str = ""
    members: dict[str, Any] | None = None

    def __str__(self) -> str:
        name = f"signature {self.number} ({self.alg or '?'}, key {self.kid or '?'})"
        return f"{name}: {self.reason or f'verified, the {self.form} form is signed'}"


class CardVerdict(msgspec.Struct, frozen=True):
    """The result for a card, with the results for its signatures. One verified signature is enough.

    ``form`` is the form of the verified signature that covers most, and ``members`` are the signed
    members. Other members of the card are not trusted.
    """

    signatures: tuple[SignatureVerdict, ...]
    form: CardForm | None = None
    members: dict[str, Any] | None = None

    @property
    def is_trusted(self) -> bool:
        """True if a signature was verified."""
        return self.form is not None

    @property
    def verified(self) -> tuple[SignatureVerdict, ...]:
        """The verified signatures."""
        return tuple(each for each in self.signatures if each.form is not None)

    def __str__(self) -> str:
        if not self.signatures:
            return "the card has no signatures"
        return "\n".join(map(str, self.signatures))


Keys = KeySet | Callable[[CardSignature], KeySet | str]
"""The trusted keys: one set, or a function that returns the set for a signature, or an error
text."""


def members_of_card(card: bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a card. Raises ``CardUnverifiable`` if parsers could disagree.

    Duplicate members can only be detected in bytes, so pass bytes if there are any.
    """
    if isinstance(card, Mapping):
        return dict(card)
    try:
        return read_object(card, limit=MAX_VERIFIED_BYTES, what="the card")
    except AmbiguousJson as error:
        raise CardUnverifiable(str(error)) from None


def signatures_of(
    card: bytes | Mapping[str, Any], algorithms: Iterable[str] = ALGORITHMS
) -> tuple[CardSignature, ...]:
    """Return the signatures of a card, for finding their keys. Raises ``CardUnverifiable``."""
    allowed = allowed_algorithms(algorithms)
    given = members_of_card(card).get(SIGNATURES)
    if given is None:
        return ()
    if not isinstance(given, list):
        raise CardUnverifiable("the signatures of the card are no list")
    if len(given) > MAX_SIGNATURES:
        raise CardUnverifiable(
            f"the card has {len(given)} signatures; at most {MAX_SIGNATURES} are verified"
        )
    return tuple(_read(number, each, allowed) for number, each in enumerate(given, 1))


def verify(
    card: bytes | Mapping[str, Any], keys: Keys, algorithms: Iterable[str] = ALGORITHMS
) -> CardVerdict:
    """Return whether one of the trusted keys signed a card, with the result for each signature.

    Raises ``CardUnverifiable`` for an ambiguous card, and ``ValueError`` for algorithms that prove
    nothing.
    """
    members = members_of_card(card)
    signatures = signatures_of(members, algorithms)
    forms = _Forms(members)
    verdicts = tuple(_judge(each, keys, forms) for each in signatures)
    best = min(
        (each for each in verdicts if each.form is not None),
        key=lambda each: ("received", "exact", "stripped").index(each.form or ""),
        default=None,
    )
    if best is None:
        return CardVerdict(verdicts)
    return CardVerdict(verdicts, best.form, best.members)


def allowed_algorithms(given: Iterable[str]) -> frozenset[str]:
    """Return the algorithms of an allow-list. Raises ``ValueError`` for ``none`` and for HMAC."""
    found = frozenset([given] if isinstance(given, str) else given)
    if wrong := sorted(found - set(ASYMMETRIC)):
        raise ValueError(
            f"cards are verified with {', '.join(ASYMMETRIC)}, and not with {', '.join(wrong)}: "
            "only who has a private key may sign"
        )
    if not found:
        raise ValueError("the list of algorithms is empty: no signature could be verified")
    return found


class _Forms:
    """The signable forms of one card, each made once, in the order of the attempts."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members
        self._made: dict[CardForm, tuple[dict[str, Any], str] | str] = {}
        self._makers: dict[CardForm, Callable[[Mapping[str, Any]], dict[str, Any]]]
        if has_latest_form(members):
            self._makers = {"exact": exact, "received": received, "stripped": stripped}
        else:  # a card of version 0.3 only
            self._makers = {"received": received, "stripped": stripped_as_received}

    @property
    def names(self) -> Iterable[CardForm]:
        return self._makers.keys()

    def make(self, form: CardForm) -> tuple[dict[str, Any], str] | str:
        """Return the members of a form and its payload in base64url, or the reason why it has
        none."""
        if form not in self._made:
            try:
                signed = self._makers[form](self._members)
                made: Any = (signed, encode(canonical(signed)))
            except NotCanonical as error:
                made = f"the card {error}"
            except RecursionError:
                made = "the card is nested too deeply"
            self._made[form] = made
        return self._made[form]

    def trusted(self, form: CardForm) -> dict[str, Any]:
        """Return the members that a signature of a form proves.

        For the stripped form these are the members of the exact form: the difference is empty.
        """
        if form == "stripped" and has_latest_form(self._members):
            return exact(self._members)
        return self._makers[form](self._members)


def _judge(signature: CardSignature, keys: Keys, forms: _Forms) -> SignatureVerdict:
    form, reason, signed = None, signature.problem, None
    if not reason:
        form, reason = _match(signature, keys, forms)
        signed = None if form is None else forms.trusted(form)
    return SignatureVerdict(
        signature.number, signature.kid, signature.alg, signature.jku, form, reason, signed
    )


def _match(signature: CardSignature, keys: Keys, forms: _Forms) -> tuple[CardForm | None, str]:
    found = keys if isinstance(keys, KeySet) else keys(signature)
    if isinstance(found, str):
        return None, found
    key = found.find(signature.kid, signature.alg)
    if key is None:
        if found.has(signature.kid):
            return None, f"the key {shown(signature.kid)} is not one for {signature.alg}"
        return None, f"the key {shown(signature.kid)} is not among the trusted ones"
    for form in forms.names:
        made = forms.make(form)
        if isinstance(made, str):
            return None, made
        data = f"{signature.protected}.{made[1]}".encode("ascii")
        if key.verifies(signature.alg, data, signature.signature):
            return form, ""
    return None, "it is not of this card: the card was changed, or another one was signed"


def _read(number: int, given: Any, allowed: frozenset[str]) -> CardSignature:
    """Return a parsed signature, with its problem if it cannot be verified."""

    def unusable(problem: str) -> CardSignature:
        return msgspec.structs.replace(found, problem=problem)

    found = CardSignature(number)
    if not isinstance(given, dict):
        return unusable("it is no object")
    protected, signature = given.get("protected"), given.get("signature")
    if not isinstance(protected, str) or not isinstance(signature, str):
        return unusable("its protected header and its signature are not both texts")
    if len(protected) > MAX_PROTECTED or len(signature) > MAX_SIGNATURE:
        return unusable("it is too long")
    try:
        header = read_object(decode(protected), limit=MAX_PROTECTED, what="the protected header")
        value = decode(signature)
    except AmbiguousJson as error:
        return unusable(str(error))
    except ValueError as error:
        return unusable(f"it {error}")
    texts = {name: _text(header, name) for name in ("kid", "alg", "jku")}
    found = CardSignature(
        number,
        protected=protected,
        signature=value,
        **{name: text or "" for name, text in texts.items()},
    )
    for name, text in texts.items():
        if text is None:
            return unusable(f"the {name} of its protected header is no text, or too long")
    return unusable(_problem(found, header, given.get("header"), allowed))


def _problem(
    found: CardSignature, header: Mapping[str, Any], unprotected: Any, allowed: frozenset[str]
) -> str:
    """Return the reason why a signature cannot be verified, empty if it can."""
    if found.alg not in allowed:
        names = ", ".join(sorted(allowed))
        return f"the algorithm {shown(found.alg) or 'none'} is not allowed: {names}"
    if not found.kid:
        return "its protected header names no key (kid)"
    if "crit" in header:
        return "its protected header has critical members (crit), which are not understood"
    if header.get("b64", True) is not True:
        return "its payload is not encoded (b64), which is not allowed for cards"
    typ = header.get("typ", "JOSE")
    if not isinstance(typ, str) or typ.upper() not in _TYPES:
        return f"it is of another type than a card's: typ is {shown(typ)}"
    if unprotected is not None and not isinstance(unprotected, dict):
        return "its unprotected header is no object"
    if repeated := sorted(set(unprotected or ()) & set(header)):
        return f"its unprotected header repeats {', '.join(map(shown, repeated))}"
    return ""


def _text(header: Mapping[str, Any], name: str) -> str | None:
    value = header.get(name, "")
    return value if isinstance(value, str) and len(value) <= MAX_NAME else None


def shown(value: object) -> str:
    """Return a short form of a card's text for a message."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# -- card signing -----------------------------------------------------------------------------

JWKS_PATH = "/.well-known/jwks.json"
"""The path of a server's published keys, below its address."""

MAX_CARD_BYTES = 16 * 1024 * 1024

_MAX_CACHED = 64


def payloads_of(*written: Mapping[str, Any]) -> list[bytes]:
    """Return the payloads to sign for a card, which is given in one form or several.

    The specification's form is first, then the card as given, then the form of SDKs that leave out
    empty members. Equal payloads are signed once.
    """
    found: dict[bytes, None] = {}
    for members in written:
        forms = (exact, received, stripped) if has_latest_form(members) else (received,)
        for form in forms:
            found[canonical(form(members))] = None
    return list(found)


def signatures_over(
    payloads: Iterable[bytes], signers: Iterable[SigningKey], jku: str = ""
) -> list[dict[str, str]]:
    """Return the signatures of payloads, as a card has them."""
    signers = tuple(signers)
    header = {"typ": "JOSE", **({"jku": jku} if jku else {})}
    found = []
    for payload in payloads:
        for key in signers:
            protected, signature = key.sign_payload(header, payload)
            found.append({"protected": protected, "signature": signature})
    return found


def sign_card(
    card: bytes, signers: Iterable[SigningKey], *, jku: str = "", replace: bool = False
) -> bytes:
    """Return a card in JSON with new signatures after its own, or replacing them.

    The rest of the text is unchanged. Raises ``ValueError`` for a text that is not an unambiguous
    card.
    """
    members = read_object(card, limit=MAX_CARD_BYTES, what="the card")
    added = signatures_over(payloads_of(members), signers, jku)
    if replace:
        members[SIGNATURES] = None
    return with_signatures(card, members, added)


def with_signatures(
    card: bytes, members: Mapping[str, Any], added: Iterable[Mapping[str, str]]
) -> bytes:
    """Return a card with more signatures. ``members`` were read from its JSON."""
    before = members.get(SIGNATURES)
    if before is not None and not isinstance(before, list):
        raise ValueError("the signatures of the card are no list")
    signatures = msgspec.json.encode([*(before or ()), *added])
    if SIGNATURES in members:
        rest = received(members)
        card = msgspec.json.encode(rest)
    text = card.rstrip()
    separator = b"" if text[:-1].rstrip().endswith(b"{") else b","
    return text[:-1] + separator + b'"signatures":' + signatures + b"}"


class CardSigner:
    """Signs the cards of a server with its current keys, and caches the latest results.

    ``url`` is the public address that the operator configured. ``revision`` changes with the keys.
    """

    def __init__(self, keys: SigningKeys, url: str) -> None:
        self._keys = keys
        self.jku = url.rstrip("/") + JWKS_PATH
        self._cached: Bounded[tuple[int, bytes], Any] = Bounded(_MAX_CACHED)
        self._lock = threading.Lock()

    @property
    def revision(self) -> int:
        """A number that changes with the keys."""
        return self._keys.revision

    def sign(self, card: bytes) -> bytes:
        """Return a card in JSON with signatures."""

        def signed() -> bytes:
            return sign_card(card, self._keys.signers, jku=self.jku)

        found: bytes = self._cache(card, signed)
        return found

    def signatures(self, *written: bytes) -> list[dict[str, str]]:
        """Return the signatures of a card for several JSON forms; any of them can be verified."""

        def signed() -> list[dict[str, str]]:
            read = [read_object(each, limit=MAX_CARD_BYTES, what="the card") for each in written]
            return signatures_over(payloads_of(*read), self._keys.signers, self.jku)

        found: list[dict[str, str]] = self._cache(b"\0".join(written), signed)
        return found

    def _cache(self, content: bytes, make: Any) -> Any:
        key = (self.revision, hashlib.sha256(content).digest())
        with self._lock:
            found = self._cached.use(key)
            if found is None:
                found = self._cached[key] = make()
        return found
