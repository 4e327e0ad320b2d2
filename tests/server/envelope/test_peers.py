"""Agents at the other end of a socket: what of their answers waits is bounded."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from parley.envelope.answers import message
from parley.envelope.messages import (
    AgentUnavailable,
    Envelope,
    MessageType,
    RequestPayload,
    ResponsePayload,
    Source,
    Status,
)
from parley.envelope.server import services as directory
from parley.envelope.server.services import SocketPeer
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

ME, YOU = Source(agent_id="shop"), Source(agent_id="tester")


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
