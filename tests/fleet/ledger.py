"""The final check: compares the store with the callers' records."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parley import Task, TaskState, TaskStatusUpdateEvent
from parley.model.parts import Role
from parley.model.struct import encode
from parley.store.events import LoggedEvent, RecordKind, Scope
from parley.store.fold import Fold, fold
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.task_log import TaskQuery, TaskRecord
from parley.store.task_store import TaskStore
from tests.fleet.book import Book
from tests.kit.waiting import let_time_pass
from tests.kit.webhooks import Told

SCOPE = Scope(agent="fleet")
REST_SECONDS = 90.0


class Kept:
    """A task from the store: its record, and all its events.

    ``records`` has the events and the beginnings of turns, which put messages into the history.
    """

    def __init__(
        self, record: TaskRecord, events: list[LoggedEvent], turns: Sequence[LoggedEvent]
    ) -> None:
        self.record = record
        self.events = events
        self.records = sorted((*events, *turns), key=lambda each: (each.seq, each.sub))
        self.task = record.task

    @property
    def wire(self) -> list[tuple[int, Any]]:
        """The events with their numbers, as a stream sends them."""
        return [(each.seq, spoken(each.event)) for each in self.events]

    @property
    def said(self) -> list[str]:
        """The caller's messages, in order."""
        return [m.text for m in self.task.history if m.role is Role.USER]

    @property
    def skill(self) -> str:
        """The skill of the first message."""
        return str((self.task.history[0].metadata or {})["skill"])

    @property
    def attempts(self) -> int:
        """The number of attempts of its function."""
        return sum(each.kind is RecordKind.TURN for each in self.records)

    @property
    def is_at_rest(self) -> bool:
        """Whether no work is left and no replica holds a lease."""
        working = self.task.state in (TaskState.SUBMITTED, TaskState.WORKING)
        return not (
            working or self.record.turn_open or self.record.waiting or self.record.lease_owner
        )


def spoken(event: Any) -> Any:
    """Return an event as its stream sends it."""
    name = {
        "Task": "task",
        "TaskStatusUpdateEvent": "statusUpdate",
        "TaskArtifactUpdateEvent": "artifactUpdate",
    }[type(event).__name__]
    return {name: json.loads(encode(event))}


async def all_ids(store: TaskStore) -> list[str]:
    """Return the ids of all tasks of the fleet's agent."""
    ids: list[str] = []
    before = None
    while True:
        page = await store.list(TaskQuery(scope=SCOPE, before=before, limit=100))
        ids += [task.id for task in page.tasks]
        if not page.more:
            assert len(ids) == len(set(ids)) == (await store.list(TaskQuery(scope=SCOPE))).total
            return ids
        last = page.tasks[-1]
        assert last.status.timestamp is not None
        before = (int(last.status.timestamp.timestamp() * 1000), last.id)


async def kept(store: TaskStore, task_id: str) -> Kept:
    """Read a task from the store."""
    record = await store.load(task_id)
    assert record is not None, f"task {task_id} is gone"
    events: list[LoggedEvent] = []
    while page := await store.events(task_id, len(events), 500):
        events += page
    return Kept(record, events, await store.private_records(task_id, [RecordKind.TURN]))


async def at_rest(store: TaskStore, logs: Callable[[], str]) -> dict[str, Kept]:
    """Wait until no work is left, and return all tasks."""
    unrest: list[Kept] = []
    try:
        async with asyncio.timeout(REST_SECONDS):
            while True:
                try:
                    tasks = {id: await kept(store, id) for id in await all_ids(store)}
                except StoreUnavailable:
                    await let_time_pass(0.5)
                    continue
                unrest = [each for each in tasks.values() if not each.is_at_rest]
                if not unrest:
                    return tasks
                await let_time_pass(0.25)
    except TimeoutError:
        told = "\n".join(
            f"{k.task.id} {k.skill} {k.task.state} open={k.record.turn_open} "
            f"waiting={k.record.waiting} holder={k.record.lease_owner!r} seq={k.record.seq}"
            for k in unrest
        )
        raise AssertionError(f"left undone:\n{told}\n{logs()}") from None


def check_log(kept: Kept) -> None:
    """Check that a log has no gap, begins with its task and has one end, and that the task is its
    fold."""
    task, events = kept.task, kept.events
    assert [e.seq for e in events] == list(range(1, len(events) + 1)), task.id
    assert kept.record.seq == len(events), task.id
    assert [isinstance(e.event, Task) for e in events] == [True] + [False] * (len(events) - 1)
    statuses = [e.event.status.state for e in events if isinstance(e.event, TaskStatusUpdateEvent)]
    ends = [state for state in statuses if state.is_terminal]
    assert len(ends) == 1, (task.id, statuses)
    assert statuses[-1].is_terminal
    assert isinstance(events[-1].event, TaskStatusUpdateEvent), (task.id, "event after its end")
    assert task == fold(e.event for e in kept.records), task.id


def check_outcome(kept: Kept) -> None:
    """Check a task's result against its skill and the caller's messages."""
    task, first = kept.task, kept.said[0]
    text = "".join(artifact.text for artifact in task.artifacts)
    status = task.status.message.text if task.status.message else ""
    expected: dict[str, Callable[[], tuple[TaskState, str]]] = {
        "report": lambda: (TaskState.COMPLETED, numbers(int(first.split()[0]))),
        "steps": lambda: (TaskState.COMPLETED, numbers(int(first)).strip()),
        "quick": lambda: (TaskState.COMPLETED, "done"),
        "chat": lambda: (TaskState.COMPLETED, " ".join(kept.said[1:])),
        "inbox": lambda: (TaskState.COMPLETED, " ".join(kept.said[1:-1])),
        "slow": lambda: (TaskState.COMPLETED, "slow"),
        "flood": lambda: (TaskState.COMPLETED, flooded(*map(int, first.split()))),
        "fail": lambda: (TaskState.FAILED, ""),
        "crash": lambda: (TaskState.FAILED, ""),
        "forever": lambda: (TaskState.CANCELED, ""),
    }
    state, said = expected[kept.skill]()
    assert (task.state, text) == (state, said), (task.id, kept.skill, status)
    if kept.skill == "fail":
        assert status == "it does not go"
    assert "hunter2" not in status


def numbers(count: int) -> str:
    """Return the whole output of ``report``."""
    return "".join(f"{n} " for n in range(count))


def flooded(count: int, size: int) -> str:
    """Return the whole output of ``flood``."""
    return "".join(f"{n} ".ljust(size, ".") for n in range(count))


def check_book(tasks: dict[str, Kept], book: Book) -> None:
    """Check that the callers' records equal the content of the store."""
    for read in book.reads:
        stored = tasks[read.task_id].wire[read.after :]
        seen = [
            (number, event if isinstance(event, dict) else spoken(event))
            for number, event in read.numbered
        ]
        assert [n for n, _ in seen] == [n for n, _ in stored], (read.who, read.task_id)
        assert seen == stored, (read.who, read.task_id)
    for answer in book.answers:
        stored_task = tasks[answer.id].task
        assert answer == stored_task, answer.id
    for looks in book.looks:
        check_looks(tasks[looks[0].id], looks)
    for task_id, texts in book.said.items():
        assert tasks[task_id].said == texts, task_id


def check_looks(kept: Kept, looks: list[Task]) -> None:
    """Check that each snapshot was a real state of the task, and that snapshots never went back."""
    folding = Fold()
    shown = iter(looks)
    wanted = next(shown)
    for record in kept.records:
        folding.apply(record.event)
        while (wanted.status, wanted.artifacts) == (folding.task.status, folding.task.artifacts):
            following = next(shown, None)
            if following is None:
                return
            wanted = following
    raise AssertionError(f"a look at {kept.task.id} shows what was not, or no longer: {wanted}")


def check_acts(tasks: dict[str, Kept], acts: Path) -> None:
    """Check that every act was done, and repeated only where a fault prevented its log entry.

    An attempt repeats the last act of the previous attempt if the act is not in the log: at most
    one repeat for each attempt but the last.
    """
    done = Counter(acts.read_text().splitlines() if acts.exists() else ())
    stepping = [kept for kept in tasks.values() if kept.skill == "steps"]
    wanted = {f"{kept.task.id} {n}" for kept in stepping for n in range(int(kept.said[0]))}
    assert set(done) == wanted
    again: Counter[str] = Counter()
    for what, times in done.items():
        again[what.split()[0]] += times - 1
    for kept in stepping:
        assert again[kept.task.id] < kept.attempts, (kept.task.id, done)


def check_webhooks(tasks: dict[str, Kept], book: Book, told: list[Told]) -> None:
    """Check that webhooks received every event in order, with unchanged repeats."""
    by_path: dict[str, list[Told]] = {}
    for each in told:
        by_path.setdefault(each.path, []).append(each)
    for task_id, path in book.hooked.items():
        heard = by_path.get(path, [])
        first: dict[int, Any] = {}
        for each in heard:
            assert first.setdefault(each.number, each.json) == each.json, (task_id, each.number)
        wanted = tasks[task_id].wire
        assert list(first) == [number for number, _ in wanted], f"a webhook of {task_id}"
        assert list(first.items()) == wanted, f"a webhook of {task_id}"


def has_heard_all(tasks: dict[str, Kept], book: Book, told: list[Told]) -> bool:
    """Return whether every webhook received the last event of its task."""
    heard = {(each.path, each.number) for each in told}
    return all((path, tasks[id].record.seq) in heard for id, path in book.hooked.items())
