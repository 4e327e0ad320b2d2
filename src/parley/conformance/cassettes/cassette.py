"""``cassette``: the client's HTTP exchanges, recorded to a file and replayed from it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self, get_args

from parley.client.bindings.http import Body, HttpTransport, OpenResponse, redacted
from parley.client.errors import ClientError, ConnectionClosed, Disconnected
from parley.conformance.cassettes.hiding import KEPT_OF_ANSWERS, KEPT_OF_REQUESTS, Hiding
from parley.conformance.cassettes.tape import NotOnTape, Tape
from parley.security.egress import Egress
from parley.wire.sse import SseParser

EVENT_STREAM = "text/event-stream"
FORM = "application/x-www-form-urlencoded"


def media_type(headers: dict[str, str]) -> str:
    """Return the media type in headers with names in lower case."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def written(body: bytes, kind: str, hiding: Hiding) -> dict[str, Any]:
    """Return a body as the members of a tape: none, ``json``, ``text`` or ``base64``."""
    if not body:
        return {}
    if kind.endswith(("/json", "+json")) or body[:1] in b"{[":
        try:
            return {"json": hiding.json(json.loads(body))}
        except (ValueError, RecursionError):
            pass
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    return {"text": hiding.form(text) if kind == FORM else hiding.text(text)}


def read(members: dict[str, Any]) -> bytes:
    """Return the body in the members of a tape."""
    if "json" in members:
        return json.dumps(members["json"], ensure_ascii=False).encode()
    if "base64" in members:
        return base64.b64decode(members["base64"])
    return str(members.get("text", "")).encode()


class Frames:
    """The frames of a stream while it is recorded: what each event had, in order."""

    def __init__(self, hiding: Hiding) -> None:
        self.frames: list[dict[str, Any]] = []
        self._hiding = hiding
        self._parser = SseParser()

    def feed(self, chunk: bytes) -> None:
        """Add the frames that a chunk completes."""
        for id, kind, data in self._parser.feed(chunk):
            frame: dict[str, Any] = {}
            if id is not None:
                frame["id"] = id
            if kind not in ("", "message"):
                frame["event"] = kind
            text = data.decode("utf-8", "replace")
            try:
                frame["data"] = self._hiding.json(json.loads(text))
            except (ValueError, RecursionError):
                frame["text"] = self._hiding.text(text)
            self.frames.append(frame)


def frame_bytes(frame: dict[str, Any]) -> bytes:
    """Return a frame of a tape as the bytes of a stream."""
    lines = [f"{name}: {frame[name]}" for name in ("id", "event") if name in frame]
    said = json.dumps(frame["data"], ensure_ascii=False) if "data" in frame else frame["text"]
    lines += [f"data: {line}" for line in said.split("\n")]
    return "\n".join(lines).encode() + b"\n\n"


Mode = Literal["auto", "record", "replay", "none"]
VARIABLE = "PARLEY_CASSETTES"
"""The environment variable with the mode of cassettes that are given none."""

_OVER = [
    text
    for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
    for text in (f"TASK_STATE_{state}", state.lower())
]

Opens = Callable[..., AbstractAsyncContextManager[OpenResponse]]

_open: Opens = HttpTransport.open


class Cassette:
    """A cassette: of the connections that get its ``http``, or, in a ``with`` block, of all.

    ``is_replaying`` says whether the network is left alone. ``unused`` are the exchanges that were
    not asked for yet. ``renamed`` maps beginnings of addresses to those that the tape has instead.
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
        self.renamed: dict[str, str] = {}
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

    # -- as a context --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Put all connections of this process over the network on the tape."""
        if self._outer is not None:
            raise RuntimeError("this cassette is in use already")
        outer = self._outer = HttpTransport.open

        def taped(http: HttpTransport, *args: Any, **options: Any) -> Any:
            if isinstance(http, TapedTransport) or http.is_local:
                return _open(http, *args, **options)
            return self.open(lambda *a, **o: outer(http, *a, **o), *args, **options)

        HttpTransport.open = taped  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: object) -> None:
        if self._outer is not None:
            HttpTransport.open = self._outer  # type: ignore[method-assign]
            self._outer = None
        self.save()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    # -- one exchange --------------------------------------------------------------------------

    @asynccontextmanager
    async def open(
        self,
        really: Opens,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body,
        *,
        timeout: float | None = None,
        idle: float | None = None,
    ) -> AsyncIterator[OpenResponse]:
        """Yield the answer to a request: that of the tape, or that of ``really``, recorded."""
        if self._is_off:
            async with really(method, url, headers, body, timeout=timeout, idle=idle) as answer:
                yield answer
            return
        whole = await _whole(body)
        asked = self._asked(method, url, headers, whole or b"")
        if self.is_replaying:
            yield _Replayed(url, self._tape.answer(asked))
            return
        exchange: dict[str, Any] = {"request": asked}
        self._tape.exchanges.append(exchange)
        self._changed = True
        async with really(method, url, headers, whole, timeout=timeout, idle=idle) as answer:
            recorded = _Recorded(answer, exchange, self._tape.hiding)
            try:
                yield recorded
            finally:
                recorded.finish()

    def _asked(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, Any]:
        hiding = self._tape.hiding
        kept = hiding.headers(headers, KEPT_OF_REQUESTS)
        for beginning, name in self.renamed.items():
            if url.startswith(beginning):
                url = name + url[len(beginning) :]
        return {
            "method": method,
            "url": hiding.url(url),
            "headers": kept,
            **written(body, media_type(kept), hiding),
        }


class TapedTransport(HttpTransport):
    """The HTTP transport of a client whose exchanges are on a cassette."""

    closes_with_agent = True

    def __init__(self, cassette: Cassette, **options: Any) -> None:
        super().__init__(**options)
        self._cassette = cassette

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body,
        *,
        timeout: float | None = None,
        idle: float | None = None,
    ) -> AsyncIterator[OpenResponse]:
        """Yield the answer to a request, from the tape or from the network."""
        if self.closed:
            raise ConnectionClosed("this connection was closed; open a new one")

        def really(*args: Any, **given: Any) -> AbstractAsyncContextManager[OpenResponse]:
            return _open(self, *args, **given)

        async with self._cassette.open(
            really, method, url, headers, body, timeout=timeout, idle=idle
        ) as answer:
            yield answer

    async def open_socket(
        self, url: str, headers: Mapping[str, str], *, handshake: float, **options: Any
    ) -> Any:
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


class _Recorded(OpenResponse):
    """An answer that is recorded while it is read."""

    def __init__(self, real: OpenResponse, exchange: dict[str, Any], hiding: Hiding) -> None:
        super().__init__(real.status, real.url, real.headers.items(), limit=real._limit)
        self._real = real
        self._exchange = exchange
        self._hiding = hiding
        self._body = bytearray()
        self._frames = Frames(hiding) if media_type(self.headers) == EVENT_STREAM else None
        self._ends = "left"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        try:
            async for chunk in self._real.chunks():
                if self._frames is not None:
                    self._frames.feed(chunk)
                else:
                    self._body += chunk
                yield chunk
            self._ends = "whole"
        except Disconnected:
            self._ends = "cut"
            raise

    def finish(self) -> None:
        """Put the answer on the tape."""
        kept = self._hiding.headers(self.headers, KEPT_OF_ANSWERS)
        if "location" in kept:
            kept["location"] = self._hiding.url(kept["location"])
        answer: dict[str, Any] = {"status": self.status, "headers": kept}
        if self._frames is not None:
            answer["frames"] = self._frames.frames
        else:
            answer |= written(bytes(self._body), media_type(kept), self._hiding)
        if self._ends == "cut" or (self._ends == "left" and self._frames is not None):
            answer["ends"] = self._ends
        self._exchange["answer"] = answer


class _Replayed(OpenResponse):
    """An answer from the tape."""

    def __init__(self, url: str, answer: dict[str, Any]) -> None:
        super().__init__(answer["status"], url, answer["headers"].items(), limit=2**40)
        self._answer = answer

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body; a stream frame by frame, ended as it ended."""
        if "frames" in self._answer:
            for frame in self._answer["frames"]:
                await asyncio.sleep(0)
                yield frame_bytes(frame)
        elif body := read(self._answer):
            yield body
        match self._answer.get("ends"):
            case "cut":
                raise Disconnected(f"the answer of {redacted(self.url)} broke off, on the tape")
            case "left" if not _is_over(self._answer.get("frames")):
                raise NotOnTape(
                    f"the tape of the stream of {redacted(self.url)} ends here: whoever recorded "
                    "it read no further; record it again with mode='record'"
                )


def _is_over(frames: list[dict[str, Any]] | None) -> bool:
    """Return whether a stream shows the end of its task: then nobody misses what came after."""
    last = json.dumps(frames[-1].get("data")) if frames else ""
    return any(f'"{state}"' in last for state in _OVER)


async def _whole(body: Body) -> bytes | None:
    if isinstance(body, AsyncIterable):
        return b"".join([piece async for piece in body])
    return body


def cassette(
    path: str | Path,
    *,
    mode: Mode | None = None,
    ignore: Iterable[str] = (),
    secrets: Iterable[str] = (),
) -> Cassette:
    """Record what agents answer, once, and replay it without them.

        with parley.testing.cassette("tapes/booking.json"):
            async with parley.connect("https://agents.example.com") as agent:
                task = await agent.send("A room in Rome")

    In the block all connections of this process over HTTP are on the tape; with
    ``parley.connect(..., http=tape.http)`` it is one connection. Agents that are called in this
    process, WebSockets and gRPC are not.

    ``mode`` is ``record`` (ask the agents, write the file anew), ``replay`` (ask nobody),
    ``auto`` (replay if there is a file, else record), or ``none`` (neither). Without it the
    environment says (``PARLEY_CASSETTES``), else it is ``auto``.

    Ids of messages and requests, contexts that the client made and times may differ between a
    recording and its replay; so may members with the names in ``ignore``. Headers, members and
    parameters that hold credentials are never written, nor the values of ``secrets``.

    A request that the tape does not have raises ``NotOnTape``, with what differs. Raises
    ``TapeUnreadable`` for a file that is no cassette, ``ValueError`` for an unknown mode.
    """
    return Cassette(path, mode=mode, ignore=ignore, secrets=secrets)
