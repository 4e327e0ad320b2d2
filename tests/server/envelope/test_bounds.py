"""What a socket holds and counts: the order of what waits, heartbeats, answers, metrics."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

import parley
from parley.envelope.answers import message
from parley.envelope.messages import (
    AgentUnavailable,
    Envelope,
    MessageType,
    RequestMetadata,
    RequestPayload,
    ResponsePayload,
    Source,
    Status,
)
from parley.envelope.server import services as directory
from parley.envelope.server import services as measured
from parley.envelope.server.conversation import Outbox, OutboxClosed
from parley.envelope.server.queue import QueuedConnection, QueueLimits, RequestQueue, Slot
from parley.envelope.server.services import (
    MISSED,
    EnvelopeStatistics,
    HeartbeatSettings,
    ServerLoad,
    SocketHeartbeats,
    SocketPeer,
)
from parley.model.errors import OverloadedError, TooManyRequestsError
from tests.host.envelope.talking import post, request, searching
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import let_time_pass, until

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


# -- HEARTBEATs of a socket: answered, sent, missed, bounded ---------------------------------------


ME, YOU = Source(agent_id="shop"), Source(agent_id="tester")


class Link:
    """One socket, whose time the test moves."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.sent: list[Envelope] = []
        self.closed: tuple[int, str] | None = None
        self.beats = 0
        peer = SocketPeer(self.send)
        peer.on_beat(self.noted)
        self.heartbeats = SocketHeartbeats(
            self.send,
            self.close,
            source=ME,
            settings=HeartbeatSettings(**settings),
            load=ServerLoad(load=lambda: 0.25, is_draining=lambda: True),
            peer=peer,
            clock=lambda: self.now,
        )

    def noted(self) -> None:
        self.beats += 1

    async def send(self, envelope: Envelope) -> None:
        self.sent.append(envelope)

    async def close(self, code: int, reason: str) -> None:
        self.closed = code, reason


def beat(correlation_id: str = "") -> Envelope:
    return message(
        MessageType.HEARTBEAT, msgspec.Raw(b"{}"), source=YOU, correlation_id=correlation_id
    )


async def test_a_heartbeat_is_answered_with_how_loaded_the_server_is() -> None:
    link = Link(interval=30)
    asked = beat()
    await link.heartbeats.received(asked)
    [answer] = link.sent
    assert answer.message.correlation_id == asked.message_id
    assert isinstance(answer.payload, msgspec.Raw)
    payload = msgspec.json.decode(answer.payload)
    assert payload.pop("time").endswith("Z")
    assert payload == {"load": 0.25, "draining": True, "interval": 30_000}
    assert link.beats == 1
    await link.heartbeats.received(beat("what nobody sent"))  # an answer is never answered
    assert len(link.sent) == 1


async def test_the_round_trip_is_measured() -> None:
    link = Link(interval=30)
    await link.heartbeats.beat()
    link.now = 0.5
    await link.heartbeats.received(beat(link.sent[0].message_id))
    assert link.heartbeats.round_trip == 0.5


async def test_a_silent_socket_is_closed_and_any_message_keeps_one_open() -> None:
    link = Link(interval=30, tolerance=3)
    for _ in range(20):
        link.now += 30
        link.heartbeats.heard()
        await link.heartbeats.beat()
    assert link.closed is None
    assert len(link.heartbeats._sent) <= 3
    for _ in range(3):
        assert link.closed is None
        link.now += 30
        await link.heartbeats.beat()
    assert link.closed is not None
    assert link.closed[0] == MISSED
    assert "3 heartbeats" in link.closed[1]


async def test_heartbeats_have_a_small_bound_of_their_own() -> None:
    link = Link(interval=30, per_minute=3)
    for _ in range(3):
        await link.heartbeats.received(beat())
    with pytest.raises(TooManyRequestsError) as refused:
        await link.heartbeats.received(beat())
    assert refused.value.retry_after == 60
    assert len(link.sent) == 3
    link.now = 61
    await link.heartbeats.received(beat())
    assert len(link.sent) == 4


@pytest.mark.parametrize(
    "wrong", [{"interval": 0}, {"interval": True}, {"tolerance": 0}, {"per_minute": 1.5}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="heartbeats"):
        HeartbeatSettings(**wrong)


# -- agents at the other end of a socket: what of their answers waits is bounded -------------------


def event(asked: Envelope) -> Envelope:
    return message(
        MessageType.EVENT,
        ResponsePayload(status=Status.PARTIAL),
        source=YOU,
        correlation_id=asked.message_id,
    )


async def test_answers_that_are_not_read_hold_so_many_bytes_and_no_more() -> None:
    asked: list[Envelope] = []

    async def send(envelope: Envelope) -> None:
        asked.append(envelope)

    peer, third = SocketPeer(send), directory.MAX_WAITING_BYTES // 3
    request = message(MessageType.REQUEST, RequestPayload(action="search"), source=ME)
    for _ in range(2):  # what a call left unread is free for the next
        async with aclosing(peer.ask(request)) as answers:
            first = asyncio.create_task(anext(answers))
            await until(lambda: asked)
            asked.clear()
            for _ in range(4):  # one too many: the call fails once the others are read
                assert peer.answered(event(request), third)
            assert (await first).message.correlation_id == request.message_id
            await anext(answers)
            await anext(answers)
            with pytest.raises(AgentUnavailable, match="faster than they were read"):
                await anext(answers)


# -- what is counted of messages, kept within bounds, and logged without their contents ------------


def asked(action: str = "search", type: str = MessageType.REQUEST, **metadata: int) -> Envelope:
    payload = RequestPayload(
        action=action,
        parameters={"query": "a secret question"},
        metadata=RequestMetadata(**metadata),
    )
    return message(type, payload, source=Source(agent_id="tester"))


def test_memory_is_bounded_whatever_senders_name() -> None:
    statistics = EnvelopeStatistics()
    for number in range(measured.MAX_KINDS + 50):
        running = statistics.begin(asked(f"skill-{number}"), agent="shop")
        running.end(f"status-{number}", error=f"error-{number}")
        statistics.begin(asked(type=f"TYPE-{number}"), agent="shop").end()
    counts = statistics.counts()
    for kinds in (counts.by_type, counts.by_status, counts.by_error):
        assert len(kinds) <= measured.MAX_KINDS + 1
        assert kinds[measured.OTHERS] > 0


def test_a_message_is_one_line_of_the_log_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    statistics = EnvelopeStatistics()
    forged = "x\r\n2026-11-23 INFO type=REQUEST action=admin status=success \x1b[31m"
    with caplog.at_level(logging.DEBUG, logger=measured.message_log.name):
        running = statistics.begin(asked(forged, retry_count=2), agent="shop", size=10)
        running.size = 99
        running.end(forged, error=forged)
        statistics.begin(asked(), agent="shop").end()
        statistics.begin(asked(), agent="shop").end(Status.ERROR, error="INTERNAL_ERROR")
    first, second, _ = (record.getMessage() for record in caplog.records)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["DEBUG", "DEBUG", "INFO"]  # the last is the server's fault
    assert first.isascii()
    assert first.isprintable()
    assert first.count("action=") == 1  # no space in a value, no "=" either
    assert "retry=2" in first
    assert "bytes=99" in first
    assert "type=REQUEST action=search agent=shop status=success error=- ms=0" in second
    assert "priority=normal" in second
    assert "secret" not in caplog.text


@pytest.mark.anyio
async def test_a_server_counts_messages() -> None:
    app = parley.asgi(searching("shop"))
    async with under_uvicorn(app) as url:
        for _ in range(3):
            await post(url, request(retryCount=1))
        await post(url, request("nothing", {}))
        counts = app.bindings["envelope"].services.statistics.counts()
    assert counts.messages == 4
    assert counts.answers == 4
    assert counts.in_flight == 0
    assert counts.retries == 3
    assert counts.by_type == {"REQUEST": 4}
    assert counts.by_error == {"UNKNOWN_ACTION": 1}
    assert counts.bytes_in > 400
