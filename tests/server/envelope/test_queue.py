"""The order of REQUESTs that wait, and of what is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley.envelope.server.conversation import Outbox, OutboxClosed
from parley.envelope.server.queue import QueuedConnection, QueueLimits, RequestQueue, Slot
from parley.model.errors import OverloadedError
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio


class Line:
    """Requests of one connection: which run, in the order in which they began."""

    def __init__(self, queue: RequestQueue, caller: Any, began: list[str]) -> None:
        self.queue = queue
        self.connection: QueuedConnection = queue.open(caller)
        self.began = began
        self.slots: dict[str, Slot] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def enter(self, name: str, priority: str = "normal", **options: Any) -> None:
        slot = self.slots[name] = self.queue.enter(self.connection, priority, **options)

        async def wait() -> None:
            await self.queue.acquire(slot)
            self.began.append(name)

        self.tasks[name] = asyncio.create_task(wait())

    async def end(self, name: str) -> None:
        self.slots[name].release()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await let_time_pass(0)


def queue_of(**limits: Any) -> RequestQueue:
    return RequestQueue(QueueLimits(**{"share": 1.0, **limits}))


async def test_one_callers_requests_run_by_priority_then_by_arrival() -> None:
    began: list[str] = []
    line = Line(queue_of(in_flight=1), "ada", began)
    for name in ("normal 0", "low 1", "normal 2", "urgent 3", "high 4", "normal 5", "urgent 6"):
        line.enter(name, name.split()[0])
    await settle()
    for n in range(6):
        await line.end(began[n])
    assert began == [
        "normal 0", "urgent 3", "urgent 6", "high 4", "normal 2", "normal 5", "low 1"
    ]  # fmt: skip


async def test_nobody_gains_by_shouting() -> None:
    began: list[str] = []
    queue = queue_of(total=1)
    loud, quiet = Line(queue, "loud", began), Line(queue, "quiet", began)
    for n in range(5):
        loud.enter(f"loud {n}", "urgent")
    for n in range(2):
        quiet.enter(f"quiet {n}", "low")
    await settle()
    for n in range(6):
        await (loud if began[n].startswith("loud") else quiet).end(began[n])
    assert began == ["loud 0", "loud 1", "quiet 0", "loud 2", "quiet 1", "loud 3", "loud 4"]


async def test_connections_of_one_caller_share_its_turns() -> None:
    began: list[str] = []
    queue = queue_of(total=1)
    first, second = Line(queue, "ada", began), Line(queue, "ada", began)
    other = Line(queue, "bob", began)
    first.enter("first")
    for n in range(2):
        first.enter(f"first {n}")
        second.enter(f"second {n}", "high")
    other.enter("other")
    await settle()
    lines = {"first": first, "second": second, "other": other}
    for n in range(5):
        await lines[began[n].split()[0]].end(began[n])
    assert began == ["first", "second 0", "other", "second 1", "first 0", "first 1"]


async def test_one_caller_has_its_share_of_all() -> None:
    began: list[str] = []
    queue = RequestQueue(QueueLimits(total=4, share=0.5))
    ada, bob = Line(queue, "ada", began), Line(queue, "bob", began)
    for n in range(4):
        ada.enter(f"ada {n}")
    bob.enter("bob")
    await settle()
    assert began == ["ada 0", "ada 1", "bob"]
    await ada.end("ada 0")
    assert began[-1] == "ada 2"
    assert queue.load == 0.75


async def test_some_room_is_kept_for_requests_that_wait_for_no_turn() -> None:
    began: list[str] = []
    line = Line(queue_of(in_flight=8), None, began)
    for n in range(9):
        line.enter(f"send {n}")
    line.enter("cancel", "low", is_quick=True)
    await settle()
    assert began == [*[f"send {n}" for n in range(7)], "cancel"]


async def test_a_full_queue_refuses_at_once() -> None:
    began: list[str] = []
    queue = queue_of(in_flight=1, waiting=2)
    line, other = Line(queue, "ada", began), Line(queue, "bob", began)
    for n in range(3):
        line.enter(f"{n}")
    with pytest.raises(OverloadedError) as refused:
        line.enter("3", "urgent")
    assert refused.value.retry_after
    other.enter("other")
    await settle()
    assert began == ["0", "other"]


async def test_who_leaves_takes_no_place() -> None:
    began: list[str] = []
    queue = queue_of(in_flight=1, waiting=2)
    line = Line(queue, None, began)
    for n in range(3):
        line.enter(f"{n}")
    await settle()
    line.tasks["1"].cancel()
    await settle()
    line.enter("3")
    await line.end("0")
    await line.end("2")
    await line.end("3")
    assert began == ["0", "2", "3"]
    assert queue.load == 0.0


async def test_answers_are_sent_before_events_and_events_only_as_there_is_room() -> None:
    sent: list[bytes] = []
    room = asyncio.Semaphore(0)

    async def send(data: bytes) -> None:
        await room.acquire()
        sent.append(data)

    outbox = Outbox(send)
    pulled: list[str] = []

    async def stream(name: str) -> None:
        for n in range(3):
            pulled.append(f"{name}{n}")
            await outbox.send(f"{name}{n}".encode(), is_event=True)

    streams = [asyncio.create_task(stream(name)) for name in "ab"]
    await settle()
    assert pulled == ["a0", "b0"]
    answer = asyncio.create_task(outbox.send(b"response"))
    outbox.post(b"heartbeat")
    await settle()
    for _ in range(8):
        room.release()
        await settle()
    assert sent == [b"a0", b"heartbeat", b"response", b"b0", b"a1", b"b1", b"a2", b"b2"]
    await asyncio.gather(answer, *streams)
    await outbox.aclose()
    with pytest.raises(OutboxClosed):
        await outbox.send(b"late")


async def test_an_outbox_whose_socket_breaks_tells_who_waits() -> None:
    async def send(data: bytes) -> None:
        raise ConnectionError

    outbox = Outbox(send)
    waiting = [
        asyncio.create_task(outbox.send(b"1", is_event=True)),
        asyncio.create_task(outbox.send(b"2")),
    ]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in found] == [OutboxClosed, OutboxClosed]
    await asyncio.wait_for(outbox.room(), 1)
