"""What is done to a SQLite store alone: each a function that puts itself into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parley.log.batch import columns
from parley.log.head import claimed
from parley.log.jobs import Done
from parley.log.sqlite_batch import SqliteBatch, read_heads
from parley.log.store import HISTORY_KEPT, Adopted, PushRecord, Scope
from parley.log.upkeep import Suspended

PRUNED_AT_ONCE = 5000
"""How many records one transaction removes, about: so long do other writers wait."""

_OF_A_TASK = (
    "remove_log",
    "remove_messages",
    "remove_artifacts",
    "remove_pushes",
    "remove_task",
)


def adopt(batch: SqliteBatch, agent: str, limit: int) -> tuple[list[Adopted], Sequence[Any]]:
    """Claim tasks that nobody holds. The result is which."""
    adopted = []
    [(found,)] = batch.read("adoptable", (agent, limit))
    for found_head in read_heads(found):
        head = batch.find(found_head)
        if head.is_unclaimed:
            claim = batch.put_head(claimed(head, head.task_id, batch.replica))
            adopted.append(Adopted(head.task_id, claim.epoch, head.place))
    return adopted, ()


def set_value(
    batch: SqliteBatch, scope: Scope, context_id: str, key: str, value: bytes | None
) -> Done:
    """Set or remove a value of a context."""
    context = (*columns(scope), context_id)
    batch.add("touch_context", (*context, 0, batch.at))
    if value is None:
        batch.add("remove_value", (*context, key))
    else:
        batch.add("put_value", (*context, key, value))
    return 0, ()


def move_push(batch: SqliteBatch, task_id: str, push: PushRecord) -> tuple[bool, Sequence[Any]]:
    """Note how far a webhook was told. The result is whether this replica tells it."""
    return batch.move_push(task_id, push), ()


def resume_pushes(batch: SqliteBatch, webhooks: Sequence[Suspended]) -> Done:
    """Have webhooks told again that are suspended, by whoever finds that nobody tells them."""
    for each in webhooks:
        batch.add("resume_push", (each.key, each.id))
    return 0, ()


def adopt_pushes(
    batch: SqliteBatch, agent: str, limit: int
) -> tuple[list[tuple[str, bool]], Sequence[Any]]:
    """Take over configurations that nobody holds. The result is whose, and whether behind."""
    found = batch.read("adoptable_pushes", (agent, limit))
    for key, task_id, _ in found:
        batch.take_pushes(key, task_id)
    return [(task_id, bool(is_behind)) for _, task_id, is_behind in found], ()


def remove_push(batch: SqliteBatch, task_id: str, push_id: str) -> Done:
    """Remove a push notification configuration."""
    batch.remove_push(task_id, push_id)
    return 0, ()


def prune(batch: SqliteBatch, agent: str, ended_before: int, limit: int) -> Done:
    """Remove ended tasks, up to ``limit`` and so many records. The result is how many."""
    count = records = 0
    for key, length, *scope, state in batch.read("ended", (agent, ended_before, limit)):
        if count and records + length > PRUNED_AT_ONCE:
            break
        count += 1
        records += length
        for name in _OF_A_TASK:
            batch.add(name, (key,))
        batch.count(Scope(*scope), state, -1)
    return count, ()


def prune_receipts(batch: SqliteBatch, agent: str, before: int) -> Done:
    """Remove old receipts. The result is whether there may be more."""
    [(count,)] = batch.read("old_receipts", (agent, before, PRUNED_AT_ONCE))
    if count:
        batch.add("remove_receipts", (agent, before, PRUNED_AT_ONCE))
    return count == PRUNED_AT_ONCE, ()


def prune_contexts(batch: SqliteBatch, agent: str, before: int) -> Done:
    """Remove idle contexts. The result is whether there may be more."""
    limit = PRUNED_AT_ONCE // HISTORY_KEPT * 10
    found = batch.read("idle_contexts", (agent, before, limit))
    for (key,) in found:
        batch.add("remove_context", (key, before))
        batch.add("remove_history", (key,))
        batch.add("remove_values", (key,))
    return len(found) == limit, ()
