"""What LiteLLM leaves out of the streams of OpenAI's package: refusals, and that an end is missing.

It has no public hook for the pieces of a stream before it makes them its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import wraps
from typing import Any

import msgspec


class HeardReply(msgspec.Struct):
    """What the stream of one reply said: a refusal, and whether it ended without a reason."""

    refusal: str = ""
    is_cut: bool = False


HEARD: ContextVar[HeardReply | None] = ContextVar("parley_litellm_heard", default=None)
"""Where the pieces of the reply to the next request are noted."""


def listen(module: Any) -> None:
    """Wrap ``acompletion`` of a module that asks models through LiteLLM. Idempotent."""
    complete = module.acompletion
    if getattr(complete, "is_heard", False):
        return

    @wraps(complete)
    async def acompletion(*args: Any, **options: Any) -> Any:
        reply, heard = await complete(*args, **options), HEARD.get()
        stream: Any = getattr(reply, "completion_stream", None)
        if heard is not None and hasattr(stream, "_iterator"):
            stream._iterator = _heard(stream._iterator, heard)
        elif heard is not None:
            heard.refusal += "".join(_refusal(each) for each in getattr(reply, "choices", ()))
        return reply

    acompletion.is_heard = True  # type: ignore[attr-defined]
    module.acompletion = acompletion


def _refusal(choice: Any) -> str:
    message = getattr(choice, "message", None)
    said = (getattr(message, "provider_specific_fields", None) or {}).get("refusal")
    return str(getattr(message, "refusal", None) or said or "")


async def _heard(chunks: Any, heard: HeardReply) -> AsyncIterator[Any]:
    is_cut = True
    async for chunk in chunks:
        for choice in chunk.choices or ():
            heard.refusal += getattr(choice.delta, "refusal", None) or ""
            is_cut &= not choice.finish_reason
        yield chunk
    heard.is_cut = is_cut
