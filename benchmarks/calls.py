"""What a call costs its client, and what one over gRPC costs its server, beside the least there is.

    python benchmarks/calls.py [--only client|grpc|streams] [--rounds 5]

Every client and every server is a process of its own, and what counts is the CPU time of one of
them: of the client beside ``aiohttp`` with one typed decode, against the same typed server; of the
gRPC server beside a typed handler of ``grpc.aio``, on one connection; of the reader of a long
stream beside ``aiohttp`` reading lines. Rounds alternate, so that a busy machine disturbs both
alike; the table has the medians, and the ratio is the median of the rounds' ratios.
Every answer is looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from processes import cpu_seconds, free_port, serving

HERE = Path(__file__).parent
TEXT = "hello"
EVENTS = 20_000
"""Events of the long stream."""

Client = Callable[[], Awaitable[None]]
"""Makes one call, and looks at its answer."""


class Wrong(Exception):
    """An answer was not what was asked for."""


class Chunk(msgspec.Struct):
    """A part of an artifact."""

    text: str


class Artifact(msgspec.Struct, rename="camel"):
    """What a task makes."""

    artifact_id: str
    parts: list[Chunk]


class Update(msgspec.Struct, rename="camel"):
    """A piece of an artifact."""

    task_id: str
    context_id: str
    artifact: Artifact
    append: bool = False


class Result(msgspec.Struct, rename="camel"):
    """What is in an event."""

    artifact_update: Update | None = None


class Event(msgspec.Struct):
    """One event of a stream over JSON-RPC."""

    jsonrpc: str
    id: int
    result: Result


# -- clients: processes that make calls when they are told how many ---------------------------


def card(port: int, binding: str = "JSONRPC", *, streaming: bool = False) -> str:
    """Return the card of the measured agent, which numbers its events."""
    from parley.model.extensions import RESUMABLE_STREAMS

    url = f"127.0.0.1:{port}" if binding == "GRPC" else f"http://127.0.0.1:{port}/"
    interface = {"url": url, "protocolBinding": binding, "protocolVersion": "1.0"}
    return json.dumps(
        {
            "name": "Typed",
            "description": "Answers with the text that it gets.",
            "version": "1.0.0",
            "supportedInterfaces": [interface],
            "capabilities": {"streaming": streaming, "extensions": [{"uri": RESUMABLE_STREAMS}]},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "echo", "name": "Echo", "description": "Echoes.", "tags": ["e"]}],
        }
    )


def check(text: str) -> None:
    """Raise ``Wrong`` unless the answer is the text that was sent."""
    if text != TEXT:
        raise Wrong(text)


@contextlib.asynccontextmanager
async def parley_client(port: int):
    """Yield a call of ``RemoteAgent.send``."""
    import parley

    async with parley.connect(card(port)) as agent:

        async def call() -> None:
            answer = await agent.send(TEXT)
            check(answer.parts[0].text)

        yield call


@contextlib.asynccontextmanager
async def aiohttp_client(port: int):
    """Yield a call with ``aiohttp``, with one typed encode and one decode."""
    import itertools
    import uuid

    import aiohttp

    from servers.typed import Message, Params, Part, Request, Response

    encode = msgspec.json.Encoder().encode
    decode = msgspec.json.Decoder(Response).decode
    ids = itertools.count(1)
    url, headers = f"http://127.0.0.1:{port}/", {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session:

        async def call() -> None:
            said = Message(str(uuid.uuid4()), "ROLE_USER", [Part(TEXT)])
            body = encode(Request("2.0", next(ids), "SendMessage", Params(said)))
            async with session.post(url, data=body, headers=headers) as response:
                answer = decode(await response.read())
            check(answer.result.message.parts[0].text)

        yield call


@contextlib.asynccontextmanager
async def parley_reader(port: int):
    """Yield a call that reads the long stream with ``RemoteAgent.subscribe``."""
    import parley

    async with parley.connect(card(port, streaming=True)) as agent:

        async def call() -> None:
            count = 0
            async for event in agent.subscribe("t-1"):
                count += type(event).__name__ == "TaskArtifactUpdateEvent"
            if count != EVENTS:
                raise Wrong(count)

        yield call


@contextlib.asynccontextmanager
async def aiohttp_reader(port: int):
    """Yield a call that reads the long stream line by line, with one typed decode of each event."""
    import aiohttp

    decode = msgspec.json.Decoder(Event).decode
    url = f"http://127.0.0.1:{port}/"
    body = b'{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"t-1"}}'
    async with aiohttp.ClientSession() as session:

        async def call() -> None:
            count = 0
            async with session.post(url, data=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        count += decode(line[6:]).result.artifact_update is not None
            if count != EVENTS:
                raise Wrong(count)

        yield call


@contextlib.asynccontextmanager
async def grpc_client(port: int):
    """Yield a call over one gRPC channel: bytes in and out, so that the server is what counts."""
    import grpc

    from parley.wire.protobuf.messages import Messages

    messages = Messages("lf.a2a.v1")
    request = messages["SendMessageRequest"]()
    request.message.message_id = "m-1"
    request.message.role = 1
    request.message.parts.add(text=TEXT)
    body = request.SerializeToString()
    read = messages["SendMessageResponse"].FromString
    metadata = (("a2a-version", "1.0"),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        send = channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")

        async def call() -> None:
            check(read(await send(body, metadata=metadata)).message.parts[0].text)

        yield call


CLIENTS = {
    "parley": parley_client,
    "aiohttp": aiohttp_client,
    "parley-reader": parley_reader,
    "aiohttp-reader": aiohttp_reader,
    "grpc": grpc_client,
}


async def make_calls(call: Client, count: int, at_once: int) -> None:
    """Make so many calls, some at once."""

    async def one_after_another(count: int) -> None:
        for _ in range(count):
            await call()

    await asyncio.gather(*(one_after_another(count // at_once) for _ in range(at_once)))


async def work(kind: str, port: int) -> None:
    """Make calls as the lines of the input say, and write the CPU seconds of each batch."""
    async with CLIENTS[kind](port) as call:
        for line in iter(sys.stdin.readline, ""):
            count, at_once = map(int, line.split())
            before = time.process_time()
            await make_calls(call, count, at_once)
            print(time.process_time() - before, flush=True)


class Worker:
    """A process that makes calls."""

    def __init__(self, kind: str, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", kind, "--port", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def calls(self, count: int, at_once: int) -> float:
        """Make calls; return the CPU seconds of the process for each."""
        print(count, at_once, file=self.process.stdin, flush=True)
        said = self.process.stdout.readline()
        if not said:
            raise Wrong("a client ended")
        return float(said) / (count // at_once * at_once)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.wait(20)


# -- servers of this file --------------------------------------------------------------------


async def serve_stream(port: int) -> None:
    """Answer every request with the same long stream, as fast as it is read."""
    task = {
        "id": "t-1",
        "contextId": "c-1",
        "status": {"state": "TASK_STATE_WORKING", "timestamp": "2026-01-31T12:00:00.000Z"},
    }
    over = {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )

    def frames(id: int) -> Iterator[bytes]:
        results = [{"task": task}]
        for number in range(EVENTS):
            update = {
                "taskId": "t-1",
                "contextId": "c-1",
                "artifact": {"artifactId": "a-1", "parts": [{"text": f"chunk {number} "}]},
                **({"append": True} if number else {}),
            }
            results.append({"artifactUpdate": update})
        results.append({"statusUpdate": over})
        for number, result in enumerate(results, 1):
            answer = {"jsonrpc": "2.0", "id": id, "result": result}
            data = json.dumps(answer, separators=(",", ":")).encode()
            yield b"id: %d\ndata: %b\n\n" % (number, data)

    pieces: dict[int, list[bytes]] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(request.partition(b"content-length:")[2].split(b"\r\n")[0])
                id = json.loads(await reader.readexactly(length))["id"]
                if id not in pieces:
                    made = list(frames(id))
                    # A server writes what waits together: here sixteen events at a time.
                    joined = [b"".join(made[at : at + 16]) for at in range(0, len(made), 16)]
                    pieces.clear()
                    pieces[id] = [b"%x\r\n%b\r\n" % (len(each), each) for each in joined]
                writer.write(head)
                for each in pieces[id]:
                    writer.write(each)
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        await server.serve_forever()


async def serve_grpc(port: int) -> None:
    """Serve an agent that answers directly, over gRPC."""
    import parley
    from parley.server.run import serving
    from parley.server.settings import GrpcOptions

    agent = parley.Agent(name="Benchmark", description="An agent to be measured", version="1.0.0")

    @agent.skill(tags=["work"])
    async def reply(turn: parley.Turn) -> str:
        """Answers directly."""
        return turn.text

    app = parley.asgi(agent, store="memory:")
    async with serving(app, grpc=GrpcOptions(port=port)):
        await asyncio.Event().wait()


OWN_SERVERS = {"stream": serve_stream, "grpc": serve_grpc}


@contextlib.contextmanager
def own_server(kind: str, log: Path) -> Iterator[tuple[int, int]]:
    """Run a server of this file; yield its port and its process id."""
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind, "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(port, process, log)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(20)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when something listens on the port. Raises ``RuntimeError`` if nothing ever does."""
    import socket

    until = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(log.read_text()[-2000:])
        time.sleep(0.05)


# -- what is measured --------------------------------------------------------------------------


def compare(
    name: str, ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> dict[str, object]:
    """Return the row of two things that are measured in turns, in microseconds."""
    ours(), theirs()  # what happens once
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return {
        "what": name,
        "parley_us": statistics.median(our for our, _ in pairs) * 1e6,
        "typed_us": statistics.median(their for _, their in pairs) * 1e6,
        "ratio": statistics.median(our / their for our, their in pairs),
    }


def measure_client(rounds: int, logs: Path) -> list[dict[str, object]]:
    """Measure the CPU time of clients, one call after another and 32 at once."""
    with (
        serving(sys.executable, "typed.py", log=logs / "typed") as server,
        Worker("parley", server.port) as ours,
        Worker("aiohttp", server.port) as theirs,
    ):
        return [
            compare(
                f"client, {name}",
                partial(ours.calls, count, at_once),
                partial(theirs.calls, count, at_once),
                rounds,
            )
            for name, count, at_once in (("one after another", 400, 1), ("32 at once", 1600, 32))
        ]


def measure_grpc(rounds: int, logs: Path) -> list[dict[str, object]]:
    """Measure the CPU time of gRPC servers, on one connection."""
    with (
        serving(sys.executable, "typed_grpc.py", log=logs / "typed") as typed,
        own_server("grpc", logs / "ours") as (port, pid),
        Worker("grpc", port) as asks_us,
        Worker("grpc", typed.port) as asks_them,
    ):

        def cost(worker: Worker, pid: int, at_once: int) -> float:
            before = cpu_seconds(pid)
            worker.calls(512, at_once)
            return (cpu_seconds(pid) - before) / 512

        return [
            compare(
                f"gRPC server, {name}",
                partial(cost, asks_us, pid, at_once),
                partial(cost, asks_them, typed.pid, at_once),
                rounds,
            )
            for name, at_once in (("one after another", 1), ("32 at once", 32))
        ]


def measure_streams(rounds: int, logs: Path) -> list[dict[str, object]]:
    """Measure the CPU time of reading a stream, for each of its events."""
    with (
        own_server("stream", logs / "stream") as (port, _),
        Worker("parley-reader", port) as ours,
        Worker("aiohttp-reader", port) as theirs,
    ):
        return [
            compare(
                "reading a stream, each event",
                lambda: ours.calls(1, 1) / EVENTS,
                lambda: theirs.calls(1, 1) / EVENTS,
                rounds,
            )
        ]


MEASURES = {"client": measure_client, "grpc": measure_grpc, "streams": measure_streams}


def measure(only: str | None = None, rounds: int = 5) -> list[dict[str, object]]:
    """Return the rows of the table."""
    with tempfile.TemporaryDirectory() as logs:
        return [
            row
            for name, each in MEASURES.items()
            if only in (None, name)
            for row in each(rounds, Path(logs))
        ]


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=MEASURES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--work", choices=CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--serve", choices=OWN_SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        run(work(options.work, options.port))
    elif options.serve:
        run(OWN_SERVERS[options.serve](options.port))
    else:
        rows = measure(options.only, options.rounds)
        if options.json:
            print(json.dumps(rows))
            return
        print(f"{'CPU time of each, us':<32}{'Parley':>10}{'typed':>10}{'ratio':>8}")
        for row in rows:
            ours, theirs = row["parley_us"], row["typed_us"]
            print(f"{row['what']:<32}{ours:>10.1f}{theirs:>10.1f}{row['ratio']:>8.2f}")


def run(main: Awaitable[None]) -> None:
    """Run a worker or a server on uvloop, if it is there."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(HERE))
    main()
