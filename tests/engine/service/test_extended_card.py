"""The card for callers who are known (specification §3.1.11, §13.3)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

import parley
from parley import Agent, AgentCard, AgentInterface, AgentSkill, Caller, CardDetails
from parley.model.errors import (
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.server.run import serving

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
