"""Removes old tasks, receipts, events and contexts from SQLite, a piece at a time.

Each function adds a piece to a batch: the writer does other jobs between two pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from parley.store.protocols.scope import Scope
from parley.store.sql_engine.jobs import Applied
from parley.store.sqlite.batch import SqliteBatch

PRUNED_AT_ONCE = 1_000_000
"""How many bytes one transaction removes, with 200 a row, while other writers wait. It removes one
record at least, one stored task, or one context.
"""

TASKS_AT_ONCE = 50
RECEIPTS_AT_ONCE = 500

_STEPS = (10, 100, 1000, PRUNED_AT_ONCE // 200)
"""How many records of a log are sized at first, and then while there are more."""

_OF_TASKS = (
    "remove_tasks",
    "remove_messages",
    "remove_artifacts",
    "remove_pushes",
    "remove_attempts",
    "remove_waits_of",
)

_LAST_MARK = 2**31 - 1


def prune(
    batch: SqliteBatch, agent: str, ended_before: int, limit: int
) -> tuple[tuple[int, bool], Sequence[Any]]:
    """Remove up to ``limit`` ended tasks. The result is how many, and whether to go on.

    A log that is too large for a piece is removed slice by slice, after its task. The file's
    ``user_version`` has the task's key, so that the next process goes on.
    """
    if batch.has_prune:  # the batch has a piece already, which is not written yet
        return (0, True), ()
    batch.has_prune = True
    [(partial,)] = batch.read("partial_log", ())
    if partial:
        if not _remove_slice(batch, partial):
            batch.mark_partial_log(0)
        return (0, True), ()
    values = {"agent": agent, "before": ended_before, "limit": min(limit, TASKS_AT_ONCE)}

    def size_of(key: int, *found: Any) -> int:
        form_size, log = found[-2:]
        count, size = msgspec.json.decode(log)
        for before, records in pairwise(_STEPS):
            if count < before or size > PRUNED_AT_ONCE:
                break
            [(count, size)] = batch.read("log_size", {"task": key, "records": records})
        return int(form_size + size)

    removed = batch.first_rows("ended", values | {"records": _STEPS[0]}, PRUNED_AT_ONCE, size_of)
    if not removed:
        return (0, False), ()
    for _, *scope, state, _, _ in removed:
        batch.count(Scope(*scope), state, -1)
    keys = msgspec.json.encode([key for key, *_ in removed]).decode()
    for name in _OF_TASKS:
        batch.add(name, (keys,))
    key = removed[0][0]
    if len(removed) > 1 or key > _LAST_MARK:
        batch.add("remove_logs", (keys,))
    elif _remove_slice(batch, key):
        batch.mark_partial_log(key)
    return (len(removed), True), ()


def _remove_slice(batch: SqliteBatch, task: int) -> bool:
    """Remove the first slice of a log, or all of it. Return whether something is left."""
    for records in _STEPS:
        values = {"task": task, "records": records, "bytes": PRUNED_AT_ONCE}
        if found := batch.read("log_slice", values):
            batch.add("remove_slice", (task, *found[0]))
            return True
    batch.add("remove_logs", (f"[{task}]",))
    return False


def prune_receipts(batch: SqliteBatch, agent: str, before: int) -> Applied:
    """Remove old receipts. The result is whether there may be more."""
    [(exist,)] = batch.read("old_receipts", (agent, before))
    if exist:
        values = {"agent": agent, "before": before}
        values |= {"records": RECEIPTS_AT_ONCE, "bytes": PRUNED_AT_ONCE}
        batch.add("remove_receipts", values)
    return exist, ()


def prune_events(batch: SqliteBatch, agent: str, before: int) -> Applied:
    """Remove old events that no task waits for. The result is whether there may be more."""
    [(exist,)] = batch.read("old_events", (agent, before))
    if exist:
        values = {"agent": agent, "before": before}
        values |= {"records": RECEIPTS_AT_ONCE, "bytes": PRUNED_AT_ONCE}
        batch.add("remove_events", values)
    return exist, ()


def prune_contexts(batch: SqliteBatch, agent: str, before: int) -> Applied:
    """Remove idle contexts. The result is whether there may be more."""
    values = {"agent": agent, "before": before, "limit": TASKS_AT_ONCE}
    removed = batch.first_rows("idle_contexts", values, PRUNED_AT_ONCE, lambda _, size: int(size))
    if removed:
        keys = msgspec.json.encode([key for key, _ in removed]).decode()
        batch.add("remove_contexts", (keys, before))
        batch.add("remove_histories", (keys,))
        batch.add("remove_values_of", (keys,))
    return bool(removed), ()
