"""What is counted of messages, kept within bounds, and logged without their contents."""

from __future__ import annotations

import logging

import pytest

import parley
from parley.envelope.answers import message
from parley.envelope.messages import (
    Envelope,
    MessageType,
    RequestMetadata,
    RequestPayload,
    Source,
    Status,
)
from parley.envelope.server import services as measured
from parley.envelope.server.services import EnvelopeStatistics
from tests.host.envelope.talking import post, request, searching
from tests.kit.servers import under_uvicorn


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
