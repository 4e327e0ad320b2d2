"""Frames of a bus are decoded unchanged, or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.store.bus import frames as bus_frames
from parley.store.bus.frames import VERSION, FrameBuffer, FrameReader
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import LoggedEvent
from tests.store.bus.hinting import Ear, event, private

FRAME = 4000


class Noted(LocalHints):
    """Hints that record every call."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[LoggedEvent] = []
        self.heights: dict[str, int] = {}
        self.agents: list[str] = []

    def is_watched(self, task_id: str) -> bool:
        return not task_id.startswith("unwatched")

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        self.records += records

    def notify_seq(self, task_id: str, seq: int) -> None:
        self.heights[task_id] = seq

    def notify_work(self, agent: str) -> None:
        self.agents.append(agent)


def read(*frames: bytes) -> Noted:
    noted = Noted()
    reader = FrameReader(noted)
    for frame in frames:
        reader.read(frame)
    return noted


@pytest.mark.slow
@given(
    appends=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "\u00fc\u4e2d", 'say "{}"']),
            st.lists(st.sampled_from([0, 1, 100, 900, 1900]), min_size=1, max_size=4),
        ),
        max_size=20,
    ),
    agents=st.lists(st.sampled_from(["x", "y", 'z"']), max_size=3),
    limit=st.sampled_from([500, 2000, FRAME]),
)
def test_what_was_told_is_read_whatever_the_limit(
    appends: list[tuple[str, list[int]]], agents: list[str], limit: int
) -> None:
    told: dict[str, list[LoggedEvent]] = {}
    buffer = FrameBuffer("right here")
    seqs: dict[str, int] = {}
    assert not buffer
    for task_id, sizes in appends:
        records = []
        for size in sizes:
            seqs[task_id] = seqs.get(task_id, 0) + 1
            records.append(event(seqs[task_id], "x" * size, task_id))
        assert buffer.add(records) is (not told)
        told.setdefault(task_id, []).extend(records)
    for agent in agents:
        buffer.add_work(agent)
    assert bool(buffer) is bool(appends or agents)
    frames = buffer.frames(limit)
    assert not buffer
    assert all(len(frame) <= limit for frame in frames)
    assert all(buffer.is_own(frame) for frame in frames)
    found = read(*frames)
    assert sorted(found.agents) == sorted(set(agents))
    for task_id, records in told.items():
        got = [record for record in found.records if record.task_id == task_id]
        assert got == records[: len(got)]
        # Omitted hints were too large, or came after such a hint; the frame says that some are
        # missing.
        if len(got) < len(records):
            assert len(records[len(got)].payload) > limit - 300
            assert found.heights[task_id] == records[-1].seq
        else:
            assert task_id not in found.heights


def test_frames_are_as_few_as_can_be() -> None:
    buffer = FrameBuffer("here")
    for n in range(20):
        buffer.add([event(1, "x" * 100, f"t{n}")])
    buffer.add_work("x")
    assert len(buffer.frames(100_000)) == 1
    buffer.add([event(1)])
    buffer.add([event(2)])
    buffer.add([event(1, task_id="u")])
    frames = dict(buffer.frames_by_task(FRAME))
    assert list(frames) == ["t", "u"]
    assert [record.seq for record in read(frames["t"]).records] == [1, 2]
    assert not buffer


def test_private_records_travel_too() -> None:
    buffer = FrameBuffer("here")
    buffer.add([event(1), private(1, 1)])
    [frame] = buffer.frames(FRAME)
    hints, ear = LocalHints(), Ear()
    with hints.listen("t", ear), hints.subscribe("t") as live:
        FrameReader(hints).read(frame)
        assert [record.seq for record in live.take()[0]] == [1]
    assert ear.records == [(1, 1)]


def test_a_bus_that_takes_nothing_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_frames, "MAX_BYTES", 10_000)
    monkeypatch.setattr(bus_frames, "MAX_TASKS", 5)
    monkeypatch.setattr(bus_frames, "MAX_AGENTS", 2)
    buffer = FrameBuffer("here")
    for n in range(10):
        buffer.add_work(f"agent {n}")
    for seq in range(1, 1000):
        for n in range(10):
            buffer.add([event(seq, "x" * 200, f"t{n}")])
    assert sum(len(held) for held in buffer._tasks.values()) < 60
    frames = buffer.frames(FRAME)
    assert sum(map(len, frames)) < 20_000
    found = read(*frames)
    assert found.heights == {f"t{n}": 999 for n in range(5)}
    assert len(found.agents) == 2
    buffer.add([event(1000)])
    assert [record.seq for record in read(*buffer.frames(FRAME)).records] == [1000]
    buffer.add([event(1)])
    buffer.clear()
    assert buffer.frames(FRAME) == []


def written(told: object, agents: object = ()) -> bytes:
    return VERSION + b"there " + msgspec.json.encode([told, agents])


CHUNK = msgspec.Raw(event(1).payload)
WRONG = {
    "nothing": b"",
    "no body": VERSION,
    "no sender": VERSION + b"there",
    "no JSON": VERSION + b"there {",
    "another shape": VERSION + b"there {}",
    "no lists": written({"a": 1}),
    "agents that are none": written([], [1]),
    "a private event that readers would see": written(
        [["t", 1, 0, [[1, 0, 1, "cancel", 0, {}]]]], ["x"]
    ),
    "a public event that listeners would see": written(
        [["t", 1, 1, [[1, 1, 1, "artifact", 0, CHUNK]]]]
    ),
    "a number that no event has": written([["t", 0, 0, [[0, 0, 1, "artifact", 0, CHUNK]]]]),
    "an event of another task": written([["u", 1, 0, [[1, 0, 1, "artifact", 0, CHUNK]]]]),
    "a kind that there is not": written([["t", 1, 0, [[1, 0, 1, "gossip", 0, CHUNK]]]]),
    "half of it right": written(
        [["t", 1, 0, [[1, 0, 1, "artifact", 0, CHUNK]]], ["t", 2, 0, [[2, 0, 1, "task", 0, {}]]]]
    ),
    "too deep": written(
        [["t", 1, 0, [[1, 0, 1, "artifact", 0, msgspec.Raw(b"[" * 9999 + b"]" * 9999)]]]]
    ),
    "too long": written([["t", 1, 0, [[1, 0, 1, "artifact", 0, CHUNK]]]]) + b" " * (1 << 20),
}


@pytest.mark.parametrize("frame", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_frame_of_ours_does_nothing(
    frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = read(frame, frame)
    assert (found.records, found.heights, found.agents) == ([], {}, [])
    assert len(caplog.records) == 1


@given(st.binary(max_size=300) | st.text().map(lambda text: VERSION + b"x " + text.encode()))
def test_garbage_does_nothing(frame: bytes) -> None:
    found = read(frame)
    assert (found.records, found.heights) == ([], {})


@given(where=st.integers(0, 400), what=st.binary(min_size=0, max_size=3), width=st.integers(0, 3))
def test_a_damaged_frame_never_harms(where: int, what: bytes, width: int) -> None:
    buffer = FrameBuffer("over there")
    buffer.add([event(1, "x" * 50), private(1, 1), event(2)])
    [frame] = buffer.frames(FRAME)
    for record in read(frame[:where] + what + frame[where + width :]).records:
        assert record.kind.is_public == (record.sub == 0)


@pytest.mark.parametrize(("longest", "counts"), [(60, [1, 2, 3]), (-1, [1, 1, 1])])
def test_a_session_begins_again_after_a_longer_pause_unless_it_lasted(
    longest: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    backoff = SimpleNamespace(longest=longest, delay=lambda n: found.append(n) or 0)
    monkeypatch.setattr(bus_frames, "RECONNECT", backoff)
    ends = iter([None, False, False, True])

    async def session() -> bool:
        end = next(ends)
        if end is None:
            raise OSError
        return end

    asyncio.run(bus_frames.reconnect(session, "x"))
    assert found == counts
