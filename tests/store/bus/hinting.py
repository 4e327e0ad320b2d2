"""Helpers for the tests of hints and buses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from parley.model.struct import encode
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import CancelRequested, LoggedEvent, RecordKind
from parley.store.protocols.task_log import LogPosition
from tests.kit.records import chunk

WAIT = 20.0


def event(seq: int, text: str = "x", task_id: str = "t") -> LoggedEvent:
    update = chunk(task_id, text)
    return LoggedEvent(task_id, seq, 1, RecordKind.ARTIFACT, encode(update), update, 0)


def private(seq: int, sub: int, task_id: str = "t") -> LoggedEvent:
    request = CancelRequested()
    return LoggedEvent(task_id, seq, 1, RecordKind.CANCEL, encode(request), request, 0, sub)


def place(seq: int, task_id: str = "t") -> LogPosition:
    return LogPosition(
        task_id=task_id,
        seq=seq,
        sub=0,
        epoch=1,
        lease_owner="",
        waiting=0,
        cancel_requested=False,
        ended=False,
    )


class Ear:
    """A listener that keeps its hints."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.places: list[LogPosition] = []
        self._told = asyncio.Event()

    def on_record(self, record: LoggedEvent) -> None:
        self.records.append((record.seq, record.sub))
        self._told.set()

    def on_position(self, place: LogPosition) -> None:
        self.places.append(place)
        self._told.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        """Wait until a listener has enough hints."""
        async with asyncio.timeout(WAIT):
            while not enough():
                self._told.clear()
                await self._told.wait()


class PaperBus:
    """A bus that records outgoing hints, and delivers none."""

    def __init__(self) -> None:
        self.is_up = True
        self.hints: LocalHints | None = None
        self.replica = ""
        self.told: list[LoggedEvent] = []
        self.agents: list[str] = []
        self.watched: set[str] = set()

    async def open(self, hints: LocalHints, replica: str) -> None:
        self.hints, self.replica = hints, replica

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        self.told += records

    def publish_work(self, agent: str) -> None:
        self.agents.append(agent)

    def watch(self, task_id: str, is_watched: bool) -> None:
        (self.watched.add if is_watched else self.watched.discard)(task_id)

    async def close(self) -> None:
        self.hints = None
