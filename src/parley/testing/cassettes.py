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
from parley.testing.redaction import TapeRedactor
from parley.testing.tape import NotOnTape, Tape
from parley.wire.sse import SseParser, frame

EVENT_STREAM = "text/event-stream"
FORM = "application/x-www-form-urlencoded"

# -- bodies -----------------------------------------------------------------------------------


def encode_body(body: bytes, kind: str, redactor: TapeRedactor, name: str = "") -> dict[str, Any]:
    """Return a body as members of a tape: ``frames``, ``json``, ``text``, ``base64``, or no member.

    ``name`` is the name of the member that holds the body, for a JSON body.
    """
    kind = kind.partition(";")[0].strip().lower()
    if kind == EVENT_STREAM:
        frames = []
        for id, event, data in SseParser().feed(body):
            named = {"id": id, "event": None if event == "message" else event}
            kept = {key: value for key, value in named.items() if value}
            frames.append(kept | _encode_text(data.decode("utf-8", "replace"), "data", redactor))
        return {"frames": frames}
    if not body:
        return {}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    if kind == FORM:
        return {"text": redactor.form(text)}
    if kind.endswith(("/json", "+json")) or text[0] in "{[":
        return _encode_text(text, "json", redactor, name)
    return {"text": redactor.text(text)}


def _encode_text(text: str, member: str, redactor: TapeRedactor, name: str = "") -> dict[str, Any]:
    try:
        return {member: redactor.json(json.loads(text), name)}
    except (ValueError, RecursionError):
        return {"text": redactor.text(text)}


def decode_body(members: Mapping[str, Any], member: str = "json") -> bytes:
    """Return the bytes of a body, or of the data of a frame, from the members of a tape."""
    if "base64" in members:
        return base64.b64decode(members["base64"])
    if member in members:
        return json.dumps(members[member], ensure_ascii=False).encode()
    return str(members.get("text", "")).encode()


def encode_frame(members: Mapping[str, Any]) -> bytes:
    """Return a frame of a tape as bytes of an event stream."""
    head = [f"{name}: {members[name]}\n" for name in ("id", "event") if name in members]
    return "".join(head).encode() + frame(decode_body(members, "data"))


# -- responses --------------------------------------------------------------------------------

_TERMINAL_STATE = re.compile(
    r'"(?:TASK_STATE_)?(?:COMPLETED|FAILED|CANCELED|REJECTED)"', re.IGNORECASE
)
"""A terminal task state: a recording may stop here, since no client waits for later frames."""


class _Recorded(OpenResponse):
    """A response that is recorded while the client reads it."""

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

    def taped(self, redactor: TapeRedactor) -> dict[str, Any]:
        """Return the recorded body as a response of the tape."""
        headers = redactor.headers(self.headers)
        body = encode_body(bytes(self._body), headers.get("content-type", ""), redactor)
        answer = {"status": self.status, "headers": headers, **body}
        if self._ends == "cut" or (self._ends == "left" and "frames" in body):
            answer["ends"] = self._ends
        return answer


class _Replayed(OpenResponse):
    """A response from the tape."""

    def __init__(self, url: str, answer: dict[str, Any]) -> None:
        super().__init__(answer["status"], url, answer["headers"].items(), limit=2**40)
        self._answer = answer

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body; a stream frame by frame, with its recorded end."""
        frames = self._answer.get("frames")
        for each in frames or ():
            await asyncio.sleep(0)
            yield encode_frame(each)
        if frames is None and (body := decode_body(self._answer)):
            yield body
        match self._answer.get("ends"):
            case "cut":
                raise Disconnected(f"the response of {redacted(self.url)} broke off on the tape")
            case "left" if not (frames and _TERMINAL_STATE.search(json.dumps(frames[-1]))):
                raise NotOnTape(
                    f"the tape of the stream of {redacted(self.url)} ends here: the client of "
                    "the recording read no further; record it again with mode='record'"
                )


# -- cassettes --------------------------------------------------------------------------------

Mode = Literal["auto", "record", "replay", "none"]
VARIABLE = "PARLEY_CASSETTES"
"""The environment variable with the mode of every cassette that has no ``mode``."""

Opens = Callable[..., AbstractAsyncContextManager[OpenResponse]]

_open: Opens = HttpTransport.open


class Cassette:
    """Records the responses of agents once, and replays them without the agents.

        with parley.testing.cassette("tapes/booking.json"):
            async with parley.connect("https://agents.example.com") as agent:
                task = await agent.send("A room in Rome")

    The block records or replays every HTTP connection of this process; ``parley.connect(...,
    http=tape.http)`` puts a single connection on the tape. Agents that are called in this process,
    WebSockets and gRPC are not recorded.

    ``mode`` is ``record`` (call the agents and write the file anew), ``replay`` (use the file
    only), ``auto`` (replay if the file exists, else record), or ``none`` (neither). Without
    ``mode`` the environment variable ``PARLEY_CASSETTES`` decides, else it is ``auto``.
    ``is_replaying`` is true if no request reaches the network.

    Message ids, request ids, context ids from the client, and times may differ between a recording
    and its replay; so may members named in ``ignore``. Headers, members and parameters that hold
    credentials are never written, nor the values of ``secrets``.

    A request that is not on the tape raises ``NotOnTape``, with the differences. Raises
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
            raise TypeError("ignore and secrets are lists of strings, as in ignore=['deadline']")
        self.path = Path(path)
        if chosen == "auto":
            chosen = "replay" if self.path.exists() else "record"
        self.is_replaying = chosen == "replay"
        self._is_off = chosen == "none"
        self._tape = Tape(self.path, ignored=frozenset(ignore), redactor=TapeRedactor(secrets))
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
        """The transport of this tape, for one ``parley.connect(..., http=tape.http)``."""
        return TapedTransport(self)

    @property
    def unused(self) -> list[str]:
        """The exchanges of the tape that no request used, a line each; only in a replay."""
        return self._tape.unused if self.is_replaying else []

    def save(self) -> None:
        """Write the new exchanges to the file. Closing the cassette also saves it."""
        if self._changed:
            self._tape.save()
            self._changed = False

    def __enter__(self) -> Self:
        """Put all HTTP connections of this process on the tape."""
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
        """Yield the response to a request: from the tape, or from the ``really`` transport,
        recorded.
        """
        if self._is_off:
            async with really(method, url, headers, body, **limits) as answer:
                yield answer
            return
        if isinstance(body, AsyncIterable):
            body = b"".join([piece async for piece in body])
        redactor = self._tape.redactor
        kept, last = redactor.headers(headers), urlsplit(url).path.rpartition("/")[2]
        kind = kept.get("content-type", "")
        asked = {
            "method": method,
            "url": redactor.url(url),
            "headers": kept,
            **encode_body(body or b"", kind, redactor, last),
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
                exchange["answer"] = recorded.taped(redactor)


class TapedTransport(HttpTransport):
    """The HTTP transport of a client whose exchanges are on a cassette."""

    closes_with_agent = True

    def __init__(self, cassette: Cassette, **options: Any) -> None:
        super().__init__(**options)
        self._cassette = cassette

    def open(self, *request: Any, **limits: Any) -> AbstractAsyncContextManager[OpenResponse]:
        """Return the response to a request, from the tape or from the network."""
        if self.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        return self._cassette.open(partial(_open, self), *request, **limits)

    async def open_socket(self, url: str, *request: Any, **options: Any) -> Any:
        """Raise ``ValueError``: a tape holds HTTP exchanges only."""
        raise ClientError(
            f"a cassette has no WebSockets, so {redacted(url)} cannot be called with it: choose a "
            "binding over HTTP, as in connect(binding='JSONRPC')"
        )

    def guarded(self, egress: Egress) -> HttpTransport:
        """Return a transport on the same tape for addresses that a peer supplied."""
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
_TAPE_ADDRESS = "https://models.test/v1"
"""The address of every model endpoint on tapes, so that a tape fits any endpoint."""


class ModelCassette(Cassette):
    """Records the replies of a model once, and replays them without the model.

        with parley.testing.model_cassette("tapes/plan.json", endpoint=OLLAMA) as model:
            run_a_framework(base_url=model.url, api_key="any")

    The block serves ``url``, which ends in ``/v1``. ``endpoint`` is the base address of an
    OpenAI-compatible API, needed for recording only. Streams are replayed chunk by chunk. The other
    options are the options of ``cassette``; ``api_key`` replaces the caller's key in requests to
    the endpoint, and is never written to the tape.

    A call that is not on the tape is answered with status 400, and raised at the end of the block;
    ``missing`` is that error. Raises the errors of ``cassette``, and ``ValueError`` for a recording
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
            f"{_TAPE_ADDRESS}{request.path_params['rest']}{query}",
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
        """Yield the open response, then its body."""
        async with HttpTransport() as http:

            def really(method: str, url: str, *request: Any) -> Any:
                return _open(http, method, url.replace(_TAPE_ADDRESS, self._endpoint, 1), *request)

            try:
                async with self.open(really, method, url, *request) as answer:
                    yield answer
                    async for chunk in answer.chunks():
                        yield chunk
            except NotOnTape as error:
                self.missing.append(error)
                raise


model_cassette = ModelCassette
