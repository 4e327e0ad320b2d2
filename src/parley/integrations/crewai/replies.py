"""What the framework leaves out of replies of OpenAI's package: refusals, and a missing end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from openai import Stream
from openai.resources.chat.completions import Completions

ENDED: ContextVar[Callable[..., None] | None] = ContextVar("parley_crewai_ended", default=None)
"""Counts the reply to the request that this thread makes; ``None`` once that is done."""

_create: Any = Completions.create


def _heard(*args: Any, **options: Any) -> Any:
    made, ended = _create(*args, **options), ENDED.get()
    if isinstance(made, Stream) and ended is not None:
        made._iterator = _chunks(made._iterator, ended, bool(options.get("response_format")))
    elif ended is not None:
        whole = made.parse() if hasattr(made, "parse") else made
        for choice in whole.choices or ():
            if choice.message.refusal:
                ended(whole.usage, "stop", choice.message.refusal)
    return made


def _chunks(chunks: Iterator[Any], ended: Any, is_value: bool) -> Iterator[Any]:
    """Yield the chunks of a reply; those that the package may take for a failure when it counts."""
    usage, reason, refusal, said, last = None, "", "", False, []
    try:
        for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices or ():
                reason = choice.finish_reason or reason
                refusal += choice.delta.refusal or ""
                said |= bool(choice.delta.content or choice.delta.tool_calls)
            if reason or is_value:
                last.append(chunk)
            else:
                yield chunk
    except Exception:
        if said:
            ended(usage, "", refusal)
        raise
    ended(usage, reason, refusal, is_empty=not said)
    yield from last


Completions.create = _heard  # type: ignore[method-assign]
