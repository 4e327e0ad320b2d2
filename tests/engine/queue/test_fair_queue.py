"""The queue of an agent's tasks is fair to callers, even if one caller has many tasks."""

from __future__ import annotations

from parley.engine.capacity import FairQueue
from parley.store.events import Scope

ADA, BOB = Scope("agent", "", "ada"), Scope("agent", "", "bob")


def test_a_replica_that_serves_nobody_learns_where_the_queue_stands() -> None:
    queue = FairQueue()
    for _ in range(5):
        queue.next_key("", "ada")
    queue.restart_at(4000)
    assert queue.next_key("", "bob") == 4000
    assert queue.next_key("", "ada") == 4000
    queue.restart_at(0)  # only tasks in progress remain
    assert queue.next_key("", "bob") == 4001
    queue.clear()
    assert queue.next_key("", "bob") == 1


def test_callers_without_queued_tasks_are_forgotten() -> None:
    queue = FairQueue()
    for n in range(100_000):
        queue.advance(queue.next_key("", str(n)))
    assert len(queue._last) < 5000
