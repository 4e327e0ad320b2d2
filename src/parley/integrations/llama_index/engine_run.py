"""One turn of a query engine or a chat engine."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.llms import ChatMessage

from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation
from parley.integrations.llama_index.failures import failed
from parley.integrations.llama_index.outputs import sources_of
from parley.llm.run_output import RunOutput

KEY = "urn:parley:llama-index:chat"


async def query(engine: BaseQueryEngine, turn: Turn, output: RunOutput) -> None:
    """Ask a query engine the text of the message."""
    try:
        response: Any = await engine.aquery(turn.message.text)
        await _show(response, output)
    except Exception as error:
        failed(turn, error)
        raise


async def chat(engine: BaseChatEngine, turn: Turn, output: RunOutput) -> None:
    """Say the text of the message to a chat engine, with the conversation of the context."""
    conversation = ContextConversation(turn, KEY)
    history = [ChatMessage(**each) for each in await conversation.earlier()]
    try:
        response: Any = await engine.astream_chat(turn.message.text, chat_history=history)
        text = await _show(response, output)
    except Exception as error:
        failed(turn, error)
        raise
    await conversation.add(
        [{"role": "user", "content": turn.message.text}, {"role": "assistant", "content": text}]
    )


async def _show(response: Any, output: RunOutput) -> str:
    """Show an answer as it comes, and the passages that it rests on."""
    text = ""
    stream = getattr(response, "async_response_gen", None)
    if stream is not None:
        async for delta in stream():
            text += delta
            await output.text(delta)
    else:
        text = str(response)
        await output.text(text)
    if sources := sources_of(response):
        await output.data({"sources": sources}, name="sources")
    return text
