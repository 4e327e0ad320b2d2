"""The recorder never delays a request, and rejected credentials cannot fill a disk."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parley.store.audit import recorder as recording
from parley.store.audit import recorder as summary
from parley.store.audit.recorder import OTHERS, AuditRecorder, FailureSummary
from parley.store.audit.trail import AuditEntry, AuditFilter, AuditLine
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.task_store import TaskStore
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio

EVERYTHING = AuditFilter()


async def kinds(store: TaskStore) -> list[str]:
    return [line.kind for line in await store.read_audit(EVERYTHING, limit=100_000)]


async def test_what_does_not_fit_is_counted(store: TaskStore) -> None:
    recorder = AuditRecorder(store.append_audit, store.now)
    for n in range(recording.MAX_QUEUED + 7):
        recorder.record(AuditEntry(kind=f"k{n}"))
    await recorder.start()
    await recorder.stop()
    lines = await store.read_audit(EVERYTHING, limit=10_000)
    assert len(lines) == recording.MAX_QUEUED + 1
    assert (lines[-1].kind, lines[-1].details["count"]) == ("audit.dropped", 7)
    assert recorder.dropped == 7


class Broken(MemoryTaskStore):
    """A store that fails until a test repairs it."""

    is_broken = True
    calls = 0

    async def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        self.calls += 1
        if self.is_broken:
            raise StoreUnavailable("the disk is full")
        return await super().append_audit(entries)


async def test_a_store_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(recording, "_BACKOFF", recording.Backoff(0.01, 0.01))
    store = Broken()
    await store.open(lambda records: None)
    recorder = AuditRecorder(store.append_audit, store.now)
    await recorder.start()
    recorder.record(AuditEntry(kind="a"))
    await until(lambda: store.calls > 3)
    recorder.record(AuditEntry(kind="b"))
    store.is_broken = False

    async def is_there() -> bool:
        return await kinds(store) == ["a", "b"]

    await until(is_there)
    assert caplog.text.count("cannot be written") == 1
    await recorder.stop()
    await store.close()


async def test_a_stop_beside_a_flush_appends_each_entry_once(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "FLUSH_SECONDS", 0.0)
    for _ in range(5):
        recorder = AuditRecorder(store.append_audit, store.now)
        await recorder.start()
        for _ in range(30):
            recorder.record(AuditEntry(kind="a"))
            await let_time_pass(0)
        await recorder.stop()
    assert len(await kinds(store)) == 150


class Recorded:
    """The audit entries recorded by a summary."""

    def __init__(self) -> None:
        self.now = 0
        self.entries: list[AuditEntry] = []
        self.summary = FailureSummary(self.entries.append, lambda: self.now)

    def minute(self) -> list[AuditEntry]:
        """End a window; return its entries."""
        self.now += 60_000
        self.entries.clear()
        self.summary.summarize()
        return list(self.entries)


async def test_failures_of_an_address_are_one_entry_in_each_window() -> None:
    recorded = Recorded()
    for n in range(10_000):
        recorded.now = n
        recorded.summary.note("198.51.100.7", "bearer", f"reason {n % 20}")
    recorded.summary.note("198.51.100.7", "", "")
    recorded.summary.note("203.0.113.1", "basic", "wrong")
    one, two = recorded.minute()
    assert (one.kind, one.address, one.outcome) == ("auth.failed", "198.51.100.7", "refused")
    assert (one.details["refused"], one.details["throttled"]) == (10_000, 1)
    assert (one.details["from"], one.details["to"], one.at) == (0, 9999, 9999)
    assert len(one.details["reasons"]) == summary.MAX_REASONS
    assert (two.address, two.details["refused"]) == ("203.0.113.1", 1)
    assert recorded.minute() == []


async def test_many_addresses_cannot_fill_the_audit() -> None:
    recorded = Recorded()
    counted = rows = 0
    for minute in range(60):
        for n in range(2_000):
            recorded.summary.note(f"10.{minute}.{n // 250}.{n % 250}", "bearer", "wrong")
        found = recorded.minute()
        assert len(found) <= summary.ADDRESSES_PER_WINDOW + 1
        rows += len(found)
        counted += sum([entry.details["refused"] for entry in found])
        assert found[-1].address == OTHERS
    assert counted == 120_000  # the counts include all of them
    assert rows <= summary.ADDRESSES_PER_HOUR + 60
    recorded.now += 3_600_000
    recorded.summary.note("10.9.9.9", "bearer", "wrong")
    assert recorded.minute()[0].address == "10.9.9.9"


async def test_a_window_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "WINDOW", 0.01)
    recorded = Recorded()
    recorded.summary.note("198.51.100.7", "bearer", "wrong")
    await until(lambda: recorded.entries)
    assert recorded.entries[0].details["refused"] == 1


async def test_memory_has_so_many_lines_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.store.memory.logs.MAX_LINES", 100)
    store = MemoryTaskStore()
    await store.open(lambda records: None)
    for _ in range(1000):
        await store.append_audit([AuditEntry(kind="a")])
    assert len(await kinds(store)) <= 101
    await store.close()
