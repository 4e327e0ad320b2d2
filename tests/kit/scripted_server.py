"""A server that follows a test's script, down to the byte, for tests of clients.

- ``talk(Agent(answer, ...))``: an agent that answers call by call, and a ``RemoteAgent`` of it. An
  answer is a value, or a function such as ``hang_up``, ``never``, ``status(503)``.
- ``scripted(handler)``: a server whose handler gets each ``Exchange``: it can cut, stall and lie.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from parley.client import RemoteAgent, connect
from parley.client.retry import Retry

REASONS = {200: "OK", 304: "Not Modified", 401: "Unauthorized", 404: "Not Found"}


class Exchange:
    """One raw request, and its connection for the response."""

    def __init__(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self._writer = writer

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def call(self) -> dict[str, Any]:
        """The JSON-RPC request."""
        return json.loads(self.body)

    @property
    def params(self) -> dict[str, Any]:
        return self.call.get("params", {})

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def body_of(self, body: bytes, status: int = 200, **headers: str) -> None:
        await self.head(status, content_length=str(len(body)), **headers)
        await self.raw(body)

    async def json(self, value: Any, status: int = 200, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await self.body_of(body, status, content_type="application/json", **headers)

    async def result(self, value: Any, **headers: str) -> None:
        await self.json({"jsonrpc": "2.0", "id": self.call["id"], "result": value}, **headers)

    async def error(self, code: int, message: str, status: int = 200, **headers: str) -> None:
        error = {"code": code, "message": message}
        answer = {"jsonrpc": "2.0", "id": self.call["id"], "error": error}
        await self.json(answer, status, **headers)

    async def open_stream(self) -> None:
        await self.head(content_type="text/event-stream", transfer_encoding="chunked")

    async def chunk(self, data: bytes) -> None:
        if data:
            await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def frame(self, payload: Any, seq: int | None = None) -> bytes:
        """Return one event of a stream, as bytes."""
        answer = json.dumps({"jsonrpc": "2.0", "id": self.call["id"], "result": payload})
        id = b"" if seq is None else b"id: %d\n" % seq
        return b"%bdata: %b\n\n" % (id, answer.encode())

    async def stream(self, body: bytes, cut: int | None = None) -> None:
        """Stream ``body``; with ``cut``, the connection breaks after that many bytes."""
        await self.open_stream()
        await self.chunk(body if cut is None else body[:cut])
        if cut is None:
            await self.end_stream()
        else:
            self.hang_up()

    def hang_up(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        self._writer.transport.abort()

    async def never(self) -> None:
        """Send no response; end when the caller gives up."""
        await asyncio.Event().wait()


Handler = Callable[[Exchange], Awaitable[None]]


class ScriptedServer:
    """A server with its address, its requests, and the number of open connections."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.url = ""
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    @property
    def calls(self) -> list[str]:
        """Return the requested operations, in order."""
        return [e.call["method"] for e in self.exchanges if e.method == "POST"]

    async def until_idle(self) -> None:
        """Wait until all connections are closed."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: not self.connections)

    async def until_asked(self, count: int) -> None:
        """Wait until this many requests have arrived."""
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: len(self.exchanges) >= count)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._count(1)
        line = Line(reader)
        try:
            while (exchange := await line.exchange(writer)) is not None:
                self.exchanges.append(exchange)
                await self._count(0)
                answer = asyncio.ensure_future(self.handler(exchange))
                gone = asyncio.ensure_future(line.gone.wait())
                try:
                    await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
                finally:  # stopped or not: the answer ends here, and its exception is read
                    gone.cancel()
                    answer.cancel()
                    await asyncio.wait([answer])
                await answer
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            self._failure = error
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await line.close()  # it has ended: canceling a failed read would hide the reason
            await self._count(-1)

    async def _count(self, change: int) -> None:
        async with self._changed:
            self.connections += change
            self._changed.notify_all()

    async def stop(self) -> None:
        for _ in range(3):  # lets new connections start their tasks
            await asyncio.sleep(0)
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # lets finished tasks leave the list
        if self._failure is not None:
            raise self._failure


class Line:
    """The input of a connection, read ahead to detect a caller that disconnects."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.gone = asyncio.Event()
        self._reader = reader
        self._held = bytearray()
        self._more = asyncio.Event()
        self._pump = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(65536):
                self._held += data
                self._more.set()
        except ConnectionError:
            pass
        finally:
            self.gone.set()
            self._more.set()

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    async def _take(self, size: Callable[[], int]) -> bytes | None:
        while (count := size()) < 0 or len(self._held) < count:
            if self.gone.is_set():
                return None
            self._more.clear()
            await self._more.wait()
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken

    async def exchange(self, writer: asyncio.StreamWriter) -> Exchange | None:
        """Return the next request, or None when the caller has disconnected."""

        def head_size() -> int:
            found = self._held.find(b"\r\n\r\n")
            return found + 4 if found >= 0 else -1

        head = await self._take(head_size)
        if head is None:
            return None
        first, *rest = head.decode("latin-1").strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {}
        for line in rest:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await self._take(lambda: int(headers.get("content-length", "0")))
        return None if body is None else Exchange(method, target, headers, body, writer)


@asynccontextmanager
async def scripted(handler: Handler, port: int = 0, tls: ssl.SSLContext | None = None) -> Any:
    """Serve ``handler`` on a free port; an exception in the handler fails the test."""
    server = ScriptedServer(handler)
    listener = await asyncio.start_server(server.accept, "127.0.0.1", port, ssl=tls)
    server.url = f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await server.stop()
        await listener.wait_closed()


def card(url: str, *extensions: str, streaming: bool = True, **more: Any) -> dict[str, Any]:
    """Return a small, valid agent card."""
    interface: Mapping[str, str] = {
        "url": f"{url}/rpc",
        "protocolBinding": "JSONRPC",
        "protocolVersion": "1.0",
    }
    return {
        "name": "Scripted agent",
        "description": "Does what a test says",
        "version": "1.0.0",
        "supportedInterfaces": [interface],
        "capabilities": {
            "streaming": streaming,
            "extensions": [{"uri": uri} for uri in extensions],
        },
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "S", "description": "A skill", "tags": ["t"]}],
        **more,
    }


AT_ONCE = Retry(calls=3, streams=6, first=0.0, limit=0.0)
HI = {"message": {"messageId": "r", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}


def task(state: str = "COMPLETED", id: str = "t-1", **more: Any) -> dict[str, Any]:
    return {"id": id, "contextId": "c-1", "status": {"state": f"TASK_STATE_{state}"}, **more}


class Agent:
    """Answers the n-th call with the n-th of ``answers``, and every later call with the last."""

    def __init__(self, *answers: Any, **card_members: Any) -> None:
        self.answers = list(answers)
        self.extensions: tuple[str, ...] = ()
        self.card_members = card_members

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "GET":
            value = card(f"http://{exchange.headers['host']}", *self.extensions)
            await exchange.json({**value, **self.card_members})
            return
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            await answer(exchange)
        else:
            await exchange.result(answer)


def status(code: int, body: bytes = b"<html>", **headers: str):
    async def answer(exchange: Exchange) -> None:
        await exchange.body_of(body, code, **{"content_type": "text/html", **headers})

    return answer


def error(code: int, message: str, http: int = 200, **headers: str):
    async def answer(exchange: Exchange) -> None:
        await exchange.error(code, message, http, **headers)

    return answer


async def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


async def reset(exchange: Exchange) -> None:
    exchange.reset()


async def never(exchange: Exchange) -> None:
    await exchange.never()


@asynccontextmanager
async def talk(agent: Agent, **options: Any) -> AsyncIterator[tuple[RemoteAgent, ScriptedServer]]:
    """Yield a scripted agent and a connection to it."""
    async with scripted(agent) as server:
        # With a short timeout, pass the card itself: fetching it might take too long.
        reference = card(server.url) if "timeout" in options else server.url
        async with connect(reference, **{"retries": AT_ONCE, **options}) as remote:
            yield remote, server
