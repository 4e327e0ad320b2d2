"""Drafts prepared for storage: encoded and digested, with values in the form that searches compare:
case-insensitive, as numbers, as times.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any

import msgspec

from parley.registry.catalog.entries import A2A_CARD_TYPES, MAX_URN
from parley.registry.records import AUTHORITIES, EntryDraft, EntryStanding, Trust

MAX_FIELD = 200
MAX_VALUE = 1_000
MAX_VALUES = 2_000
"""The most values of an entry that are indexed, each with a limited length."""

HEALTH_FIELD = "observed.health"
LIVENESS_FIELD = "observed.liveness"
"""The field of an agent's liveness; no draft changes its value."""

_NUMBER = re.compile(r"[+-]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,3})?")
_NUL = "\x00"


class Term(msgspec.Struct, frozen=True):
    """An indexed value of a field path."""

    id: int
    field: str
    value: str
    normalized: str
    number: float | None
    instant: int | None


def clean(text: str) -> str:
    """Return a text that every database can store: without NUL and unpaired surrogates."""
    if text.isascii():
        return text.replace(_NUL, "\ufffd") if _NUL in text else text
    return text.encode("utf-8", "replace").decode().replace(_NUL, "\ufffd")


def cleaned(value: Any) -> Any:
    """Return JSON values with texts that every database can store."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name): cleaned(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def normalized(value: str) -> str:
    """Return a value in the form for comparisons: without differences of case, width and spaces."""
    value = clean(value[:MAX_VALUE])
    if not value.isascii():
        value = unicodedata.normalize("NFKC", value)
    return " ".join(value.casefold().split())


def term_id(field: str, normal: str) -> int:
    """Return the id of a normalized value of a field path."""
    digest = blake2b(f"{field}\n{normal}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@lru_cache(maxsize=1 << 14)
def term(field: str, value: str) -> Term:
    """Return a value of a field path in its indexed form."""
    field = clean(field[:MAX_FIELD])
    normal = normalized(value)
    number = number_in(normal)
    return Term(
        term_id(field, normal),
        field,
        clean(value[:MAX_VALUE]),
        normal,
        number,
        instant_in(normal) if number is None else None,
    )


def number_in(text: str) -> float | None:
    """Return a text as a number, or ``None``."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def instant_in(text: str) -> int | None:
    """Return an ISO 8601 text (UTC by default) as a time in ms since 1970, or ``None``."""
    if not text[:4].isdigit() or len(text) > 40 or len(text) < 8:
        return None
    try:
        time = datetime.fromisoformat(text.upper())
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return round(time.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


MAX_SOURCE_BYTES = 2_000
MAX_AUDIENCE = 1_000
MAX_TOKEN = 500
ORDERED_BY = 200
"""The number of characters of a value that determine its position in an order."""

_FOUND_OUT = ("registry.", "observed.")
"""Prefixes of the paths of the registry's own findings: a publisher cannot set them."""

_ENCODER = msgspec.json.Encoder()
_CANONICAL = msgspec.json.Encoder(order="deterministic")


class Prepared(msgspec.Struct, frozen=True):
    """A draft with the values of its rows."""

    draft: EntryDraft
    place: bytes
    digest: bytes
    document: bytes
    standing: EntryStanding
    reason: str
    card_digest: str

    @property
    def is_probed(self) -> bool:
        """Return whether it is an agent that can be probed."""
        return self.draft.type in A2A_CARD_TYPES

    def columns(self) -> dict[str, object]:
        """Return the columns that depend on the draft only."""
        draft = self.draft
        return {
            "place": self.place,
            "identifier": draft.identifier,
            "source": draft.source,
            "authority": AUTHORITIES.index(draft.authority),
            "trust": draft.trust.value,
            "owner": draft.owner,
            "is_probed": self.is_probed,
            "digest": self.digest,
            "card_digest": self.card_digest,
        }


def prepare(draft: EntryDraft) -> Prepared:
    """Prepare a draft. Raises ``ValueError`` for a draft that no index can store."""
    _check(draft)
    card, standing, reason = draft.card, draft.standing, draft.reason
    draft = _cleaned(msgspec.structs.replace(draft, card=None))
    if standing is EntryStanding.SHADOWED:
        standing = EntryStanding.LISTED
    if standing is EntryStanding.LISTED and draft.trust is Trust.FAILED:
        standing = EntryStanding.REJECTED
        reason = draft.trust_reason or "a signature is invalid"
    document = _ENCODER.encode(draft)
    digest = blake2b(_CANONICAL.encode(draft), digest_size=16)
    digest.update(card or b"")
    return Prepared(
        draft=draft,
        place=place_of(draft.identifier, draft.source),
        digest=digest.digest(),
        document=document,
        standing=standing,
        reason=clean(reason),
        card_digest="" if card is None else draft.card_digest or digest_of(card),
    )


def digest_of(raw: bytes) -> str:
    """Return the digest of a card, as a registry stores it."""
    return f"sha256:{sha256(raw).hexdigest()}"


def place_of(identifier: str, source: str) -> bytes:
    """Return a digest of an identifier and a source, short enough for an index of any database."""
    return blake2b(f"{identifier}\n{source}".encode(), digest_size=16).digest()


def _check(draft: EntryDraft) -> None:
    if not draft.identifier or len(draft.identifier) > MAX_URN:
        raise ValueError(
            f"{draft.identifier[:80]!r}: an identifier must have 1 to {MAX_URN} characters, not "
            f"{len(draft.identifier)}"
        )
    size = len(draft.source.encode("utf-8", "replace"))
    if not 0 < size <= MAX_SOURCE_BYTES:
        raise ValueError(
            f"{draft.identifier}: the address of a source must have 1 to {MAX_SOURCE_BYTES} "
            "bytes, not "
            f"{size}"
        )
    tokens = draft.audience
    if len(tokens) > MAX_AUDIENCE or any(len(token) > MAX_TOKEN for token in tokens):
        raise ValueError(
            f"{draft.identifier}: an audience may have up to {MAX_AUDIENCE} tokens of up to "
            f"{MAX_TOKEN} "
            "characters"
        )


def _cleaned(draft: EntryDraft) -> EntryDraft:
    """Return a draft whose texts every database can store."""
    changed = {
        name: clean(value)
        for name in draft.__struct_fields__
        if type(value := getattr(draft, name)) is str and clean(value) != value
    }
    audience = tuple(clean(token) for token in draft.audience)
    if changed or audience != draft.audience:
        draft = msgspec.structs.replace(draft, **changed, audience=audience)
    try:
        _ENCODER.encode(draft)
    except UnicodeEncodeError:
        draft = msgspec.structs.replace(
            draft,
            entry=cleaned(dict(draft.entry)),
            fields=cleaned(dict(draft.fields)),
            texts=cleaned(dict(draft.texts)),
            marks=tuple(clean(mark) for mark in draft.marks),
        )
    return draft


def list_columns(draft: EntryDraft) -> dict[str, object]:
    """Return the columns by which entries are ordered, and whether they are public."""
    return {
        "identifier": draft.identifier,
        "publisher": draft.publisher[:300],
        "name": normalized(str(draft.entry.get("displayName", "")))[:ORDERED_BY],
        "type": draft.type[:ORDERED_BY],
        "version": draft.version[:ORDERED_BY],
        "is_public": not draft.audience,
    }


def terms_of(draft: EntryDraft) -> dict[int, Term]:
    """Return the values of a draft by their ids."""
    fields: dict[str, Sequence[str]] = {
        "identifier": (draft.identifier,),
        "displayName": (str(draft.entry.get("displayName", "")),),
        "publisher": (draft.publisher,),
        "type": (draft.type,),
        "version": (draft.version,),
        "registry.trust": (draft.trust.value,),
        "registry.marks": draft.marks,
        **{path: draft.fields[path] for path in draft.fields if not path.startswith(_FOUND_OUT)},
    }
    terms: dict[int, Term] = {}
    for field, values in fields.items():
        for value in values:
            if value and len(terms) < MAX_VALUES:
                found = term(field, value)
                terms.setdefault(found.id, found)
    return terms
