"""The official Python SDK's client of 1.x, driven line by line.

The interpreter of the peer's own environment runs it. It reads commands from standard input, each a
line of JSON: ``{"id", "do", "url", "binding", "version", "params", "headers"}``. For each command
it writes lines with its id to standard output: ``item`` for every event or result, then ``end``, on
failure with ``error`` (the name of its class) and ``said``. Commands run concurrently.
"""

import asyncio
import json
import sys
from typing import Any

import httpx
from a2a import types
from a2a.client import A2ACardResolver, Client, ClientCallContext, ClientConfig, ClientFactory
from google.protobuf.json_format import MessageToDict, ParseDict
from grpc.aio import insecure_channel

REQUESTS: dict[str, tuple[str, type]] = {
    "stream": ("send_message", types.SendMessageRequest),
    "send": ("send_message", types.SendMessageRequest),
    "get": ("get_task", types.GetTaskRequest),
    "list": ("list_tasks", types.ListTasksRequest),
    "cancel": ("cancel_task", types.CancelTaskRequest),
    "subscribe": ("subscribe", types.SubscribeToTaskRequest),
    "extended_card": ("get_extended_agent_card", types.GetExtendedAgentCardRequest),
    "create_push": ("create_task_push_notification_config", types.TaskPushNotificationConfig),
    "get_push": ("get_task_push_notification_config", types.GetTaskPushNotificationConfigRequest),
    "list_push": (
        "list_task_push_notification_configs",
        types.ListTaskPushNotificationConfigsRequest,
    ),
    "delete_push": (
        "delete_task_push_notification_config",
        types.DeleteTaskPushNotificationConfigRequest,
    ),
}


def write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


clients: dict[tuple[str, ...], tuple[types.AgentCard, Client]] = {}


async def client_of(command: dict[str, Any]) -> tuple[types.AgentCard, Client]:
    """Return the card and the client for one interface of an agent, kept once they are there."""
    do, binding, version = command["do"], command["binding"], command["version"]
    streaming = do not in ("send", "extended_card")
    key = (command["url"], binding, version, str(streaming))
    if key not in clients:
        async with httpx.AsyncClient(headers={"A2A-Version": "1.0"}) as http:
            card = await A2ACardResolver(http, command["url"]).get_agent_card()
        only = types.AgentCard()
        only.CopyFrom(card)
        del only.supported_interfaces[:]
        only.supported_interfaces.extend(
            interface
            for interface in card.supported_interfaces
            if (interface.protocol_binding, interface.protocol_version) == (binding, version)
        )
        # The SDK requests the extended card only if the card declares it.
        only.capabilities.extended_agent_card = True
        config = ClientConfig(
            streaming=streaming,
            supported_protocol_bindings=[binding],
            grpc_channel_factory=insecure_channel,
        )
        clients[key] = card, ClientFactory(config).create(only)
    return clients[key]


async def perform(command: dict[str, Any]) -> None:
    """Do one command."""
    do = command["do"]
    card, client = await client_of(command)
    if do == "card":
        write(id=command["id"], item=MessageToDict(card))
        return
    method, kind = REQUESTS[do]
    request = ParseDict(command["params"], kind())
    context = ClientCallContext(service_parameters=command["headers"], timeout=30)
    answer = getattr(client, method)(request, context=context)
    if hasattr(answer, "__aiter__"):
        async for event in answer:
            write(id=command["id"], item=MessageToDict(event))
    else:
        result = await answer
        write(id=command["id"], item=None if result is None else MessageToDict(result))


async def run(command: dict[str, Any]) -> None:
    try:
        await perform(command)
    except Exception as error:
        write(id=command["id"], end=True, error=type(error).__name__, said=str(error))
    else:
        write(id=command["id"], end=True)


async def main() -> None:
    async with asyncio.TaskGroup() as commands:
        while line := await asyncio.to_thread(sys.stdin.readline):
            commands.create_task(run(json.loads(line)))
    for _, client in clients.values():
        await client.close()


asyncio.run(main())
