"""A syslog and a collector of OpenTelemetry, which take what the audit sends, or refuse it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

MESSAGE = re.compile(
    r"<(?P<priority>\d{1,3})>1 (?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<host>[!-~]+) "
    r"(?P<app>[!-~]{1,48}) (?P<process>[!-~]{1,128}) (?P<id>[!-~]{1,32}) - (?P<body>\{.*\})"
)
"""A message of RFC 5424 without structured data."""


def parsed(message: bytes) -> dict[str, Any]:
    """Return the document in a message of RFC 5424; fail for any other."""
    match = MESSAGE.fullmatch(message.decode("ascii"))
    assert match is not None, message
    assert match["app"] == "parley"
    assert int(match["priority"]) in (13 * 8 + 6, 13 * 8 + 4)
    document: dict[str, Any] = json.loads(match["body"])
    assert match["id"] == document["kind"][:32]
    return document


class Received:
    """What a receiver took, in order.

    ``fails`` makes it refuse; of each request a collector says that it ``rejects`` so many.
    """

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.fails = False
        self.refused = 0
        self.rejects = 0
        self.port = 0

    def take(self, message: bytes) -> None:
        self.raw.append(message)
        self.documents.append(parsed(message))

    @property
    def numbers(self) -> list[int]:
        """The numbers of the lines."""
        return [document["seq"] for document in self.documents]


@asynccontextmanager
async def udp_syslog() -> AsyncIterator[Received]:
    """Listen for datagrams."""
    received = Received()

    class Listener(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            received.take(data)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Listener, local_addr=("127.0.0.1", 0))
    received.port = transport.get_extra_info("sockname")[1]
    yield received
    transport.close()


@asynccontextmanager
async def tcp_syslog(context: ssl.SSLContext | None = None) -> AsyncIterator[Received]:
    """Listen for messages with their lengths before them."""
    received = Received()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while not received.fails:
                length = await reader.readuntil(b" ")
                message = await reader.readexactly(int(length))
                if not received.fails:
                    received.take(message)
            received.refused += 1
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    received.port = server.sockets[0].getsockname()[1]
    yield received
    server.close()
    for writer in writers:
        writer.close()


@asynccontextmanager
async def collector() -> AsyncIterator[Received]:
    """Answer OTLP over HTTP, decoding requests with the proto of OpenTelemetry."""
    from google.protobuf.json_format import Parse
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    received = Received()

    async def logs(request: web.Request) -> web.Response:
        assert request.path == "/v1/logs"
        assert request.headers["Content-Type"] == "application/json"
        if received.fails:
            received.refused += 1
            return web.Response(status=503)
        message = ExportLogsServiceRequest()
        Parse(await request.read(), message, ignore_unknown_fields=True)
        for resource in message.resource_logs:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert names["service.name"] == "parley"
            for scope in resource.scope_logs:
                for each in scope.log_records:
                    document = json.loads(each.body.string_value)
                    assert each.time_unix_nano == document["at"] * 1_000_000
                    attributes = {one.key: one.value for one in each.attributes}
                    assert attributes["parley.audit.kind"].string_value == document["kind"]
                    assert attributes["parley.audit.seq"].int_value == document["seq"]
                    received.documents.append(document)
        received.raw.append(str(request.headers.get("Authorization", "")).encode())
        if not received.rejects:
            return web.json_response({})
        rejected = {"rejectedLogRecords": str(received.rejects), "errorMessage": "too\nlong"}
        return web.json_response({"partialSuccess": rejected})

    app = web.Application()
    app.router.add_post("/{path:.*}", logs)
    runner = web.AppRunner(app)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        received.port = listening.getsockname()[1]
        await web.SockSite(runner, listening).start()
        yield received
        await runner.cleanup()
