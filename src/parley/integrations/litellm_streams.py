"""Refusals and missing ends of OpenAI streams, which LiteLLM drops.

LiteLLM has no public hook for the original chunks of a stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import wraps
from typing import Any

import msgspec


class HeardReply(msgspec.Struct):
    """A reply of the chat completions API as it arrives: its refusal, and its finish reason.

    ``ending`` is empty for a stream that ended without a reason, and ``None`` before its end.
    """

    refusal: str = ""
    ending: str | None = None

    def look_at(self, reply: Any, said: str) -> None:
        """Record the refusal and finish reason of a reply, or of a chunk under a member of its
        choices.
        """
        for choice in reply.choices or ():
            self.ending = choice.finish_reason or self.ending
            self.refusal += getattr(getattr(choice, said), "refusal", None) or ""

    async def chunks(self, stream: Any) -> AsyncIterator[Any]:
        """Yield the chunks of a stream."""
        async for chunk in stream:
            self.look_at(chunk, "delta")
            yield chunk
        self.ending = self.ending or ""


HEARD: ContextVar[HeardReply | None] = ContextVar("parley_litellm_heard", default=None)
"""The record of the reply to the next request."""


def listen(module: Any) -> None:
    """Wrap ``acompletion`` of a module that calls models through LiteLLM. Idempotent."""
    complete = module.acompletion
    if getattr(complete, "is_heard", False):
        return

    @wraps(complete)
    async def acompletion(*args: Any, **options: Any) -> Any:
        reply, heard = await complete(*args, **options), HEARD.get()
        stream: Any = getattr(reply, "completion_stream", None)
        if heard is not None and hasattr(stream, "_iterator"):
            stream._iterator = heard.chunks(stream._iterator)
        elif heard is not None:
            heard.refusal += "".join(_refusal(each) for each in getattr(reply, "choices", ()))
        return reply

    acompletion.is_heard = True  # type: ignore[attr-defined]
    module.acompletion = acompletion


def _refusal(choice: Any) -> str:
    message = getattr(choice, "message", None)
    said = (getattr(message, "provider_specific_fields", None) or {}).get("refusal")
    return str(getattr(message, "refusal", None) or said or "")
