"""A client as in books about version 0.3.10 of the official SDK: ``client.py URL``."""

import asyncio
import sys
from uuid import uuid4

import httpx
from a2a.client import (
    A2ACardResolver,
    A2AClient,
    ClientConfig,
    ClientFactory,
    create_text_message_object,
)
from a2a.types import MessageSendParams, SendMessageRequest, SendStreamingMessageRequest


async def main(base_url: str) -> None:
    async with httpx.AsyncClient(timeout=30) as httpx_client:
        resolver = A2ACardResolver(httpx_client=httpx_client, base_url=base_url)
        agent_card = await resolver.get_agent_card()
        print(agent_card.model_dump_json(exclude_none=True))

        client = A2AClient(httpx_client=httpx_client, agent_card=agent_card)
        payload = {
            "message": {
                "role": "user",
                "parts": [{"kind": "text", "text": "What time is it?"}],
                "messageId": uuid4().hex,
            }
        }
        request = SendMessageRequest(id=str(uuid4()), params=MessageSendParams(**payload))
        response = await client.send_message(request)
        print(response.model_dump_json(exclude_none=True))

        payload["message"]["messageId"] = uuid4().hex
        streaming = SendStreamingMessageRequest(
            id=str(uuid4()), params=MessageSendParams(**payload)
        )
        async for chunk in client.send_message_streaming(streaming):
            print(chunk.model_dump_json(exclude_none=True))

        factory = ClientFactory(ClientConfig(httpx_client=httpx_client, streaming=False))
        newer = factory.create(agent_card)
        async for event in newer.send_message(create_text_message_object(content="现在几点?")):
            print(event.model_dump_json(exclude_none=True))


asyncio.run(main(sys.argv[1]))
