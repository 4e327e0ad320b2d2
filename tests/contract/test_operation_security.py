"""Each operation, methods of extensions too, needs what is declared for it, over every binding."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import parley
from parley import Agent, CardDetails, Rights, TaskPushNotificationConfig, Turn
from parley.client.remote_agent import RemoteAgent
from parley.extensions import SEARCH, SearchTasksRequest, TaskSearch
from parley.model.errors import A2AError, PermissionDeniedError
from parley.model.operations import (
    OPERATIONS,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from parley.model.service import Caller
from parley.security import Bearer
from tests.contract.conftest import Serve, Speech, past_the_card, reach
from tests.contract.test_errors import refused, saying

pytestmark = pytest.mark.anyio

REQUESTS: dict[str, Any] = {
    "SendMessage": saying(),
    "SendStreamingMessage": saying(),
    "GetTask": GetTaskRequest(id="any"),
    "ListTasks": ListTasksRequest(),
    "CancelTask": CancelTaskRequest(id="any"),
    "SubscribeToTask": SubscribeToTaskRequest(id="any"),
    "CreateTaskPushNotificationConfig": TaskPushNotificationConfig(
        task_id="any", id="hook", url="https://hooks.example.com/a2a"
    ),
    "GetTaskPushNotificationConfig": GetTaskPushNotificationConfigRequest(task_id="any", id="x"),
    "ListTaskPushNotificationConfigs": ListTaskPushNotificationConfigsRequest(task_id="any"),
    "DeleteTaskPushNotificationConfig": DeleteTaskPushNotificationConfigRequest(
        task_id="any", id="x"
    ),
    "GetExtendedAgentCard": GetExtendedAgentCardRequest(),
}
NAMES = [*REQUESTS, SEARCH.operation.name]


def judge(text: str) -> Caller:
    """A token is the scopes that it has, separated by commas."""
    return Caller(id="ada", scopes=frozenset(text.split(",")))


token = Bearer(judge)
agent = Agent(
    "Scoped",
    security=token.with_scopes("none-of-these"),
    rights=Rights(operations={name: token.with_scopes(f"may-{name}") for name in NAMES}),
    card=CardDetails(extended_card={"description": "for those who may"}),
    extensions=[TaskSearch()],
)


@agent.skill
async def echo(turn: Turn) -> str:
    return turn.text


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, agent), caller=None)


@asynccontextmanager
async def bearing(
    addresses: Sequence[str], speech: Speech, *scopes: str
) -> AsyncIterator[RemoteAgent]:
    headers = {"authorization": f"Bearer {','.join(scopes)}"}
    async with reach(addresses, speech, headers=headers, extensions=[TaskSearch()]) as remote:
        yield remote


async def answer(remote: RemoteAgent, name: str, request: Any) -> Any:
    """Return the answer of an operation, or the error that it is answered with."""
    try:
        return await past_the_card(remote, name, request)
    except A2AError as error:
        return error


def test_every_operation_is_tried() -> None:
    assert list(REQUESTS) == [each.name for each in OPERATIONS]


async def test_an_operation_needs_its_scope_and_no_other(
    addresses: Sequence[str], speech: Speech
) -> None:
    for name, request in REQUESTS.items():
        if speech.is_old and name == "ListTasks":
            continue  # 0.3 has no such operation
        others = [f"may-{each}" for each in NAMES if each != name]
        async with bearing(addresses, speech, "none-of-these", *others) as remote:
            error = await refused(remote, name, request)
            assert type(error) is PermissionDeniedError, name
            assert f"may-{name}" in error.message
        async with bearing(addresses, speech, f"may-{name}") as remote:
            kind = type(await answer(remote, name, request))
            assert kind is not PermissionDeniedError, name


async def test_the_method_of_an_extension_does_too(
    addresses: Sequence[str], speech: Speech
) -> None:
    if speech.is_old or speech.binding == "GRPC":
        return  # they have no methods of extensions
    others = [f"may-{name}" for name in REQUESTS]
    async with bearing(addresses, speech, "none-of-these", *others) as remote:
        with pytest.raises(PermissionDeniedError, match="may-tasks/search"):
            await remote.call(SEARCH, SearchTasksRequest())
    async with bearing(addresses, speech, "may-tasks/search") as remote:
        assert not (await remote.call(SEARCH, SearchTasksRequest(text="nothing"))).tasks
