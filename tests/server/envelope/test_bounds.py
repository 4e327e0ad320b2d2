"""Bounds and counts of a socket: queue order, heartbeats, answers, metrics."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

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
from parley.envelope.server.queue import QueuedConnection, QueueLimits, RequestQueue, Slot
from parley.envelope.server.services import (
    MISSED,
    EnvelopeStatistics,
    HeartbeatSettings,
    ServerLoad,
    SocketHeartbeats,
    SocketPeer,
)
from parley.model.errors import TooManyRequestsError
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio


class Line:
    """Requests of one connection: records the running ones, in starting order."""

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


# -- HEARTBEATs of a socket: answered, sent, missed, bounded ---------------------------------------


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


ME, YOU = Source(agent_id="shop"), Source(agent_id="tester")


# -- agents at the other end of a socket: unread answers are bounded -------------------------------


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
    for _ in range(2):  # the room of a call's unread answers is free for the next call
        async with aclosing(peer.ask(request)) as answers:
            first = asyncio.create_task(anext(answers))
            await until(lambda: asked)
            asked.clear()
            for _ in range(4):  # one too many: the call fails after the other answers are read
                assert peer.answered(event(request), third)
            assert (await first).message.correlation_id == request.message_id
            await anext(answers)
            await anext(answers)
            with pytest.raises(AgentUnavailable, match="faster than they were read"):
                await anext(answers)


# -- message metrics, with bounded labels, and logs without contents -------------------------------


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
    own = [each for each in caplog.records if each.name == measured.message_log.name]
    first, second, _ = (record.getMessage() for record in own)
    levels = [record.levelname for record in own]
    assert levels == ["DEBUG", "DEBUG", "INFO"]  # the last is the server's fault
    assert first.isascii()
    assert first.isprintable()
    assert first.count("action=") == 1  # no space and no "=" in a value
    assert "retry=2" in first
    assert "bytes=99" in first
    assert "type=REQUEST action=search agent=shop status=success error=- ms=0" in second
    assert "priority=normal" in second
    assert "secret" not in caplog.text
