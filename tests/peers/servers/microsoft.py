"""An agent of Microsoft Agent Framework with a scripted client, as its users serve one.

Its ``A2AExecutor`` runs in the official SDK's server, with a card as in the framework's own
example: the interface has no version.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Message,
    ResponseStream,
)
from agent_framework.a2a import A2AExecutor
from scripted import NAME, chunks, serve
from starlette.applications import Starlette


class Scripted(BaseChatClient):
    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            text = messages[-1].text
            if text.startswith("slow"):
                await asyncio.Event().wait()
            for piece in chunks(text):
                yield ChatResponseUpdate(contents=[Content.from_text(piece)], role="assistant")
                await asyncio.sleep(0.02)

        if stream:
            return ResponseStream(updates(), finalizer=ChatResponse.from_updates)

        async def whole() -> ChatResponse:
            said = "".join([update.text async for update in updates()])
            return ChatResponse(messages=[Message("assistant", [Content.from_text(said)])])

        return whole()


def app(host: str, port: int) -> Starlette:
    card = AgentCard(
        name=NAME,
        description="It is scripted",
        version="1.0.0",
        default_input_modes=["text"],
        default_output_modes=["text"],
        capabilities=AgentCapabilities(streaming=True),
        supported_interfaces=[
            AgentInterface(url=f"http://{host}:{port}/", protocol_binding="JSONRPC")
        ],
    )
    handler = DefaultRequestHandler(
        agent_executor=A2AExecutor(Agent(Scripted(), name=NAME), stream=True),
        task_store=InMemoryTaskStore(),
        agent_card=card,
    )
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


serve(app)
