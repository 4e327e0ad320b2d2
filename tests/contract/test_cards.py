"""Cards: the public card, and cards that depend on the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

import parley
from parley import Agent, CardDetails, Turn
from parley.client.bindings.binding import canonical
from parley.client.remote_agent import RemoteAgent
from parley.extensions.declared import schemas_on
from parley.model.errors import InvalidParamsError, UnsupportedOperationError
from parley.model.operations import GetExtendedAgentCardRequest
from parley.model.service import Caller
from parley.security import Bearer, anonymous
from tests.contract.conftest import Serve, Speech, past_the_card, reach
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio


ENVELOPE = ("urn:parley:envelope:v1", "1.0")
OFFERED = [*(way for way in WAYS if way != ENVELOPE), ENVELOPE]
OF_0_3 = [way for way in OFFERED if way[1] == "0.3"]


async def test_a_pinned_client_speaks_as_it_was_told(remote, speech):
    assert remote.interface.protocol_binding == canonical(speech.binding)
    assert remote.interface.protocol_version[:3] == speech.version
    assert remote.version == speech.version


async def test_the_card_offers_every_way_the_preferred_first(remote):
    offered = [(i.protocol_binding, i.protocol_version) for i in remote.card.supported_interfaces]
    assert offered == OFFERED


async def test_the_extended_card_is_told_in_every_way(remote, speech):
    card = await remote.extended_card()
    assert card.name == "Contract agent"
    assert card.description == "Does what it is told, for ada."
    assert {skill.id for skill in card.skills} >= {"say", "work", "secret"}
    # A card of 0.3 names only the interfaces of 0.3.
    offered = [(i.protocol_binding, i.protocol_version[:3]) for i in card.supported_interfaces]
    assert offered == (OF_0_3 if speech.is_old else OFFERED)


async def test_an_agent_without_an_extended_card_says_so(server, speech):
    async with reach(server.plain, speech) as plain:
        with pytest.raises(UnsupportedOperationError):
            await plain.extended_card()
        # The agent also rejects the request of a client that ignores the card.
        with pytest.raises(UnsupportedOperationError):
            await past_the_card(plain, "GetExtendedAgentCard", GetExtendedAgentCardRequest())


# -- selective disclosure: cards depend on the caller, over every binding and version --------------


def judge(text: str) -> Caller:
    """Read a token: a name and its scopes."""
    name, _, scopes = text.partition(":")
    return Caller(id=name, scopes=frozenset(filter(None, scopes.split(","))))


token = Bearer(judge)
agent = Agent(
    "Discreet",
    security=token | anonymous,
    card=CardDetails(
        listed_interfaces={"GRPC": "extended", "HTTP+JSON 0.3": lambda caller: caller.id == "ada"}
    ),
)


@agent.skill
async def hello(turn: Turn) -> str:
    return "hello"


@agent.skill(listed="extended", security=token.with_scopes("pay"), replies="message")
async def pay(amount: int) -> dict[str, int]:
    return {"paid": amount}


@agent.skill(listed=lambda caller: caller.id == "ada", replies="message")
async def garden(turn: Turn) -> str:
    return "roses"


@agent.skill(listed="extended", replies="message")
async def members(turn: Turn) -> str:
    return "welcome"


@agent.skill(listed=False, replies="message")
async def cellar(turn: Turn) -> str:
    return "dark"


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, agent), caller=None)


@asynccontextmanager
async def bearing(
    addresses: Sequence[str], speech: Speech, bearer: str = ""
) -> AsyncIterator[RemoteAgent]:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    if speech.binding == "GRPC" or speech.way == ("HTTP+JSON", "0.3"):
        # The public card omits these interfaces; callers who know them from another card may use
        # them.
        known = {"authorization": "Bearer ada"}
        async with reach(addresses, Speech("JSONRPC", "1.0"), headers=known) as remote:
            skills = remote.card.skills
            card = replace(await remote.extended_card(), skills=skills)
        async with parley.connect(
            card, binding=speech.binding, version=speech.version, headers=headers, insecure=True
        ) as remote:
            yield remote
        return
    async with reach(addresses, speech, headers=headers) as remote:
        yield remote


def offered(card: Any) -> set[str]:
    return {f"{i.protocol_binding} {i.protocol_version[:3]}" for i in card.supported_interfaces}


SKILLS = {
    "eve": {"hello", "members"},
    "eve:pay": {"hello", "members", "pay"},
    "ada": {"hello", "members", "garden"},
    "ada:pay": {"hello", "members", "garden", "pay"},
}


@pytest.mark.parametrize("bearer", SKILLS)
async def test_each_caller_sees_their_own_skills(
    addresses: Sequence[str], speech: Speech, bearer: str
) -> None:
    async with bearing(addresses, speech, bearer) as remote:
        assert {skill.id for skill in remote.card.skills} == {"hello"}
        assert remote.card.capabilities.extended_agent_card
        card = await remote.extended_card()
    assert {skill.id for skill in card.skills} == SKILLS[bearer]
    assert set(schemas_on(card)) == ({"pay"} if "pay" in bearer else set())
    ways = {"JSONRPC 1.0", "JSONRPC 0.3", "HTTP+JSON 1.0", "GRPC 1.0", "GRPC 0.3"}
    ways |= {"urn:parley:envelope:v1 1.0"}
    if "ada" in bearer:
        ways |= {"HTTP+JSON 0.3"}
    assert offered(card) == {way for way in ways if "0.3" in way or not speech.is_old}


@pytest.mark.parametrize(
    ("bearer", "skill"),
    [("", "pay"), ("", "members"), ("", "garden"), ("eve", "pay"), ("eve", "garden")],
)
async def test_a_hidden_skill_is_like_one_that_does_not_exist(
    addresses: Sequence[str], speech: Speech, bearer: str, skill: str
) -> None:
    async with bearing(addresses, speech, bearer) as remote:
        said = []
        for name in (skill, "xyzzy"):
            with pytest.raises(InvalidParamsError) as caught:
                await remote.send("hello", metadata={"skill": name})
            error = caught.value
            words = f"{error.message} {error.violations} {error.metadata}"
            said.append((type(error), words.replace(name, "NAME")))
        assert said[0] == said[1]
        hidden = {"pay", "garden", "members", "cellar"} - SKILLS.get(bearer, set())
        assert not any(f"{name}," in said[1][1] or f", {name}" in said[1][1] for name in hidden)


async def test_who_may_use_a_hidden_skill_uses_it(addresses: Sequence[str], speech: Speech) -> None:
    async with bearing(addresses, speech, "ada:pay") as remote:
        for name, text in (("garden", "roses"), ("members", "welcome"), ("cellar", "dark")):
            assert (await remote.send("go", metadata={"skill": name})).text == text
        paid = await remote.send(data={"amount": 5}, metadata={"skill": "pay"})
        assert paid.parts[0].data == {"paid": 5}
    async with bearing(addresses, speech) as remote:
        assert (await remote.send("go")).text == "hello"
        assert (await remote.send("go", metadata={"skill": "cellar"})).text == "dark"


@pytest.mark.slow
async def test_the_public_card_and_the_pages_show_nothing_of_it(addresses: Sequence[str]) -> None:
    async with aiohttp.ClientSession() as http:
        for path in ("/.well-known/agent-card.json", "/.well-known/agent.json", "/", "/nothing"):
            for version in ("", "1.0", "0.3"):
                headers = {"A2A-Version": version} if version else {}
                async with http.get(addresses[0].rstrip("/") + path, headers=headers) as answer:
                    body = await answer.text()
                for word in ("pay", "garden", "members", "cellar", "GRPC", "paid"):
                    assert word not in body, (path, version, word)
        async with http.get(addresses[0].rstrip("/") + "/openapi.json") as answer:
            body = await answer.text()
            assert answer.status == 200
    assert not any(f'"{word}' in body for word in ("pay", "garden", "members", "cellar"))
