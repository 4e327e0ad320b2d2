"""What is done to a database of logs: each a function that puts itself into a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parley.store.events import LoggedEvent
from parley.store.head import Payload, advance, claimed, unknown
from parley.store.sql_engine.batch import Batch, WriterId
from parley.store.task_store import Append, Conflict, PushRecord, Receipt, Scope

Done = tuple[int, Sequence[LoggedEvent]]


def append(batch: Batch, append: Append, payload: Payload) -> Done:
    """Add an append. Its result is the log's new head."""
    expected = append.expected_seq
    if expected is not None and (append.task_id, append.epoch) in batch.broken:
        raise Conflict(append.task_id, expected, None)
    before = batch.head(append.task_id)
    head, records = advance(before, append, payload, batch.at, batch.replica)
    pushes = {}
    if append.pushes:
        pushes = batch.pushes_with(head, append.pushes, after=head.seq if before else 0)
    batch.check_receipts(head.scope, append.receipts)
    head = batch.put_head(head)
    batch.add_records(head.key, records)
    batch.add_pieces(head, payload)
    if append.receipts:
        batch.add_receipts(head.scope, append.receipts, head.key)
    if pushes:
        batch.put_pushes(head, pushes, len(append.pushes))
    if payload.exchange:
        batch.add_exchange(head.scope, head.context_id, payload.exchange, head.key)
    return head.seq, records


def claim(batch: Batch, task_id: str) -> Done:
    """Give a task to this replica, with a new epoch, which is the result."""
    return batch.put_head(claimed(batch.head(task_id), task_id, batch.replica)).epoch, ()


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


def put_push(
    batch: Batch, task_id: str, push: PushRecord
) -> tuple[PushRecord, Sequence[LoggedEvent]]:
    """Keep a push notification configuration. The result is how it is kept."""
    head = batch.head(task_id)
    if head is None:
        raise unknown(task_id)
    pushes = batch.pushes_with(head, (push,), after=head.seq)
    batch.put_pushes(head, pushes, 1)
    return next(reversed(pushes.values())), ()


def forgive(batch: Batch, writers: Iterable[WriterId]) -> Done:
    """Let writers that were told of a failure write again."""
    batch.broken.difference_update(writers)
    return 0, ()
