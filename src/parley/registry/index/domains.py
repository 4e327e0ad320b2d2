"""Challenges and claims of domains. Each function is called inside a transaction."""

from __future__ import annotations

import msgspec

from parley.registry.index.session import Session
from parley.registry.records import DomainClaim

KEPT_MS = 24 * 3_600_000
"""How long a challenge is kept after its end, to say that it has ended."""


def put_challenge(
    session: Session, domain: str, owner: str, token: str, expires_at: int, now: int
) -> None:
    """Store a token; remove those that ended long ago."""
    session.change("prune_challenges", {"before": now - KEPT_MS})
    session.change(
        "put_challenge",
        {"domain": domain, "owner": owner, "token": token, "expires_at": expires_at},
    )


def challenge(session: Session, domain: str, owner: str) -> tuple[str, int] | None:
    """Return a token and when it expires."""
    rows = session.rows("challenge", {"domain": domain, "owner": owner})
    return (rows[0][0], rows[0][1]) if rows else None


def remove_challenge(session: Session, domain: str, owner: str) -> None:
    """Remove a challenge: its token was shown."""
    session.change("remove_challenge", {"domain": domain, "owner": owner})


def put_claim(session: Session, claim: DomainClaim, due_at: int) -> None:
    """Note that a caller proved a domain, and when its proof is looked for again."""
    session.change("put_claim", {**msgspec.structs.asdict(claim), "due_at": due_at})


def claims(session: Session, owner: str) -> dict[str, int]:
    """Return the domains of a caller, and until when."""
    return {domain: until for domain, until in session.rows("claims", {"owner": owner})}


def claim_proofs(session: Session, limit: int, now: int, until: int) -> list[DomainClaim]:
    """Return claims whose proof is due: until a time, no other process gets them."""
    rows = session.rows("claim_proofs", {"limit": limit, "now": now, "until": until})
    return [DomainClaim(*row) for row in rows]


def schedule_proof(session: Session, domain: str, owner: str, due_at: int) -> None:
    """Say when the proof of a claim is looked for again."""
    session.change("schedule_proof", {"domain": domain, "owner": owner, "due_at": due_at})


def remove_claim(session: Session, domain: str, owner: str) -> bool:
    """Remove a claim; return whether there was one."""
    return session.change("remove_claim", {"domain": domain, "owner": owner}) > 0
