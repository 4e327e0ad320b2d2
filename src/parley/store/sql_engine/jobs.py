"""Operations that every SQL store has: each adds a change to a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parley.store.events import LoggedEvent
from parley.store.head import Payload, advance, unknown, with_claim, with_event
from parley.store.protocols.contexts import Receipt
from parley.store.protocols.errors import Conflict
from parley.store.protocols.scope import Scope
from parley.store.protocols.task_log import Append
from parley.store.protocols.webhooks import PushRecord
from parley.store.sql_engine.batch import Batch, WriterId

Applied = tuple[int, Sequence[LoggedEvent]]
"""The result of an operation, and the records to publish."""


def append(batch: Batch, append: Append, payload: Payload) -> Applied:
    """Append records. The result is the log's new head."""
    expected = append.expected_seq
    if expected is not None and (append.task_id, append.epoch) in batch.failed_writers:
        raise Conflict(append.task_id, expected, None)
    before = batch.head(append.task_id)
    head, records = advance(before, append, payload, batch.at, batch.replica)
    pushes = {}
    if append.pushes:
        pushes = batch.pushes_with(head, append.pushes, after=head.seq if before else 0)
    if append.receipts:
        batch.check_receipts(head.scope, append.receipts)
    if head.wakes_at is not None and batch.is_complete(head.scope.agent, append.waits_for):
        head = with_event(head)
    head = batch.put_head(head)
    if append.wakes_at is not None:
        batch.set_waits(head, append.waits_for)
    batch.add_records(head.key, records)
    batch.add_stored_form(head, payload)
    if append.receipts:
        batch.add_receipts(head.scope, append.receipts, head.key)
    if pushes:
        batch.put_pushes(head, pushes, len(append.pushes))
    if payload.exchange:
        batch.add_exchange(head.scope, head.context_id, payload.exchange, head.key)
    return head.seq, records


def claim(batch: Batch, task_id: str) -> Applied:
    """Claim a task for this replica. The result is the new epoch."""
    return batch.put_head(with_claim(batch.head(task_id), task_id, batch.replica)).epoch, ()


def keep(
    batch: Batch,
    scope: Scope,
    context_id: str,
    receipts: Sequence[Receipt],
    exchange: Sequence[bytes],
) -> Applied:
    """Store receipts and an exchange of messages that belong to no task."""
    batch.check_receipts(scope, receipts)
    batch.add_receipts(scope, receipts)
    batch.add_exchange(scope, context_id, exchange)
    return 0, ()


def put_push(
    batch: Batch, task_id: str, push: PushRecord
) -> tuple[PushRecord, Sequence[LoggedEvent]]:
    """Store a push notification configuration. The result is the stored one."""
    head = batch.head(task_id)
    if head is None:
        raise unknown(task_id)
    pushes = batch.pushes_with(head, (push,), after=head.seq)
    batch.put_pushes(head, pushes, 1)
    return next(reversed(pushes.values())), ()


def clear_failures(batch: Batch, writers: Iterable[WriterId]) -> Applied:
    """Let writers that got their error write again."""
    batch.failed_writers.difference_update(writers)
    return 0, ()
