"""HTTP as bytes: a client's raw requests and responses, without corrections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

WAIT = 5.0

JSON = {"Content-Type": "application/json", "A2A-Version": "1.0"}


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error of a JSON-RPC response."""
        return self.json["error"]

    @property
    def reason(self) -> str:
        """Return the reason in the error's details."""
        return self.error["data"][0]["reason"]


class Connection:
    """One connection with successive requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        address, port, *_ = writer.get_extra_info("peername")
        self.host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await asyncio.wait_for(self.writer.drain(), WAIT)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        given = {"Host": self.host, **(headers or {})}
        if body or length is not None:
            given["Content-Length"] = str(len(body) if length is None else length)
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items()), "", ""]
        await self.write("\r\n".join(lines).encode("latin-1") + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT)
        status, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            name = name.lower()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return int(status.split(" ")[1]), headers

    async def chunk(self) -> bytes:
        """Return the next piece of a chunked body, empty at its end."""
        size = int(await asyncio.wait_for(self.reader.readline(), WAIT), 16)
        data = await asyncio.wait_for(self.reader.readexactly(size + 2), WAIT)
        return data[:-2]

    async def response(self, *, to_head: bool = False) -> Response:
        status, headers = await self.head()
        body = b""
        if to_head or status in (204, 304):
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while piece := await self.chunk():
                body += piece
        else:
            length = int(headers.get("content-length", "0"))
            body = await asyncio.wait_for(self.reader.readexactly(length), WAIT)
        return Response(status, headers, body)

    async def ask(self, method: str, path: str, *args: Any, **options: Any) -> Response:
        await self.request(method, path, *args, **options)
        return await self.response(to_head=method == "HEAD")

    async def frames(self) -> AsyncIterator[str]:
        """Yield the frames of a stream after its head, also comments."""
        rest = b""
        while piece := await self.chunk():
            *whole, rest = (rest + piece).split(b"\n\n")
            for frame in whole:
                yield frame.decode()
        assert rest == b""

    async def subscribe(
        self, method: str = "SubscribeToTask", headers: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Request a stream and return its headers; fail if the response is no stream."""
        await self.request("POST", "/", call(method), {**JSON, **(headers or {})})
        status, received = await self.head()
        assert status == 200
        assert received["content-type"] == "text/event-stream"
        return received


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[Connection]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def ask(url: str, method: str, path: str, *args: Any, **options: Any) -> Response:
    """Send one request on its own connection."""
    async with connection(url) as http:
        return await http.ask(method, path, *args, **options)


async def post(
    url: str, body: bytes, headers: Mapping[str, str] | None = None, path: str = "/"
) -> Response:
    """Post a JSON-RPC request."""
    return await ask(url, "POST", path, body, {**JSON, **(headers or {})})


MESSAGE = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "What time is it?"}]}
PARAMS: dict[str, dict[str, Any]] = {
    "SendMessage": {"message": MESSAGE},
    "SendStreamingMessage": {"message": MESSAGE},
    "SubscribeToTask": {"id": "t-1"},
    "GetTask": {"id": "t-1"},
}


def call(
    method: str = "SendMessage", params: Mapping[str, Any] | None = None, *, id: Any = 1
) -> bytes:
    """Return the body of a request; ``id=...`` for a notification."""
    params = PARAMS.get(method, {}) if params is None else params
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    if id is ...:
        del body["id"]
    return json.dumps(body).encode()


def data_of(frame: str) -> Any:
    """Return the JSON in a frame of a stream."""
    return json.loads(frame.partition("data: ")[2])


def id_of(frame: str) -> str | None:
    """Return the id of a frame."""
    first = frame.partition("\n")[0]
    return first.removeprefix("id: ") if first.startswith("id: ") else None
