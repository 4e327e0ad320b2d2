"""The official Python SDK's client of 0.3, driven line by line like the client of 1.x.

Parameters and results are the JSON of 0.3. With ``"version": "minimal"`` it gets nothing but the
address: the card is the SDK's own ``minimal_agent_card``.
"""

import asyncio
import json
import sys
from typing import Any

import httpx
from a2a.client import A2ACardResolver, ClientCallContext, ClientConfig, ClientFactory
from a2a.client.client_factory import minimal_agent_card
from a2a.client.transports.base import ClientTransport
from a2a.types import (
    AgentCard,
    AgentInterface,
    GetTaskPushNotificationConfigParams,
    MessageSendParams,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
)
from grpc.aio import insecure_channel
from pydantic import BaseModel

REQUESTS: dict[str, tuple[str, type[BaseModel]]] = {
    "stream": ("send_message_streaming", MessageSendParams),
    "send": ("send_message", MessageSendParams),
    "get": ("get_task", TaskQueryParams),
    "cancel": ("cancel_task", TaskIdParams),
    "subscribe": ("resubscribe", TaskIdParams),
    "create_push": ("set_task_callback", TaskPushNotificationConfig),
    "get_push": ("get_task_callback", GetTaskPushNotificationConfigParams),
}


def write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def plain(value: BaseModel) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


clients: dict[tuple[str, ...], tuple[AgentCard, ClientTransport]] = {}
http = httpx.AsyncClient(timeout=30)


async def client_of(url: str, binding: str, version: str) -> tuple[AgentCard, ClientTransport]:
    """Return the card and what speaks one binding of an agent, kept once they are there."""
    if (url, binding, version) not in clients:
        if version == "minimal":
            card = only = minimal_agent_card(url, [binding])
        else:
            card = await A2ACardResolver(http, url).get_agent_card()
            only = card.model_copy(deep=True)
            own = AgentInterface(url=card.url, transport=card.preferred_transport or "JSONRPC")
            offered = [own, *(card.additional_interfaces or [])]
            [spoken] = [i for i in offered if i.transport == binding][:1]
            only.url, only.preferred_transport = spoken.url, spoken.transport
            only.additional_interfaces = None
        config = ClientConfig(
            httpx_client=http, grpc_channel_factory=insecure_channel, supported_transports=[binding]
        )
        clients[url, binding, version] = card, ClientFactory(config).create(only)._transport
    return clients[url, binding, version]


async def perform(command: dict[str, Any]) -> None:
    """Do one command."""
    do = command["do"]
    card, client = await client_of(command["url"], command["binding"], command["version"])
    if do == "card":
        write(id=command["id"], item=plain(card))
        return
    context = ClientCallContext(state={"http_kwargs": {"headers": command["headers"]}})
    if do == "extended_card":
        client._needs_extended_card = True
        await client.get_card(context=context)
        write(id=command["id"], item=plain(client.agent_card))
        return
    method, kind = REQUESTS[do]
    request = kind.model_validate(command["params"])
    answer = getattr(client, method)(request, context=context)
    if hasattr(answer, "__aiter__"):
        async for event in answer:
            write(id=command["id"], item=plain(event))
    else:
        result = await answer
        write(id=command["id"], item=None if result is None else plain(result))


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
    await http.aclose()


asyncio.run(main())
