"""Each request to a model in a turn, also of agents that tools run."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from strands.event_loop import event_loop
from strands.types._events import ModelStopReason

from parley.integrations.strands.interrupts import current_run
from parley.llm.model import ModelUsage

_stream_messages = event_loop.stream_messages


def count_requests() -> None:
    """Let each request to a model in a turn count; outside of a turn nothing changes.

    No hook of Strands sees the requests of agents that tools run.
    """
    event_loop.stream_messages = _counted


async def _counted(model: Any, *given: Any, **options: Any) -> AsyncIterator[Any]:
    run = current_run()
    if run is None:
        async for event in _stream_messages(model, *given, **options):
            yield event
        return
    run.check()
    chat, ending = ChatReply(), ""
    with run.requests.asking():
        async for event in _stream_messages(chat.seen(model), *given, **options):
            ending = event.get("event", {}).get("messageStop", {}).get("stopReason", ending)
            if isinstance(event, ModelStopReason):
                reason, _, used, _ = event["stop"]
                if reason == "cancelled" or chat.ending is None:
                    chat.ending = reason if reason == "cancelled" else ending
                usage = ModelUsage(
                    input_tokens=used["inputTokens"], output_tokens=used["outputTokens"]
                )
                try:
                    run.requests.replied(usage, ending=chat.ending, refusal=chat.refusal)
                except BaseException as error:
                    run.ended = error
                    raise
            yield event


class ChatReply:
    """What ``OpenAIModel`` drops of a reply: a refusal, and that a stream ended without a reason.

    ``ending`` is ``None`` for the replies of other models.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.ending: str | None = None

    def seen(self, model: Any) -> Any:
        """Return a model whose replies are looked at here."""
        if "OpenAIModel" not in [each.__name__ for each in type(model).__mro__]:
            return model
        seen = copy.copy(model)
        seen._get_client = lambda: self._client(model)
        return seen

    @asynccontextmanager
    async def _client(self, model: Any) -> AsyncIterator[Any]:
        async with model._get_client() as given:
            client = given.with_options()
            create = client.chat.completions.create

            async def created(**request: Any) -> Any:
                self.ending = ""
                reply = await create(**request)
                if request["stream"]:
                    return self._chunks(reply)
                self._look_at(reply, "message")
                return reply

            client.chat.completions.create = created
            yield client

    async def _chunks(self, stream: Any) -> AsyncIterator[Any]:
        async for chunk in stream:
            self._look_at(chunk, "delta")
            yield chunk

    def _look_at(self, reply: Any, said: str) -> None:
        for choice in reply.choices or ():
            self.ending = choice.finish_reason or self.ending
            self.refusal += getattr(getattr(choice, said), "refusal", None) or ""
