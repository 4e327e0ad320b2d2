"""What date and time it is, in two languages, anywhere."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from parley import Message

pytestmark = pytest.mark.anyio

MOMENT = datetime(2026, 11, 20, 15, 4, 5, tzinfo=UTC)


@pytest.fixture
def time_agent(example, monkeypatch):
    module = example("time_agent")
    monkeypatch.setattr(module, "now", lambda zone: MOMENT.astimezone(zone or UTC))
    return module.agent


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("What time is it?", "It is 15:04:05 on Friday, 20 November 2026 (UTC+00:00)."),
        (
            "What time is it in Tokyo?",
            "In Tokyo it is 00:04:05 on Saturday, 21 November 2026 (UTC+09:00).",
        ),
        (
            "what date is it in new york right now",
            "In New York it is 10:04:05 on Friday, 20 November 2026 (UTC-05:00).",
        ),
        ("Time in the UK, please", "In UK it is 15:04:05 on Friday, 20 November 2026 (UTC+00:00)."),
        (
            "Is it late in Kathmandu?",
            "In Kathmandu it is 20:49:05 on Friday, 20 November 2026 (UTC+05:45).",
        ),
        (
            "America/Argentina/Ushuaia?",
            "In America/Argentina/Ushuaia it is 12:04:05 on Friday, 20 November 2026 (UTC-03:00).",
        ),
        ("现在几点?", "现在是2026年11月20日 星期五 15:04:05（UTC+00:00）。"),
        ("北京现在几点", "北京现在是2026年11月20日 星期五 23:04:05（UTC+08:00）。"),
        ("今天东京是几号?", "东京现在是2026年11月21日 星期六 00:04:05（UTC+09:00）。"),
    ],
)
async def test_it_tells_the_date_and_the_time(time_agent, serve, asked, told) -> None:
    async with serve(time_agent) as agent:
        reply = await agent.send(asked)
    assert isinstance(reply, Message)
    assert reply.text == told


async def test_it_says_so_when_it_does_not_know_a_place(time_agent, serve) -> None:
    async with serve(time_agent) as agent:
        reply = await agent.send("What time is it in Atlantis?")
    assert reply.text == ("I do not know the time zone of Atlantis. Try a large city near it.")


async def test_it_reads_the_clock_of_the_server(example) -> None:
    now = example("time_agent").now(None)
    assert abs(datetime.now(UTC) - now).total_seconds() < 60
