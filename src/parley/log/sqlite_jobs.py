"""What can be done to a SQLite store: each a function that puts itself into a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from parley.log.events import LoggedEvent
from parley.log.head import advance, claimed, unknown
from parley.log.snapshot import Snapshot
from parley.log.sqlite_batch import Batch, WriterId, columns
from parley.log.store import HISTORY_KEPT, Append, Conflict, PushRecord, Receipt, Scope

PRUNED_AT_ONCE = 5000
"""How many records one transaction removes, about: so long do other writers wait."""

Done = tuple[int, Sequence[LoggedEvent]]


def append(
    batch: Batch,
    append: Append,
    payloads: Sequence[bytes],
    snapshot: Snapshot | None,
    exchange: Sequence[bytes],
) -> Done:
    """Add an append. Its result is the log's new head."""
    expected = append.expected_seq
    if expected is not None and (append.task_id, append.epoch) in batch.broken:
        raise Conflict(append.task_id, expected, None)
    before = batch.head(append.task_id)
    head, records = advance(before, append, payloads, batch.at)
    pushes = {}
    if append.pushes:
        pushes = batch.pushes_with(head, append.pushes, after=head.seq if before else 0)
    batch.check_receipts(head.scope, append.receipts)
    head = batch.put_head(head)
    batch.add_records(head.key, records)
    if snapshot is not None:
        batch.put_snapshot(head, snapshot)
    if append.receipts:
        batch.add_receipts(head.scope, append.receipts)
    if pushes:
        batch.put_pushes(head, pushes, len(append.pushes))
    if exchange:
        batch.add_exchange(head.scope, head.context_id, exchange)
    return head.seq, records


def claim(batch: Batch, task_id: str) -> Done:
    """Give a task a new epoch, which is the result."""
    return batch.put_head(claimed(batch.head(task_id), task_id)).epoch, ()


def keep(
    batch: Batch,
    scope: Scope,
    context_id: str,
    receipts: Sequence[Receipt],
    exchange: Sequence[bytes],
) -> Done:
    """Keep a receipt and an exchange that belong to no task."""
    batch.check_receipts(scope, receipts)
    batch.add_receipts(scope, receipts)
    batch.add_exchange(scope, context_id, exchange)
    return 0, ()


def set_value(batch: Batch, scope: Scope, context_id: str, key: str, value: bytes | None) -> Done:
    """Set or remove a value of a context."""
    context = (*columns(scope), context_id)
    batch.add("touch_context", (*context, 0, batch.at))
    if value is None:
        batch.add("remove_value", (*context, key))
    else:
        batch.add("put_value", (*context, key, value))
    return 0, ()


def put_push(batch: Batch, task_id: str, push: PushRecord) -> tuple[PushRecord, Sequence[Any]]:
    """Keep a push notification configuration. The result is how it is kept."""
    head = batch.head(task_id)
    if head is None:
        raise unknown(task_id)
    pushes = batch.pushes_with(head, (push,), after=head.seq)
    batch.put_pushes(head, pushes, 1)
    return next(reversed(pushes.values())), ()


def move_push(batch: Batch, task_id: str, push: PushRecord) -> Done:
    """Note how far a webhook was told."""
    values = (push.cursor, push.state.value, push.note, task_id, push.id, push.revision)
    batch.add("move_push", values)
    return 0, ()


def remove_push(batch: Batch, task_id: str, push_id: str) -> Done:
    """Remove a push notification configuration."""
    batch.remove_push(task_id, push_id)
    return 0, ()


def prune(batch: Batch, agent: str, ended_before: int, limit: int) -> Done:
    """Remove ended tasks, up to ``limit`` and so many records. The result is how many."""
    count = records = 0
    for key, length in batch.read("ended", (agent, ended_before, limit)):
        if count and records + length > PRUNED_AT_ONCE:
            break
        count += 1
        records += length
        for name in ("remove_log", "remove_snapshot", "remove_pushes", "remove_task"):
            batch.add(name, (key,))
    return count, ()


def prune_receipts(batch: Batch, agent: str, before: int) -> Done:
    """Remove old receipts. The result is whether there may be more."""
    [(count,)] = batch.read("old_receipts", (agent, before, PRUNED_AT_ONCE))
    if count:
        batch.add("remove_receipts", (agent, before, PRUNED_AT_ONCE))
    return count == PRUNED_AT_ONCE, ()


def prune_contexts(batch: Batch, agent: str, before: int) -> Done:
    """Remove idle contexts. The result is whether there may be more."""
    limit = PRUNED_AT_ONCE // HISTORY_KEPT * 10
    found = batch.read("idle_contexts", (agent, before, limit))
    for (key,) in found:
        batch.add("remove_context", (key, before))
        batch.add("remove_history", (key,))
        batch.add("remove_values", (key,))
    return len(found) == limit, ()


def forgive(batch: Batch, writers: Iterable[WriterId]) -> Done:
    """Let writers that were told of a failure write again."""
    batch.broken.difference_update(writers)
    return 0, ()
