"""The skill of a message that names none, by what the skills take."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

import parley
from parley import Agent, Message, Part, Role, Turn, testing
from parley.client.auth.credentials import skill_of
from parley.model.errors import InvalidParamsError
from parley.model.operations import SendMessageRequest

pytestmark = pytest.mark.anyio


@dataclass
class Trip:
    start: str
    end: str


def travel(default: bool = False) -> Agent:
    agent = Agent("Travel")

    @agent.skill
    async def chat(turn: Turn) -> str:
        return "chat"

    @agent.skill
    async def fare(trip: Trip) -> str:
        return "fare"

    @agent.skill(input_modes=["image/*"], default=default)
    async def look(turn: Turn) -> str:
        return "look"

    return agent


async def test_the_parts_and_the_data_of_a_message_choose() -> None:
    async with testing.client(travel()) as remote:
        assert (await remote.send("Hello")).text == "chat"
        assert (await remote.send({"start": "BER", "end": "LIS"})).text == "fare"
        assert (await remote.send('{"start": "BER", "end": "LIS"}')).text == "fare"
        assert (await remote.send({"start": "BER"})).text == "chat"


async def test_a_declared_default_and_a_name_come_before_the_types() -> None:
    async with testing.client(travel(default=True)) as remote:
        with pytest.raises(parley.A2AError, match=r"takes image/\*"):
            await remote.send({"start": "BER", "end": "LIS"})
        assert (await remote.send("Hello", skill="chat")).text == "chat"


async def test_an_unclear_choice_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    picture = Part(raw=b"...", media_type="image/png")
    async with testing.client(travel()) as remote:
        for _ in range(2):
            assert (await remote.send(picture)).text == "chat"
    lines = [each.getMessage() for each in caplog.records if "names none of its" in each.message]
    assert len(lines) == 1
    assert "(chat, fare, look)" in lines[0]
    assert "'chat' answers" in lines[0]
    caplog.clear()
    caplog.set_level(logging.WARNING)
    async with testing.client(travel()) as remote:
        await remote.send("Hello")
    assert not [each for each in caplog.records if "names none" in each.getMessage()]


async def test_a_hidden_skill_is_never_chosen_for_whom_it_is_not_there() -> None:
    agent = Agent("Hotel")

    @agent.skill
    async def desk(turn: Turn) -> str:
        return "desk"

    @agent.skill(listed=lambda caller: caller.id == "ann")
    async def cellar(trip: Trip) -> str:
        return "cellar"

    async with testing.client(agent, caller="bob") as bob:
        assert (await bob.send({"start": "a", "end": "b"})).text == "desk"
        ann = bob.as_caller("ann")
        assert (await ann.send({"start": "a", "end": "b"})).text == "cellar"
        assert (await ann.send("x", skill="desk")).text == "desk"
        with pytest.raises(InvalidParamsError, match="no skill 'cellar'; it has desk"):
            await bob.send({"start": "a", "end": "b"}, skill="cellar")


async def test_a_delegated_message_names_its_skill() -> None:
    office = Agent("Office", uses=[there := travel()])

    @office.skill
    async def ask(turn: Turn) -> str:
        answers = [
            await turn.delegate(to, {"start": "a", "end": "b"}, skill=turn.text)
            for to in (there, "https://travel.example")
        ]
        return " ".join(answer.text for answer in answers)

    async with testing.client(office, remotes={"https://travel.example": travel()}) as remote:
        assert (await remote.send("chat")).text == "chat chat"
        assert (await remote.send("fare")).text == "fare fare"
        assert await remote.send("cook") == testing.failed()


async def test_a_client_and_a_server_read_the_same_skill() -> None:
    message = Message(
        message_id="1", role=Role.USER, parts=(Part(text="?"),), metadata={"skill": "fare"}
    )
    assert skill_of(SendMessageRequest(message=message, metadata={"skill": "chat"})) == "fare"
