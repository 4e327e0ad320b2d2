"""An OpenAI-compatible endpoint whose model follows a script."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from parley.conformance.background_server import BackgroundServer
from parley.llm.model import ModelFailed, ModelRequest, ModelUsage, Script, ScriptedModel

MODEL = "scripted-1"
"""The name of the model; requests may name any model."""


class ModelEndpoint:
    """Serves a scripted model as ``/v1/chat/completions`` and ``/v1/models``, in a thread.

        with ModelEndpoint(lambda request: f"You said: {request.said}") as endpoint:
            run_a_framework(base_url=endpoint.url, api_key="any")

    ``url`` ends in ``/v1``. ``requests`` are the received requests, the newest last, and ``used``
    is the token usage that its replies reported. Replies are streamed if the request asks for a
    stream.
    """

    def __init__(self, script: Script) -> None:
        self.used = ModelUsage()
        self._model = ScriptedModel(script)
        self._server = BackgroundServer(
            Starlette(
                routes=[
                    Route("/v1/chat/completions", self._completions, methods=["POST"]),
                    Route("/v1/models", self._models),
                ]
            )
        )

    @property
    def url(self) -> str:
        """The base address of the API."""
        return f"{self._server.url}/v1"

    @property
    def requests(self) -> list[ModelRequest]:
        """The requests received so far, the newest last."""
        return self._model.requests

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.stop()

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _completions(self, request: Request) -> Response:
        asked = msgspec.json.decode(await request.body())
        wanted = ModelRequest(
            model=asked.get("model", ""),
            messages=asked.get("messages", []),
            tools=asked.get("tools") or (),
            response_format=asked.get("response_format"),
            max_tokens=asked.get("max_tokens") or asked.get("max_completion_tokens"),
            temperature=asked.get("temperature"),
        )
        if asked.get("stream"):
            chunks = self._chunks(wanted)
            try:
                # An error before the first chunk is an HTTP error, not part of a stream.
                first = await anext(chunks, None)
            except ModelFailed as error:
                return _refusal(error)
            if await request.is_disconnected():  # while a reply was held
                return Response()
            return StreamingResponse(_sse(first, chunks), media_type="text/event-stream")
        try:
            return JSONResponse(await self._whole(wanted))
        except ModelFailed as error:
            return _refusal(error)

    async def _whole(self, request: ModelRequest) -> dict[str, Any]:
        text, thinking, refusal, calls, usage, reason = "", "", "", [], ModelUsage(), None
        async for chunk in self._model.stream(request):
            text += chunk.text
            thinking += chunk.thinking
            refusal += chunk.refusal
            calls += [_tool_call(call) for call in chunk.tool_calls]
            usage = chunk.usage or usage
            reason = chunk.finish_reason or reason
        self.used += usage
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if refusal:
            message["refusal"] = refusal
        if thinking:
            message["reasoning_content"] = thinking
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return {**_head("chat.completion"), "choices": [choice], "usage": _usage(usage)}

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[dict[str, Any]]:
        head = _head("chat.completion.chunk")
        opening: dict[str, Any] = {"role": "assistant", "content": ""}
        async for chunk in self._model.stream(request):
            delta: dict[str, Any] = dict(opening)
            opening = {}
            if chunk.text:
                delta["content"] = chunk.text
            if chunk.thinking:
                delta["reasoning_content"] = chunk.thinking
            if chunk.refusal:
                delta["refusal"] = chunk.refusal
            for n, call in enumerate(
                chunk.tool_calls
            ):  # each in its own chunk, as other endpoints do
                called = {**delta, "tool_calls": [{"index": n, **_tool_call(call)}]}
                delta = {}
                choice = {"index": 0, "delta": called, "finish_reason": None}
                yield {**head, "choices": [choice]}
            choice = {"index": 0, "delta": delta, "finish_reason": chunk.finish_reason or None}
            yield {**head, "choices": [choice]}
            if chunk.usage is not None:
                self.used += chunk.usage
                yield {**head, "choices": [], "usage": _usage(chunk.usage)}


async def _sse(
    first: dict[str, Any] | None, rest: AsyncIterator[dict[str, Any]]
) -> AsyncIterator[bytes]:
    """Yield the events of a stream; an interrupted stream has no last event."""
    has_ended, chunk = False, first
    while chunk is not None:
        has_ended |= any(choice["finish_reason"] for choice in chunk["choices"])
        yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"
        chunk = await anext(rest, None)
    if has_ended:
        yield b"data: [DONE]\n\n"


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": MODEL}


def _tool_call(call: Any) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: ModelUsage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.tokens,
    }


def _refusal(error: ModelFailed) -> Response:
    kind = {429: "rate_limit_exceeded", 401: "invalid_api_key"}.get(error.status, "server_error")
    said = {"message": str(error), "type": kind, "code": kind, "param": None}
    return JSONResponse({"error": said}, status_code=error.status or 500)


def held() -> tuple[Callable[[], Awaitable[None]], Callable[[], None]]:
    """Return an awaitable for a reply (``ScriptedReply(hold=...)``), and the function that releases
    it.

    Both may be called in any thread.
    """
    gate = threading.Event()

    async def wait() -> None:
        await asyncio.to_thread(gate.wait)

    return wait, gate.set
