"""What a message of the envelope protocol costs, beside a JSON-RPC request over HTTP.

    python benchmarks/envelope.py [--messages 5000] [--in-flight 32]

One server in a process of its own; the load comes from this one, with prepared messages, over one
WebSocket, or over as many HTTP connections as messages are in flight. The rows take turns, and the
best of three rounds counts. Messages of the envelope protocol are admitted once
(idempotent-send), so JSON-RPC is measured with that extension too. Takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import quantiles
from typing import Any, NamedTuple

from processes import cpu_seconds, free_port, pin

PATH = "/envelope"
HANDSHAKE = (
    f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Protocol: parley.envelope.v1\r\n\r\n"
).encode()
QUESTION = {"query": "How do I reset my password?", "max_results": 3}
ROUNDS = 3

Drive = Callable[[int, int, int], Awaitable[list[float]]]


def serve(port: int) -> None:
    """Serve until this process ends."""
    pin(0)
    import parley

    agent = parley.Agent("Knowledge base")

    @agent.skill
    async def search(query: str, max_results: int = 3) -> list[dict[str, Any]]:
        return [{"title": query, "confidence": 0.9, "number": n} for n in range(max_results)]

    parley.serve(agent, port=port)


def message(id: str, kind: str = "REQUEST") -> bytes:
    """Return a message as JSON."""
    payload = {"action": "search", "parameters": QUESTION, "metadata": {}}
    return json.dumps(
        {
            "version": "1.0",
            "messageId": id,
            "timestamp": "2026-01-31T12:00:00Z",
            "source": {"agentId": "benchmark"},
            "message": {"type": kind},
            "payload": payload if kind == "REQUEST" else {},
        }
    ).encode()


def rpc(id: str) -> bytes:
    """Return a JSON-RPC request for the same."""
    sent = {"messageId": id, "role": "ROLE_USER", "parts": [{"data": QUESTION}]}
    params = {"message": sent, "metadata": {"skill": "search"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    return json.dumps(body).encode()


def over_http(path: str, made: Callable[[str], bytes], *headers: str) -> Drive:
    """Return what drives POSTs, one connection for each in flight."""

    async def drive(port: int, count: int, in_flight: int) -> list[float]:
        took: list[float] = []
        numbers = iter(range(count))
        fields = "".join(f"{each}\r\n" for each in headers)
        run = time.monotonic_ns()

        async def connection() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for number in numbers:
                body = made(f"{run}-{number}")
                head = (
                    f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    f"A2A-Version: 1.0\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
                )
                began = time.perf_counter()
                writer.write(head.encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200"), answer
                length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                took.append(time.perf_counter() - began)
                assert b"password" in body, body
            writer.close()

        await asyncio.gather(*[connection() for _ in range(in_flight)])
        return took

    return drive


def over_socket(kind: str) -> Drive:
    """Return what drives messages over one WebSocket."""

    async def drive(port: int, count: int, in_flight: int) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HANDSHAKE)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer
        run = time.monotonic_ns()
        began: dict[bytes, float] = {}
        took: list[float] = []
        for number in range(min(in_flight, count)):
            _send(writer, began, f"{run}-{number}", kind)
        number = in_flight
        while len(took) < count:
            data = await _frame(reader)
            id = data.partition(b'"correlationId":"')[2].partition(b'"')[0]
            if id not in began:
                continue  # a HEARTBEAT of the server
            took.append(time.perf_counter() - began.pop(id))
            assert b"password" in data or kind == "HEARTBEAT", data
            if number < count:
                _send(writer, began, f"{run}-{number}", kind)
                number += 1
        writer.close()
        return took

    return drive


def _send(writer: asyncio.StreamWriter, began: dict[bytes, float], id: str, kind: str) -> None:
    data = message(id, kind)
    began[id.encode()] = time.perf_counter()
    # A client's frames are masked; a mask of zeros leaves them as they are.
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2)
    writer.write(b"\x81" + length + b"\0\0\0\0" + data)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """Return the data of the next text."""
    while True:
        first, size = await reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2))
        elif size == 127:
            size = int.from_bytes(await reader.readexactly(8))
        data = await reader.readexactly(size)
        if first == 0x81:
            return data


IDEMPOTENT = "A2A-Extensions: urn:parley:idempotent-send:v1"
ROWS: dict[str, Drive] = {
    "JSON-RPC over HTTP": over_http("/", rpc),
    "JSON-RPC over HTTP, admitted once": over_http("/", rpc, IDEMPOTENT),
    "envelope by POST": over_http(PATH, message),
    "envelope over one WebSocket": over_socket("REQUEST"),
    "HEARTBEAT over one WebSocket": over_socket("HEARTBEAT"),
}


class Figures(NamedTuple):
    """What was measured of a row: times are in ms, CPU time of the server in µs a message."""

    rate: float
    middle: float
    late: float
    cpu: float


async def measure(port: int, pid: int, count: int, in_flight: int) -> dict[str, Figures]:
    """Return the figures of each row; the best round counts."""
    found: dict[str, Figures] = {}
    for _ in range(ROUNDS):
        for name, drive in ROWS.items():
            # HEARTBEATs of one socket are limited to 120 a minute.
            sizes = [100] * 10 if "HEARTBEAT" in name else [count]
            before, began = cpu_seconds(pid) or 0.0, time.perf_counter()
            took = [each for size in sizes for each in await drive(port, size, in_flight)]
            rate = len(took) / (time.perf_counter() - began)
            cpu = ((cpu_seconds(pid) or 0.0) - before) / len(took) * 1e6
            cuts = quantiles(took, n=100)
            if name not in found or rate > found[name].rate:
                found[name] = Figures(rate, cuts[49] * 1000, cuts[98] * 1000, cpu)
    return found


async def ready(port: int) -> None:
    """Wait until the server answers."""
    for _ in range(600):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.write(b"GET /health/ready HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        if b" 200 " in answer[:20]:
            return
        await asyncio.sleep(0.05)
    raise SystemExit("the server did not start")


def main(count: int, in_flight: int) -> None:
    """Measure, and print the table of the documentation."""
    port = free_port()
    command = [sys.executable, __file__, "--serve", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(ready(port))
        pin(1)
        found = asyncio.run(measure(port, server.pid, count, in_flight))
    finally:
        server.kill()
        server.wait()
    base = found["JSON-RPC over HTTP"]
    print(f"| {in_flight} in flight | messages/s | p50 ms | p99 ms | CPU each | beside JSON-RPC |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, each in found.items():
        print(
            f"| {name} | {each.rate:,.0f} | {each.middle:.1f} | {each.late:.1f} "
            f"| {each.cpu:.0f} µs | {each.rate / base.rate:.2f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    else:
        main(options.messages, options.in_flight)
