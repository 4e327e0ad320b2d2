"""The card of an agent: what it declares, for whom, and which skill a message means."""

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
    AgentInterface,
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
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    PermissionDeniedError,
    PushNotificationNotSupportedError,
    UnauthenticatedError,
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


async def test_without_an_extended_card_the_operation_is_unsupported() -> None:
    agent = agent_with()
    assert agent.card("http://x/").capabilities.extended_agent_card is False
    with pytest.raises(UnsupportedOperationError):
        await card_of(agent)


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


async def test_the_server_says_where_the_agent_is_unless_the_card_does() -> None:
    agent = agent_with({})
    async with serving(parley.asgi(agent)) as url, parley.connect(url) as remote:
        public = remote.card
        card = await remote.extended_card()
        assert card.supported_interfaces == public.supported_interfaces
        assert card.supported_interfaces[0].url.startswith(url)
    own = AgentInterface(
        url="https://x.example", protocol_binding="JSONRPC", protocol_version="1.0"
    )
    card = await card_of(agent_with({"supported_interfaces": [own]}))
    assert card.supported_interfaces == (own,)


async def test_a_whole_card_is_shown_as_it_is() -> None:
    whole = replace(agent_with().card("https://x.example"), name="Another")
    card = await card_of(agent_with(whole))
    assert card.name == "Another"
    assert card.supported_interfaces == whole.supported_interfaces


def plain(caller: Caller) -> dict[str, Any]:
    return {"description": f"For {caller.id}"}


async def coroutine(caller: Caller, card: AgentCard) -> AgentCard:
    return replace(card, description=f"For {caller.id}")


@pytest.mark.parametrize("function", [plain, coroutine])
async def test_a_function_knows_the_caller(function: Any) -> None:
    agent = agent_with()
    assert agent.extended_card(function) is function
    card = await card_of(agent, caller=by_header, bearer="ada")
    assert card.description == "For Bearer ada"


async def test_there_may_be_no_card_for_a_caller() -> None:
    agent = agent_with(lambda caller: {} if "ada" in caller.id else None)
    assert await card_of(agent, caller=by_header, bearer="ada")
    with pytest.raises(ExtendedAgentCardNotConfiguredError):
        await card_of(agent, caller=by_header, bearer="bob")


async def test_a_function_may_refuse() -> None:
    def refuse(caller: Caller) -> None:
        raise PermissionDeniedError("members only")

    with pytest.raises(PermissionDeniedError, match="members only"):
        await card_of(agent_with(refuse), caller=by_header, bearer="bob")


async def test_where_callers_are_told_apart_it_is_for_those_who_are_known() -> None:
    agent = agent_with({"skills": [SECRET]})
    with pytest.raises((UnauthenticatedError, parley.ClientError)):
        await card_of(agent, caller=by_header)
    assert await card_of(agent, caller=by_header, bearer="ada")


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


def test_a_card_can_be_set_later() -> None:
    agent = agent_with()
    agent.extended_card = {"description": "More"}
    assert agent.card("http://x/").capabilities.extended_agent_card is True


# -- the skill of a message that names none, by what the skills take -------------------------------


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
        with pytest.raises(parley.A2AError, match=r"accepts image/\*"):
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


# -- what an author switches off is neither on the card nor done -----------------------------------


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
