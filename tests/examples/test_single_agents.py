"""Agents with one purpose each."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import parley
from parley import Part, TaskState, TaskStatusUpdateEvent
from parley.client import question, schemas_on
from parley.model.errors import InvalidParamsError
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.http import JSON, ask
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


async def test_it_greets_with_a_direct_message(example, serve) -> None:
    async with serve(example("hello").agent) as agent:
        reply = await agent.send("I am Ada")
    assert reply.task is None
    assert reply.text == "Hello! You said: I am Ada"


async def test_its_card_says_what_it_does(example, serve) -> None:
    async with serve(example("hello").agent) as agent:
        [skill] = agent.card.skills
    assert (skill.id, skill.tags) == ("hello", ("greeting",))
    assert skill.description == "Says hello, and what it was told."


# -- what date and time it is, in two languages, anywhere ------------------------------------------


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
    assert reply.task is None
    assert reply.text == told


async def test_it_says_so_when_it_does_not_know_a_place(time_agent, serve) -> None:
    async with serve(time_agent) as agent:
        reply = await agent.send("What time is it in Atlantis?")
    assert reply.text == ("I do not know the time zone of Atlantis. Try a large city near it.")


async def test_it_reads_the_clock_of_the_server(example) -> None:
    now = example("time_agent").now(None)
    assert abs(datetime.now(UTC) - now).total_seconds() < 60


# -- the currency agent: data in, questions for missing data, data out -----------------------------


@pytest.fixture
def currency(example):
    return example("currency")


async def test_data_that_fits_is_answered_at_once(currency, serve) -> None:
    async with serve(currency.agent) as agent:
        reply = await agent.send(data={"amount": 100, "source": "EUR", "target": "USD"})
        assert reply.parts[0].data == {"amount": 108.0, "currency": "USD", "pickup": None}
        reply = await agent.send('{"amount": 108, "source": "USD"}')
        assert reply.parts[0].data == {"amount": 100.0, "currency": "EUR", "pickup": None}


async def test_prose_is_asked_for_what_it_lacks(currency, serve) -> None:
    async with serve(currency.agent) as agent:
        task = await agent.send("Change some money, please")
        asked = question(task)
        assert [each.field for each in asked.problems] == ["amount", "source"]
        task = await agent.send('{"amount": 100}', task=task)
        assert [each.field for each in question(task).problems] == ["source"]
        task = await agent.send("EUR", task=task)
        assert task.artifacts[0].parts[0].data["amount"] == 100.0


async def test_a_large_sum_is_fetched(currency, serve) -> None:
    async with serve(currency.agent) as agent:
        task = await agent.send(data={"amount": 340_000, "source": "JPY"})
        assert task.state is TaskState.INPUT_REQUIRED
        assert question(task).schema["required"] == ["branch", "day"]
        task = await agent.send(data={"branch": "Harbour", "day": "soon"}, task=task)
        assert [each.field for each in question(task).problems] == ["branch"]
        task = await agent.send(data={"branch": "Station", "day": "soon"}, task=task)
        assert [each.field for each in question(task).problems] == ["day"]
        pickup = {"branch": "Station", "day": "2027-03-14"}
        task = await agent.send(data=pickup, task=task)
        made = {"amount": 2000.0, "currency": "EUR", "pickup": pickup}
        assert task.artifacts[0].parts[0].data == made


async def test_the_card_describes_what_goes_in(currency, serve) -> None:
    async with serve(currency.agent) as agent:
        schema = schemas_on(agent.card)["exchange"].input
        assert schema["required"] == ["amount", "source"]
        assert schema["properties"]["amount"]["description"] == "how much to change"
        assert schema["properties"]["target"]["default"] == "EUR"


# -- a skill that reads files of any size, and returns a file --------------------------------------


TEXT = "The sea, the SEA! Don't go to the sea.\n"


@pytest.fixture
def counter(example):
    return example("word_count")


async def test_it_counts_what_comes_in_the_message(counter, serve, tmp_path: Path) -> None:
    async with serve(counter.agent) as agent:
        task = await agent.send("Count", files=[Part(raw=TEXT.encode(), filename="sea.txt")])
        (path,) = await agent.download(task, tmp_path)
    assert task.text.endswith("9 words, 5 different ones.")
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file))[:3] == [["word", "count"], ["the", "3"], ["sea", "3"]]


async def test_it_counts_a_file_that_is_uploaded(counter, serve, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(counter, "PAUSE", 1_000_000)
    book = tmp_path / "book.txt"
    book.write_text(TEXT * 100_000 + "Mañana", encoding="utf-8")
    async with serve(counter.agent) as agent:
        events = [event async for event in agent.stream("Count", files=[book])]
        task = await agent.get(events[0].id)
    assert task.history[0].parts[1].url
    assert task.text.endswith("900,001 words, 6 different ones.")
    updates = [e.status.message for e in events if isinstance(e, TaskStatusUpdateEvent)]
    said = [message.text for message in updates if message]
    assert len(said) >= 3
    assert said[0].endswith("bytes of book.txt read")


async def test_it_says_what_it_wants(counter, serve) -> None:
    async with serve(counter.agent) as agent:
        task = await agent.send("Count")
    assert task.state is TaskState.FAILED
    assert task.text == "Send a text file, and I count its words."


# -- a reminder that sleeps, and arrives after a restart -------------------------------------------


def test_it_reads_when_and_of_what(example) -> None:
    parse = example("reminder").parse
    assert parse("in 2 days: water the plants") == (timedelta(days=2), "water the plants")
    assert parse("In 1 MINUTE:tea\nand cake") == (timedelta(minutes=1), "tea\nand cake")
    assert parse("soon") is None


async def test_it_asks_and_reminds(example, serve) -> None:
    async with serve(example("reminder").agent) as agent:
        task = await agent.send("soon")
        assert task.state is TaskState.INPUT_REQUIRED
        task = await agent.send("in 0 seconds: tea", task_id=task.id)
        assert task.text == "It is time: tea"


async def test_it_comes_after_a_restart(example, serve, tmp_path: Path) -> None:
    now = [1_800_000_000_000]

    def store() -> SqliteTaskStore:
        return SqliteTaskStore(tmp_path / "t.db", clock=lambda: now[0])

    agent, kept = example("reminder").agent, store()
    async with serve(agent, kept) as remote:
        task = await remote.send("in 2 days: water the plants", return_immediately=True)
        assert task.id
        await until(lambda: _is_asleep(kept, task.id), 20)
        said = (await remote.get(task.id)).status.message
        assert said is not None
        assert said.text == "I will remind you in 2 days, 0:00:00."
    now[0] += 2 * 86_400_000
    async with serve(agent, store()) as remote:
        done = await remote.wait(task.id, timeout=20)
        assert done.text == "It is time: water the plants"


async def _is_asleep(store: SqliteTaskStore, task_id: str) -> bool:
    record = await store.load(task_id)
    return record is not None and record.wakes_at is not None


# -- the fortune teller with the extension from the guides -----------------------------------------


URI = "https://example.com/ext/konami-code/v1"
QUESTION = "Will it rain today?"


@pytest.fixture
def ball(example):
    return example("magic_8_ball")


async def test_anybody_gets_an_answer(ball, serve) -> None:
    async with serve(ball.agent) as agent:
        assert str(await agent.send(QUESTION)) in ball.ANSWERS


async def test_a_code_unlocks_another_answer(ball) -> None:
    async with (
        under_uvicorn(parley.asgi(ball.agent)) as url,
        parley.connect(url, extensions=[ball.KonamiCode("moo")]) as agent,
    ):
        assert str(await agent.send(QUESTION)) in ball.UNLOCKED["moo"]
        hints = [e.params for e in agent.card.capabilities.extensions if e.uri == URI]
        assert len(hints[0]["hints"]) == 2


async def test_a_code_without_the_extension_unlocks_nothing(ball, serve) -> None:
    async with serve(ball.agent) as agent:
        reply = await agent.send(QUESTION, metadata={f"{URI}/code": "moo"})
        assert str(reply) in ball.ANSWERS


async def test_a_wrong_code_is_refused(ball) -> None:
    async with (
        under_uvicorn(parley.asgi(ball.agent)) as url,
        parley.connect(url, extensions=[ball.KonamiCode("xyzzy")]) as agent,
    ):
        with pytest.raises(InvalidParamsError, match="hints"):
            await agent.send(QUESTION)


async def test_the_request_of_the_guide_is_understood(ball) -> None:
    params = {
        "message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Rain today?"}]},
        "metadata": {f"{URI}/code": "motherlode"},
    }
    body = {"jsonrpc": "2.0", "method": "SendMessage", "id": "1", "params": params}
    async with under_uvicorn(parley.asgi(ball.agent)) as url:
        headers = {**JSON, "A2A-Extensions": URI}
        response = await ask(url, "POST", "/", json.dumps(body).encode(), headers)
    assert response.headers["a2a-extensions"] == URI
    text = response.json["result"]["message"]["parts"][0]["text"]
    assert text in ball.UNLOCKED["motherlode"]


async def test_it_asks_by_itself(ball, capsys) -> None:
    async with under_uvicorn(parley.asgi(ball.agent)) as url:
        await ball.main(QUESTION, "moo", url)
    assert capsys.readouterr().out.strip() in ball.UNLOCKED["moo"]
