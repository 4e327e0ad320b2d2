"""``cassette`` and ``model_cassette``: exchanges recorded to a file, and replayed from it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_args
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from parley.client.bindings.http import Body, HttpTransport, OpenResponse, redacted
from parley.client.errors import ClientError, ConnectionClosed, Disconnected
from parley.conformance.background_server import BackgroundServer
from parley.security.egress import Egress
from parley.testing.hiding import Hiding
from parley.testing.tape import NotOnTape, Tape
from parley.wire.sse import SseParser, frame

EVENT_STREAM = "text/event-stream"
FORM = "application/x-www-form-urlencoded"

# -- bodies -----------------------------------------------------------------------------------


def unfolded(body: bytes, kind: str, hiding: Hiding, name: str = "") -> dict[str, Any]:
    """Return a body as the members of a tape: ``frames``, none, ``json``, ``text`` or ``base64``.

    ``name`` says what it is, if it is JSON.
    """
    kind = kind.partition(";")[0].strip().lower()
    if kind == EVENT_STREAM:
        frames = []
        for id, event, data in SseParser().feed(body):
            named = {"id": id, "event": None if event == "message" else event}
            kept = {key: value for key, value in named.items() if value}
            frames.append(kept | _said(data.decode("utf-8", "replace"), "data", hiding))
        return {"frames": frames}
    if not body:
        return {}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    if kind == FORM:
        return {"text": hiding.form(text)}
    if kind.endswith(("/json", "+json")) or text[0] in "{[":
        return _said(text, "json", hiding, name)
    return {"text": hiding.text(text)}


def _said(text: str, member: str, hiding: Hiding, name: str = "") -> dict[str, Any]:
    try:
        return {member: hiding.json(json.loads(text), name)}
    except (ValueError, RecursionError):
        return {"text": hiding.text(text)}


def folded(members: Mapping[str, Any], member: str = "json") -> bytes:
    """Return the body, or the data of a frame, in members of a tape."""
    if "base64" in members:
        return base64.b64decode(members["base64"])
    if member in members:
        return json.dumps(members[member], ensure_ascii=False).encode()
    return str(members.get("text", "")).encode()


def framed(members: Mapping[str, Any]) -> bytes:
    """Return a frame of a tape as the bytes of a stream."""
    head = [f"{name}: {members[name]}\n" for name in ("id", "event") if name in members]
    return "".join(head).encode() + frame(folded(members, "data"))


# -- answers ----------------------------------------------------------------------------------

_IS_OVER = re.compile(r'"(?:TASK_STATE_)?(?:COMPLETED|FAILED|CANCELED|REJECTED)"', re.IGNORECASE)
"""The end of a task: nobody misses what a stream had after it."""


class _Recorded(OpenResponse):
    """An answer that is recorded while it is read."""

    def __init__(self, real: OpenResponse) -> None:
        super().__init__(real.status, real.url, real.headers.items(), limit=real._limit)
        self._real = real
        self._body = bytearray()
        self._ends = "left"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        try:
            async for chunk in self._real.chunks():
                self._body += chunk
                yield chunk
            self._ends = "whole"
        except Disconnected:
            self._ends = "cut"
            raise

    def taped(self, hiding: Hiding) -> dict[str, Any]:
        """Return what was read as the answer of a tape."""
        headers = hiding.headers(self.headers)
        body = unfolded(bytes(self._body), headers.get("content-type", ""), hiding)
        answer = {"status": self.status, "headers": headers, **body}
        if self._ends == "cut" or (self._ends == "left" and "frames" in body):
            answer["ends"] = self._ends
        return answer


class _Replayed(OpenResponse):
    """An answer from the tape."""

    def __init__(self, url: str, answer: dict[str, Any]) -> None:
        super().__init__(answer["status"], url, answer["headers"].items(), limit=2**40)
        self._answer = answer

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body; a stream frame by frame, ended as it ended."""
        frames = self._answer.get("frames")
        for each in frames or ():
            await asyncio.sleep(0)
            yield framed(each)
        if frames is None and (body := folded(self._answer)):
            yield body
        match self._answer.get("ends"):
            case "cut":
                raise Disconnected(f"the answer of {redacted(self.url)} broke off, on the tape")
            case "left" if not (frames and _IS_OVER.search(json.dumps(frames[-1]))):
                raise NotOnTape(
                    f"the tape of the stream of {redacted(self.url)} ends here: whoever recorded "
                    "it read no further; record it again with mode='record'"
                )


# -- cassettes --------------------------------------------------------------------------------

Mode = Literal["auto", "record", "replay", "none"]
VARIABLE = "PARLEY_CASSETTES"
"""The environment variable with the mode of cassettes that are given none."""

Opens = Callable[..., AbstractAsyncContextManager[OpenResponse]]

_open: Opens = HttpTransport.open


class Cassette:
    """Record what agents answer, once, and replay it without them.

        with parley.testing.cassette("tapes/booking.json"):
            async with parley.connect("https://agents.example.com") as agent:
                task = await agent.send("A room in Rome")

    In the block all connections of this process over HTTP are on the tape; with
    ``parley.connect(..., http=tape.http)`` it is one connection. Agents that are called in this
    process, WebSockets and gRPC are not.

    ``mode`` is ``record`` (ask the agents, write the file anew), ``replay`` (ask nobody),
    ``auto`` (replay if there is a file, else record), or ``none`` (neither). Without it the
    environment says (``PARLEY_CASSETTES``), else it is ``auto``. ``is_replaying`` says whether the
    network is left alone.

    Ids of messages and requests, contexts that the client made and times may differ between a
    recording and its replay; so may members with the names in ``ignore``. Headers, members and
    parameters that hold credentials are never written, nor the values of ``secrets``.

    A request that the tape does not have raises ``NotOnTape``, with what differs. Raises
    ``TapeUnreadable`` for a file that is no cassette, ``ValueError`` for an unknown mode.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        mode: Mode | None = None,
        ignore: Iterable[str] = (),
        secrets: Iterable[str] = (),
    ) -> None:
        chosen = mode or os.environ.get(VARIABLE) or "auto"
        if chosen not in get_args(Mode):
            where = "mode" if mode else VARIABLE
            raise ValueError(f"{where} is {chosen!r}; it is one of {', '.join(get_args(Mode))}")
        if isinstance(ignore, str) or isinstance(secrets, str):
            raise TypeError("ignore and secrets are lists of texts, as in ignore=['deadline']")
        self.path = Path(path)
        if chosen == "auto":
            chosen = "replay" if self.path.exists() else "record"
        self.is_replaying = chosen == "replay"
        self._is_off = chosen == "none"
        self._tape = Tape(self.path, ignored=frozenset(ignore), hiding=Hiding(secrets))
        self._changed = False
        self._outer: Opens | None = None
        if self.is_replaying:
            if not self.path.exists():
                raise NotOnTape(
                    f"there is no tape {self.path}; record it with mode='record' or "
                    f"{VARIABLE}=record"
                )
            self._tape.load()

    @property
    def http(self) -> HttpTransport:
        """A transport on this tape, for one ``parley.connect(..., http=tape.http)``."""
        return TapedTransport(self)

    @property
    def unused(self) -> list[str]:
        """The exchanges of the tape that were not asked for, a line each; only in a replay."""
        return self._tape.unused if self.is_replaying else []

    def save(self) -> None:
        """Write what was recorded since. Closing does it too."""
        if self._changed:
            self._tape.save()
            self._changed = False

    def __enter__(self) -> Self:
        """Put all connections of this process over the network on the tape."""
        if self._outer is not None:
            raise RuntimeError("this cassette is in use already")
        outer = self._outer = HttpTransport.open

        def taped(http: HttpTransport, *args: Any, **options: Any) -> Any:
            really = partial(outer, http)
            return (really if http.is_local else partial(self.open, really))(*args, **options)

        HttpTransport.open = taped  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: Any) -> None:
        if self._outer is not None:
            HttpTransport.open = self._outer  # type: ignore[method-assign]
            self._outer = None
        self.save()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    @asynccontextmanager
    async def open(
        self,
        really: Opens,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body,
        **limits: Any,
    ) -> AsyncIterator[OpenResponse]:
        """Yield the answer to a request: that of the tape, or that of ``really``, recorded."""
        if self._is_off:
            async with really(method, url, headers, body, **limits) as answer:
                yield answer
            return
        if isinstance(body, AsyncIterable):
            body = b"".join([piece async for piece in body])
        hiding = self._tape.hiding
        kept, last = hiding.headers(headers), urlsplit(url).path.rpartition("/")[2]
        kind = kept.get("content-type", "")
        asked = {
            "method": method,
            "url": hiding.url(url),
            "headers": kept,
            **unfolded(body or b"", kind, hiding, last),
        }
        if self.is_replaying:
            yield _Replayed(url, self._tape.answer(asked))
            return
        exchange: dict[str, Any] = {"request": asked}
        self._tape.exchanges.append(exchange)
        self._changed = True
        async with really(method, url, headers, body, **limits) as answer:
            recorded = _Recorded(answer)
            try:
                yield recorded
            finally:
                exchange["answer"] = recorded.taped(hiding)


class TapedTransport(HttpTransport):
    """The HTTP transport of a client whose exchanges are on a cassette."""

    closes_with_agent = True

    def __init__(self, cassette: Cassette, **options: Any) -> None:
        super().__init__(**options)
        self._cassette = cassette

    def open(self, *request: Any, **limits: Any) -> AbstractAsyncContextManager[OpenResponse]:
        """Return the answer to a request, from the tape or from the network."""
        if self.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        return self._cassette.open(partial(_open, self), *request, **limits)

    async def open_socket(self, url: str, *request: Any, **options: Any) -> Any:
        """Refuse to: a tape has HTTP exchanges alone."""
        raise ClientError(
            f"a cassette has no WebSockets, so {redacted(url)} cannot be called with it: choose a "
            "binding over HTTP, as in connect(binding='JSONRPC')"
        )

    def guarded(self, egress: Egress) -> HttpTransport:
        """Return a transport on the same tape for addresses that others name."""
        return TapedTransport(self._cassette, egress=egress.within(self._egress))

    async def close(self) -> None:
        """Close the connections, and save the tape."""
        await super().close()
        self._cassette.save()


cassette = Cassette

# -- models -----------------------------------------------------------------------------------

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
_ON_TAPE = "https://models.test/v1"
"""The address of every endpoint on tapes: one that was recorded elsewhere fits too."""


class ModelCassette(Cassette):
    """Record what a model answers, once, and replay it without the model.

        with parley.testing.model_cassette("tapes/plan.json", endpoint=OLLAMA) as model:
            run_a_framework(base_url=model.url, api_key="any")

    The block serves ``url``, which ends in ``/v1``. ``endpoint`` is the base address of an
    OpenAI-compatible API, needed for recording only. Streams are replayed chunk by chunk. The other
    options are those of ``cassette``; ``api_key`` goes to the endpoint instead of what the caller
    sends, and never on the tape.

    A call that the tape does not have is answered with status 400, and raised at the end of the
    block: ``missing`` has it. Raises what ``cassette`` raises, and ``ValueError`` for a recording
    without an endpoint.
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
        super().__init__(path, mode=mode, ignore=ignore, secrets=[*secrets, api_key])
        if not self.is_replaying and not urlsplit(endpoint).hostname:
            raise ValueError(
                "to record, name the model's endpoint: endpoint='http://127.0.0.1:11434/v1'"
            )
        self._endpoint = endpoint.rstrip("/")
        self._api_key = api_key
        self.missing: list[NotOnTape] = []
        route = Route("/v1{rest:path}", self._pass_on, methods=["GET", "POST", "DELETE"])
        self._server = BackgroundServer(Starlette(routes=[route]))

    @property
    def url(self) -> str:
        """The base address of the API, for the framework under test."""
        return f"{self._server.url}/v1"

    def __enter__(self) -> Self:
        """Serve the endpoint."""
        self._server.start()
        return self

    def __exit__(self, kind: object = None, *error: object) -> None:
        self._server.stop()
        self.save()
        if self.missing and kind is None:
            raise self.missing[0]

    async def _pass_on(self, request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        headers = {
            name: value for name, value in request.headers.items() if name not in _NOT_PASSED_ON
        }
        if self._api_key:
            headers["authorization"] = f"Bearer {self._api_key}"
        answering = self._answer(
            request.method,
            f"{_ON_TAPE}{request.path_params['rest']}{query}",
            headers,
            await request.body() or None,
        )
        try:
            answer = await anext(answering)
        except ClientError as error:
            said = {"message": str(error), "type": "cassette", "code": None, "param": None}
            return JSONResponse({"error": said}, 400 if isinstance(error, NotOnTape) else 502)
        passed = {n: v for n, v in answer.headers.items() if n in ("content-type", "retry-after")}
        return StreamingResponse(answering, status_code=answer.status, headers=passed)

    async def _answer(self, method: str, url: str, *request: Any) -> AsyncIterator[Any]:
        """Yield the open answer, then its body."""
        async with HttpTransport() as http:

            def really(method: str, url: str, *request: Any) -> Any:
                return _open(http, method, url.replace(_ON_TAPE, self._endpoint, 1), *request)

            try:
                async with self.open(really, method, url, *request) as answer:
                    yield answer
                    async for chunk in answer.chunks():
                        yield chunk
            except NotOnTape as error:
                self.missing.append(error)
                raise


model_cassette = ModelCassette
