"""An agent's card: its declarations, its readers, and the skill that a message selects."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

import parley
from parley import (
    Agent,
    AgentCard,
    AgentSkill,
    Caller,
    CardDetails,
    Message,
    Part,
    Role,
    Turn,
    testing,
)
from parley.client.auth.credentials import skill_of
from parley.model.errors import (
    InternalError,
    InvalidParamsError,
    PermissionDeniedError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from parley.model.operations import SendMessageRequest
from parley.server.run import serving
from tests.kit.servers import served

pytestmark = pytest.mark.anyio


SECRET = AgentSkill(id="secret", name="Secret", description="For friends", tags=("secret",))


def hello() -> str:
    "Greets."
    return "hi"


def agent_with(extended_card: Any = None) -> Agent:
    agent = Agent("Host", description="Hosts", card=CardDetails(extended_card=extended_card))
    agent.skill(hello)
    return agent


def by_header(scope: Any) -> Caller:
    name = dict(scope["headers"]).get(b"authorization", b"").decode()
    return Caller(id=name, authenticated=bool(name))


async def card_of(agent: Agent, *, caller: Any = None, **options: Any) -> AgentCard:
    async with (
        serving(parley.asgi(agent, caller=caller)) as url,
        parley.connect(url, **options) as remote,
    ):
        return await remote.extended_card()


async def test_changes_replace_fields_and_add_skills() -> None:
    agent = agent_with({"description": "Hosts friends", "skills": [SECRET]})
    card = await card_of(agent)
    assert card.description == "Hosts friends"
    assert [skill.id for skill in card.skills] == ["hello", "secret"]
    assert card.name == "Host"
    assert card.capabilities.extended_agent_card is True


async def test_a_skill_of_the_same_id_takes_the_place_of_the_public_one() -> None:
    card = await card_of(agent_with({"skills": [replace(SECRET, id="hello")]}))
    assert [skill.name for skill in card.skills] == ["Secret"]


async def test_a_function_may_refuse() -> None:
    def refuse(caller: Caller) -> None:
        raise PermissionDeniedError("members only")

    with pytest.raises(PermissionDeniedError, match="members only"):
        await card_of(agent_with(refuse), caller=by_header, bearer="bob")


@pytest.mark.parametrize(
    "made", [{"skilz": []}, {"name": 7}, "a card", RuntimeError("secret")], ids=str
)
async def test_what_goes_wrong_stays_in_the_log(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def make(caller: Caller) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    with caplog.at_level(logging.ERROR, "parley.engine"), pytest.raises(InternalError) as raised:
        await card_of(agent_with(make), retries=0)
    assert "secret" not in str(raised.value)
    reference = str(raised.value).split()[-1]
    assert reference in caplog.text


@pytest.mark.parametrize(
    ("source", "error"),
    [({"skilz": []}, ValueError), (7, TypeError), (lambda a, b, c: None, TypeError)],
)
def test_what_can_be_no_card_is_refused_at_once(source: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Agent("Wrong", card=CardDetails(extended_card=source))


# -- a message without a skill selects one by the inputs that skills accept ------------------------


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


# -- a switched-off feature is neither on the card nor served --------------------------------------


async def test_an_agent_without_streams_and_webhooks_answers_and_refuses_those() -> None:
    agent = Agent("Plain", card=CardDetails(streaming=False, push_notifications=False))

    @agent.skill
    async def echo(turn: Turn) -> str:
        """Says it again."""
        return turn.text

    async with served(agent) as remote:
        capabilities = remote.card.capabilities
        assert (capabilities.streaming, capabilities.push_notifications) == (False, False)
        assert (await remote.send("hello")).text == "hello"
        with pytest.raises(UnsupportedOperationError, match=r"capabilities\.streaming"):
            await anext(remote.subscribe("t-1"))
        with pytest.raises(PushNotificationNotSupportedError):
            await remote.send("hello", push="https://hooks.example.com")
