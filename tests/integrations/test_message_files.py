"""Files of messages as a model's input."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, Part, Turn
from parley.client.errors import FileLimitExceeded
from parley.integrations import message_files

pytestmark = pytest.mark.anyio


async def test_the_files_of_a_message_are_bounded_together(monkeypatch):
    monkeypatch.setattr(message_files, "MAX_TOGETHER", 10)
    agent = Agent("Reader")

    @agent.skill
    async def read(turn: Turn) -> str:
        try:
            found = await message_files.input_of(turn, turn.message)
        except FileLimitExceeded:
            return "too much"
        return str(len(found))

    file = Part(raw=b"12345", media_type="text/plain")
    async with parley.connect(agent) as remote:
        assert (await remote.send([file] * 2)).text == "2"
        assert (await remote.send([file] * 3)).text == "too much"
