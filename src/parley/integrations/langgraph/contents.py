"""Messages of LangChain: content from and to parts, and replies as callbacks report them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables.config import merge_configs

from parley.agent.turn import Turn
from parley.integrations.message_files import input_of, part_of_data_url
from parley.llm.model import Json, ModelUsage
from parley.llm.run_output import CONTENT_FILTER, LENGTH, ModelRequests
from parley.model.parts import Message, Part

KINDS = ("image", "audio", "video")


async def human_message(turn: Turn, message: Message) -> HumanMessage:
    """Return the message of a caller with its id, so that it is added once."""
    said = await input_of(turn, message)
    if all(isinstance(each, str) for each in said):
        return HumanMessage("\n".join(map(str, said)), id=message.message_id)
    blocks = [
        {"type": "text", "text": each}
        if isinstance(each, str)
        else file_block(each.base64, each.media_type, each.filename or "file")
        for each in said
    ]
    return HumanMessage(blocks, id=message.message_id)


def file_block(content: str, media_type: str, filename: str) -> Json:
    """Return a file, as base64, as a block of content."""
    kind = media_type.partition("/")[0]
    block = {"type": kind, "base64": content, "mime_type": media_type}
    return block if kind in KINDS else {**block, "type": "file", "filename": filename}


def text_of(message: BaseMessage) -> str:
    """Return the text of a message, without thinking."""
    if isinstance(message.content, str):
        return message.content
    found = []
    for block in message.content:
        if isinstance(block, str):
            found.append(block)
        elif block.get("type") == "text":
            found.append(str(block.get("text", "")))
    return "".join(found)


def thinking_of(message: BaseMessage) -> str:
    """Return the thinking of a message, or of a chunk of a message."""
    found = str(message.additional_kwargs.get("reasoning_content") or "")
    blocks = message.content if isinstance(message.content, list) else []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") in ("reasoning", "thinking"):
            found += str(block.get("reasoning") or block.get("thinking") or "")
    return found


def files_in(message: BaseMessage) -> list[Part]:
    """Return files from a model or a tool: in the content, or as a tool's artifact."""
    found: list[Part] = []
    if isinstance(message, ToolMessage):
        artifact = message.artifact
        each = artifact if isinstance(artifact, list | tuple) else [artifact]
        found += [part for part in each if isinstance(part, Part)]
    blocks = message.content if isinstance(message.content, list) else []
    if isinstance(message, AIMessage | ToolMessage):
        found += [part for block in blocks if (part := file_in(block)) is not None]
    return found


def file_in(block: Any) -> Part | None:
    """Return the file in a block of content, ``None`` for other blocks."""
    if not isinstance(block, dict):
        return None
    if block.get("type") == "image_url":
        address = block.get("image_url")
        return part_of_data_url(address["url"] if isinstance(address, dict) else str(address))
    if block.get("type") not in (*KINDS, "file"):
        return None
    name, media_type = str(block.get("filename") or ""), str(block.get("mime_type") or "")
    if content := block.get("base64") or block.get("data"):
        try:
            raw = base64.b64decode(content, validate=True)
        except ValueError:
            return None
        return Part(raw=raw, media_type=media_type, filename=name)
    if isinstance(address := block.get("url"), str) and address.startswith(("http:", "https:")):
        return Part(url=address, media_type=media_type, filename=name)
    return None


def messages_in(value: Any) -> Sequence[BaseMessage]:
    """Return the messages of a state."""
    found = value.get("messages") if isinstance(value, dict) else getattr(value, "messages", None)
    if not isinstance(found, list | tuple):
        return ()
    return [each for each in found if isinstance(each, BaseMessage)]


REASONS = ("finish_reason", "stop_reason", "stopReason", "done_reason")
"""How the metadata of messages name the finish reason."""

SAID_BY = ("openai", "anthropic", "google_genai", "bedrock_converse")
"""The providers whose streams end with a finish reason: a stream without it was interrupted."""

ENDED_EARLY = {"LengthFinishReasonError": LENGTH, "ContentFilterFinishReasonError": CONTENT_FILTER}
"""Exceptions of the package openai for structured output that a finish reason cut short."""

REMOTE = "a2a"
"""The tag of messages from another agent: they are not replies of a model."""

AS_DATA = "parley_as_data"
"""The metadata of messages requested as structured output, which only the graph uses."""


class ReplyCallback(BaseCallbackHandler):  # type: ignore[misc]
    """Counts each model request within a run, anywhere in the graph."""

    raise_error = True
    run_inline = True

    def __init__(self, requests: ModelRequests) -> None:
        self._requests = requests

    def on_chat_model_start(
        self, *asked: Any, metadata: Json | None = None, **options: Any
    ) -> None:
        """Mark requests for structured output, and keep a refusal in the reply."""
        keep_refusals()
        given = {**(options.get("options") or {}), **(options.get("invocation_params") or {})}
        formats = ("response_format", "ls_structured_output_format")
        if metadata is not None and any(given.get(each) for each in formats):
            metadata[AS_DATA] = True  # LangGraph streams the metadata with each piece

    def on_llm_end(
        self, response: LLMResult, *, tags: list[str] | None = None, **options: Any
    ) -> None:
        """Count the request, unless the reply came from a cache or from another agent."""
        generation = next((each for several in response.generations for each in several), None)
        if generation is None or REMOTE in (tags or ()):
            return
        message = getattr(generation, "message", AIMessage(generation.text))
        said = {**(generation.generation_info or {}), **message.response_metadata}
        usage = getattr(message, "usage_metadata", None) or {}
        if usage.get("total_cost") == 0:  # LangChain's mark of a cached reply
            return self._requests.end_as(ending_of(said))
        tokens = (response.llm_output or {}).get("token_usage") or {}
        used = ModelUsage(
            input_tokens=usage.get("input_tokens") or tokens.get("prompt_tokens") or 0,
            output_tokens=usage.get("output_tokens") or tokens.get("completion_tokens") or 0,
        )
        self._requests.replied(used, ending=ending_of(said), refusal=_refusal_in(message, said))

    def on_llm_error(
        self, error: BaseException, *, tags: list[str] | None = None, **options: Any
    ) -> None:
        """Record why a request failed. Structured output that ended too early ends the task."""
        if REMOTE not in (tags or ()):
            self._requests.failures.append(error)
        if ending := ENDED_EARLY.get(type(error).__name__):
            self._requests.replied(None, ending=ending)
            self._requests.check_said()


def with_replies(config: Mapping[str, Any], requests: ModelRequests) -> Json:
    """Return the configuration of a run with the counting callback added."""
    own, ours = {"callbacks": config.get("callbacks")}, {"callbacks": [ReplyCallback(requests)]}
    return {**config, "callbacks": merge_configs(own, ours)["callbacks"]}


def ending_of(said: Mapping[str, Any]) -> str | None:
    """Return the finish reason in a message's metadata: empty for an interrupted reply, else
    ``None``.
    """
    incomplete = said.get("incomplete_details") or {}
    found = [incomplete.get("reason"), *map(said.get, REASONS), said.get("status")]
    if reason := next((each for each in found if each), None):
        return str(reason)
    breaks_off = said.get("model_provider") in SAID_BY and not any(each in said for each in REASONS)
    return "" if breaks_off else None


def _refusal_in(message: BaseMessage, said: Mapping[str, Any]) -> str:
    if refusal := message.additional_kwargs.get("refusal"):
        return str(refusal)
    blocks = message.content if isinstance(message.content, list) else []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "refusal":
            return str(block.get("refusal") or "no reason was given.")
    if said.get("stop_reason") == "refusal":
        details = said.get("stop_details") or {}
        return str(details.get("explanation") or "no reason was given.")
    return ""


def keep_refusals() -> None:
    """Make models of langchain-openai keep the refusal of a stream, as of a complete reply.

    They drop ``delta.refusal`` before any callback sees it.
    """
    kind = getattr(sys.modules.get("langchain_openai.chat_models.base"), "BaseChatOpenAI", None)
    convert = getattr(kind, "_convert_chunk_to_generation_chunk", None)
    if convert is None or hasattr(convert, "keeps_refusals"):
        return

    @wraps(convert)
    def converted(model: Any, chunk: Json, *options: Any) -> Any:
        found = convert(model, chunk, *options)
        for choice in chunk.get("choices") or ():
            if found is not None and (said := (choice.get("delta") or {}).get("refusal")):
                found.message.additional_kwargs["refusal"] = said
        return found

    converted.keeps_refusals = True  # type: ignore[attr-defined]
    kind._convert_chunk_to_generation_chunk = converted  # type: ignore[union-attr]
