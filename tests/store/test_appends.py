"""Rules for appends to a log, in every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.model.struct import encode
from parley.model.tasks import TaskArtifactUpdateEvent, TaskState
from parley.store.events import CancelRequested, LoggedEvent, RecordKind, StepResult
from parley.store.fold import Fold, IllegalEvent, fold
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import Conflict, Fenced, StoreUnavailable, TaskEnded
from parley.store.protocols.task_log import PAGE_BYTES, Append
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import (
    SCOPE,
    addition,
    all_events,
    chunk,
    creation,
    left,
    message,
    numbers,
    pieces,
    private_records,
    received,
    status,
    task,
    turn_started,
)
from tests.kit.strategies import value_of

pytestmark = pytest.mark.anyio

WORKING, COMPLETED = TaskState.WORKING, TaskState.COMPLETED


@pytest.mark.L1
async def test_public_events_are_numbered_and_private_ones_hang_on_them(
    store: TaskStore, committed: list[LoggedEvent]
) -> None:
    assert await store.append(creation("t", received("a"), received("b"))) == 1
    assert await store.append(addition("t", 1, turn_started(1), status("t", WORKING))) == 2
    assert await store.append(addition("t", None, received("c"))) == 2
    assert await store.append(addition("t", 2, chunk("t", "x"), chunk("t", "y"))) == 4
    positions = [(r.seq, r.sub, r.kind) for r in committed]
    assert positions == [
        (1, 0, RecordKind.TASK),
        (1, 1, RecordKind.RECEIVED),
        (1, 2, RecordKind.RECEIVED),
        (1, 3, RecordKind.TURN),
        (2, 0, RecordKind.STATUS),
        (2, 1, RecordKind.RECEIVED),
        (3, 0, RecordKind.ARTIFACT),
        (4, 0, RecordKind.ARTIFACT),
    ]
    assert numbers(await all_events(store, "t")) == [1, 2, 3, 4]


async def test_what_is_read_is_what_was_committed(
    store: TaskStore, committed: list[LoggedEvent]
) -> None:
    remembered = StepResult(key="k", value=msgspec.Raw(b'{"a":\n [1]}'))
    await store.append(creation("t", received("a"), remembered, turn_started(1)))
    await store.append(addition("t", 1, status("t", WORKING, "said"), chunk("t", "x"), turn=7))
    public = [r for r in committed if r.sub == 0]
    assert await all_events(store, "t") == public
    private = await private_records(store, "t")
    [value] = [r for r in private if r.kind is RecordKind.REMEMBERED]
    assert private == [
        r if r.kind is not RecordKind.REMEMBERED else value for r in committed if r.sub
    ]
    assert isinstance(value.event, StepResult)
    assert msgspec.json.decode(value.event.value) == {"a": [1]}
    assert [r.turn for r in public] == [1, 7, 7]
    assert [encode(r.event) for r in public] == [r.payload for r in public]


async def test_a_task_is_created_once(store: TaskStore) -> None:
    await store.append(creation("t"))
    with pytest.raises(Conflict) as refusal:
        await store.append(creation("t"))
    assert refusal.value.head == 1
    await store.append(addition("t", 1, status("t", COMPLETED)))
    with pytest.raises(Conflict):
        await store.append(creation("t"))


@pytest.mark.L1
async def test_an_append_at_the_wrong_head_is_refused_whole(
    store: TaskStore, committed: list[LoggedEvent]
) -> None:
    await store.append(creation("t"))
    await store.append(addition("t", 1, chunk("t", "x")))
    for wrong in (1, 3):
        with pytest.raises(Conflict) as refusal:
            await store.append(addition("t", wrong, received("a"), chunk("t", "y")))
        assert refusal.value.head == 2
    assert len(committed) == 2
    assert numbers(await all_events(store, "t")) == [1, 2]


@pytest.mark.parametrize(
    "end", [TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED]
)
@pytest.mark.L3
async def test_nothing_follows_a_terminal_status(store: TaskStore, end: TaskState) -> None:
    await store.append(creation("t", received("a"), received("b")))
    await store.append(addition("t", None, received("c"), CancelRequested()))
    await store.append(addition("t", 1, status("t", end), turn_open=True))
    for late in (
        addition("t", 2, chunk("t", "x")),
        addition("t", 2, status("t", WORKING)),
        addition("t", 2, received("a")),
        addition("t", None, received("a")),
        addition("t", 5, chunk("t", "x"), epoch=9),
    ):
        with pytest.raises(TaskEnded):
            await store.append(late)
    with pytest.raises(TaskEnded):
        await store.claim("t")
    record = await store.load("t")
    assert record is not None
    assert (record.seq, record.waiting, record.turn_open) == (2, 0, False)
    assert await left(store) == ([], 0)


@pytest.mark.parametrize(
    "events",
    [
        (status("t", COMPLETED), chunk("t", "late")),
        (status("t", COMPLETED), received("late")),
        (status("t", COMPLETED), status("t", COMPLETED)),
        (task("t"),),
        (status("t", TaskState.SUBMITTED),),
        (status("t", TaskState.UNSPECIFIED),),
        (chunk("other", "x"),),
    ],
)
async def test_events_that_make_no_task_are_refused_whole(
    store: TaskStore, events: tuple[Any, ...]
) -> None:
    await store.append(creation("t"))
    with pytest.raises(IllegalEvent):
        await store.append(addition("t", 1, chunk("t", "first"), *events))
    assert numbers(await all_events(store, "t")) == [1]
    await store.append(addition("t", 1, status("t", COMPLETED)))


async def test_a_log_does_not_begin_without_its_task(store: TaskStore) -> None:
    for events in ((), (status("t", WORKING),), (task("other"),), (received("a"), task("t"))):
        with pytest.raises(IllegalEvent):
            await store.append(
                Append(task_id="t", events=events, expected_seq=0, turn=1, scope=SCOPE)
            )
    assert await store.load("t") is None


async def test_appends_that_make_no_sense_are_refused_at_once(store: TaskStore) -> None:
    await store.append(creation("t"))
    with pytest.raises(ValueError, match="head"):
        store.append(addition("t", None, chunk("t", "x")))
    with pytest.raises(ValueError, match="scope"):
        store.append(Append(task_id="u", events=[task("u")], expected_seq=0, turn=1))
    with pytest.raises(ValueError, match="surrogates"):
        store.append(creation("u", base_url="\ud800"))
    with pytest.raises(TypeError):
        store.append(addition("t", 1, chunk("t", "x", metadata={"a": object()})))
    await store.append(addition("t", 1, chunk("t", "x")))


@pytest.mark.E1
async def test_a_claim_fences_earlier_executors(store: TaskStore) -> None:
    await store.append(creation("t"))
    assert await store.claim("t") == 2
    assert await store.claim("t") == 3
    for epoch in (1, 2, 4):
        with pytest.raises(Fenced):
            await store.append(addition("t", 1, chunk("t", "x"), epoch=epoch))
    with pytest.raises(Fenced):
        await store.append(addition("t", 9, chunk("t", "x"), epoch=2))
    await store.append(addition("t", None, received("a"), epoch=1))
    assert await store.append(addition("t", 1, chunk("t", "x"), epoch=3)) == 2
    record = await store.load("t")
    assert record is not None
    assert record.epoch == 3


@pytest.mark.E1
async def test_claims_at_once_each_get_an_epoch_of_their_own(store: TaskStore) -> None:
    await store.append(creation("t"))
    epochs = await asyncio.gather(*[store.claim("t") for _ in range(20)])
    assert sorted(epochs) == list(range(2, 22))


@pytest.mark.L1
async def test_of_many_appends_at_one_head_one_gets_in(store: TaskStore) -> None:
    await store.append(creation("t"))
    results = await asyncio.gather(
        *[store.append(addition("t", 1, chunk("t", str(n)))) for n in range(20)],
        return_exceptions=True,
    )
    assert results.count(2) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 19
    assert numbers(await all_events(store, "t")) == [1, 2]


async def test_a_request_to_cancel_is_kept_until_the_end(store: TaskStore) -> None:
    await store.append(creation("t", turn_open=False))
    await store.append(addition("t", None, CancelRequested()))
    assert await left(store) == ([], 1)
    await store.append(addition("t", 1, turn_started(2, "a"), turn=2, turn_open=True))
    assert await left(store) == (["t"], 0)
    await store.append(addition("t", 1, status("t", WORKING), turn=2, turn_open=False))
    record = await store.load("t")
    assert record is not None
    assert record.cancel_requested
    assert await left(store) == ([], 1)
    await store.append(addition("t", 2, status("t", TaskState.CANCELED)))
    assert await left(store) == ([], 0)


@pytest.mark.L4
async def test_a_task_is_the_fold_of_its_log_whatever_snapshots_there_are(store: TaskStore) -> None:
    folding = Fold()
    first = creation("t", received("a"))
    for event in first.events:
        folding.apply(event)
    await store.append(first)
    seq = 1
    for n in range(60):
        events: list[Any] = [chunk("t", f"{n} ", artifact_id=f"a{n % 3}", append=n > 10)]
        if n % 7 == 3:
            events.append(status("t", TaskState.INPUT_REQUIRED, f"question {n}"))
        if n % 7 == 4:
            events[:0] = [turn_started(n, f"answer {n}")]
        if n % 5 == 2:
            events.append(received(str(n)))
        for event in events:
            folding.apply(event)
        pieces = folding.take_unsaved() if n % 9 == 4 else None
        seq = await store.append(addition("t", seq, *events, artifacts=pieces))
        record = await store.load("t")
        assert record is not None
        assert record.task == folding.task
    events = [record.event for record in await all_events(store, "t")]
    assert fold(events).artifacts == folding.task.artifacts


@pytest.mark.L4
async def test_a_snapshot_of_the_end_is_the_task(store: TaskStore) -> None:
    end = status("t", COMPLETED, "done")
    whole = fold([task("t"), chunk("t", "x"), end])
    kept = pieces(task("t"), chunk("t", "x"), end)
    await store.append(creation("t", chunk("t", "x"), end, artifacts=kept))
    record = await store.load("t")
    assert record is not None
    assert (record.task, record.seq) == (whole, 3)


@pytest.mark.L5
async def test_pages_of_events_are_bounded_in_number_and_in_bytes(store: TaskStore) -> None:
    large = "x" * (PAGE_BYTES // 3)
    events = [chunk("t", "small"), *[chunk("t", large) for _ in range(6)], chunk("t", "small")]
    await store.append(creation("t", *events))
    assert numbers(await store.events("t", 0, 2)) == [1, 2]
    assert numbers(await store.events("t", 0, 100)) == [1, 2, 3, 4, 5]
    assert numbers(await store.events("t", 2, 1)) == [3]
    assert numbers(await store.events("t", 5, 100)) == [6, 7, 8]
    assert await store.events("t", 9, 100) == []
    await store.append(addition("t", 9, chunk("t", "x" * (PAGE_BYTES + 1)), chunk("t", "y")))
    assert numbers(await store.events("t", 9, 100)) == [10]


@pytest.mark.slow
@settings(max_examples=10)
@given(updates=st.lists(value_of(TaskArtifactUpdateEvent), min_size=5, max_size=10))
def test_whatever_an_event_holds_comes_back(updates: list[TaskArtifactUpdateEvent]) -> None:
    """Including control characters and separators of any kind."""

    async def check(folder: str) -> None:
        store = SqliteTaskStore(Path(folder) / "t.db", synchronous="NORMAL")
        await store.open(lambda records: None)
        events = [msgspec.structs.replace(update, task_id="t\x1e\n") for update in updates]
        first = task("t\x1e\n")
        await store.append(creation("t\x1e\n", *events, first=first))
        read = await store.events("t\x1e\n", 1, 10)
        assert [record.event for record in read] == events
        record = await store.load("t\x1e\n")
        assert record is not None
        assert record.task == fold([first, *events])
        await store.close()

    with TemporaryDirectory() as folder:
        asyncio.run(check(folder))


@pytest.mark.L2
async def test_nothing_is_told_of_what_was_refused(
    store: TaskStore, committed: list[LoggedEvent]
) -> None:
    await store.append(creation("t"))
    await store.append(addition("t", 1))
    with pytest.raises(Conflict):
        await store.append(addition("t", 4, chunk("t", "x")))
    assert len(committed) == 1


async def test_a_commit_within_a_commit_is_published_after_it() -> None:
    seen: list[str] = []

    def on_commit(records: Sequence[LoggedEvent]) -> None:
        if not seen and records[0].task_id == "t":
            store.append(creation("u"))
        seen.append(records[0].task_id)

    store = MemoryTaskStore()
    await store.open(on_commit)
    await store.append(creation("t"))
    assert seen == ["t", "u"]
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.scope_of("t")


@pytest.mark.L2
async def test_what_was_told_can_be_read(store: TaskStore) -> None:
    """A reader with a hint for n can read n immediately."""
    seen: list[int] = []

    async def look(seq: int) -> None:
        seen.append((await store.events("t", seq - 1, 1))[0].seq)

    async with asyncio.TaskGroup() as group:
        await store.append(creation("t"))
        for n in range(1, 30):
            seq = await store.append(addition("t", n, chunk("t", "x")))
            group.create_task(look(seq))
    assert sorted(seen) == list(range(2, 31))


async def test_a_closed_store_says_so(store: TaskStore) -> None:
    await store.append(creation("t"))
    under_way = store.append(addition("t", 1, chunk("t", "x")))
    await store.close()
    await store.close()
    assert await under_way == 2
    for use in (
        lambda: store.append(addition("t", 2, chunk("t", "x"))),
        lambda: store.load("t"),
        lambda: store.claim("t"),
        lambda: store.keep(SCOPE, "c", exchange=[message("a")]),
        lambda: store.history(SCOPE, "c", 1),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            await use()
