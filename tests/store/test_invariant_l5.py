"""L5: readers hold up neither writers nor each other; memory per reader is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

import pytest

from parley.model.tasks import TaskState
from parley.store.bus.subscriptions import BUFFER_BYTES, BUFFER_RECORDS, LocalHints
from parley.store.events import LoggedEvent
from parley.store.follow import PAGE, follow
from parley.store.protocols.task_log import PAGE_BYTES
from parley.store.task_store import TaskStore
from tests.kit.records import addition, chunk, creation, numbers, status

pytestmark = [pytest.mark.anyio, pytest.mark.L5]

STALLED = 20
EVENTS = 4 * BUFFER_RECORDS

Batches = AsyncGenerator[Sequence[LoggedEvent], None]


async def stalled(store: TaskStore, hints: LocalHints, stack: AsyncExitStack) -> Batches:
    """A reader that has read the first event, and reads nothing more for now."""
    batches = follow(store, hints, "t", 0)
    await stack.enter_async_context(aclosing(batches))
    assert numbers(await anext(batches)) == [1]
    return batches


async def write(store: TaskStore, count: int, text: str = "x") -> int:
    """Write chunks, each when the one before is durable, and the end; return its number."""
    seq = 1
    for _ in range(count):
        seq = await store.append(addition("t", seq, chunk("t", text)))
    return await store.append(addition("t", seq, status("t", TaskState.COMPLETED)))


async def rest(batches: Batches) -> list[Sequence[LoggedEvent]]:
    return [batch async for batch in batches]


async def test_l5_readers_that_read_nothing_hold_up_no_writer_and_then_catch_up(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        readers = [await stalled(store, hints, stack) for _ in range(STALLED)]
        last = await write(store, EVENTS)  # waits for none of them
        assert hints.held == 0  # they were dropped from memory
        for reader in readers:
            pages = await rest(reader)  # and have it all from the store
            assert [number for page in pages for number in numbers(page)] == [*range(2, last + 1)]
            assert max(map(len, pages)) <= PAGE
    assert not hints.watched


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


async def test_l5_what_is_kept_for_a_reader_is_bounded_in_events_and_bytes(
    store: TaskStore, hints: LocalHints
) -> None:
    """Counted at each append: one chunk is far smaller than what may be kept, all are more."""
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


async def test_l5_a_reader_that_catches_up_has_a_page_of_the_log_in_memory_and_no_more(
    store: TaskStore, hints: LocalHints
) -> None:
    await store.append(creation("t"))
    size = PAGE_BYTES // 4
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        reader = await stalled(store, hints, stack)
        await write(store, 16, "x" * size)
        pages = await rest(reader)
    held = [sum(len(event.payload) for event in page) for page in pages]
    assert sum(held) > 16 * size
    assert max(held) < 2 * PAGE_BYTES


async def test_l5_readers_of_the_store_itself_hold_up_no_writer(
    store: TaskStore, hints: LocalHints
) -> None:
    """Far more questions than the store answers at a time are asked before each write."""
    await store.append(creation("t"))
    seq, asked = 1, []
    async with asyncio.timeout(120):
        for _ in range(20):
            asked += [asyncio.ensure_future(store.events("t", 0, PAGE)) for _ in range(50)]
            seq = await store.append(addition("t", seq, chunk("t", "x")))
        found = await asyncio.gather(*asked)
    assert all(numbers(page) == [*range(1, len(page) + 1)] for page in found)
