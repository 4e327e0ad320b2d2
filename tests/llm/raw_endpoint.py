"""An endpoint that sends the bytes of a test: events, errors, broken streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from parley.conformance.background_server import BackgroundServer

Answer = Callable[[dict[str, Any]], Response]


class RawEndpoint:
    """Answers each request with the next of ``answers``, and later requests with the last.

    ``bodies`` and ``headers`` hold the received requests.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        routes = [Route("/v1/chat/completions", self._answer, methods=["POST"])]
        self._server = BackgroundServer(Starlette(routes=routes))

    @property
    def url(self) -> str:
        return f"{self._server.url}/v1"

    def will(self, *answers: Answer) -> None:
        """Start again, with these answers."""
        self.answers, self.bodies, self.headers = list(answers), [], []

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

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(body)


def events(*deltas: Mapping[str, Any], usage: bool = True, done: bool = True) -> Answer:
    """Return a stream of these deltas.

    ``{"finish": reason}`` ends the choice, ``{"raw": ...}`` is sent unchanged.
    """

    def answer(body: dict[str, Any]) -> Response:
        return StreamingResponse(_sent(deltas, usage, done), media_type="text/event-stream")

    return answer


async def _sent(deltas: Sequence[Mapping[str, Any]], usage: bool, done: bool) -> AsyncIterator[str]:
    for delta in deltas:
        if "raw" in delta:
            yield _event(delta["raw"])
        elif "break" in delta:
            raise ConnectionResetError("the test breaks the stream off")
        elif "finish" in delta:
            yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": delta["finish"]}]})
        else:
            yield _event({"id": "1", "choices": [{"index": 0, "delta": delta}]})
    if usage:
        yield _event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
    if done:
        yield "data: [DONE]\n\n"


def _event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def refusal(status: int, message: str = "no", headers: Mapping[str, str] | None = None) -> Answer:
    """Return an error in the form of model endpoints."""

    def answer(body: dict[str, Any]) -> Response:
        return JSONResponse({"error": {"message": message}}, status, dict(headers or {}))

    return answer


def refusing(member: str, otherwise: Answer) -> Answer:
    """Return the error of an endpoint that does not know a member of requests."""

    def answer(body: dict[str, Any]) -> Response:
        if member in body:
            return refusal(400, f"Unrecognized request argument supplied: {member}")(body)
        return otherwise(body)

    return answer


def whole(value: Any) -> Answer:
    """Return an answer without streaming."""
    return lambda body: JSONResponse(value)
