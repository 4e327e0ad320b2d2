"""Answers and cards in the form of textbooks, older documents, and agents written after these.

Each case names its source. An odd form never loses an answer of an agent that has run. The wording
is ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from parley import Agent, Retention, asgi
from parley.client import connect
from parley.client.errors import AuthenticationRequired, CardNotFound
from parley.server.run import serving
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio

OLD, NEW = "0.3", "1.0"


# Addresses: a text gives the host's address, but the agent is below it; or a text gives the address
# of an agent below a host, but the host serves the card


def speaker(name: str) -> Agent:
    agent = Agent(name, retention=Retention(tasks=None))

    @agent.skill
    def speak() -> str:
        return f"I am {name}"

    return agent


async def test_of_several_agents_below_a_host_the_names_and_addresses_are_told() -> None:
    app = asgi({"/time": speaker("Time"), "/echo": speaker("Echo")}, store="memory:")
    async with serving(app) as url:
        with pytest.raises(CardNotFound) as refusal:
            await connect(url, retries=0)
        words = str(refusal.value)
        assert "has 2 agents; connect to one of them" in words
        assert f"Time at {url}/time" in words
        assert f"Echo at {url}/echo" in words
        async with connect(f"{url}/echo", retries=0) as agent:
            assert (await agent.send("Hi")).text == "I am Echo"


async def test_an_agent_that_is_not_there_is_not_another_one() -> None:
    for agents in ({"/time": speaker("Time")}, {"/": speaker("Time")}):
        async with serving(asgi(agents, store="memory:")) as url:
            with pytest.raises(CardNotFound, match=r"Time|/time"):
                await connect(f"{url}/tiem", retries=0)


async def test_an_agent_of_another_server_is_named_and_not_called() -> None:
    elsewhere = {"agents": [{"name": "Time", "url": "https://agents.example/time"}]}
    async with scripted(Host({"/": elsewhere})) as server:
        with pytest.raises(CardNotFound, match="another server") as refusal:
            await connect(server.url, retries=0)
        assert "https://agents.example/time" in str(refusal.value)


class Host:
    """Serves documents at some paths; other paths do not exist."""

    def __init__(self, documents: Mapping[str, Any], status: int = 200) -> None:
        self.documents, self.status = documents, status

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path in self.documents:
            host = f"http://{exchange.headers['host']}"
            text = json.dumps(self.documents[exchange.path]).replace("http://host", host)
            await exchange.json(text.encode(), self.status)
        else:
            await exchange.json({"detail": "Not Found"}, 404)


WELL_KNOWN = "/.well-known/agent-card.json"
TIME = card("http://host/time", name="Time")
LISTS = {
    "a list in place of a card": {WELL_KNOWN: [TIME]},
    "a list of cards": {WELL_KNOWN: {"agents": [TIME]}},
    "names and cards": {"/": {"agents": [{"name": "Time", "card": TIME}]}},
    "addresses": {"/": {"agents": [{"url": "http://host/time"}]}, "/time" + WELL_KNOWN: TIME},
    "relative addresses": {"/": {"agents": ["/time"]}, "/time" + WELL_KNOWN: TIME},
    "addresses of cards": {
        "/.well-known/agent.json": {"agentCards": [{"agentCardUrl": "/cards/1"}]},
        "/cards/1": TIME,
    },
}


@pytest.mark.parametrize("what", LISTS)
async def test_a_list_of_one_agent_leads_to_it(what: str) -> None:
    async with scripted(Host(LISTS[what])) as server, connect(server.url, retries=0) as agent:
        assert agent.card.name == "Time"


@pytest.mark.parametrize("offered", ["http://host/a2a", "http://host/a2a/", "http://host/a2a/v1"])
@pytest.mark.parametrize("path", [WELL_KNOWN, "/.well-known/agent.json"])
async def test_an_address_whose_card_is_the_hosts_leads_to_it(path: str, offered: str) -> None:
    """Tutorials give the address for calls, and serve the card at the host's address."""
    async with scripted(Host({path: card(offered, name="Time")})) as server:
        for given in ("/a2a", "/a2a/", "/a2a?key=1"):
            async with connect(server.url + given, retries=0) as agent:
                assert agent.card.name == "Time"


async def test_who_wants_credentials_for_a_card_is_not_passed_over() -> None:
    async with scripted(Host({WELL_KNOWN: {"error": "who are you?"}}, 401)) as server:
        with pytest.raises(AuthenticationRequired):
            await connect(server.url, retries=0)
