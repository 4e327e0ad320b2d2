"""Calls to agents from a registry, calls that another replica resumes, calls next to a sleep."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import parley
from parley import Agent, Execution, Turn
from parley.client.errors import AddressNotAllowed
from parley.registry.catalog.reading import read_entry
from parley.registry.catalog.searching import SearchRequest, SearchResponse, SearchResult
from parley.registry.client.found import FoundAgent
from tests.engine.fleet import where

pytestmark = pytest.mark.anyio


def entry(url: str) -> dict[str, Any]:
    return {
        "identifier": "urn:air:agent.localhost:agent:money",
        "displayName": "Money",
        "type": "application/a2a-agent-card+json",
        "url": f"{url}/.well-known/agent-card.json",
        "registry": {"marks": ["roles"]},
    }


class Directory:
    """A registry that records its queries."""

    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)
        self.asked: list[str] = []

    async def search(self, request: SearchRequest) -> SearchResponse:
        self.asked.append(request.query.text)
        results = [SearchResult(entry=entry(url), score=9, source="test") for url in self.urls]
        self.urls.reverse()
        return SearchResponse(results=tuple(results))


async def test_a_search_as_a_step_is_made_once_and_its_agent_is_called(
    serve: Any, talk_to: Any
) -> None:
    money = Agent("Money", description="Changes money")

    @money.skill
    async def change(turn: Turn) -> str:
        """Changes money."""
        return f"changed {turn.text}"

    directory = Directory(await serve(money))
    planner = Agent("Planner", description="Plans")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Plans."""
        [found] = await turn.step("find", parley.find, "change money", registry=directory)
        amount = await turn.ask("How much?")
        answer = await turn.delegate(found, amount.text)
        assert isinstance(found, FoundAgent)
        return f"{found.name} {found.marks} {answer.text}"

    async with await talk_to(planner, allow_private_agents=True) as remote:
        asked = await remote.send("plan")
        answer = await remote.send("5 EUR", task_id=asked.id)
    assert answer.text == "Money ('roles',) changed 5 EUR"
    assert directory.asked == ["change money"]


async def test_an_address_that_a_registry_elsewhere_names_is_guarded(
    serve: Any, talk_to: Any
) -> None:
    money = Agent("Money", description="Changes money")

    @money.skill
    async def change(turn: Turn) -> str:
        """Changes money."""
        return "never"

    url = await serve(money)
    found = FoundAgent(entry=read_entry(entry(url)))  # ``is_near`` is not set
    errors: list[str] = []
    planner = Agent("Planner", description="Plans")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Plans."""
        for attempt in (
            turn.delegate(found, "x"),
            turn.connect(found),
            turn.connect(found, egress=None),
        ):
            try:
                await attempt
            except AddressNotAllowed as error:
                errors.append(str(error))
        return "done"

    async with await talk_to(planner, allow_private_agents=True) as remote:
        await remote.send("plan")
    assert len(errors) == 3


# -- calls whose task resumes at another replica ---------------------------------------------------


def planner(url: str) -> Agent:
    agent = Agent("Planner", execution=Execution(cancel_grace=0.2))

    @agent.skill(replies="task")
    async def plan(turn: Turn) -> str:
        """Calls two at once."""
        await turn.working(where(turn))
        answers = await asyncio.gather(turn.delegate(url, "one"), turn.delegate(url, "two"))
        return "; ".join(answer.text for answer in answers)

    return agent


# -- a turn that sleeps in one branch and calls another agent in the other -------------------------
