"""The official SDK's client, driven line by line.

Run by the interpreter of the peer's own environment. Reads commands from standard input, each a
line of JSON: ``{"id", "do", "url", "params", "headers"}``. What comes of one is written to standard
output as lines with its id: ``item`` for every event or result, then ``end``, with ``error`` (the
name of its class) and ``said`` if it failed. Commands run side by side.
"""

import asyncio
import json
import sys
from typing import Any

from a2a import types
from a2a.client import ClientCallContext, ClientConfig, create_client
from google.protobuf.json_format import MessageToDict, ParseDict

REQUESTS: dict[str, tuple[str, type]] = {
    "stream": ("send_message", types.SendMessageRequest),
    "send": ("send_message", types.SendMessageRequest),
    "get": ("get_task", types.GetTaskRequest),
    "list": ("list_tasks", types.ListTasksRequest),
    "cancel": ("cancel_task", types.CancelTaskRequest),
    "subscribe": ("subscribe", types.SubscribeToTaskRequest),
    "extended_card": ("get_extended_agent_card", types.GetExtendedAgentCardRequest),
    "create_push": ("create_task_push_notification_config", types.TaskPushNotificationConfig),
    "get_push": (
        "get_task_push_notification_config",
        types.GetTaskPushNotificationConfigRequest,
    ),
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


async def perform(command: dict[str, Any]) -> None:
    """Do one command with a client of its own."""
    do = command["do"]
    config = ClientConfig(streaming=do not in ("send", "extended_card"))
    async with await create_client(command["url"], config) as client:
        if do == "card":
            write(id=command["id"], item=MessageToDict(client._card))
            return
        if do == "extended_card":  # which the SDK asks for only where it is promised
            client._card.capabilities.extended_agent_card = True
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


asyncio.run(main())
