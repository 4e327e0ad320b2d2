"""What an idle WebSocket costs: bytes of the server's memory, and CPU time for each ping.

Each server runs in a process of its own. This one opens the sockets, looks at how much the server
has grown, and answers pings for a while.

    python benchmarks/sockets.py [--sockets 1000,10000] [--ping 4]

Beside it, in the same run: a bare ASGI app under uvicorn with its ``websockets-sansio``, which
frames with the same library, without compression; and an agent's own socket for envelopes. Takes
about three minutes.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import subprocess
import sys
import time

from processes import allow_many_files, cpu_seconds, free_port, pin, resident_bytes

KINDS = {
    "bare": "bare ASGI, uvicorn",
    "socket": "Parley, the same handler",
    "envelope": "Parley, an agent's envelope",
}
PATH = "/socket"
WARM = 50
"""Sockets before the measured ones: what a server allocates once."""

PING = 0x89
TEXT = 0x81


def handshake(kind: str) -> bytes:
    """Return the request that opens a socket."""
    path, subprotocol = PATH, "example.v1"
    if kind == "envelope":
        path, subprotocol = "/envelope", "parley.envelope.v1"
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "User-Agent: python-websockets\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {subprotocol}\r\n"
        "\r\n"
    ).encode()


class Failed(Exception):
    """The server did something else than what is measured."""


async def bare_app(scope, receive, send):
    """The least that a socket can be: accepted, echoed, closed."""
    await receive()
    await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][0]})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


async def with_socket(scope, receive, send):
    """The same, as a binding does it."""
    from parley.server.websocket.socket import ServerSocket

    server_socket = ServerSocket(scope, receive, send)
    await server_socket.accept(server_socket.subprotocols[0])
    while (text := await server_socket.receive()) is not None:
        await server_socket.send(text)


def serve(kind: str, port: int, ping: float) -> None:
    """Serve until this process ends."""
    allow_many_files()
    pin(0)
    if kind == "bare":
        import uvicorn

        uvicorn.run(
            bare_app,
            port=port,
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ws_ping_interval=ping,
            log_level="warning",
            access_log=False,
            lifespan="off",
        )
        return
    import parley
    from parley.envelope.declared import EnvelopeSettings
    from parley.server.run import run

    settings = parley.Settings(
        max_sockets=100_000,
        max_sockets_per_address=100_000,
        max_connections=100_000,
        socket_ping_interval=ping,
    )
    limits = EnvelopeSettings(concurrent_connections=100_000)
    agent = parley.Agent("Idle", card=parley.CardDetails(envelope=limits))

    @agent.skill
    async def echo(text: str) -> str:
        return text

    app = parley.asgi(agent, settings=settings)
    app.serve_at(PATH, with_socket, sockets=True)
    run(app, port=port)


class Sockets:
    """Open WebSockets, whose pings are answered while ``answer`` runs."""

    def __init__(self, kind: str, port: int) -> None:
        self._handshake = handshake(kind)
        self._port = port
        self._open: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def open(self, count: int) -> None:
        """Open so many more. Raises ``Failed``."""
        for _ in range(count):
            # One address has some 28,000 ports to connect from.
            host = f"127.0.0.{1 + len(self._open) // 20_000}"
            source = (host, 0) if sys.platform == "linux" else None
            opened = socket.create_connection(("127.0.0.1", self._port), 10, source)
            opened.sendall(self._handshake)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += (more := opened.recv(4096))
                if not more:
                    break
            if not answer.startswith(b"HTTP/1.1 101"):
                raise Failed(f"the handshake was answered with {answer[:200]!r}")
            opened.setblocking(False)
            self._selector.register(opened, selectors.EVENT_READ)
            self._open.append(opened)
            self.answer(0)

    def answer(self, seconds: float) -> int:
        """Answer pings for a time. Return how many. Raises ``Failed`` when a socket is closed."""
        until, answered = time.monotonic() + seconds, 0
        while True:
            ready = self._selector.select(max(0.0, until - time.monotonic()))
            for key, _ in ready:
                data = key.fileobj.recv(4096)  # type: ignore[union-attr]
                while data:
                    kind, size, begin = data[0], data[1], 2
                    if size == 126:
                        size, begin = int.from_bytes(data[2:4], "big"), 4
                    payload, data = data[begin : begin + size], data[begin + size :]
                    if kind == TEXT:
                        continue  # a HEARTBEAT
                    if kind != PING:
                        raise Failed(f"the server sent {payload[:50]!r}")
                    pong = bytes((0x8A, 0x80 | size, 0, 0, 0, 0)) + payload
                    key.fileobj.sendall(pong)  # type: ignore[union-attr]
                    answered += 1
            if time.monotonic() >= until:
                return answered

    def close(self) -> None:
        """Close all of them."""
        for each in self._open:
            each.close()
        self._selector.close()


def measure(kind: str, count: int, ping: float) -> tuple[float, float, int]:
    """Return the bytes of one of so many sockets, the CPU µs of a ping, and how many there were."""
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, "--serve", kind, str(port), str(ping)])
    sockets = Sockets(kind, port)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                sockets.open(WARM)
                break
            except ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Failed(f"{kind} did not start") from None
                time.sleep(0.1)
        before = resident_bytes(process.pid) or 0
        sockets.open(count)
        grown = (resident_bytes(process.pid) or 0) - before
        sockets.answer(ping)
        cpu, began = cpu_seconds(process.pid) or 0.0, time.monotonic()
        answered = sockets.answer(2 * ping)
        spent = (cpu_seconds(process.pid) or 0.0) - cpu
        if not answered:
            raise Failed(f"no ping came in {time.monotonic() - began:.0f} seconds")
        return grown / count, spent / answered * 1e6, answered
    finally:
        sockets.close()
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", default="1000,10000")
    parser.add_argument("--ping", type=float, default=4.0, help="seconds between pings")
    given = parser.parse_args()
    allow_many_files()
    pin(-1)
    print("| idle WebSockets | server | memory each | CPU for each ping |\n|--:|---|--:|--:|")
    for count in map(int, given.sockets.split(",")):
        for kind in KINDS:
            memory, cpu, _ = measure(kind, count, given.ping)
            name = KINDS[kind]
            print(f"| {count:,} | {name} | {memory / 1024:.1f} KiB | {cpu:.1f} µs |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        main()
