"""HEARTBEATs of a socket: answered, sent, missed, bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parley.envelope.answers import message
from parley.envelope.messages import Envelope, MessageType, Source
from parley.envelope.server.services import (
    MISSED,
    HeartbeatSettings,
    ServerLoad,
    SocketHeartbeats,
    SocketPeer,
)
from parley.model.errors import TooManyRequestsError

pytestmark = pytest.mark.anyio

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
