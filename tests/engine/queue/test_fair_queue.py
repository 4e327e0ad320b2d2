"""The queue of an agent's tasks is fair to callers, however many tasks one of them has."""

from __future__ import annotations

import heapq
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from parley.engine.capacity import FairQueue
from parley.store.events import Scope

ADA, BOB = Scope("agent", "", "ada"), Scope("agent", "", "bob")


class Served:
    """A queue with its tasks, which are claimed in the order of their keys."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.waiting: list[tuple[int, int, Scope]] = []
        self._number = count()

    def join(self, scope: Scope) -> None:
        key = self.queue.next_key(scope.tenant, scope.owner)
        self.queue.backlog += 1
        heapq.heappush(self.waiting, (key, next(self._number), scope))

    def serve(self) -> Scope:
        key, _, scope = heapq.heappop(self.waiting)
        self.queue.backlog -= 1
        self.queue.advance(key)
        if not self.waiting:
            self.queue.clear()
        return scope


def test_a_caller_with_a_long_queue_delays_another_by_one() -> None:
    served = Served()
    for _ in range(10_000):
        served.join(ADA)
    for _ in range(50):
        assert served.serve() is ADA
    served.join(BOB)
    assert BOB in (served.serve(), served.serve())


CALLERS = [Scope("agent", tenant, owner) for tenant in ("", "t") for owner in ("a", "b", "c")]


@given(st.lists(st.one_of(st.sampled_from(CALLERS), st.none()), max_size=200))
def test_nobody_waits_for_more_than_a_round_a_task(moves: list[Scope | None]) -> None:
    """A caller's k-th queued task waits for at most k tasks of each other caller."""
    served = Served()
    since: list[tuple[Scope, int, dict[Scope, int]]] = []  # joined: whose, its number, seen
    for move in moves:
        if move is not None:
            ahead = sum(scope == move for _, _, scope in served.waiting)
            since.append((move, ahead + 1, {}))
            served.join(move)
        elif served.waiting:
            taken = served.serve()
            first = next(entry for entry in since if entry[0] == taken)
            since.remove(first)
            for _, _, seen in since:
                seen[taken] = seen.get(taken, 0) + 1
            _, number, seen = first
            others = {scope: n for scope, n in seen.items() if scope != taken}
            assert all(n <= number + 1 for n in others.values()), (number, others)


@given(st.lists(st.sampled_from(CALLERS), min_size=1, max_size=60))
def test_a_callers_own_tasks_keep_their_order(callers: list[Scope]) -> None:
    queue = FairQueue()
    last: dict[Scope, int] = {}
    for caller in callers:
        key = queue.next_key(caller.tenant, caller.owner)
        assert key > last.get(caller, 0)
        last[caller] = key


def test_a_replica_that_serves_nobody_learns_where_the_queue_stands() -> None:
    queue = FairQueue()
    for _ in range(5):
        queue.next_key("", "ada")
    queue.restart_at(4000)
    assert queue.next_key("", "bob") == 4000
    assert queue.next_key("", "ada") == 4000
    queue.restart_at(0)  # only what was under way is left
    assert queue.next_key("", "bob") == 4001
    queue.clear()
    assert queue.next_key("", "bob") == 1


def test_callers_without_queued_tasks_are_forgotten() -> None:
    queue = FairQueue()
    for n in range(100_000):
        queue.advance(queue.next_key("", str(n)))
    assert len(queue._last) < 5000
