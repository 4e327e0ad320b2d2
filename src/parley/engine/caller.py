"""Store the caller of a turn in the log, and read it back."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from parley.model.service import ANONYMOUS, Caller, caller_of
from parley.store.events import StoredCaller

log = logging.getLogger("parley.engine")

CLAIM_BYTES = 8192
"""The limit of the JSON of all stored claims of a caller."""


def kept(caller: Caller, names: Collection[str]) -> Caller:
    """Return a caller with only the named claims, as they are read back.

    A claim that is not JSON or too long is dropped with a warning. Of what was granted, only the
    scopes are kept.
    """
    if caller.granted:
        caller = replace(caller, granted={})
    if not caller.claims:
        return caller
    claims: dict[str, object] = {}
    bytes_left = CLAIM_BYTES
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
        if size > bytes_left:
            log.warning(
                "the claim %r of a caller is not kept: all claims have %d bytes as JSON at most",
                name,
                CLAIM_BYTES,
            )
            continue
        bytes_left -= size
        claims[name] = claim
    return replace(caller, claims=claims)


def record_of(caller: Caller) -> StoredCaller | None:
    """Return the record of a caller, ``None`` for an anonymous one."""
    if caller == ANONYMOUS:
        return None
    return StoredCaller(
        id=caller.id,
        issuer=caller.issuer,
        authenticated=caller.authenticated,
        claims=caller.claims,
        client=caller.client,
        actors=caller.actors,
        scopes=tuple(sorted(caller.scopes)),
    )


def caller_in(record: StoredCaller | None, owner: str) -> Caller:
    """Return the caller in a record of a task that belongs to ``owner``.

    Without a record it is the owner, unless that is a group. If an operator has assigned the
    caller's tasks to an issuer since, the caller has that issuer.
    """
    task_owner = caller_of(owner)
    if record is None:
        return task_owner
    issuer = record.issuer
    same = (record.id, record.authenticated) == (task_owner.id, task_owner.authenticated)
    if not issuer and same:
        issuer = task_owner.issuer
    return Caller(
        id=record.id,
        issuer=issuer,
        authenticated=record.authenticated,
        claims=record.claims,
        client=record.client,
        actors=record.actors,
        scopes=frozenset(record.scopes),
    )
