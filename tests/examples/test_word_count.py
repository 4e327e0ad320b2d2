"""A skill that reads files of any size, and gives one back."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from parley import Part, TaskState, TaskStatusUpdateEvent

pytestmark = pytest.mark.anyio

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
