"""Each request to a model in a turn, also of agents that tools and guardrails run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents.items import ItemHelpers
from agents.models.chatcmpl_stream_handler import ChatCmplStreamHandler
from agents.run_internal import run_loop
from openai.types.responses import ResponseCompletedEvent

from parley.integrations.openai_agents.sub_agents import RemoteAgentModel
from parley.integrations.openai_agents.turn_run import current_run
from parley.llm.model import ModelUsage
from parley.llm.run_output import ModelRequests

FINISH = "parley:finish_reason"
"""The metadata of a streamed chat completion in which its finish reason is."""


class CountedModel:
    """A model whose replies count in a turn. A reply that is cut does not reach the run."""

    def __init__(self, model: Any, requests: ModelRequests) -> None:
        self._model = model
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self._model, name)

    async def get_response(self, *given: Any, **options: Any) -> Any:
        """Return the reply of the model."""
        with self._requests.asking():
            reply = await self._model.get_response(*given, **options)
        self._requests.replied(_usage(reply.usage))
        return reply

    async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        """Yield the events of a reply. A reply that reached its longest length is one, too."""
        events = self._model.stream_response(*given, **options)
        try:
            with self._requests.asking():
                async for event in events:
                    if event.type in ("response.completed", "response.incomplete"):
                        yield self._completed(event)
                        return
                    yield event
            self._requests.replied(None, ending="")
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

    def _completed(self, event: Any) -> ResponseCompletedEvent:
        said = event.response
        ending, details = (said.metadata or {}).get(FINISH), said.incomplete_details
        if ending is None:
            ending = said.status if details is None else details.reason
        refusal = "".join(ItemHelpers.extract_refusal(each) or "" for each in said.output)
        self._requests.replied(_usage(said.usage), ending=ending, refusal=refusal)
        return ResponseCompletedEvent(
            type="response.completed", response=said, sequence_number=event.sequence_number
        )


def _usage(used: Any) -> ModelUsage | None:
    return used and ModelUsage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)


_get_model = run_loop.get_model
_handle_stream = ChatCmplStreamHandler.handle_stream


def count_requests() -> None:
    """Let each request to a model in a turn count; outside of a turn nothing changes.

    The SDK has no hook for the models of agents that tools run, and drops the finish reason of a
    streamed chat completion.
    """
    run_loop.get_model = _counted
    ChatCmplStreamHandler.handle_stream = staticmethod(_with_finish_reason)


def _counted(agent: Any, config: Any) -> Any:
    model, run = _get_model(agent, config), current_run()
    if run is None or isinstance(model, RemoteAgentModel):
        return model
    return CountedModel(model, run.requests)


def _with_finish_reason(response: Any, stream: Any, *given: Any, **options: Any) -> Any:
    async def chunks() -> AsyncIterator[Any]:
        response.metadata = {FINISH: ""}
        async for chunk in stream:
            for choice in chunk.choices:
                if choice.finish_reason:
                    response.metadata = {FINISH: choice.finish_reason}
            yield chunk

    if current_run() is not None:  # the turn says what is wrong with a reply
        options |= {"require_finish_reason": False, "raise_on_length_truncation": False}
    return _handle_stream(response, chunks(), *given, **options)
