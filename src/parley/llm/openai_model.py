"""A model behind an OpenAI-compatible endpoint: Ollama, vLLM, or a hosted model."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import msgspec

from parley.llm.model import (
    Json,
    ModelChunk,
    ModelFailed,
    ModelRequest,
    ModelToolCall,
    ModelUsage,
    ReplyBroken,
)
from parley.model.backoff import Backoff
from parley.model.distribution import install_command
from parley.security.networks import is_loopback

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger("parley.llm")

URL_VARIABLES = ("PARLEY_MODEL_URL", "OPENAI_BASE_URL")
"""The environment variables for the endpoint; the first one set is used."""

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable for the endpoint's key."""

NAME_VARIABLE = "PARLEY_MODEL"
"""The environment variable for the default model of agents."""

HOSTED = "https://api.openai.com/v1"
"""The endpoint when only a key is set."""

BACKOFF = Backoff(first=0.5, longest=8.0, jitter=(0.75, 1.0))
"""The pauses between attempts, in seconds."""

MAX_PAUSE = 60.0
"""The longest wait that an endpoint may request, in seconds; after a longer one there
is no retry.
"""

MAX_REPLY = 4_000_000
"""The length limit of a reply in characters, with its thinking and the arguments of its
tool calls.
"""

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The size limit of an event of a stream, and of a line, in bytes."""

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""The size limit of a response in bytes, with the JSON around its text: some hundred per token."""

_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_DATA = re.compile(rb"(?:^|[\r\n])data: *[^\s]")


class OpenAIModel:
    """A ``Model`` behind the chat completions API, called with the ``openai`` package.

    ``base_url`` is the endpoint, by default from ``PARLEY_MODEL_URL`` or ``OPENAI_BASE_URL``;
    ``api_key`` is its key, by default from ``OPENAI_API_KEY``. ``timeout`` is how many seconds the
    endpoint may be silent. A request is retried up to ``retries`` times, after a pause, if the
    endpoint is busy (429), fails (5xx) or is unreachable, but only before the first piece of the
    reply. ``options`` are added to every request, such as ``{"top_p": 0.9}``; ``headers`` too.

    With ``returns_thinking`` a model gets back its thinking before tool calls, until the answer:
    some hosted models reject tool results without it.

    ``async with model:`` keeps its connections open; without it each request opens its own.

    Raises ``ValueError`` for an invalid address, and without an endpoint.
    """

    def __init__(
        self,
        name: str = "",
        *,
        base_url: str = "",
        api_key: str = "",
        timeout: float = 120.0,
        retries: int = 3,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        returns_thinking: bool = False,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.name = name or os.environ.get(NAME_VARIABLE, "")
        self.base_url = (base_url or named_endpoint()).rstrip("/")
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(
                f"the address of a model's endpoint must be http:// or https://, such as "
                f"http://localhost:11434/v1, not {self.base_url!r}; give base_url=, or set "
                f"{URL_VARIABLES[0]}"
            )
        self._key = api_key or os.environ.get(KEY_VARIABLE, "")
        parts = urlsplit(self.base_url)
        if self._key and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            log.warning(
                "the key of %s is sent without encryption: use https, unless you trust the network",
                self.place,
            )
        self.returns_thinking = returns_thinking
        self._timeout = timeout
        self._retries = retries
        self._options = dict(options or {})
        self._headers = dict(headers or {})
        self._backoff = backoff
        self._refused: set[str] = set()
        self._held: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, base_url={self.place!r})"

    @property
    def place(self) -> str:
        """The address of the endpoint, without possible secrets."""
        parts = urlsplit(self.base_url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def without_secrets(self, text: str) -> str:
        """Return a text without the key, if the key stands alone: ``none`` is part of
        some words.
        """
        return re.sub(rf"(?<!\w){re.escape(self._key)}(?!\w)", "[key]", text) if self._key else text

    # -- connections ---------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        held = self._held.get(loop := asyncio.get_running_loop())
        made = None
        if held is None:
            made = await self._client()
            held = self._held.setdefault(loop, [made, 0])
        held[1] += 1
        if made is not None and held[0] is not made:  # another task was faster
            await made.close()
        return self

    async def __aexit__(self, *error: object) -> None:
        loop = asyncio.get_running_loop()
        held = self._held[loop]
        held[1] -= 1
        if not held[1]:
            del self._held[loop]
            await held[0].close()

    async def _client(self) -> AsyncOpenAI:
        try:  # the import takes a second, so it runs in a thread
            openai = await asyncio.to_thread(importlib.import_module, "openai")
        except ImportError as error:
            raise ModelFailed(
                f"the package {error.name or 'openai'} is not installed; models need it: "
                f"{install_command('llm')}"
            ) from error
        # A redirect would send the conversation to an address that the operator did not choose.
        http = openai.DefaultAsyncHttpxClient(
            follow_redirects=False, timeout=self._timeout, event_hooks={"response": [self._bound]}
        )
        client: AsyncOpenAI = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._key or "none",  # the package requires a key, local endpoints do not
            timeout=self._timeout,
            max_retries=0,
            default_headers={"Accept-Encoding": "identity", **self._headers},
            http_client=http,
        )
        return client

    async def _bound(self, response: Any) -> None:
        import httpx2

        place, stream = self.place, response.stream
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        has_events = "text/event-stream" in response.headers.get("content-type", "")

        class Bounded(httpx2.AsyncByteStream):
            pieces: AsyncGenerator[bytes, None] | None = None

            def __aiter__(self) -> AsyncIterator[bytes]:
                is_encoded = encoding not in ("", "identity")
                self.pieces = _bounded(stream, place, is_encoded=is_encoded, has_events=has_events)
                return self.pieces

            async def aclose(self) -> None:
                if self.pieces is not None:
                    await self.pieces.aclose()  # not by the garbage collector, in any order
                await stream.aclose()

        response.stream = Bounded()

    # -- requests ------------------------------------------------------------------------------

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Ask, and yield the reply piece by piece. Raises ``ModelFailed``."""
        if not (request.model or self.name):
            raise ModelFailed(
                f"no model is named: give model=..., such as 'qwen3:8b', or set {NAME_VARIABLE}"
            )
        async with self:
            import httpx2
            import openai

            client: AsyncOpenAI = self._held[asyncio.get_running_loop()][0]
            failures = 0
            while True:
                has_begun, sent = False, self._sent(request)
                try:
                    async for chunk in self._stream_once(client, request, sent):
                        has_begun = True
                        yield chunk
                    return
                except (openai.OpenAIError, httpx2.HTTPError, ModelFailed, ValueError) as error:
                    if has_begun:
                        raise failure_of(error, self, request) from None
                    option = unsupported(error, sent)
                    if option is not None and option not in self._options:
                        self._refused.add(option)
                        continue
                    failures += 1
                    pause = later(error) or self._backoff.delay(failures)
                    if not is_temporary(error) or failures > self._retries or pause > MAX_PAUSE:
                        raise failure_of(error, self, request) from None
                await asyncio.sleep(pause)

    def _sent(self, request: ModelRequest) -> Json:
        """Return the optional members of a request, without members that the endpoint
        has rejected.
        """
        body: Json = {}
        if request.tools:
            body["tools"] = list(request.tools)
        if request.response_format is not None:
            body["response_format"] = request.response_format
        if request.temperature is not None:
            body["temperature"] = request.temperature
        body["stream_options"] = {"include_usage": True}
        if request.max_tokens is not None:
            newer = "max_tokens" in self._refused
            body["max_completion_tokens" if newer else "max_tokens"] = request.max_tokens
        for option in self._refused:
            body.pop(option, None)
        return {**body, **self._options}

    async def _stream_once(
        self, client: AsyncOpenAI, request: ModelRequest, sent: Mapping[str, Any]
    ) -> AsyncIterator[ModelChunk]:
        calls, size = ToolCallDeltas(), 0
        usage: ModelUsage | None = None
        reason, model, has_events = "", "", False
        messages: Any = list(request.messages)
        stream = await client.chat.completions.create(
            model=request.model or self.name, messages=messages, stream=True, extra_body=sent
        )
        async with stream:
            async for chunk in stream:
                has_events = True
                model = _text(chunk, "model") or model
                if (found := _usage(getattr(chunk, "usage", None))) is not None:
                    usage = found
                for choice in getattr(chunk, "choices", None) or ():
                    reason = getattr(choice, "finish_reason", None) or reason
                    delta = member(choice, "delta") or member(choice, "message")
                    if delta is None:
                        continue
                    calls.add(member(delta, "tool_calls") or _older_call(delta))
                    text, thinking = _said(delta)
                    refusal = _text(delta, "refusal")
                    size += len(text) + len(thinking) + len(refusal)
                    if size + calls.size > MAX_REPLY:
                        raise ModelFailed(
                            f"the reply of {self.place} has more than {MAX_REPLY:,} characters, "
                            "so it was cut off; max_reply_tokens= bounds replies"
                        )
                    if text or thinking or refusal:
                        yield ModelChunk(text=text, thinking=thinking, refusal=refusal)
        if not has_events:
            raise ModelFailed(
                f"the endpoint {self.place} answered without a stream of events; it must be an "
                "OpenAI-compatible one that streams (its address usually ends in /v1)"
            )
        if not reason:
            raise ReplyBroken(f"the reply of {self.place} ended without a finish reason")
        yield ModelChunk(tool_calls=calls.whole(), usage=usage, finish_reason=reason, model=model)


async def _bounded(
    stream: AsyncIterable[bytes], place: str, *, is_encoded: bool, has_events: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the body of a response. Raises ``ModelFailed`` if the body is too large.

    ``is_encoded``: the body is compressed although the request asked for plain bytes; it is
    rejected, as it could decompress to any size. A stream that ``has_events`` loses events without
    data, such as comments and pings.
    """
    if is_encoded:
        raise ModelFailed(
            f"{place} sent a compressed response against the request "
            "(Accept-Encoding: identity); does a proxy in between compress?"
        )
    total, held = 0, bytearray()
    async for chunk in stream:
        total += len(chunk)
        if total > MAX_ANSWER_BYTES:
            raise ModelFailed(
                f"the reply of {place} has more than {MAX_ANSWER_BYTES:,} bytes, so it "
                "was cut off; max_reply_tokens= bounds replies"
            )
        if not has_events:
            yield chunk
            continue
        searched = max(0, len(held) - 3)
        held += chunk
        begin = 0
        for end in _END.finditer(held, searched):
            event = bytes(held[begin : end.end()])
            begin = end.end()
            if _DATA.search(event):
                yield event
        del held[:begin]
        if len(held) > MAX_EVENT_BYTES:
            raise ModelFailed(
                f"an event of the stream of {place} has more than {MAX_EVENT_BYTES:,} "
                "bytes, so the reply was cut off"
            )
    yield bytes(held)


def _text(delta: Any, field: str) -> str:
    value = member(delta, field)
    return value if isinstance(value, str) else ""


def _said(delta: Any) -> tuple[str, str]:
    """Return the text and the thinking of a piece.

    Endpoints use two names for the field of thinking, or both, or write content as a list of parts,
    in which thinking may be a list again.
    """
    thinking = _text(delta, "reasoning_content") or _text(delta, "reasoning")
    content = member(delta, "content")
    if not isinstance(content, list):
        return _text(delta, "content"), thinking
    texts = "".join(_text(part, "text") for part in content)
    for part in content:
        thought = member(part, "thinking")
        for each in thought if isinstance(thought, list) else ():
            thinking += _text(each, "text")
        thinking += thought if isinstance(thought, str) else ""
    return texts, thinking


def _older_call(delta: Any) -> list[Json]:
    """Return the tool call of a piece in the format of older endpoints."""
    function = member(delta, "function_call")
    return [] if function is None else [{"index": 0, "function": function}]


def _usage(said: Any) -> ModelUsage | None:
    if said is None:
        return None
    sent, made = getattr(said, "prompt_tokens", None), getattr(said, "completion_tokens", None)
    if not isinstance(sent, int) and not isinstance(made, int):
        return None
    return ModelUsage(
        input_tokens=sent if isinstance(sent, int) else 0,
        output_tokens=made if isinstance(made, int) else 0,
        requests=1,
    )


def named_endpoint() -> str:
    """Return the endpoint in the environment, or an empty string."""
    for variable in URL_VARIABLES:
        if value := os.environ.get(variable, "").strip():
            return value
    return HOSTED if os.environ.get(KEY_VARIABLE, "").strip() else ""


QUOTED = 300
"""The number of characters of an endpoint's own text an error quotes."""

_OPTIONAL = ("stream_options", "response_format")


def is_temporary(error: Exception) -> bool:
    """Return whether a request may succeed when it is repeated."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in (408, 409, 425, 429) or error.status_code >= 500
    is_broken = isinstance(error, openai.APIConnectionError | ReplyBroken)
    return is_broken or _is_broken(error)


def _is_broken(error: Exception) -> bool:
    """Return whether a stream broke, or contained an error of the endpoint."""
    import httpx2
    import openai

    return isinstance(error, httpx2.TransportError) or type(error) is openai.APIError


def later(error: Exception) -> float | None:
    """Return the wait that the endpoint requests (``Retry-After``) in seconds, or ``None``."""
    response = getattr(error, "response", None)
    try:
        seconds = float(response.headers.get("retry-after", ""))  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def unsupported(error: Exception, sent: Mapping[str, Any]) -> str | None:
    """Return the optional member of a request that the endpoint rejects, or ``None``."""
    import openai

    if not isinstance(error, openai.APIStatusError) or error.status_code not in (400, 404, 422):
        return None
    said = _words(error)
    if "max_tokens" in sent and "max_completion_tokens" in said:
        return "max_tokens"
    return next((option for option in _OPTIONAL if option in sent and option in said), None)


def failure_of(error: Exception, endpoint: OpenAIModel, request: ModelRequest) -> ModelFailed:
    """Return an error that says what was wrong and what would be right, without secrets.

    Raise it ``from None``: the endpoint's text may quote the key.
    """
    failure = _failure(error, endpoint, request)
    kind = type(failure)
    return kind(endpoint.without_secrets(str(failure)), status=failure.status)


def _failure(error: Exception, endpoint: OpenAIModel, request: ModelRequest) -> ModelFailed:
    import openai

    if isinstance(error, ModelFailed):
        return error
    place, model = endpoint.place, request.model or endpoint.name
    if isinstance(error, openai.APITimeoutError):
        return ModelFailed(f"{place} was silent for longer than the timeout; give a longer one")
    if isinstance(error, openai.APIConnectionError):
        hint = "; is `ollama serve` running?" if place.endswith(":11434/v1") else ""
        cause = type(error.__cause__).__name__ if error.__cause__ is not None else "no connection"
        return ModelFailed(f"cannot reach the model's endpoint {place} ({cause}){hint}")
    if not isinstance(error, openai.APIStatusError):
        words = f": {_quoted(str(error))}" if isinstance(error, openai.APIError) else ""
        return ReplyBroken(f"the reply of {place} broke off ({type(error).__name__}){words}")
    status = error.status_code
    if status in (401, 403):  # endpoints quote the key in their messages
        said = f"{place} rejects the key ({status}); set OPENAI_API_KEY, or give api_key="
    elif 300 <= status < 400:
        said = f"{place} redirects ({status}), which is not followed; give the final address"
    elif status == 404:
        said = (
            f"{place} does not know the model {model!r}, or is not the address of the API (it "
            f"usually ends in /v1); with Ollama: ollama pull {model}. It says: {_quoted_of(error)}"
        )
    elif status == 429:
        said = f"{place} is busy, or the quota is exhausted (429): {_quoted_of(error)}"
    else:
        said = f"{place} answered {status}: {_quoted_of(error)}"
    return ModelFailed(said, status=status)


def _words(error: Any) -> str:
    body = getattr(error, "body", None)
    return f"{getattr(error, 'message', '')} {body}"


def _quoted_of(error: Any) -> str:
    body = getattr(error, "body", None)
    said = body.get("message") if isinstance(body, Mapping) else None
    return _quoted(said if isinstance(said, str) else str(getattr(error, "message", "")))


def _quoted(text: str) -> str:
    return " ".join(text.split())[:QUOTED] or "nothing"


CALL_SIZE = 100
"""The size of a call in addition to its arguments."""


def member(value: Any, name: str) -> Any:
    """Return a member of an object, or of a dict, the package's form of unknown objects."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


class _Pieces:
    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Return whether it has arguments in valid JSON."""
        try:
            msgspec.json.decode("".join(self.arguments))
        except (msgspec.DecodeError, UnicodeEncodeError):
            return False
        return True


class ToolCallDeltas:
    """Assembles tool calls from their pieces.

    A piece belongs to the call with its ``index``. Some endpoints give all calls the index 0, or
    none: then a new id, or a further name after complete arguments, begins a call. A name may
    arrive in pieces, or again in each piece.

    ``size`` is the approximate number of characters of all calls.
    """

    def __init__(self) -> None:
        self.size = 0
        self._calls: list[_Pieces] = []
        self._at: dict[int, _Pieces] = {}

    def add(self, deltas: Iterable[Any]) -> None:
        """Add the pieces of one event."""
        for delta in deltas:
            function = member(delta, "function")
            name, arguments = member(function, "name") or "", member(function, "arguments")
            call = self._of(delta, name)
            if name.startswith(call.name):
                call.name = name
            elif not call.arguments:
                call.name += name
            if arguments is not None and not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments).decode()  # some endpoints send an object
            if arguments:
                call.arguments.append(arguments)
                self.size += len(arguments)

    def _of(self, delta: Any, name: str) -> _Pieces:
        index, call_id = member(delta, "index"), member(delta, "id") or ""
        known = self._at.get(index) if isinstance(index, int) else None
        if known is None and not isinstance(index, int) and self._calls:
            known = self._calls[-1]
        is_other = known is not None and (
            (call_id and known.id and call_id != known.id)
            or (not call_id and name and known.name and known.is_whole)
        )
        if known is None or is_other:
            known = _Pieces(call_id)
            self._calls.append(known)
            self.size += CALL_SIZE
        elif call_id and not known.id:
            known.id = call_id
        if isinstance(index, int):
            self._at[index] = known
        return known

    def whole(self) -> tuple[ModelToolCall, ...]:
        """Return the calls. A call without an id gets its number as id."""
        return tuple(
            ModelToolCall(
                id=call.id or f"call_{number}",
                name=call.name,
                arguments="".join(call.arguments).strip() or "{}",
            )
            for number, call in enumerate(self._calls, 1)
        )
