"""Entries as they are stored, and the versions of their cards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from parley.registry.index.protocol import Viewer
from parley.registry.index.session import Row, Session
from parley.registry.records import (
    CardVersion,
    EntryDraft,
    EntryStanding,
    IndexedEntry,
    Liveness,
    Observed,
    Trust,
)

_DOCUMENT = msgspec.json.Decoder(EntryDraft)
_OBSERVED = msgspec.json.Decoder(Observed)
_DIFFERENCE = msgspec.json.Decoder(tuple[dict[str, Any], ...])

SHADOWED_REASON = "another source, stronger or older, lists the same identifier"


def load(session: Session, keys: Sequence[int]) -> list[IndexedEntry]:
    """Return entries in the order of their keys in ``keys``; those that are gone are left out."""
    if not keys:
        return []
    rows = session.rows("entries", {"keys": session.keys(list(dict.fromkeys(keys)))})
    found = {int(row[0]): _entry(row) for row in rows}
    return [found[key] for key in keys if key in found]


def listed(session: Session, identifier: str, viewer: Viewer) -> IndexedEntry | None:
    """Return the entry of an identifier that a viewer may see."""
    rows = session.rows("keys_of_identifier", {"identifier": identifier})
    entries = load(session, [rows[0][0]]) if rows else []
    for entry in entries:
        if viewer.sees_all:
            return entry
        is_seen = not entry.audience or not set(entry.audience).isdisjoint(viewer.tokens)
        if entry.standing is EntryStanding.LISTED and is_seen:
            return entry
    return None


def entries_of(session: Session, identifier: str) -> list[IndexedEntry]:
    """Return the entries of an identifier: the listed one first, then by authority and age."""
    rows = session.rows("keys_of_identifier", {"identifier": identifier})
    return load(session, [key for (key,) in rows])


def versions(session: Session, identifier: str, limit: int) -> list[CardVersion]:
    """Return the versions of the card of the strongest entry, the newest first."""
    keys = session.rows("keys_of_identifier", {"identifier": identifier})
    if not keys:
        return []
    rows = session.rows("versions", {"key": keys[0][0], "limit": limit})
    return [
        CardVersion(
            digest=digest,
            seen_at=seen_at,
            version=version,
            difference=_DIFFERENCE.decode(changes),
            card=bytes(card),
        )
        for digest, seen_at, version, changes, card in rows
    ]


def changes(session: Session, after: int, limit: int) -> list[IndexedEntry]:
    """Return entries by the number of their last change."""
    rows = session.rows("changed_keys", {"after": after, "limit": limit})
    return load(session, [key for (key,) in rows])


def observed_from(row: Row | None) -> Observed:
    """Return what was observed: its JSON, liveness and last heartbeat."""
    if row is None or row[0] is None:
        return Observed()
    observed, liveness, last_beat = row
    return msgspec.structs.replace(
        _OBSERVED.decode(observed), liveness=Liveness(liveness), last_beat=last_beat
    )


def _entry(row: Row) -> IndexedEntry:
    (
        key,
        standing,
        reason,
        trust,
        card_digest,
        created_at,
        updated_at,
        seen_at,
        revision,
        change,
        document,
        card,
        *observed,
    ) = row
    draft = msgspec.structs.asdict(_DOCUMENT.decode(document))
    if standing == EntryStanding.SHADOWED.value and not reason:
        reason = SHADOWED_REASON
    return IndexedEntry(
        **{
            **draft,
            "standing": EntryStanding(standing),
            "reason": reason,
            "trust": Trust(trust),
            "card": None if card is None else bytes(card),
            "card_digest": card_digest,
        },
        key=key,
        created_at=created_at,
        updated_at=updated_at,
        seen_at=seen_at,
        revision=revision,
        change=change,
        observed=observed_from(tuple(observed)),
    )
