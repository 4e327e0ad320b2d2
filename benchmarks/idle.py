"""What an idle subscription costs: bytes of the server's memory for each, beside a bare ASGI app.

Each server runs in a process of its own; this process opens the subscriptions, waits until each
has had its first event, and looks at how much the server has grown.

    python benchmarks/idle.py [subscriptions]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

EVENT = (
    b'{"id":"t-1","contextId":"c-1","status":{"state":"TASK_STATE_WORKING",'
    b'"timestamp":"2026-01-31T12:00:00.000Z"}}'
)
BODY = b'{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"t-1"}}'
REQUEST = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"A2A-Version: 1.0\r\nAccept: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(BODY)
) + BODY


def parley_app():
    """An agent whose tasks stand still: what is measured is the server alone."""
    from parley.model.cards import AgentCapabilities, AgentCard, AgentInterface
    from parley.model.service import StreamItem
    from parley.model.struct import decode
    from parley.model.tasks import Task
    from parley.server.app import Endpoint, create_app

    task = decode(EVENT, Task)

    class Standstill:
        async def subscribe_to_task(self, request, context):
            yield StreamItem(task, 1, EVENT)
            await asyncio.get_running_loop().create_future()

    def card(url):
        return AgentCard(
            name="Standstill",
            description="Has tasks that never change.",
            version="1.0.0",
            supported_interfaces=(
                AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0"),
            ),
            capabilities=AgentCapabilities(streaming=True),
            default_input_modes=("text/plain",),
            default_output_modes=("text/plain",),
            skills=(),
        )

    return create_app({"": Endpoint(Standstill(), card)})


async def bare_app(scope, receive, send):
    """The least that a stream can be: one event, then nothing until the client goes."""
    await receive()
    head = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    frame = b"id: 1\ndata: %b\n\n" % EVENT
    await send({"type": "http.response.body", "body": frame, "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


def serve(kind: str) -> None:
    from parley.server.run import server_of
    from parley.server.sockets import address_of, listen

    sockets = listen("127.0.0.1", 0)
    app = parley_app() if kind == "parley" else bare_app
    address = address_of("127.0.0.1", sockets)
    server = server_of(app, grace=1, kinds=1, started=lambda: print(address, flush=True))

    async def main():
        if kind == "parley":
            await app.lifecycle.start()
        await server.serve(sockets)

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(main())


def resident(pid: int) -> int:
    """Return the memory of a process in bytes."""
    if os.path.exists(f"/proc/{pid}/statm"):
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) * 1024


async def subscribe(port: int, count: int) -> list[asyncio.StreamWriter]:
    """Open subscriptions and return when each has had its first event."""

    async def one() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await reader.readuntil(b"data: ")
        return writer

    writers = []
    for start in range(0, count, 50):
        writers += await asyncio.gather(*[one() for _ in range(min(50, count - start))])
    return writers


async def growth(pid: int, port: int, count: int) -> float:
    writers = await subscribe(port, 50)  # what a server allocates once
    before = resident(pid)
    writers += await subscribe(port, count)
    after = resident(pid)
    for writer in writers:
        writer.close()
    return (after - before) / count


def measure(kind: str, count: int) -> float:
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", kind], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        return asyncio.run(growth(process.pid, port, count))
    finally:
        process.kill()
        process.wait()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for kind in ("bare", "parley"):
        cost = measure(kind, count)
        print(f"{kind:8} {cost / 1024:6.1f} KiB for each of {count} idle subscriptions")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
