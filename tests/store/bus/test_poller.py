"""A replica gets all changes of other replicas, whatever the bus loses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.model.tasks import TaskState
from parley.store.bus import poller
from parley.store.bus.frames import FrameBuffer, FrameReader
from parley.store.bus.poller import BusPoller
from parley.store.bus.subscriptions import Bus, LocalHints
from parley.store.events import LoggedEvent
from parley.store.follow import TaskGone, follow
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.task_log import LogPosition
from tests.kit.records import addition, chunk, creation, numbers, received, status
from tests.kit.waiting import until
from tests.store.bus.hinting import WAIT, Ear, PaperBus

pytestmark = pytest.mark.anyio

NEVER = 3600.0


class Store(MemoryTaskStore):
    """One of two replicas; counts its calls, and fails on demand."""

    def __init__(self, logs: MemoryLogs) -> None:
        super().__init__(logs=logs)
        self.asked: list[int] = []
        self.fails = False

    async def positions(self, task_ids: Sequence[str]) -> Sequence[LogPosition]:
        self.asked.append(len(task_ids))
        if self.fails:
            raise StoreUnavailable("it is away")
        return await super().positions(task_ids)


class Replica:
    """A store, its listeners, and the relay between them."""

    def __init__(self, logs: MemoryLogs, bus: Bus | None = None, *, poll: float = NEVER) -> None:
        self.store = Store(logs)
        self.hints = LocalHints()
        self.poller = BusPoller(self.store, self.hints, bus, poll=poll)

    async def start(self) -> None:
        await self.store.open(self.poller.publish)
        await self.poller.start()

    async def stop(self) -> None:
        await self.poller.stop()
        await self.store.close()

    async def settled(self) -> None:
        """Wait until the relay has no work."""
        for _ in range(50):
            await asyncio.sleep(0)


@pytest.fixture
async def logs() -> MemoryLogs:
    return MemoryLogs()


@pytest.fixture
async def writer(logs: MemoryLogs) -> AsyncIterator[Replica]:
    replica = Replica(logs)
    await replica.start()
    yield replica
    await replica.stop()


async def test_one_append_is_told_here_and_by_the_bus(logs: MemoryLogs) -> None:
    bus = PaperBus()
    replica = Replica(logs, bus)
    await replica.start()
    with replica.hints.subscribe("t") as live:
        assert bus.watched == {"t"}
        await replica.store.append(creation("t", received("a")))
        assert numbers(live.take()[0]) == [1]
    assert bus.watched == set()
    assert [(record.seq, record.sub) for record in bus.told] == [(1, 0), (1, 1)]
    heard: list[str] = []
    with replica.hints.listen_work(heard.append):
        replica.poller.publish_work("agent")
    assert (heard, bus.agents) == (["agent"], ["agent"])
    assert (bus.hints, bus.replica) == (replica.hints, replica.store.replica)
    await replica.stop()
    await replica.poller.stop()
    assert bus.hints is None
    assert replica.hints.on_interest is None


async def test_who_cared_before_it_started_is_not_forgotten(logs: MemoryLogs) -> None:
    bus = PaperBus()
    replica = Replica(logs, bus)
    with replica.hints.subscribe("t"):
        await replica.start()
        assert bus.watched == {"t"}
    await replica.stop()


async def test_nobody_who_cares_costs_no_question(logs: MemoryLogs) -> None:
    reader = Replica(logs)
    await reader.start()
    for _ in range(3):
        reader.hints.notify_lost()
        await reader.settled()
    assert reader.store.asked == []
    await reader.stop()


async def test_many_are_asked_about_in_chunks_and_forgotten_when_nobody_cares(
    logs: MemoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "CHUNK", 10)
    reader = Replica(logs, poll=0.02)
    watches = [reader.hints.subscribe(f"t{n}") for n in range(25)]
    for watch in watches:
        watch.__enter__()
    await reader.start()
    async with asyncio.timeout(WAIT):
        await until(lambda: len(reader.store.asked) >= 6)
    assert reader.store.asked[:6] == [10, 10, 5, 10, 10, 5]
    assert len(reader.poller._known) == 25
    for watch in watches[1:]:
        watch.__exit__(None, None, None)
    async with asyncio.timeout(WAIT):
        await until(lambda: len(reader.poller._known) <= 1)
    watches[0].__exit__(None, None, None)
    await reader.stop()


async def test_what_came_without_its_records_is_looked_for_at_once(
    logs: MemoryLogs, writer: Replica
) -> None:
    reader = Replica(logs)
    await reader.start()
    await writer.store.append(creation("t"))
    await writer.store.append(creation("u"))
    ear, other = Ear(), Ear()
    with reader.hints.listen("t", ear), reader.hints.listen("u", other):
        await reader.settled()
        ear.places.clear()
        other.places.clear()
        await writer.store.append(addition("t", None, received("a")))
        await writer.store.append(addition("u", None, received("a")))
        reader.hints.notify_seq("t", 1)
        reader.hints.notify_seq("gone", 1)
        await ear.until(lambda: bool(ear.places))
        await reader.settled()
        assert [place.waiting for place in ear.places] == [1]
        assert other.places == []
    await reader.stop()


async def test_a_store_that_is_away_is_asked_again_and_told_of_once(
    logs: MemoryLogs, writer: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reader = Replica(logs, poll=0.01)
    await writer.store.append(creation("t"))
    ear = Ear()
    reader.store.fails = True
    with reader.hints.listen("t", ear):
        await reader.start()
        async with asyncio.timeout(WAIT):
            await until(lambda: len(reader.store.asked) >= 4)
        assert ear.places == []
        reader.store.fails = False
        await ear.until(lambda: bool(ear.places))
        await reader.settled()
    assert caplog.text.count("cannot be polled") == 1
    assert caplog.text.count("can be polled") == 1
    await reader.stop()


async def test_a_task_that_is_removed_is_gone_for_its_readers(
    logs: MemoryLogs, writer: Replica
) -> None:
    reader = Replica(logs, poll=0.01)
    await reader.start()
    await writer.store.append(creation("t"))

    async def read() -> None:
        async with aclosing(follow(reader.store, reader.hints, "t", 0)) as batches:
            async for _ in batches:
                arrived.set()

    arrived = asyncio.Event()
    async with asyncio.timeout(WAIT):
        reading = asyncio.ensure_future(read())
        await arrived.wait()
        await reader.settled()
        del logs.logs["t"]
        with pytest.raises(TaskGone):
            await reading
    await reader.stop()


class Lossy:
    """A bus between two replicas that loses, repeats and delays frames.

    Each number sets how often one frame arrives, and after how many others.
    """

    is_up = True

    def __init__(self, fates: Sequence[tuple[int, int]], room: int) -> None:
        self.other: Lossy | None = None
        self._fates = list(fates)
        self._room = room
        self._held: list[tuple[int, bytes]] = []
        self._reader: FrameReader | None = None
        self._buffer = FrameBuffer("")

    async def open(self, hints: LocalHints, replica: str) -> None:
        self._reader, self._buffer = FrameReader(hints), FrameBuffer(replica)

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        self._buffer.add(records)
        for frame in self._buffer.frames(self._room):
            times, later = self._fates.pop(0) if self._fates else (1, 0)
            self._held += [(later, frame)] * times
        due = [frame for wait, frame in self._held if wait == 0]
        self._held = [(wait - 1, frame) for wait, frame in self._held if wait]
        for frame in due:
            assert self.other is not None
            assert self.other._reader is not None
            self.other._reader.read(frame)

    def publish_work(self, agent: str) -> None:
        pass

    def watch(self, task_id: str, is_watched: bool) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.mark.slow
@given(
    fates=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=30),
    appends=st.lists(st.lists(st.sampled_from([1, 50, 3000]), max_size=4), max_size=15),
    room=st.sampled_from([300, 1000, 100_000]),
    pauses=st.integers(0, 3),
)
@settings(max_examples=150)
def test_a_reader_elsewhere_gets_every_event_once_and_in_order(
    fates: list[tuple[int, int]], appends: list[list[int]], room: int, pauses: int
) -> None:
    async def run() -> tuple[list[int], int]:
        logs = MemoryLogs()
        here, there = Lossy(fates, room), Lossy([], room)
        here.other, there.other = there, here
        writer, reader = Replica(logs, here), Replica(logs, there, poll=0.01)
        await writer.start()
        await reader.start()
        await writer.store.append(creation("t"))
        found: list[int] = []

        async def read() -> None:
            async with aclosing(follow(reader.store, reader.hints, "t", 0)) as batches:
                async for events in batches:
                    found.extend(numbers(events))

        reading = asyncio.ensure_future(read())
        last = 1
        for sizes in appends:
            for _ in range(pauses):
                await asyncio.sleep(0)
            if sizes:
                events = [chunk("t", "x" * size) for size in sizes]
                last = await writer.store.append(addition("t", last, *events))
            else:
                await writer.store.append(addition("t", None, received("a")))
        last = await writer.store.append(addition("t", last, status("t", TaskState.COMPLETED)))
        async with asyncio.timeout(WAIT):
            await reading
        await writer.stop()
        await reader.stop()
        return found, last

    found, last = asyncio.run(run())
    assert found == list(range(1, last + 1))
