"""One turn of a query engine or a chat engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.llms import ChatMessage

from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation
from parley.integrations.threads import thread_id
from parley.llm.run_output import RunOutput

KEY = "urn:parley:llama-index:chat"

MAX_SOURCES = 20
MAX_SOURCE_TEXT = 1000


async def query(engine: BaseQueryEngine, turn: Turn, output: RunOutput) -> None:
    """Ask a query engine the text of the message."""
    await _show(await engine.aquery(turn.message.text), output)


async def chat(make: Callable[[str], BaseChatEngine], turn: Turn, output: RunOutput) -> None:
    """Say the text of the message to a chat engine, with the conversation of the context."""
    engine = make(thread_id(turn))
    conversation = ContextConversation(turn, KEY)
    history = [ChatMessage(**each) for each in await conversation.earlier()]
    text = await _show(await engine.astream_chat(turn.message.text, chat_history=history), output)
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
    if sources := _sources_of(response):
        await output.data({"sources": sources}, name="sources")
    return text


def _sources_of(response: Any) -> list[dict[str, Any]]:
    """Return the passages that an answer rests on: text, score and file name."""
    found = []
    for each in (getattr(response, "source_nodes", None) or [])[:MAX_SOURCES]:
        source: dict[str, Any] = {"text": each.node.get_content()[:MAX_SOURCE_TEXT]}
        if each.score is not None:
            source["score"] = float(each.score)
        if name := each.node.metadata.get("file_name"):
            source["file"] = str(name)
        found.append(source)
    return found
