"""What is measured of messages, kept within bounds, and logged without their contents."""

from __future__ import annotations

import logging

import aiohttp
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
from parley.envelope.server import measured
from parley.envelope.server.measured import EnvelopeStatistics
from tests.examples.serving import listening
from tests.host.envelope.talking import post, request, searching


def asked(action: str = "search", type: str = MessageType.REQUEST, **metadata: int) -> Envelope:
    payload = RequestPayload(
        action=action,
        parameters={"query": "a secret question"},
        metadata=RequestMetadata(**metadata),
    )
    return message(type, payload, source=Source(agent_id="tester"))


def test_a_skill_is_measured_over_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    clock = [0.0]
    monkeypatch.setattr(measured.time, "perf_counter", lambda: clock[0])
    statistics = EnvelopeStatistics(clock=lambda: now)
    for took in range(1, 21):
        running = statistics.begin(asked(), agent="shop", is_skill=True)
        assert statistics.measured("shop", "search").in_flight == 1
        clock[0] += took / 100
        if took == 20:
            running.end(Status.ERROR, error="INTERNAL_ERROR")
        else:
            error = "INVALID_PARAMS" if took == 1 else ""  # which is the caller's fault
            running.end(Status.ERROR if error else Status.SUCCESS, error=error)
        running.end(Status.SUCCESS)  # a second end counts nothing
    found = statistics.measured("shop", "search")
    assert (found.average_response_time, found.p95_response_time) == (105, 190)
    assert (found.requests, found.reliability, found.in_flight) == (20, 0.95, 0)
    assert statistics.measured("shop", "other").requests == 0
    now += measured.WINDOW_SECONDS + 1
    later = statistics.measured("shop", "search")
    assert (later.requests, later.average_response_time, later.reliability) == (0, None, None)


@pytest.mark.parametrize("code", ["SIGNATURE_REQUIRED", "UNAUTHENTICATED", "TOO_MANY_REQUESTS"])
def test_who_may_not_ask_a_skill_does_not_make_it_look_fast(code: str) -> None:
    statistics = EnvelopeStatistics()
    statistics.begin(asked(), agent="shop", is_skill=True).end(Status.ERROR, error=code)
    found = statistics.measured("shop", "search")
    assert (found.requests, found.in_flight) == (0, 0)
    assert statistics.counts().by_error == {code: 1}


def test_requests_for_other_agents_are_none_of_this_ones() -> None:
    statistics = EnvelopeStatistics()
    own = statistics.begin(asked(), agent="shop", is_skill=True)
    statistics.begin(asked(), agent="shop").end()
    found = statistics.measured("shop", "search")
    assert (found.requests, found.in_flight) == (0, 1)
    own.end()
    assert statistics.measured("shop", "search").requests == 1


def test_memory_is_bounded_whatever_senders_name() -> None:
    statistics = EnvelopeStatistics()
    for number in range(measured.MAX_SKILLS + 50):
        running = statistics.begin(asked(f"skill-{number}"), agent="shop", is_skill=True)
        running.end(f"status-{number}", error=f"error-{number}")
        statistics.begin(asked(type=f"TYPE-{number}"), agent="shop").end()
    for _ in range(measured.MAX_SAMPLES + 50):
        statistics.begin(asked(), agent="shop", is_skill=True).end()
    assert len(statistics._windows) == measured.MAX_SKILLS
    assert statistics.measured("shop", "search").requests == measured.MAX_SAMPLES
    counts = statistics.counts()
    for kinds in (counts.by_type, counts.by_status, counts.by_error):
        assert len(kinds) <= measured.MAX_KINDS + 1
        assert kinds[measured.OTHERS] > 0


def test_a_message_is_one_line_of_the_log_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    statistics = EnvelopeStatistics()
    forged = "x\r\n2026-11-23 INFO type=REQUEST action=admin status=success \x1b[31m"
    with caplog.at_level(logging.DEBUG, logger=measured.log.name):
        running = statistics.begin(asked(forged, retry_count=2), agent="shop", size=10)
        running.end(forged, error=forged, size=99)
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
async def test_a_server_counts_and_shows_what_it_measured() -> None:
    app = parley.asgi(searching("shop"))
    async with listening(app) as url:
        for _ in range(3):
            await post(url, request(retryCount=1))
        await post(url, request("nothing", {}))
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{url}/envelope/card") as answer,
        ):
            card = await answer.json()
        counts = app.bindings["envelope"].services.statistics.counts()
    [capability] = card["capabilities"]
    assert capability["measured"]["requests"] == 3
    assert capability["measured"]["reliability"] == 1.0
    assert counts.messages == 4
    assert counts.answers == 4
    assert counts.in_flight == 0
    assert counts.retries == 3
    assert counts.by_type == {"REQUEST": 4}
    assert counts.by_error == {"UNKNOWN_ACTION": 1}
    assert counts.bytes_in > 400
