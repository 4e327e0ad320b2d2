"""Sources, and claims of their visits. Each function is called inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from parley.registry.index import writing
from parley.registry.index.prepared import MAX_SOURCE_BYTES
from parley.registry.index.session import Session, Values
from parley.registry.index.values import cleaned
from parley.registry.records import Source, SourceState

_SOURCE = msgspec.json.Decoder(Source)


def check(source: Source) -> None:
    """Raise ``ValueError`` for a source that no index can hold."""
    size = len(source.url.encode("utf-8", "replace"))
    if not 0 < size <= MAX_SOURCE_BYTES:
        raise ValueError(
            f"{source.url[:80]!r}: the address of a source has 1 to {MAX_SOURCE_BYTES} bytes, not "
            f"{size}"
        )


def add(session: Session, sources: Sequence[Source]) -> int:
    """Add sources that are not known; return how many."""
    return sum([session.change("add_source", _columns(source)) for source in sources])


def claim(session: Session, limit: int, now: int, until: int, by: str) -> list[Source]:
    """Claim sources that are due, those that wait longest first."""
    rows = session.rows("claim_sources", {"limit": limit, "now": now, "until": until, "by": by})
    found = [_SOURCE.decode(source) for (source,) in rows]
    return sorted(found, key=lambda source: (source.due_at, source.url))


def release(session: Session) -> None:
    """End all claims: there is no other process."""
    session.change("release_sources", {})


def end_visit(session: Session, source: Source, by: str, began: Source | None) -> bool:
    """Store what a visit found; end the claim, if no other process has it. Return whether there is
    the source.

    If its settings are others than when the visit ``began``, they stay, and it is due again. One
    that is only given back, without a visit, stays as the end of its visit left it.
    """
    if began is not None:
        now = at(session, cleaned(source.url))
        if now is not None and source.fetched_at == began.fetched_at != now.fetched_at:
            return True
        if now is not None and _given(now) != _given(began):
            source = msgspec.structs.replace(
                now, state=source.state, reason=source.reason, failures=source.failures,
                entries=source.entries, fetched_at=source.fetched_at,
                etag="", last_modified="", due_at=0,
            )  # fmt: skip
    return session.change("end_visit", {**_columns(source), "by": by}) > 0


def change(session: Session, source: Source) -> None:
    """Store a source, and leave the claim of its visit."""
    session.change("end_visit", {**_columns(source), "by": ""})


def _given(source: Source) -> tuple[object, ...]:
    """Return what others than a visit of a source say of it."""
    return source.kind, source.found_by, source.depth, source.settings


def at(session: Session, url: str) -> Source | None:
    """Return the source at an address."""
    rows = session.rows("source", {"url": url})
    return _SOURCE.decode(rows[0][0]) if rows else None


def find(session: Session, state: SourceState | None, limit: int) -> list[Source]:
    """Return sources by their addresses."""
    if state is None:
        rows = session.rows("sources", {"limit": limit})
    else:
        rows = session.rows("sources_in_state", {"state": state.value, "limit": limit})
    return [_SOURCE.decode(source) for (source,) in rows]


def remove(session: Session, url: str, now: int) -> bool:
    """Remove a source and withdraw its entries; return whether there was one."""
    is_known = session.change("remove_source", {"url": url}) > 0
    if is_known:
        writing.withdraw(session, url, (), "its source was removed", now)
    return is_known


def _columns(source: Source) -> Values:
    document = cleaned(msgspec.to_builtins(source))
    return {
        "url": document["url"],
        "kind": source.kind.value,
        "state": source.state.value,
        "due_at": source.due_at,
        "source": msgspec.json.encode(document),
    }
