"""The requests of a run to models: what each used, how its reply ended, what refused it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from beeai_framework.backend import ChatModel, ChatModelOutput

from parley.integrations.litellm_streams import HEARD, HeardReply, listen
from parley.llm.model import ModelUsage
from parley.llm.run_output import CONTENT_FILTER, LENGTH, ModelRequests

LITELLM = "beeai_framework.adapters.litellm.chat"
"""The module of the framework that asks models through LiteLLM."""


class RunRequests:
    """Counts the requests of a run. The framework may make several in one run of a model."""

    def __init__(self, requests: ModelRequests, begin: Callable[[Any], Awaitable[None]]) -> None:
        self._requests = requests
        self._begin = begin

    async def streamed(self, chunks: AsyncIterator[Any], run: Any) -> AsyncIterator[Any]:
        """Yield the chunks of a reply, and count it when it is complete."""
        heard = HeardReply()
        HEARD.set(heard)
        await self._begin(run)
        reply = ChatModelOutput(output=[])
        try:
            with self._requests.asking():
                async for chunk in chunks:
                    reply.merge(chunk)
                    yield chunk
        except Exception:
            if reply.output:
                self._requests.replied(None, ending="")
            raise
        used = reply.usage
        usage = ModelUsage(
            input_tokens=used.prompt_tokens,
            output_tokens=used.completion_tokens,
            cost=reply.cost.total_cost_usd,
        )
        self._requests.replied(usage, ending=reply.finish_reason, refusal=heard.refusal)
        says = reply.get_text_content() or reply.get_tool_calls()
        if not says and (reply.is_empty() or self._requests.ending in (LENGTH, CONTENT_FILTER)):
            self._requests.check_said()  # the framework fails, or asks again, without the reason


RUN: ContextVar[RunRequests | None] = ContextVar("parley_beeai_run", default=None)
"""The requests of the run that this code belongs to."""


def watch(llm: ChatModel) -> None:
    """Let runs count the requests of a model; outside of them it works as before.

    The framework has no event for a request: the method that each model implements is wrapped.
    """
    if LITELLM in sys.modules:
        listen(sys.modules[LITELLM])
    if "_create_stream" in vars(llm):
        return
    create_stream = llm._create_stream

    def watched(asked: Any, run: Any) -> AsyncIterator[Any]:
        chunks, requests = create_stream(asked, run), RUN.get()
        return chunks if requests is None else requests.streamed(chunks, run)

    vars(llm)["_create_stream"] = watched
