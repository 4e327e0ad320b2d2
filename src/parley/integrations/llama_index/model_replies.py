"""The replies of models in a turn, from the events that all models of LlamaIndex emit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from llama_index.core.callbacks.token_counting import get_tokens_from_response
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events import llm
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from llama_index.core.llms import callbacks

from parley.engine.turn.attempt import Failed, Rejected
from parley.llm.model import ModelUsage
from parley.llm.run_output import ModelRequests, ReplyCut

STARTS = (llm.LLMChatStartEvent, llm.LLMCompletionStartEvent)
ENDS = (llm.LLMChatEndEvent, llm.LLMCompletionEndEvent)

ASKS = {
    "chat", "achat", "stream_chat", "astream_chat",
    "complete", "acomplete", "stream_complete", "astream_complete",
}  # fmt: skip
"""The methods of models that make requests; others may call tools as well."""

ENDINGS = ("finish_reason", "stop_reason", "done_reason")
"""The members of a raw reply, or of its choices, with the finish reason."""


class RunEnded(Exception):
    """A reply was interrupted, or ended the task. Engines hang after a ``BaseException``."""


class PartialReply:
    """A partial reply. ``before`` is the number of replies at the time of the request."""

    before = 0
    ending: str | None = None
    refusal = ""

    def read(self, response: Any) -> None:
        """Read the finish reason and the refusal from a reply, or from a chunk."""
        raw = _raw(response)
        choices = _member(raw, "choices") or []
        if choices or response is None:
            self.ending = self.ending or ""
        for each in (raw, *choices):
            for name in ENDINGS:
                self.ending = str(_member(each, name) or "") or self.ending
            said = _member(each, "delta") or _member(each, "message")
            self.refusal += _member(said, "refusal") or ""


class TurnReplies:
    """Reports each reply to the turn's request counter. ``over`` is set when the run must end.

    Outside of turns there are no ``requests``. ``asks``: the run's events can ask the turn's
    caller.
    """

    def __init__(self, requests: ModelRequests | None, *, asks: bool = False) -> None:
        self.asks = asks
        self.over: RunEnded | None = None
        self._requests = requests
        self._newest: Any = None
        self._open: dict[str | None, PartialReply] = {}

    def hear(self, event: Any) -> None:
        """Handle an event of a model. Raises ``RunEnded``."""
        if self._requests is None:
            return
        if isinstance(event, ExceptionEvent):
            self.failed(event.exception)
        elif isinstance(event, STARTS):
            self.check()
            self._open[event.span_id] = reply = PartialReply()
            reply.before = self._requests.usage.requests
        elif hasattr(event, "response"):
            self._open[event.span_id].read(event.response)
            if isinstance(event, ENDS):
                self._end(self._open.pop(event.span_id), event.response, self._requests)

    def failed(self, error: BaseException) -> None:
        """Record why a request failed."""
        if self._requests is not None:
            self._requests.failures.append(error)

    def check(self) -> None:
        """Raise ``RunEnded`` if the run must end, even if an author's code has caught it before."""
        if self.over is not None:
            raise self.over

    def _end(self, reply: PartialReply, response: Any, requests: ModelRequests) -> None:
        """Count a reply, unless the model derived it from another reply, as some methods do."""
        raw, usage = _raw(response), _usage(response)
        if usage is None and reply.ending is None and requests.usage.requests > reply.before:
            return
        if raw is not None and raw is self._newest:
            return
        self._newest = raw
        try:
            requests.replied(usage, ending=reply.ending, refusal=reply.refusal)
        except (ReplyCut, Failed, Rejected) as ended:
            self.over = RunEnded(str(ended))
            raise self.over from ended


NO_TURN = TurnReplies(None)

REPLIES = ContextVar("parley_llama_index_replies", default=NO_TURN)
"""The replies of the run that calls a model, or a tool, now."""


@contextmanager
def heard(requests: ModelRequests, *, asks: bool) -> Iterator[None]:
    """Count the replies to calls in this block, and in tasks and threads of LlamaIndex."""
    token = REPLIES.set(TurnReplies(requests, asks=asks))
    try:
        yield
    finally:
        REPLIES.reset(token)


def _event(event: Any, handle: Any = callbacks.dispatcher.event) -> None:
    """Handle an event as before, but raise errors that the dispatcher would drop."""
    handle(event)
    REPLIES.get().hear(event)


callbacks.dispatcher = SimpleNamespace(event=_event)


class FailedRequests(NullSpanHandler):  # type: ignore[misc]
    """Records requests that fail before a reply begins: they have no event."""

    def span_drop(self, id_: str, *given: Any, err: Any = None, **more: Any) -> None:
        """Record why a request failed."""
        if id_.rpartition(".")[2].partition("-")[0] in ASKS:
            REPLIES.get().failed(err)


get_dispatcher().add_span_handler(FailedRequests())


def _raw(response: Any) -> Any:
    raw = getattr(response, "raw", None)
    return _member(raw, "response") or raw  # for an event of the Responses API


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _usage(response: Any) -> ModelUsage | None:
    more = getattr(response, "additional_kwargs", {})
    said = SimpleNamespace(raw=_raw(response), additional_kwargs=more)
    try:
        asked, replied = get_tokens_from_response(said)
    except (AttributeError, TypeError, ValueError):  # the model has an object of another type
        return None
    usage = ModelUsage(input_tokens=asked or 0, output_tokens=replied or 0)
    return usage if usage.tokens else None
