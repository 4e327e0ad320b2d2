"""The audit of a registry: a chain of lines. Each function is called inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from parley.registry.index.session import Session
from parley.store.audit.trail import AuditEntry, AuditLine, line_columns, line_of, lines_after


def append(session: Session, entries: Sequence[AuditEntry], now: int) -> list[AuditLine]:
    """Append entries in order; those whose id is there already are left out."""
    session.rows("lock_acts")
    ids = {"ids": session.texts([each.id for each in entries])}
    known = {id for (id,) in session.rows("known_acts", ids)}
    rows = session.rows("last_act")
    head = (int(rows[0][0]), str(rows[0][1])) if rows else None
    lines = lines_after(head, [each for each in entries if each.id not in known], now)
    for line in lines:
        session.change("add_act", line_columns(line))
    return lines


def read(
    session: Session, after: int, limit: int, kind: str, actor: str, subject: str, newest: bool
) -> list[AuditLine]:
    """Return lines with a number above ``after``, in order; the ``newest`` ones at wish."""
    rows = session.rows(
        "newest_acts" if newest else "acts",
        {"after": after, "limit": limit, "kind": kind, "actor": actor, "subject": subject},
    )
    lines = [line_of(row) for row in rows]
    return lines[::-1] if newest else lines
