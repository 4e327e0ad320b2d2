"""A Pydantic AI agent with its ``FunctionModel``, served by ``agent_to_a2a``."""

import asyncio
from collections.abc import AsyncIterator

from fasta2a.pydantic_ai import agent_to_a2a
from pydantic_ai import Agent, BinaryContent, ModelMessage
from pydantic_ai.messages import UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from scripted import NAME, chunks, serve


async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    text, files = "", []
    for part in messages[-1].parts:
        if not isinstance(part, UserPromptPart):
            continue
        if isinstance(part.content, str):
            text = part.content
            continue
        given = [one for one in part.content if isinstance(one, BinaryContent)]
        files += [(len(one.data), one.media_type) for one in given]
    if text.startswith("slow"):
        await asyncio.Event().wait()
    for piece in chunks(text, files):
        yield piece
        await asyncio.sleep(0.02)


agent = Agent(FunctionModel(stream_function=model), name=NAME)
serve(lambda host, port: agent_to_a2a(agent, name=NAME, url=f"http://{host}:{port}"))
