"""Credentials for tasks: asked for over every binding and in every version, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import aiohttp
import pytest

import parley
from parley import Agent, Task, TaskState, Turn
from parley.client import auth_request
from tests.contract.conftest import Serve, Speech, reach
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

TOKEN = "hush-0a1b2c3d4e5f-hush"
HTTP = Speech("JSONRPC", "1.0")

mail = Agent("Mail")


@mail.skill(replies="task")
async def read(turn: Turn) -> str:
    credential = await turn.require_auth("May I read your mail?", scopes="mail.read")
    return f"{turn.caller.id} {credential.token == TOKEN}"


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, mail))


async def post(url: str, user: str) -> int:
    given = {"access_token": TOKEN}
    async with (
        aiohttp.ClientSession(headers={"x-user": user} if user else {}) as session,
        session.post(url, json=given) as got,
    ):
        return got.status


async def test_a_credential_is_taken_once_from_the_caller_and_the_turn_goes_on(
    addresses: Sequence[str], speech: Speech
) -> None:
    # Neither gRPC nor a call in process shows the address at which a credential could arrive.
    shows = HTTP if "GRPC" in speech or "in-process" in speech else speech
    async with reach(addresses, speech) as remote, reach(addresses, shows) as sender:
        sent = await sender.send("hi")
        assert isinstance(sent, Task)
        task = await remote.get(sent.id)
        assert (sent.state, task.state) == (TaskState.AUTH_REQUIRED, TaskState.AUTH_REQUIRED)
        request = auth_request(task)
        assert request is not None
        assert request.text == "May I read your mail?"
        assert request.scopes == ("mail.read",)
        assert request.scheme is not None
        token = request.callback.partition("/callbacks/authorize/")[2]
        assert token
        callback = f"{addresses[-1]}/callbacks/authorize/{token}"
        assert await post(callback, "eve") == 404
        assert await post(callback, "") == 401
        assert await post(callback, "ada") == 204
        assert await post(callback.replace(addresses[-1], addresses[0]), "ada") in (409, 410)
        async with asyncio.timeout(20):
            while not (task := await remote.get(task.id)).state.is_terminal:
                await let_time_pass(0.02)
        assert task.text == "ada True"
        assert TOKEN not in repr(task)
