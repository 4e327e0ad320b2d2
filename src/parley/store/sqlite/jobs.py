"""Operations that only a SQLite store has: each adds a change to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parley.store.head import with_claim
from parley.store.protocols.claims import Claimed
from parley.store.protocols.scope import Scope
from parley.store.protocols.webhooks import DeliveryAttempt, PushRecord, SuspendedWebhook
from parley.store.sql_engine.jobs import Applied
from parley.store.sqlite.batch import SqliteBatch, read_heads


def claim_batch(batch: SqliteBatch, agent: str, limit: int) -> tuple[list[Claimed], Sequence[Any]]:
    """Claim unclaimed tasks. The result is the claims."""
    claims = []
    [(found,)] = batch.read("claimable", (agent, limit))
    for found_head in read_heads(found):
        head = batch.current_head(found_head)
        if head.is_unclaimed:
            claim = batch.put_head(with_claim(head, head.task_id, batch.replica))
            claims.append(Claimed(head.task_id, claim.epoch, head.queue_key))
    return claims, ()


def set_value(
    batch: SqliteBatch, scope: Scope, context_id: str, key: str, value: bytes | None
) -> Applied:
    """Set or remove a value of a context."""
    batch.set_value(scope, context_id, key, value)
    return 0, ()


def compare_and_set(
    batch: SqliteBatch,
    scope: Scope,
    context_id: str,
    key: str,
    expected: bytes | None,
    value: bytes | None,
) -> tuple[bool, Sequence[Any]]:
    """Set or remove a value of a context that still is as expected. The result is whether it is.

    Nobody else writes to the file between this check and the write.
    """
    is_expected = batch.value_of(scope, context_id, key) == expected
    if is_expected:
        batch.set_value(scope, context_id, key, value)
    return is_expected, ()


def save_delivery(
    batch: SqliteBatch, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None
) -> tuple[bool, Sequence[Any]]:
    """Save a webhook's delivery. The result is whether this replica holds the webhook."""
    return batch.save_delivery(task_id, push, attempt), ()


def resume_pushes(batch: SqliteBatch, webhooks: Sequence[SuspendedWebhook]) -> Applied:
    """Resume suspended webhooks; they are unclaimed then."""
    for each in webhooks:
        batch.add("resume_push", (each.key, each.id))
    return 0, ()


def claim_pushes(
    batch: SqliteBatch, agent: str, limit: int
) -> tuple[list[tuple[str, bool]], Sequence[Any]]:
    """Claim unclaimed webhooks. The result is their tasks, and whether there is more to deliver."""
    found = batch.read("claimable_pushes", (agent, limit))
    for key, task_id, _ in found:
        batch.claim_pushes(key, task_id)
    return [(task_id, bool(is_behind)) for _, task_id, is_behind in found], ()


def remove_push(batch: SqliteBatch, task_id: str, push_id: str) -> Applied:
    """Remove a push notification configuration."""
    batch.remove_push(task_id, push_id)
    return 0, ()
