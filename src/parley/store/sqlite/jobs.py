"""What is done to a SQLite store alone: each a function that puts itself into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from parley.store.admin.admin import Suspended
from parley.store.head import claimed
from parley.store.sql_engine.jobs import Done
from parley.store.sqlite.batch import SqliteBatch, read_heads
from parley.store.task_store import Claimed, PushRecord, Scope

PRUNED_AT_ONCE = 1_000_000
"""How many bytes one transaction removes, where each row counts 200 beside what it holds: so long
do other writers wait. One record at least, one stored task, or what is kept for one context.
"""

TASKS_AT_ONCE = 50
RECEIPTS_AT_ONCE = 500

_STEPS = (10, 100, 1000, PRUNED_AT_ONCE // 200)
"""How many records are looked at before it is known that there is a need to look at more."""

_LAST_MARK = 2**31 - 1


def claim_batch(batch: SqliteBatch, agent: str, limit: int) -> tuple[list[Claimed], Sequence[Any]]:
    """Claim tasks that nobody holds. The result is which."""
    adopted = []
    [(found,)] = batch.read("claimable", (agent, limit))
    for found_head in read_heads(found):
        head = batch.find(found_head)
        if head.is_unclaimed:
            claim = batch.put_head(claimed(head, head.task_id, batch.replica))
            adopted.append(Claimed(head.task_id, claim.epoch, head.place))
    return adopted, ()


def set_value(
    batch: SqliteBatch, scope: Scope, context_id: str, key: str, value: bytes | None
) -> Done:
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
    """Set or remove a value of a context that is still as expected. The result is whether it was.

    Nobody else writes to the file between this look and the write.
    """
    is_expected = batch.value_of(scope, context_id, key) == expected
    if is_expected:
        batch.set_value(scope, context_id, key, value)
    return is_expected, ()


def move_push(batch: SqliteBatch, task_id: str, push: PushRecord) -> tuple[bool, Sequence[Any]]:
    """Note how far a webhook was told. The result is whether this replica tells it."""
    return batch.move_push(task_id, push), ()


def resume_pushes(batch: SqliteBatch, webhooks: Sequence[Suspended]) -> Done:
    """Have webhooks told again that are suspended, by whoever finds that nobody tells them."""
    for each in webhooks:
        batch.add("resume_push", (each.key, each.id))
    return 0, ()


def claim_pushes(
    batch: SqliteBatch, agent: str, limit: int
) -> tuple[list[tuple[str, bool]], Sequence[Any]]:
    """Take over configurations that nobody holds. The result is whose, and whether behind."""
    found = batch.read("claimable_pushes", (agent, limit))
    for key, task_id, _ in found:
        batch.take_pushes(key, task_id)
    return [(task_id, bool(is_behind)) for _, task_id, is_behind in found], ()


def remove_push(batch: SqliteBatch, task_id: str, push_id: str) -> Done:
    """Remove a push notification configuration."""
    batch.remove_push(task_id, push_id)
    return 0, ()


def prune(
    batch: SqliteBatch, agent: str, ended_before: int, limit: int
) -> tuple[tuple[int, bool], Sequence[Any]]:
    """Remove a piece of what ended, up to ``limit`` tasks. The result is how many, and whether to
    go on.

    A log that is too large for a piece goes slice by slice once its task is gone. Which that is
    stands in the file's ``user_version``, so that it goes on after the process ended meanwhile.
    """
    if batch.is_pruned:  # another piece is in the batch, and what goes with it was not written yet
        return (0, True), ()
    batch.is_pruned = True
    [(cut,)] = batch.read("partial_log", ())
    if cut:
        if not _slice(batch, cut):
            batch.mark(0)
        return (0, True), ()
    values = {"agent": agent, "before": ended_before, "limit": min(limit, TASKS_AT_ONCE)}

    def size_of(key: int, *found: Any) -> int:
        stored, log = found[-2:]
        count, size = msgspec.json.decode(log)
        for before, records in pairwise(_STEPS):
            if count < before or size > PRUNED_AT_ONCE:
                break
            [(count, size)] = batch.read("log_size", {"task": key, "records": records})
        return int(stored + size)

    gone = batch.first("ended", values | {"records": _STEPS[0]}, PRUNED_AT_ONCE, size_of)
    if not gone:
        return (0, False), ()
    for _, *scope, state, _, _ in gone:
        batch.count(Scope(*scope), state, -1)
    keys = msgspec.json.encode([key for key, *_ in gone]).decode()
    for name in ("remove_tasks", "remove_messages", "remove_artifacts", "remove_pushes"):
        batch.add(name, (keys,))
    key = gone[0][0]
    if len(gone) > 1 or key > _LAST_MARK:
        batch.add("remove_logs", (keys,))
    elif _slice(batch, key):
        batch.mark(key)
    return (len(gone), True), ()


def _slice(batch: SqliteBatch, task: int) -> bool:
    """Remove the first part of a log, or all of it. Return whether something is left."""
    for records in _STEPS:
        values = {"task": task, "records": records, "bytes": PRUNED_AT_ONCE}
        if found := batch.read("log_slice", values):
            batch.add("remove_slice", (task, *found[0]))
            return True
    batch.add("remove_logs", (f"[{task}]",))
    return False


def prune_receipts(batch: SqliteBatch, agent: str, before: int) -> Done:
    """Remove old receipts. The result is whether there may be more."""
    [(are_there,)] = batch.read("old_receipts", (agent, before))
    if are_there:
        values = {"agent": agent, "before": before}
        values |= {"records": RECEIPTS_AT_ONCE, "bytes": PRUNED_AT_ONCE}
        batch.add("remove_receipts", values)
    return are_there, ()


def prune_contexts(batch: SqliteBatch, agent: str, before: int) -> Done:
    """Remove idle contexts. The result is whether there may be more."""
    values = {"agent": agent, "before": before, "limit": TASKS_AT_ONCE}
    gone = batch.first("idle_contexts", values, PRUNED_AT_ONCE, lambda _, size: int(size))
    if gone:
        keys = msgspec.json.encode([key for key, _ in gone]).decode()
        batch.add("remove_contexts", (keys, before))
        batch.add("remove_histories", (keys,))
        batch.add("remove_values_of", (keys,))
    return bool(gone), ()
