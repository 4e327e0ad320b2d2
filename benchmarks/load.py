"""The load generator: a process of its own, on a core of its own, that never waits for itself.

Plain sockets under one selector: requests are made in advance, replies are measured by their
length and looked through for what must be in them. Tens of thousands of requests a second cost it
less than one core, so that what is measured is the server.

    python benchmarks/load.py requests --port 9999 --pid 4711 --seconds 2 --expect '"message"'
    python benchmarks/load.py streams --port 9999 --pid 4711 --chunks 1000 --repeat 20
    python benchmarks/load.py idle --port 9999 --pid 4711 --connections 1000
    python benchmarks/load.py parked --port 9999 --pid 4711 --connections 1000

Prints one line of JSON: how many, in how many seconds, and the server's CPU time meanwhile.
``--port`` and ``--pid`` are given once for each replica of a fleet; connections are dealt out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import selectors
import socket
import sys
import time

from processes import allow_many_files, cpu_seconds, pin, resident_bytes

ARTIFACT = b'"artifactUpdate"'
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Unexpected(Exception):
    """The server answered with something else than what is measured."""


def message(text: str, number: int) -> dict[str, object]:
    """Return the parameters of a request that sends a message."""
    return {
        "message": {
            "messageId": f"{os.getpid()}-{number}-{time.monotonic_ns()}",
            "role": "ROLE_USER",
            "parts": [{"text": text}],
        }
    }


def http_request(port: int, method: str, params: dict[str, object], number: int = 0) -> bytes:
    """Return a whole HTTP request that calls a method."""
    call = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    body = json.dumps(call).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"A2A-Version: 1.0\r\nAccept: application/json, text/event-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def connect(port: int) -> socket.socket:
    """Return a connected socket that sends at once."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def whole_reply(data: bytes) -> bytes | None:
    """Return the body of the HTTP response in ``data`` when it is all there."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower()
    if not data.startswith(b"HTTP/1.1 200"):
        raise Unexpected(data[:300].decode(errors="replace"))
    at = head.find(b"content-length:")
    if at < 0:
        raise Unexpected(f"a reply without Content-Length: {head.decode(errors='replace')}")
    stop = head.find(b"\r\n", at)
    length = int(head[at + 15 : stop if stop > 0 else None])
    return data[end + 4 :] if len(data) >= end + 4 + length else None


def requests(
    ports: list[int], connections: int, seconds: float, text: str, expect: bytes
) -> list[float]:
    """Keep one request under way on each connection; return the seconds that each took."""
    selector = selectors.DefaultSelector()
    number = 0
    sent: dict[socket.socket, float] = {}
    received: dict[socket.socket, bytes] = {}
    took: list[float] = []
    prepared = [http_request(ports[0], "SendMessage", message(text, n), n) for n in range(2000)]
    clock = time.perf_counter
    for port in itertools.islice(itertools.cycle(ports), connections):
        connection = connect(port)
        selector.register(connection, selectors.EVENT_READ)
        received[connection] = b""
    until = clock() + seconds
    for connection in received:
        sent[connection] = clock()
        connection.sendall(prepared[number % 2000])
        number += 1
    while sent:
        for key, _ in selector.select(30) or timed_out():
            connection = key.fileobj
            data = received[connection] + connection.recv(1 << 18)
            body = whole_reply(data)
            if body is None:
                received[connection] = data
                continue
            if expect not in body:
                raise Unexpected(body[:600].decode(errors="replace"))
            received[connection] = b""
            now = clock()
            took.append(now - sent.pop(connection))
            if now < until:
                sent[connection] = now
                connection.sendall(prepared[number % 2000])
                number += 1
    for connection in received:
        connection.close()
    return took


def streams(ports: list[int], connections: int, chunks: int, repeat: int) -> int:
    """Read ``repeat`` rounds of streams, ``connections`` at a time; return all their chunks."""
    total = 0
    for round_ in range(repeat):
        selector = selectors.DefaultSelector()
        tails: dict[socket.socket, bytes] = {}
        for n, port in zip(range(connections), itertools.cycle(ports), strict=False):
            connection = connect(port)
            selector.register(connection, selectors.EVENT_READ)
            tails[connection] = b""
            said = message(str(chunks), round_ * connections + n)
            connection.sendall(http_request(port, "SendStreamingMessage", said))
        counts = dict.fromkeys(tails, 0)
        while tails:
            for key, _ in selector.select(60) or timed_out():
                connection = key.fileobj
                new = connection.recv(1 << 20)
                data = tails[connection] + new
                counts[connection] += data.count(ARTIFACT)
                tails[connection] = data[-(len(ARTIFACT) - 1) :]
                if not new or data.endswith(LAST_CHUNK):
                    if counts[connection] < chunks:
                        raise Unexpected(f"{counts[connection]} chunks, then {data[-300:]!r}")
                    selector.unregister(connection)
                    connection.close()
                    del tails[connection]
        total += chunks * connections
    return total


def idle(port: int, pid: int, connections: int) -> float:
    """Subscribe many times to a task that stands still; return the server's memory for each."""
    begun = message("wait", 0) | {"configuration": {"returnImmediately": True}}
    caller = connect(port)
    caller.sendall(http_request(port, "SendMessage", begun))
    data = b""
    while (body := whole_reply(data)) is None:
        data += caller.recv(1 << 16)
    task = {"id": json.loads(body)["result"]["task"]["id"]}
    subscribe = http_request(port, "SubscribeToTask", task)

    def open_one() -> socket.socket:
        connection = connect(port)
        connection.settimeout(10)
        connection.sendall(subscribe)
        seen = b""
        while b"data:" not in seen:
            new = connection.recv(1 << 16)
            if not new or b"HTTP/1.1 200" not in seen + new:
                raise Unexpected((seen + new)[:300].decode(errors="replace"))
            seen += new
        return connection

    warm = [open_one() for _ in range(50)]
    before = resident_bytes(pid)
    held = [open_one() for _ in range(connections)]
    after = resident_bytes(pid)
    for connection in (*warm, *held):
        connection.close()
    caller.sendall(http_request(port, "CancelTask", task))
    caller.settimeout(10)
    caller.recv(1 << 16)
    if before is None or after is None:
        raise Unexpected("this system does not tell how much memory a process holds")
    return (after - before) / connections


def parked(port: int, pid: int, tasks: int) -> float:
    """Leave tasks that wait for an answer; return the server's memory for each."""
    prepared = [http_request(port, "SendMessage", message("ask", n), n) for n in range(tasks + 500)]
    lines = [connect(port) for _ in range(16)]

    def leave(requests: list[bytes]) -> None:
        for at in range(0, len(requests), len(lines)):
            sent = list(zip(lines, requests[at : at + len(lines)], strict=False))
            for line, request in sent:
                line.sendall(request)
            for line, _ in sent:
                data = b""
                line.settimeout(30)
                while (body := whole_reply(data)) is None:
                    data += line.recv(1 << 16)
                if b"TASK_STATE_INPUT_REQUIRED" not in body:
                    raise Unexpected(body[:300].decode(errors="replace"))

    leave(prepared[:500])
    before = resident_bytes(pid)
    leave(prepared[500:])
    after = resident_bytes(pid)
    for line in lines:
        line.close()
    if before is None or after is None:
        raise Unexpected("this system does not tell how much memory a process holds")
    return (after - before) / tasks


def timed_out() -> list[tuple[selectors.SelectorKey, int]]:
    """Raise: nothing came for far too long."""
    raise Unexpected("the server stopped answering")


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["requests", "streams", "idle", "parked"])
    parser.add_argument("--port", type=int, required=True, action="append")
    parser.add_argument(
        "--pid", type=int, required=True, action="append", help="the server, for its CPU time"
    )
    parser.add_argument("--anywhere", action="store_true", help="on any core, not on the last")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--text", default="hello")
    parser.add_argument("--expect", default="")
    parser.add_argument("--chunks", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    if not options.anywhere:
        pin(-1)
    allow_many_files()
    try:
        if options.what in ("idle", "parked"):
            measure = idle if options.what == "idle" else parked
            bytes_each = measure(options.port[0], options.pid[0], options.connections)
            print(json.dumps({"bytes": bytes_each}))
        else:
            print(json.dumps(timed(options)))
    except (Unexpected, OSError) as error:
        sys.exit(f"{options.what}: {error}")


def cpu_of(pids: list[int]) -> float | None:
    """Return the CPU time of all the servers."""
    told = [cpu_seconds(pid) for pid in pids]
    return None if None in told else sum(seconds for seconds in told if seconds is not None)


def timed(options: argparse.Namespace) -> dict[str, float | None]:
    """Measure requests or streams, after a little warming up."""
    ports, connections, took = options.port, options.connections, [0.0]
    expect = options.expect.encode()
    if options.what == "requests":
        requests(ports, connections, 0.2, options.text, expect)
    else:
        streams(ports, connections, min(options.chunks, 100), 1)
    cpu, own, start = cpu_of(options.pid), time.process_time(), time.perf_counter()
    if options.what == "requests":
        took = sorted(requests(ports, connections, options.seconds, options.text, expect))
        count = len(took)
    else:
        count = streams(ports, connections, options.chunks, options.repeat)
    seconds, after = time.perf_counter() - start, cpu_of(options.pid)
    return {
        "count": count,
        "seconds": seconds,
        "cpu_seconds": after - cpu if cpu is not None and after is not None else None,
        "p50_ms": took[len(took) // 2] * 1e3,
        "p99_ms": took[len(took) * 99 // 100] * 1e3,
        "load_cpu_share": (time.process_time() - own) / seconds,
    }


if __name__ == "__main__":
    main()
