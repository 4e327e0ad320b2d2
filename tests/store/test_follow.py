"""Following a log: every event once, in order, without delays between readers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

import pytest

from parley.model.tasks import TaskState
from parley.store.bus.subscriptions import BUFFER_BYTES, BUFFER_RECORDS, LocalHints
from parley.store.events import LoggedEvent
from parley.store.follow import PAGE, Gap, TaskGone, follow
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.task_log import PAGE_BYTES
from parley.store.task_store import TaskStore
from tests.kit.records import addition, chunk, creation, numbers, received, status

pytestmark = pytest.mark.anyio


COMPLETED = TaskState.COMPLETED


async def collect(
    store: TaskStore, hints: LocalHints, after: int = 0, *, poll: float = 60.0, pause: int = 0
) -> list[int]:
    """Follow to the end; yield to the loop a number of times between batches."""
    found: list[int] = []
    async with (
        asyncio.timeout(20),
        aclosing(follow(store, hints, "t", after, poll=poll)) as batches,
    ):
        async for events in batches:
            assert events
            found += numbers(events)
            for _ in range(pause):
                await asyncio.sleep(0)
    return found


async def write(store: TaskStore, count: int, *, each: int = 1, seq: int = 1) -> int:
    """Append chunks and then the end; return its number."""
    while seq < count:
        events = [chunk("t", "x") for _ in range(each)]
        seq = await store.append(addition("t", seq, *events))
        if seq % 7 == 0:
            await store.append(addition("t", None, received("a")))
        await asyncio.sleep(0)
    return await store.append(addition("t", seq, status("t", COMPLETED)))


@pytest.mark.parametrize("after", [0, 1, 7, 29, 30])
@pytest.mark.L6
async def test_a_finished_task_is_replayed_from_anywhere(
    store: TaskStore, hints: LocalHints, after: int
) -> None:
    chunks = [chunk("t", "x") for _ in range(28)]
    await store.append(creation("t", *chunks, status("t", COMPLETED)))
    assert await collect(store, hints, after) == list(range(after + 1, 31))


async def test_it_goes_on_through_interruptions(store: TaskStore, hints: LocalHints) -> None:
    await store.append(creation("t"))
    following = asyncio.ensure_future(collect(store, hints))
    await store.append(addition("t", 1, status("t", TaskState.INPUT_REQUIRED)))
    await store.append(addition("t", 2, status("t", TaskState.AUTH_REQUIRED)))
    await store.append(addition("t", 3, status("t", TaskState.REJECTED)))
    assert await following == [1, 2, 3, 4]


async def test_an_event_of_a_whole_page_holds_up_no_reader(
    store: TaskStore, hints: LocalHints
) -> None:
    large = chunk("t", "x" * PAGE_BYTES)
    await store.append(creation("t", large, status("t", COMPLETED)))
    assert await collect(store, hints, 2) == [3]


async def test_a_task_that_is_not_there_is_gone(store: TaskStore, hints: LocalHints) -> None:
    for after in (0, 3):
        with pytest.raises(TaskGone):
            await collect(store, hints, after)
    assert not hints.watched


class Forgetful(MemoryTaskStore):
    """A store that no longer has the beginnings of its logs."""

    async def events(self, task_id: str, after: int, limit: int) -> Sequence[LoggedEvent]:
        return await super().events(task_id, max(after, 5), limit)


@pytest.mark.L6
async def test_events_that_are_gone_are_an_explicit_gap(hints: LocalHints) -> None:
    store = Forgetful()
    await store.open(hints.publish)
    chunks = [chunk("t", "x") for _ in range(9)]
    await store.append(creation("t", *chunks, status("t", COMPLETED)))
    for after in (0, 3):
        with pytest.raises(Gap) as gap:
            await collect(store, hints, after)
        assert gap.value.first == 6
    assert await collect(store, hints, 6) == [7, 8, 9, 10, 11]


async def test_a_lost_hint_costs_a_moment_and_nothing_else(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    deaf = LocalHints()
    following = asyncio.ensure_future(collect(store, deaf, poll=0.01))
    last = await write(store, 20)
    assert await following == list(range(1, last + 1))


async def test_hints_that_are_lost_in_the_middle_are_made_up_for(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    chance = random.Random(5)
    lossy = LocalHints()

    class Losing(LocalHints):
        def publish(self, records: Sequence[LoggedEvent]) -> None:
            if chance.random() < 0.5 or any(r.seq == 100 for r in records):
                lossy.publish(records)

    losing = Losing()
    with hints.subscribe("t") as live:
        following = asyncio.ensure_future(collect(store, lossy, poll=0.05))
        writing = asyncio.ensure_future(write(store, 100))
        while not writing.done():
            if await live.wait(0.01):
                losing.publish(live.take()[0])
    last = await writing
    assert await following == list(range(1, last + 1))


@pytest.mark.L5
@pytest.mark.L6
async def test_a_slow_reader_falls_behind_and_misses_nothing(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    slow = asyncio.ensure_future(collect(store, hints, pause=300))
    quick = asyncio.ensure_future(collect(store, hints))
    last = await write(store, 5 * BUFFER_RECORDS, each=5)
    assert await quick == list(range(1, last + 1))
    assert await slow == list(range(1, last + 1))


@pytest.mark.L5
async def test_a_reader_that_stopped_reading_loses_nothing_and_holds_little(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    async with aclosing(follow(store, hints, "t", 0)) as batches:
        assert numbers(await anext(batches)) == [1]
        last = await write(store, 4 * BUFFER_RECORDS, each=4)
        assert hints.held < BUFFER_RECORDS + 4
        found = [n async for events in batches for n in numbers(events)]
    assert found == list(range(2, last + 1))


@pytest.mark.slow
@pytest.mark.L5
@pytest.mark.L6
async def test_two_hundred_readers_some_slow_some_gone_each_see_everything(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    chance = random.Random(7)
    readers = [
        asyncio.ensure_future(collect(store, hints, pause=chance.choice([0, 0, 1, 60])))
        for _ in range(200)
    ]
    writing = asyncio.ensure_future(write(store, 1200, each=6))
    gone = readers[::10]
    while not writing.done():
        for reader in gone:
            if chance.random() < 0.02:
                reader.cancel()
        await asyncio.sleep(0)
    last = await writing
    for reader in gone:
        reader.cancel()
    found = await asyncio.gather(*readers, return_exceptions=True)
    for numbers_seen in found:
        if not isinstance(numbers_seen, asyncio.CancelledError):
            assert numbers_seen == list(range(1, last + 1))
    assert not hints.watched


# -- L5: readers delay neither writers nor each other; memory per reader is bounded ----------------


STALLED = 20
EVENTS = 4 * BUFFER_RECORDS

Batches = AsyncGenerator[Sequence[LoggedEvent], None]


async def stalled(store: TaskStore, hints: LocalHints, stack: AsyncExitStack) -> Batches:
    """A reader that has read the first event, and then stops reading."""
    batches = follow(store, hints, "t", 0)
    await stack.enter_async_context(aclosing(batches))
    assert numbers(await anext(batches)) == [1]
    return batches


async def invariant_l5_write(store: TaskStore, count: int, text: str = "x") -> int:
    """Append chunks, each after the previous one is durable, and the end; return its number."""
    seq = 1
    for _ in range(count):
        seq = await store.append(addition("t", seq, chunk("t", text)))
    return await store.append(addition("t", seq, status("t", TaskState.COMPLETED)))


async def rest(batches: Batches) -> list[Sequence[LoggedEvent]]:
    return [batch async for batch in batches]


@pytest.mark.L5
async def test_l5_readers_that_read_nothing_hold_up_no_writer_and_then_catch_up(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        readers = [await stalled(store, hints, stack) for _ in range(STALLED)]
        last = await invariant_l5_write(store, EVENTS)  # waits for none of them
        assert hints.held == 0  # they were dropped from memory
        for reader in readers:
            pages = await rest(reader)  # and get all of it from the store
            assert [number for page in pages for number in numbers(page)] == [*range(2, last + 1)]
            assert max(map(len, pages)) <= PAGE
    assert not hints.watched


@pytest.mark.L5
async def test_l5_a_reader_that_reads_nothing_holds_up_no_other(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        slow = await stalled(store, hints, stack)
        quick = await stalled(store, hints, stack)
        seq = 1
        for _ in range(EVENTS):
            seq = await store.append(addition("t", seq, chunk("t", "x")))
            assert numbers(await anext(quick)) == [seq]  # at once, one by one
        last = await store.append(addition("t", seq, status("t", TaskState.COMPLETED)))
        assert numbers(await anext(quick)) == [last]
        pages = await rest(slow)
        assert [number for page in pages for number in numbers(page)] == [*range(2, last + 1)]


@pytest.mark.L5
async def test_l5_what_is_kept_for_a_reader_is_bounded_in_events_and_bytes(
    store: TaskStore, hints: LocalHints
) -> None:
    """Counted at each append: one chunk is far below the limit, all together exceed it."""
    await store.append(creation("t"))
    size, kept, sizes = BUFFER_BYTES // 8, [], []
    with hints.subscribe("t") as small, hints.subscribe("u") as large:
        await store.append(creation("u"))
        for subscription in (small, large):
            subscription.take()
        seq = 1
        for _ in range(2 * BUFFER_RECORDS):
            seq = await store.append(addition("t", seq, chunk("t", "x")))
            kept.append(small.held)
        seq = 1
        for _ in range(32):
            seq = await store.append(addition("u", seq, chunk("u", "x" * size)))
            sizes.append(large.held * size)
        assert max(kept) <= BUFFER_RECORDS
        assert kept[-1] == 0
        assert 0 < max(sizes) <= BUFFER_BYTES
        assert sizes[-1] == 0
        assert (small.take(), large.take()) == (([], True), ([], True))


@pytest.mark.L5
async def test_l5_a_reader_that_catches_up_has_a_page_of_the_log_in_memory_and_no_more(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    size = PAGE_BYTES // 4
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        reader = await stalled(store, hints, stack)
        await invariant_l5_write(store, 16, "x" * size)
        pages = await rest(reader)
    held = [sum(len(event.payload) for event in page) for page in pages]
    assert sum(held) > 16 * size
    assert max(held) < 2 * PAGE_BYTES


@pytest.mark.L5
async def test_l5_readers_of_the_store_itself_hold_up_no_writer(
    store: TaskStore, hints: LocalHints
) -> None:
    """Each write competes with far more queries than the store runs at a time."""
    await store.append(creation("t"))
    seq, asked = 1, []
    async with asyncio.timeout(120):
        for _ in range(20):
            asked += [asyncio.ensure_future(store.events("t", 0, PAGE)) for _ in range(50)]
            seq = await store.append(addition("t", seq, chunk("t", "x")))
        found = await asyncio.gather(*asked)
    assert all(numbers(page) == [*range(1, len(page) + 1)] for page in found)
