"""The caller of a turn: what the log keeps of one, and how one is read back."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from parley.model.service import ANONYMOUS, Caller, caller_of
from parley.store.events import KeptCaller

log = logging.getLogger("parley.engine")

CLAIM_BYTES = 8192
"""How long the JSON of all claims that are kept of a caller may be."""


def kept(caller: Caller, names: Collection[str]) -> Caller:
    """Return a caller with the claims of these names alone, as they can be read back.

    A claim that is no JSON, or is too long, is left out, and the log names it.
    """
    if not caller.claims:
        return caller
    claims: dict[str, object] = {}
    room = CLAIM_BYTES
    for name in names:
        if name not in caller.claims:
            continue
        try:
            value = msgspec.json.encode(caller.claims[name])
            claim = msgspec.json.decode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            log.warning("the claim %r of a caller is not kept: it has no JSON form", name)
            continue
        size = len(name.encode()) + len(value)
        if size > room:
            log.warning(
                "the claim %r of a caller is not kept: all claims have %d bytes as JSON at most",
                name,
                CLAIM_BYTES,
            )
            continue
        room -= size
        claims[name] = claim
    return replace(caller, claims=claims)


def record_of(caller: Caller) -> KeptCaller | None:
    """Return what a record keeps of a caller, nothing of an anonymous one."""
    if caller == ANONYMOUS:
        return None
    return KeptCaller(
        id=caller.id,
        issuer=caller.issuer,
        authenticated=caller.authenticated,
        claims=caller.claims,
    )


def caller_in(record: KeptCaller | None, owner: str) -> Caller:
    """Return the caller that a record keeps, in a task that belongs to ``owner``.

    Without a record it is the owner. One who had no issuer, and whose tasks were assigned to one
    since, has that issuer.
    """
    theirs = caller_of(owner)
    if record is None:
        return theirs
    issuer = record.issuer
    if not issuer and (record.id, record.authenticated) == (theirs.id, theirs.authenticated):
        issuer = theirs.issuer
    return Caller(
        id=record.id, issuer=issuer, authenticated=record.authenticated, claims=record.claims
    )
