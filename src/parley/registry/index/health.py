"""Probes and heartbeats. Each function is called inside a transaction."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from parley.registry.index import writing
from parley.registry.index.reading import load, observed_from
from parley.registry.index.session import Session
from parley.registry.index.values import (
    HEALTH_FIELD,
    LIVENESS_FIELD,
    OBSERVED_TERMS,
    Term,
    clean,
    term,
)
from parley.registry.records import AgentHealth, IndexedEntry, Liveness, Observed

MAX_DETAILS = 32
MAX_DETAIL = 500

_SILENCE = (Liveness.NONE, Liveness.ALIVE, Liveness.SUSPECT, Liveness.GONE)

SILENT = "its heartbeats stay away"


def check_details(details: Mapping[str, str]) -> None:
    """Raise ``ValueError`` for more details of a heartbeat than are kept."""
    if len(details) > MAX_DETAILS or any(
        len(name) > MAX_DETAIL or len(value) > MAX_DETAIL for name, value in details.items()
    ):
        raise ValueError(
            f"a heartbeat has up to {MAX_DETAILS} details, each a name and a value of up to "
            f"{MAX_DETAIL} characters"
        )


def claim_probes(session: Session, limit: int, now: int, until: int) -> list[IndexedEntry]:
    """Claim entries whose probe is due: until a time, no other process gets them."""
    rows = session.rows("claim_probes", {"limit": limit, "now": now, "until": until})
    return load(session, sorted([key for (key,) in rows]))


def end_probe(session: Session, key: int, observed: Observed, due_at: int) -> None:
    """Store what a probe found. A heartbeat that came in the meantime is not forgotten."""
    if not session.rows("has_entry", {"key": key}):
        return
    before = _observed(session, key)
    if _order(before) > _order(observed):
        observed = msgspec.structs.replace(
            observed,
            last_beat=before.last_beat,
            liveness=before.liveness,
            beat_details=before.beat_details,
        )
        is_silent = observed.liveness in (Liveness.SUSPECT, Liveness.GONE)
        if is_silent and observed.health is AgentHealth.HEALTHY:
            observed = msgspec.structs.replace(observed, health=AgentHealth.DEGRADED, reason=SILENT)
    _put(session, key, before, observed)
    session.change("schedule_probe", {"key": key, "due_at": due_at})


def postpone_probe(session: Session, key: int, due_at: int) -> None:
    """End a claim without a probe."""
    session.change("schedule_probe", {"key": key, "due_at": due_at})


def silence(session: Session, key: int, last_beat: int, liveness: Liveness, probe_at: int) -> bool:
    """Note that heartbeats stay away, and probe the agent by a time; return whether it is so.

    A heartbeat that came since ``last_beat`` counts. Until a probe says more, who is suspect is
    degraded at best, and who is gone unreachable.
    """
    before = _observed(session, key)
    if before.last_beat != last_beat or before.liveness in (liveness, Liveness.GONE):
        return False
    health, reason = before.health, before.reason
    if health is AgentHealth.HEALTHY or liveness is Liveness.GONE:
        health = AgentHealth.UNREACHABLE if liveness is Liveness.GONE else AgentHealth.DEGRADED
        reason = SILENT
    silent = msgspec.structs.replace(before, liveness=liveness, health=health, reason=reason)
    _put(session, key, before, silent)
    session.change("probe_at", {"key": key, "due_at": probe_at})
    return True


def beat(
    session: Session, identifier: str, owner: str, at: int, details: Mapping[str, str]
) -> bool:
    """Note a heartbeat for the entries that a caller owns; return whether there are any."""
    values = {"identifier": clean(identifier), "owner": clean(owner)}
    keys = [key for (key,) in session.rows("keys_of_owner", values)] if owner else []
    for key in keys:
        before = _observed(session, key)
        if at >= (before.last_beat or 0):
            said = {clean(name): clean(value) for name, value in details.items()}
            alive = msgspec.structs.replace(
                before, liveness=Liveness.ALIVE, last_beat=at, beat_details=said
            )
            _put(session, key, before, alive)
            if before.liveness in (Liveness.SUSPECT, Liveness.GONE):
                session.change("probe_at", {"key": key, "due_at": at})
    return bool(keys)


def overdue_beats(session: Session, before: int, limit: int) -> list[IndexedEntry]:
    """Return entries that were not heard of since a time, the longest silent first."""
    rows = session.rows("overdue_beats", {"before": before, "limit": limit})
    return load(session, [key for (key,) in rows])


def _order(observed: Observed) -> tuple[int, int]:
    """Return which of two notes is the later one: of a newer heartbeat, or of a longer silence."""
    return observed.last_beat or 0, _SILENCE.index(observed.liveness)


def _observed(session: Session, key: int) -> Observed:
    """Return what was observed of an entry. Nobody else changes it until the transaction ends."""
    rows = session.rows("observation", {"key": key})
    if not rows:  # there is no row to lock: the first one is stored by one writer at a time
        session.rows("lock_changes")
        rows = session.rows("observation", {"key": key})
    return observed_from(rows[0] if rows else None)


def observed_terms(observed: Observed) -> dict[int, Term]:
    """Return the values by which entries are filtered and counted: what was observed of them."""
    found = [
        term(HEALTH_FIELD, observed.health.value),
        term(LIVENESS_FIELD, observed.liveness.value),
    ]
    return {each.id: each for each in found}


def _put(session: Session, key: int, before: Observed, observed: Observed) -> None:
    stands = (before.health, before.liveness) == (observed.health, observed.liveness)
    if not stands or not before.probes:
        session.rows("lock_changes")  # values are counted by one writer at a time
        known = writing.terms_of(session, [key]).get(key, set()) & OBSERVED_TERMS
        writing.change_terms(session, [(key, known, observed_terms(observed))])
    session.change(
        "put_observation",
        {
            "key": key,
            "observed": msgspec.json.encode(observed),
            "liveness": observed.liveness.value,
            "last_beat": observed.last_beat,
        },
    )
