"""Visibility of skills and interfaces: the options for authors, and their effects."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Rights, Turn
from parley.client.remote_agent import RemoteAgent
from parley.engine.routing import RoutedMessage
from parley.extensions.declared import schemas_on
from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.model.tasks import TaskState
from parley.security import Bearer, anonymous

pytestmark = pytest.mark.anyio

SCOPES: dict[str, frozenset[str]] = {}


def judge(text: str) -> Caller:
    return Caller(id=text, scopes=SCOPES.get(text, frozenset()))


token = Bearer(judge)


def hello() -> str:
    "Greets."
    return "hi"


def secret() -> str:
    "Tells."
    return "42"


def agent_with(listed: Any, **options: Any) -> Agent:
    agent = Agent("Host", description="Hosts", **options)
    agent.skill(hello)
    agent.skill(listed=listed)(secret)
    return agent


@asynccontextmanager
async def reach(app: Any, bearer: str = "") -> AsyncIterator[RemoteAgent]:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    async with parley.connect(app, headers=headers, auth=False) as agent:
        yield agent


# -- options for authors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "error", "said"),
    [
        ("public", ValueError, "'extended'"),
        ("", ValueError, "'extended'"),
        (5, TypeError, "plain function"),
        (None, TypeError, "plain function"),
        (Caller, TypeError, "plain function"),
    ],
)
def test_who_sees_a_skill_is_said_in_one_of_four_ways(listed: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        agent_with(listed)


def test_the_default_skill_is_listed() -> None:
    agent = Agent("Host")
    with pytest.raises(ValueError, match="leave listed out, or default"):
        agent.skill(default=True, listed="extended")(hello)


# -- effects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [ZeroDivisionError(), None, "yes", 1])
async def test_a_function_that_fails_hides_the_skill(answer: Any, caplog: Any) -> None:
    def listed(caller: Caller) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with reach(agent_with(listed)) as agent:
        assert [skill.id for skill in (await agent.extended_card()).skills] == ["hello"]
        with pytest.raises(InvalidParamsError, match=r"it has hello$"):
            await agent.send("x", metadata={"skill": "secret"})
    assert "a function of listed=" in caplog.text
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_a_function_of_the_extended_card_adds_to_what_its_caller_sees() -> None:
    agent = agent_with("extended")
    seen: list[list[str]] = []

    @agent.extended_card
    def more(caller: Caller, card: Any) -> dict[str, Any]:
        seen.append([skill.id for skill in card.skills])
        return {"description": "more"}

    async with reach(agent) as remote:
        card = await remote.extended_card()
    assert seen == [["hello"]]
    assert [skill.id for skill in card.skills] == ["hello", "secret"]
    assert card.description == "more"


async def test_a_router_does_not_reveal_a_hidden_skill() -> None:
    agent = agent_with(lambda caller: caller.id == "ada", security=token | anonymous)

    @agent.router
    def choose(routed: RoutedMessage) -> str:
        return "secret"

    app = parley.asgi(agent)
    async with reach(app) as remote:
        with pytest.raises(InvalidParamsError) as caught:
            await remote.send("x")
        assert "secret" not in str(caught.value)
    async with reach(app, "ada") as remote:
        assert (await remote.send("x")).text == "42"


async def test_an_agent_of_hidden_skills_alone_has_none_for_strangers() -> None:
    agent = Agent("Host", description="Hosts", security=token | anonymous)
    agent.skill(listed="extended")(secret)
    app = parley.asgi(agent)
    async with reach(app) as remote:
        assert remote.card.skills == ()
        with pytest.raises(InvalidParamsError, match="no skill for this message"):
            await remote.send("x")
        with pytest.raises(InvalidParamsError, match=r"it has none$"):
            await remote.send("x", metadata={"skill": "secret"})
    async with reach(app, "ada") as remote:
        assert (await remote.send("x")).text == "42"


async def test_schemas_of_hidden_skills_are_on_the_extended_card_only() -> None:
    agent = Agent("Host", description="Hosts")
    agent.skill(hello)

    @agent.skill(listed="extended")
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async with reach(agent) as remote:
        assert not schemas_on(remote.card)
        assert b'"add"' not in remote.card_json
        assert set(schemas_on(await remote.extended_card())) == {"add"}


async def test_a_task_of_a_hidden_skill_does_not_name_it_to_who_lost_the_right() -> None:
    agent = Agent("Host", description="Hosts", security=token | anonymous)
    agent.skill(hello)

    @agent.skill(id="very-secret", listed="extended", security=token.with_scopes("inner"))
    async def ask(turn: Turn) -> str:
        return (await turn.ask("Which?")).text

    app = parley.asgi(agent)
    SCOPES["bob"] = frozenset({"inner"})
    async with reach(app, "bob") as remote:
        task = await remote.send("x", metadata={"skill": "very-secret"})
        assert task.state is TaskState.INPUT_REQUIRED
        SCOPES["bob"] = frozenset()
        for act in (remote.send("this", task=task), remote.cancel(task.id)):
            with pytest.raises(PermissionDeniedError) as caught:
                await act
            assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize("owner", ["caller", "tenant"])
async def test_who_does_not_see_a_skill_sends_its_task_nothing(owner: Any) -> None:
    """The caller is a user who lost access, or another owner of the task who never had access."""
    seeing = {"ada"}
    agent = Agent(
        "Host", description="Hosts", security=token | anonymous, rights=Rights(owner=owner)
    )
    agent.skill(hello)

    @agent.skill(id="very-secret", listed=lambda caller: caller.id in seeing)
    async def ask(turn: Turn) -> str:
        return (await turn.ask("Which?")).text

    app = parley.asgi(agent)
    async with reach(app, "ada") as ada, reach(app, "bob") as bob:
        task = await ada.send("x", metadata={"skill": "very-secret"})
        remote = bob
        if owner == "caller":
            seeing.clear()
            remote = ada
        with pytest.raises(PermissionDeniedError) as caught:
            await remote.send("this", task=task)
        assert "very-secret" not in str(caught.value)
        seeing.add("ada")
        assert (await ada.send("this", task=task)).state is TaskState.COMPLETED


async def test_auth_of_a_server_replaces_the_requirement_of_a_hidden_skill() -> None:
    agent = Agent("Host", description="Hosts")
    agent.skill(hello)
    agent.skill(listed="extended", security=token.with_scopes("inner"))(secret)
    app = parley.asgi(agent, auth=Bearer(judge))
    async with reach(app, "eve") as remote:
        card = await remote.extended_card()
        shown = next(skill for skill in card.skills if skill.id == "secret")
        assert not shown.security_requirements
