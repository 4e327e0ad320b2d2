"""Cassettes of models: an OpenAI-compatible endpoint that records a real one, or replays it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from parley.client.errors import ClientError
from parley.conformance.background_server import BackgroundServer
from parley.conformance.cassettes.cassette import Cassette, Mode
from parley.conformance.cassettes.tape import NotOnTape

_NOT_PASSED_ON = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "keep-alive",
        "te",
        "upgrade",
        "accept-encoding",
        "expect",
        "proxy-connection",
        "trailer",
    }
)
_REPLAYED = "https://models.test/v1"
"""The address of every endpoint on tapes: one that was recorded elsewhere fits too."""


class ModelCassette:
    """Serves ``url`` (it ends in ``/v1``): records a model's answers, or replays them.

    ``api_key`` goes to the endpoint instead of what the caller sends. A call that the tape does
    not have is answered with status 400, and raised at the end of the block: ``missing`` has it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        endpoint: str = "",
        api_key: str = "",
        mode: Mode | None = None,
        ignore: Iterable[str] = (),
        secrets: Iterable[str] = (),
    ) -> None:
        self._cassette = Cassette(path, mode=mode, ignore=ignore, secrets=[*secrets, api_key])
        if not self._cassette.is_replaying and not urlsplit(endpoint).hostname:
            raise ValueError(
                "to record, name the model's endpoint: endpoint='http://127.0.0.1:11434/v1'"
            )
        self._endpoint = (endpoint or _REPLAYED).rstrip("/")
        self._cassette.renamed[self._endpoint] = _REPLAYED
        self._api_key = api_key
        self.missing: list[NotOnTape] = []
        methods = ["GET", "POST", "DELETE"]
        self._server = BackgroundServer(
            Starlette(routes=[Route("/v1{rest:path}", self._pass_on, methods=methods)])
        )

    @property
    def url(self) -> str:
        """The base address of the API, for the framework under test."""
        return f"{self._server.url}/v1"

    @property
    def is_replaying(self) -> bool:
        """Whether the real endpoint is left alone."""
        return self._cassette.is_replaying

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
        self._cassette.save()
        if self.missing and error is None:
            raise self.missing[0]

    async def _pass_on(self, request: Request) -> Response:
        rest = request.path_params["rest"]
        query = f"?{request.url.query}" if request.url.query else ""
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _NOT_PASSED_ON
        }
        if self._api_key:
            headers["authorization"] = f"Bearer {self._api_key}"
        stack = AsyncExitStack()
        http = self._cassette.http
        stack.push_async_callback(http.close)
        try:
            answer = await stack.enter_async_context(
                http.open(
                    request.method,
                    f"{self._endpoint}{rest}{query}",
                    headers,
                    await request.body() or None,
                )
            )
        except ClientError as error:
            await stack.aclose()
            if isinstance(error, NotOnTape):
                self.missing.append(error)
                return _failure(400, str(error))
            return _failure(502, str(error))

        async def body() -> AsyncIterator[bytes]:
            async with stack:
                try:
                    async for chunk in answer.chunks():
                        yield chunk
                except NotOnTape as error:
                    self.missing.append(error)
                    raise

        passed = {n: v for n, v in answer.headers.items() if n in ("content-type", "retry-after")}
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return StreamingResponse(body(), status_code=answer.status, headers=passed)
        async with stack:
            whole = await answer.read()
        return Response(whole, status_code=answer.status, headers=passed)


def _failure(status: int, message: str) -> Response:
    said: dict[str, Any] = {"message": message, "type": "cassette", "code": None, "param": None}
    return JSONResponse({"error": said}, status_code=status)


def model_cassette(
    path: str | Path,
    *,
    endpoint: str = "",
    api_key: str = "",
    mode: Mode | None = None,
    ignore: Iterable[str] = (),
    secrets: Iterable[str] = (),
) -> ModelCassette:
    """Record what a model answers, once, and replay it without the model.

        with parley.testing.model_cassette("tapes/plan.json", endpoint=OLLAMA) as model:
            run_a_framework(base_url=model.url, api_key="any")

    ``endpoint`` is the base address of an OpenAI-compatible API, needed for recording only.
    Streams are replayed chunk by chunk. The options are those of ``cassette``; ``api_key`` goes to
    the endpoint, and never on the tape. Raises what ``cassette`` raises, and ``ValueError`` for a
    recording without an endpoint.
    """
    return ModelCassette(
        path, endpoint=endpoint, api_key=api_key, mode=mode, ignore=ignore, secrets=secrets
    )
