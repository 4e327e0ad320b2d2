"""What an agent's card does not declare is not asked of it (specification §3.3.4)."""

from __future__ import annotations

from typing import Any

import pytest

from parley.client.message import to_message
from parley.model.errors import (
    A2AError,
    ExtensionSupportRequiredError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from parley.model.operations import OPERATIONS, Operation
from tests.kit.scripted_server import HI, Agent, talk

pytestmark = pytest.mark.anyio

REQUIRED = {"uri": "urn:example:signed:v2", "required": True}
GUARDED = [operation for operation in OPERATIONS if operation.capability]
REQUESTS: dict[str, dict[str, Any]] = {
    "CreateTaskPushNotificationConfig": {"task_id": "t", "url": "https://x.example"},
    "GetTaskPushNotificationConfig": {"task_id": "t", "id": "p"},
    "ListTaskPushNotificationConfigs": {"task_id": "t"},
    "DeleteTaskPushNotificationConfig": {"task_id": "t", "id": "p"},
    "SubscribeToTask": {"id": "t"},
}


def request_of(operation: Operation) -> Any:
    if operation.name == "SendStreamingMessage":
        return operation.request(message=to_message("hi"))
    return operation.request(**REQUESTS.get(operation.name, {}))


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.name)
async def test_what_the_card_does_not_declare_is_refused_before_it_is_sent(
    operation: Operation,
) -> None:
    expected: type[A2AError] = UnsupportedOperationError
    if operation.capability == "push_notifications":
        expected = PushNotificationNotSupportedError
    async with talk(Agent(HI, capabilities={})) as (remote, server):
        before = len(server.exchanges)
        answer = getattr(remote.service, operation.method)(request_of(operation), remote.context)
        with pytest.raises(expected, match=r"capabilities\."):
            await (anext(answer) if operation.streaming else answer)
        assert len(server.exchanges) == before


async def test_an_unknown_required_extension_is_named_before_anything_is_sent() -> None:
    agent = Agent(HI, capabilities={"extensions": [REQUIRED]})
    async with talk(agent) as (remote, server):
        before = len(server.exchanges)
        for call in (remote.send("hi"), remote.get("t"), remote.list()):
            with pytest.raises(ExtensionSupportRequiredError) as raised:
                await call
            assert raised.value.metadata == {"requiredExtensions": REQUIRED["uri"]}
        assert len(server.exchanges) == before


async def test_another_version_of_a_required_extension_does_not_do() -> None:
    agent = Agent(HI, capabilities={"extensions": [REQUIRED]})
    async with talk(agent, extensions=["urn:example:signed:v1"]) as (remote, _):
        with pytest.raises(ExtensionSupportRequiredError):
            await remote.send("hi")


async def test_a_required_extension_that_is_asked_for_goes_with_every_request() -> None:
    agent = Agent(HI, capabilities={"extensions": [REQUIRED]})
    async with talk(agent, extensions=[REQUIRED["uri"]]) as (remote, server):
        assert str(await remote.send("hi")) == "hi"
        assert server.exchanges[-1].headers["a2a-extensions"] == REQUIRED["uri"]
