"""The load generator: a process of its own, on a core of its own, that never waits for itself.

Plain sockets under one selector: requests are put together from prepared pieces, replies are told
apart by their length and kept. When the clock has stopped, every one of them is checked
(``answers.py``). Tens of thousands of requests a second cost it less than one core, so that what is
measured is the server.

    python benchmarks/load.py requests --port 9999 --pid 4711 --seconds 2 --check reply
    python benchmarks/load.py streams --port 9999 --pid 4711 --connections 16 --chunks 1000
    python benchmarks/load.py first --port 9999 --pid 4711 --chunks 200
    python benchmarks/load.py idle --port 9999 --pid 4711 --connections 1000
    python benchmarks/load.py held --port 9999 --pid 4711 --connections 1000
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
import ssl
import sys
import time
from collections.abc import Callable

import answers
from answers import FIRST, LAST_CHUNK, NUMBER, TEXT, Unexpected
from processes import allow_many_files, cpu_seconds, pin, resident_bytes


def message(text: str, number: int) -> dict[str, object]:
    """Return the parameters of a request that sends a message."""
    return {
        "message": {
            "messageId": f"{os.getpid()}-{number}-{time.monotonic_ns()}",
            "role": "ROLE_USER",
            "parts": [{"text": text}],
        }
    }


def http_request(
    port: int,
    method: str,
    params: dict[str, object],
    number: int | str = 0,
    headers: tuple[str, ...] = (),
) -> bytes:
    """Return a whole HTTP request that calls a method."""
    call = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    body = json.dumps(call).encode().replace(b'"id": "%b"' % NUMBER, b'"id": %b' % NUMBER)
    head = (
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"A2A-Version: 1.0\r\nAccept: application/json, text/event-stream\r\n"
        + "".join(f"{header}\r\n" for header in headers)
        + f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def numbered(port: int, method: str, headers: tuple[str, ...]) -> Callable[[int], bytes]:
    """Return a function that gives the request of a number: a message with a text of its own."""
    params = message(f"{TEXT}{NUMBER.decode()}", 0)
    params["message"]["messageId"] += f"-{NUMBER.decode()}"
    pieces = http_request(port, method, params, NUMBER.decode(), headers).split(NUMBER)
    return lambda number: (b"%d" % number).join(pieces)


def connect(port: int, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Return a connected socket that sends at once."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(connection) if tls else connection


whole_reply = answers.body_of


def call(line: socket.socket, request: bytes) -> bytes:
    """Send a request on a connection that is free; return the body of its answer."""
    line.settimeout(30)
    line.sendall(request)
    data = b""
    while (body := whole_reply(data)) is None:
        if not (new := line.recv(1 << 16)):
            raise Unexpected(f"the connection was closed after {data!r}")
        data += new
    return body


def task_to_read(port: int) -> str:
    """Have a task made with many messages; return its id when it is finished."""
    with connect(port) as line:
        sent = call(line, http_request(port, "SendMessage", message("talk", 0)))
        task_id = str(json.loads(sent)["result"]["task"]["id"])
        until = time.monotonic() + 10
        while True:
            body = call(line, http_request(port, "GetTask", {"id": task_id}))
            if b"TASK_STATE_COMPLETED" in body or time.monotonic() > until:
                return task_id


def requests(options: argparse.Namespace, seconds: float) -> list[float]:
    """Keep one request under way on each connection; return the seconds that each took.

    Raises ``Unexpected`` if any answer is wrong.
    """
    ports, check, clock = options.port, options.check, time.perf_counter
    headers = tuple(options.header)
    tls = ssl._create_unverified_context() if options.tls else None
    if check == "get":
        reading = http_request(ports[0], "GetTask", {"id": task_to_read(ports[0])}, 1, headers)
        request: Callable[[int], bytes] = lambda number: reading  # noqa: E731
    else:
        request = numbered(ports[0], "SendMessage", headers)
    selector = selectors.DefaultSelector()
    sent: dict[socket.socket, tuple[float, int]] = {}
    received: dict[socket.socket, bytes] = {}
    took: list[float] = []
    kept: list[tuple[int, bytes]] = []
    same = b""
    numbers = itertools.count(FIRST)
    for port in itertools.islice(itertools.cycle(ports), options.connections):
        connection = connect(port, tls)
        selector.register(connection, selectors.EVENT_READ)
        received[connection] = b""
    until = clock() + seconds
    for connection in received:
        number = next(numbers)
        sent[connection] = clock(), number
        connection.sendall(request(number))
    while sent:
        for key, _ in selector.select(30) or timed_out():
            connection = key.fileobj
            new = connection.recv(1 << 18)
            data = received[connection] + new
            body = whole_reply(data)
            if body is None:
                if not new:
                    raise Unexpected(f"the connection was closed after {data[-300:]!r}")
                received[connection] = data
                continue
            received[connection] = b""
            now = clock()
            began, number = sent.pop(connection)
            took.append(now - began)
            if body != same:  # what is the same as before needs no second look
                kept.append((number, body))
                same = body if check in ("get", "fixed") else b""
            if now < until:
                number = next(numbers)
                sent[connection] = now, number
                connection.sendall(request(number))
    options.checked.append(lambda: answers.CHECKS[check](kept))
    for connection in received:
        connection.close()
    return took


def check_of_streams(options: argparse.Namespace) -> Callable[[bytes, int], None]:
    """Return what checks a stream of the measured server."""
    return answers.check_fixed_stream if options.check == "fixed" else answers.check_stream


def streams(options: argparse.Namespace, chunks: int, seconds: float, repeat: int) -> int:
    """Read rounds of streams, until so many seconds have passed; return all their chunks.

    Raises ``Unexpected`` if any event of any of them is wrong.
    """
    ports, check = options.port, check_of_streams(options)
    until = time.perf_counter() + seconds
    whole: list[list[bytes]] = []
    number = 0
    while repeat > 0 or time.perf_counter() < until:
        repeat -= 1
        selector = selectors.DefaultSelector()
        pieces: dict[socket.socket, list[bytes]] = {}
        for port in itertools.islice(itertools.cycle(ports), options.connections):
            number += 1
            connection = connect(port)
            selector.register(connection, selectors.EVENT_READ)
            pieces[connection] = [b""]
            said = message(str(chunks), number)
            connection.sendall(http_request(port, "SendStreamingMessage", said, number))
        while pieces:
            for key, _ in selector.select(60) or timed_out():
                connection = key.fileobj
                new = connection.recv(1 << 20)
                read = pieces[connection]
                read.append(new)
                if not new or (read[-2][-6:] + new[-7:]).endswith(LAST_CHUNK):
                    selector.unregister(connection)
                    connection.close()
                    whole.append(pieces.pop(connection))
    options.checked.append(lambda: [check(b"".join(read), chunks) for read in whole])
    return chunks * len(whole)


def first(options: argparse.Namespace) -> list[float]:
    """Read one stream after the other; return the seconds until each one's first event."""
    port, chunks, check = options.port[0], options.chunks, check_of_streams(options)
    took: list[float] = []
    whole: list[bytes] = []
    line = connect(port)
    until = time.perf_counter() + options.seconds
    while len(took) < 5 or time.perf_counter() < until:
        said = message(str(chunks), len(took))
        request = http_request(port, "SendStreamingMessage", said, len(took))
        began = time.perf_counter()
        line.sendall(request)
        data, seen = b"", False
        while not data.endswith(LAST_CHUNK) and (new := line.recv(1 << 18)):
            data += new
            if not seen and b"data:" in data:
                took.append(time.perf_counter() - began)
                seen = True
        if not seen:
            raise Unexpected(f"no event, but {data[:300]!r}")
        whole.append(data)
        if not new:
            line = connect(port)
    options.checked.append(lambda: [check(data, chunks) for data in whole])
    return took


def opened(port: int, request: bytes) -> socket.socket:
    """Open a stream; return its connection after the first event. Raises ``Unexpected``."""
    connection = connect(port)
    connection.settimeout(20)
    connection.sendall(request)
    seen = b""
    while b"data:" not in seen or b"\n\n" not in seen.partition(b"data:")[2].replace(b"\r", b""):
        new = connection.recv(1 << 16)
        if not new or not (seen + new).startswith(b"HTTP/1.1 200"):
            raise Unexpected((seen + new)[:300].decode(errors="replace"))
        seen += new
    at = seen.find(b"data:")
    answers.decoded(answers.EVENT, seen[at + 5 : seen.find(b"\n", at)].strip())
    return connection


def idle(port: int, pid: int, connections: int) -> float:
    """Subscribe many times to a task that stands still; return the server's memory for each."""
    begun = message("wait", 0) | {"configuration": {"returnImmediately": True}}
    caller = connect(port)
    body = call(caller, http_request(port, "SendMessage", begun))
    task = {"id": json.loads(body)["result"]["task"]["id"]}
    subscribe = http_request(port, "SubscribeToTask", task)
    warm = [opened(port, subscribe) for _ in range(50)]
    before = resident_bytes(pid)
    streams_held = [opened(port, subscribe) for _ in range(connections)]
    after = resident_bytes(pid)
    for connection in (*warm, *streams_held):
        connection.close()
    call(caller, http_request(port, "CancelTask", task))
    return each(before, after, connections)


def held(port: int, pid: int, connections: int) -> float:
    """Begin many tasks that work for ever, on a stream each; return the server's memory for each.

    The streams stay open until the process ends: nothing of theirs is given back meanwhile.
    """

    def begin(number: int) -> socket.socket:
        said = message("wait", number)
        return opened(port, http_request(port, "SendStreamingMessage", said, number))

    warm = [begin(number) for number in range(50)]
    before = resident_bytes(pid)
    streams_held = [begin(number) for number in range(50, 50 + connections)]
    after = resident_bytes(pid)
    for connection in (*warm, *streams_held):
        connection.close()
    return each(before, after, connections)


def each(before: int | None, after: int | None, count: int) -> float:
    """Return the growth for one of so many. Raises ``Unexpected`` where nobody tells."""
    if before is None or after is None:
        raise Unexpected("this system does not tell how much memory a process holds")
    return (after - before) / count


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
    return each(before, after, tasks)


def timed_out() -> list[tuple[selectors.SelectorKey, int]]:
    """Raise: nothing came for far too long."""
    raise Unexpected("the server stopped answering")


WRONG = 3
"""The exit status after a wrong answer."""
MEMORY = {"idle": idle, "held": held, "parked": parked}


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["requests", "streams", "first", *MEMORY])
    parser.add_argument("--port", type=int, required=True, action="append")
    parser.add_argument(
        "--pid", type=int, required=True, action="append", help="the server, for its CPU time"
    )
    parser.add_argument("--anywhere", action="store_true", help="on any core, not on the last")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--check", choices=[*answers.CHECKS], default="reply", help="what is right")
    parser.add_argument("--chunks", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=1, help="rounds of streams, at the least")
    parser.add_argument("--header", action="append", default=[], help="one more header")
    parser.add_argument("--tls", action="store_true", help="over TLS")
    options = parser.parse_args()
    options.checked = []
    if not options.anywhere:
        pin(-1)
    allow_many_files()
    try:
        if measure := MEMORY.get(options.what):
            bytes_each = measure(options.port[0], options.pid[0], options.connections)
            print(json.dumps({"bytes": bytes_each}))
        else:
            print(json.dumps(timed(options)))
    except Unexpected as error:
        print(f"{options.what}: {error}", file=sys.stderr)
        sys.exit(WRONG)
    except OSError as error:
        sys.exit(f"{options.what}: {error}")


def cpu_of(pids: list[int]) -> float | None:
    """Return the CPU time of all the servers."""
    told = [cpu_seconds(pid) for pid in pids]
    return None if None in told else sum(seconds for seconds in told if seconds is not None)


def timed(options: argparse.Namespace) -> dict[str, float | None]:
    """Measure requests or streams, after a little warming up; then check every answer."""
    took = [0.0]
    if options.what == "requests":
        requests(options, min(0.2, options.seconds))
    elif options.what == "streams":
        streams(options, min(options.chunks, 100), 0, 1)
    cpu, own, start = cpu_of(options.pid), time.process_time(), time.perf_counter()
    if options.what == "requests":
        took = sorted(requests(options, options.seconds))
        count = len(took)
    elif options.what == "first":
        took = sorted(first(options))
        count = len(took)
    else:
        count = streams(options, options.chunks, options.seconds, options.repeat)
    seconds, after = time.perf_counter() - start, cpu_of(options.pid)
    share = (time.process_time() - own) / seconds
    for check in options.checked:
        check()
    return {
        "count": count,
        "seconds": seconds,
        "cpu_seconds": after - cpu if cpu is not None and after is not None else None,
        "p50_ms": took[len(took) // 2] * 1e3,
        "p99_ms": took[len(took) * 99 // 100] * 1e3,
        "load_cpu_share": share,
    }


if __name__ == "__main__":
    main()
