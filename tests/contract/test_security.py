"""Security: what an agent requires is verified, over every binding and in every version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import parley
from parley import Agent, Part, Rights, Turn
from parley.client.remote_agent import RemoteAgent
from parley.model.errors import PermissionDeniedError, TaskNotFoundError, UnauthenticatedError
from parley.model.operations import CancelTaskRequest, GetTaskRequest
from parley.model.service import Caller
from parley.security import Access, Bearer
from tests.contract.conftest import Serve, Speech, reach
from tests.contract.test_errors import refused, saying

pytestmark = pytest.mark.anyio

TOKENS = {
    "reader": Caller(id="ada", scopes=frozenset({"read"})),
    "payer": Caller(id="ada", scopes=frozenset({"read", "pay"})),
    "barred": Caller(id="mallory", scopes=frozenset({"read", "pay"})),
}


def policy(access: Access) -> bool:
    return access.caller.id != "mallory"


token = Bearer(TOKENS.get)
bank = Agent(
    "Bank",
    security=token.with_scopes("read"),
    rights=Rights(operations={"CancelTask": token.with_scopes("pay")}, policy=policy),
)


@bank.skill(replies="task")
async def balance(turn: Turn) -> str:
    return f"{turn.caller.id}: 42"


@bank.skill(security=token.with_scopes("pay"))
async def pay(turn: Turn) -> str:
    await turn.ask("Really?")
    return "paid"


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, bank), caller=None)


@asynccontextmanager
async def bearing(
    addresses: Sequence[str], speech: Speech, token: str
) -> AsyncIterator[RemoteAgent]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with reach(addresses, speech, headers=headers) as remote:
        yield remote


async def test_the_card_says_what_is_required(addresses: Sequence[str], speech: Speech) -> None:
    async with bearing(addresses, speech, "reader") as remote:
        card = remote.card
    assert list(card.security_schemes) == ["bearer"]
    [needs] = card.security_requirements
    assert {name: scopes.list for name, scopes in needs.schemes.items()} == {"bearer": ("read",)}
    if speech.version == "1.0":
        [needs] = card.skills[1].security_requirements
        assert needs.schemes["bearer"].list == ("pay",)


@pytest.mark.parametrize("token", ["", "unknown"])
async def test_nobody_is_let_in_without_a_valid_token(
    addresses: Sequence[str], speech: Speech, token: str
) -> None:
    async with bearing(addresses, speech, token) as remote:
        for name, request in (
            ("SendMessage", saying(Part(text="hi"))),
            ("SendStreamingMessage", saying(Part(text="hi"))),
            ("GetTask", GetTaskRequest(id="any")),
        ):
            error = await refused(remote, name, request)
            assert type(error) is UnauthenticatedError


async def test_a_token_lets_its_caller_in(addresses: Sequence[str], speech: Speech) -> None:
    async with bearing(addresses, speech, "reader") as remote:
        task = await remote.send("what have I got")
        assert task.text == "ada: 42"
        assert (await remote.get(task.id)).id == task.id


async def test_a_skill_and_an_operation_need_scopes_of_their_own(
    addresses: Sequence[str], speech: Speech
) -> None:
    to_pay: dict[str, Any] = {"metadata": {"skill": "pay"}}
    async with (
        bearing(addresses, speech, "reader") as reader,
        bearing(addresses, speech, "payer") as payer,
    ):
        asked = await payer.send("now", **to_pay)
        for name, request in (
            ("SendMessage", saying(Part(text="now"), **to_pay)),
            ("SendMessage", saying(Part(text="yes"), task_id=asked.id)),
            ("CancelTask", CancelTaskRequest(id=asked.id)),
        ):
            error = await refused(reader, name, request)
            assert type(error) is PermissionDeniedError
            assert error.metadata.get("requiredScopes", "pay") == "pay"
        assert (await payer.send("yes", task_id=asked.id)).text == "paid"


async def test_the_policy_is_asked_for_every_operation(
    addresses: Sequence[str], speech: Speech
) -> None:
    async with bearing(addresses, speech, "barred") as barred:
        for name, request, kind in (
            ("SendMessage", saying(Part(text="hi")), PermissionDeniedError),
            ("SendStreamingMessage", saying(Part(text="hi")), PermissionDeniedError),
            ("GetTask", GetTaskRequest(id="any"), PermissionDeniedError),
            ("SendMessage", saying(Part(text="hi"), task_id="any"), TaskNotFoundError),
        ):
            assert type(await refused(barred, name, request)) is kind
