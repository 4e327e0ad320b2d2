"""Several credentials in one request: those of one person, who may call by an application."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

import parley
from parley import Agent, Part, Turn
from parley.model.errors import PermissionDeniedError, UnauthenticatedError
from parley.model.service import Caller
from parley.security import ApiKey, Bearer
from tests.contract.conftest import Serve, Speech, reach
from tests.contract.test_errors import refused, saying

pytestmark = pytest.mark.anyio

KEYS = {
    "ada-key": Caller(id="ada", scopes=frozenset({"read"})),
    "shop-key": Caller(id="shop", client="shop", scopes=frozenset({"read", "audit"})),
}
TOKENS = {
    "ada-token": Caller(id="ada", scopes=frozenset({"read", "pay"})),
    "eve-token": Caller(id="eve", client="app", scopes=frozenset({"read", "pay"})),
    "robot-token": Caller(id="robot", client="robot", scopes=frozenset({"read", "pay"})),
}

key = ApiKey(keys={hashlib.sha256(each.encode()).hexdigest(): KEYS[each] for each in KEYS})
token = Bearer(TOKENS.get)
either = Agent("Either", key="either", security=key | token)
both = Agent("Both", key="both", security=key & token)


async def who(turn: Turn) -> str:
    caller = turn.caller
    return f"{caller.id} by {caller.client or 'nothing'} with {' '.join(sorted(caller.scopes))}"


for agent in (either, both):
    agent.skill(id="who")(who)
    agent.skill(id="pay", security=token.with_scopes("pay"))(who)


@pytest.fixture(scope="session")
async def of_either(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, either), caller=None)


@pytest.fixture(scope="session")
async def of_both(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, both), caller=None)


def headers(key: str, token: str) -> dict[str, str]:
    return {"x-api-key": key, "authorization": f"Bearer {token}"}


def to(skill: str) -> dict[str, Any]:
    return {"metadata": {"skill": skill}}


async def test_credentials_of_two_people_are_refused(
    of_either: Sequence[str], of_both: Sequence[str], speech: Speech
) -> None:
    for addresses in (of_either, of_both):
        async with reach(addresses, speech, headers=headers("ada-key", "eve-token")) as remote:
            for skill in ("who", "pay"):
                request = saying(Part(text="hi"), **to(skill))
                error = await refused(remote, "SendMessage", request)
                assert type(error) is UnauthenticatedError
                assert "of different people" in error.message


async def test_credentials_of_one_person_count_together(
    of_either: Sequence[str], of_both: Sequence[str], speech: Speech
) -> None:
    for addresses in (of_either, of_both):
        async with reach(addresses, speech, headers=headers("ada-key", "ada-token")) as remote:
            task = await remote.send("now", **to("pay"))
            assert task.text == "ada by nothing with pay read"


async def test_an_application_beside_a_person_is_its_client_and_gives_it_no_scopes(
    of_either: Sequence[str], of_both: Sequence[str], speech: Speech
) -> None:
    async with reach(of_both, speech, headers=headers("shop-key", "ada-token")) as remote:
        task = await remote.send("now", **to("pay"))
        assert task.text == "ada by shop with pay read"
    async with reach(of_either, speech, headers=headers("ada-key", "robot-token")) as remote:
        assert (await remote.send("hi", **to("who"))).text == "ada by robot with read"
        error = await refused(remote, "SendMessage", saying(Part(text="now"), **to("pay")))
        assert type(error) is PermissionDeniedError
        assert "the scope pay" in error.message
