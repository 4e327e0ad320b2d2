"""Slow clients, connection limits, and no leftovers of a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Execution, Turn
from parley.model.parts import Message, Part, Role
from parley.model.service import StreamItem
from parley.server import run
from parley.server.app import Settings
from parley.server.run import serving
from tests.kit.http import JSON, WAIT, Connection, ask, call, connection, post
from tests.kit.scripted import Scripted, Standstill, app_of, task
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio


HEADERS = {"Content-Type": "application/json", "A2A-Version": "1.0"}


@pytest.fixture
def collected(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Reports the objects of Parley that only the garbage collector found since the last call."""
    gc.collect()
    gc.freeze()  # earlier leftovers need not be scanned each time
    gc.disable()

    def found() -> list[str]:
        caplog.clear()  # it keeps the raised exception
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        ours = [type(each) for each in gc.garbage if type(each).__module__.startswith("parley.")]
        gc.garbage.clear()
        gc.collect()
        return sorted({f"{kind.__module__}.{kind.__qualname__}" for kind in ours})

    try:
        yield found
    finally:
        gc.enable()


KINDS = [
    "artifact", "stream", "raise", "raise later", "fail", "reject", "ask", "unusable", "wait",
    "directly", "no such task",
]  # fmt: skip


HEAD = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\n"
)
QUICK = Settings(head_timeout=0.3, body_timeout=0.3, keep_alive=0.1)
LONG = 60.0


async def refusal(http: Connection) -> tuple[int, dict[str, str]]:
    """Return the only response on a connection before it is closed."""
    async with asyncio.timeout(LONG):
        told = await http.head()
        await ended(http)
    return told


async def ended(http: Connection) -> None:
    """Wait until a connection is closed without further data."""
    with contextlib.suppress(ConnectionError):  # by a server that had not read everything
        assert await asyncio.wait_for(http.reader.read(), LONG) == b""


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_IDLE_CONNECTION", 1)


@pytest.mark.slow
async def test_a_second_request_that_does_not_come_is_given_up() -> None:
    async with serving(app_of(settings=QUICK)) as url, connection(url) as http:
        assert (await http.ask("POST", "/", call(), JSON)).status == 200
        await http.write(HEAD)
        assert (await refusal(http))[0] == 408


@pytest.mark.slow
@pytest.mark.usefixtures("idle")
async def test_one_whose_refused_body_came_late_is_let_go_too() -> None:
    size = 20_000_000
    async with serving(app_of()) as url, connection(url) as http:
        await http.request("POST", "/", b"", JSON, length=size)
        assert (await http.response()).status == 413
        for _ in range(10):
            await http.write(b" " * (size // 10))
        await ended(http)


ENDLESS = {
    "headers": (HEAD, b"X: " + b"y" * 4000 + b"\r\n"),
    "a header": (HEAD + b"X: ", b"y" * 4000),
    "a path": (b"GET /", b"y" * 4000),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: " + b"y" * 4000 + b"\r\n"),
    "a chunk's extension": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"y" * 4000),
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_head_without_end_is_given_up(kind: str) -> None:
    first, more = ENDLESS[kind]
    service = Scripted()
    async with serving(app_of(service)) as url, connection(url) as http:
        await http.write(first)
        sent = 0
        with contextlib.suppress(OSError):
            while not http.reader.at_eof():
                await http.write(more)
                sent += len(more)
                assert sent < 30_000_000
                await asyncio.sleep(0)
        assert "result" in (await post(url, call())).json
    assert len(service.asked) == 1


@pytest.mark.slow
async def test_streams_and_idle_connections_are_left_alone() -> None:
    still = Standstill(StreamItem(task(), 1))
    app = app_of(Scripted(subscribe_to_task=still), settings=QUICK)
    async with serving(app) as url, connection(url) as stream, connection(url) as idle:
        await idle.ask("POST", "/", call(), JSON)
        await stream.subscribe()
        frames = stream.frames()
        for n in range(12):  # four times the limit of a request
            assert await anext(frames)
            if n == 2:
                await stream.write(HEAD)  # the start of another request, too early
        assert "result" in (await idle.ask("POST", "/", call(), JSON)).json
        app.lifecycle.drain()
        assert [frame async for frame in frames if frame.startswith("id")] == []
        assert (await refusal(stream))[0] == 408


@pytest.mark.slow
async def test_an_app_that_takes_its_time_to_look_at_a_body_loses_nothing() -> None:
    """The client, who cannot send on, is not at fault."""
    begun = asyncio.Event()

    async def who(scope: object) -> object:
        from parley import Caller

        begun.set()
        await let_time_pass(1.0)
        return Caller()

    body = call() + b" " * 2_000_000
    async with serving(app_of(settings=QUICK, identify=who)) as url:
        assert "result" in (await post(url, body)).json
    assert begun.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
@pytest.mark.usefixtures("idle")
async def test_an_answer_that_nobody_reads_is_not_kept_for_ever(more: bytes) -> None:
    async def large(request: object, context: object) -> Message:
        return Message(message_id="r", role=Role.AGENT, parts=(Part(text="x" * 20_000_000),))

    async with serving(app_of(Scripted(send_message=large)), grace=0) as url:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", int(url.rpartition(":")[2])))
            body = call()
            head = HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body)
            await loop.sock_sendall(deaf, head + body)
            async with asyncio.timeout(LONG):
                with contextlib.suppress(OSError):
                    while True:  # until the server has closed it
                        await loop.sock_sendall(deaf, b"\r\n")
                        await let_time_pass(0.05)


async def test_one_address_does_not_take_the_connections_of_others() -> None:
    flood: list[socket.socket] = []
    async with serving(app_of(settings=Settings(max_connections=300))) as url:
        port = int(url.rpartition(":")[2])
        try:
            for _ in range(400):
                flood.append(socket.create_connection(("127.0.0.1", port)))
                await asyncio.sleep(0)
            open_ones = 0
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=("127.0.0.2", 0)
            )
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(WAIT):
                assert (await reader.readline()).split()[1] == b"200"
            for each in flood:
                each.setblocking(False)
                try:
                    open_ones += each.recv(1) != b""
                except BlockingIOError:
                    open_ones += 1
            assert open_ones == 100
            writer.close()
        finally:
            for each in flood:
                each.close()


# -- requests leave nothing for the garbage collector, which a server runs rarely ------------------

agent = Agent("Tidy", execution=Execution(cancel_grace=0.1))


@agent.skill
async def act(turn: Turn) -> object:
    """Does what it is told in one of the ways in which a turn can end."""
    match turn.text:
        case "artifact":
            await turn.artifact("x" * 1000)
        case "stream":
            async with turn.stream() as out:
                for _ in range(20):
                    await out.write("x" * 1000)
        case "raise":
            raise RuntimeError("no")
        case "raise later":
            await turn.working("soon")
            raise RuntimeError("no")
        case "fail":
            turn.fail("no")
        case "reject":
            turn.reject("no")
        case "ask":
            return (await turn.ask("And?")).text
        case "unusable":
            return object()
        case "wait":
            await turn.working("waiting")
            await asyncio.Event().wait()
    return "done"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["send", "stream"])
async def test_a_request_leaves_no_cycles(
    kind: str, verb: str, tmp_path: Path, collected: Any
) -> None:
    app = parley.asgi(agent, store=f"sqlite:///{tmp_path / 'tasks.db'}")
    numbers = itertools.count()

    async with serving(app) as url:

        async def say(text: str, verb: str = verb, **options: Any) -> bytes:
            message = {"messageId": f"m{next(numbers)}", "role": "ROLE_USER"}
            message |= {"parts": [{"text": text}], **options}
            body = {"message": message, "configuration": {"returnImmediately": text == "wait"}}
            sent = json.dumps(body).encode()
            return (await ask(url, "POST", f"/message:{verb}", sent, HEADERS)).body

        async def do() -> None:
            if kind == "no such task":
                verb_and_path = (
                    ("GET", "/tasks/x") if verb == "send" else ("POST", "/tasks/x:subscribe")
                )
                assert (await ask(url, *verb_and_path, b"", HEADERS)).status == 404
            elif kind in ("ask", "wait"):
                task = json.loads(await say(kind, "send"))["task"]
                if kind == "ask":
                    await say("more", taskId=task["id"])
                else:
                    path = f"/tasks/{task['id']}:cancel"
                    assert (await ask(url, "POST", path, b"{}", HEADERS)).status == 200
            else:
                await say(kind)

        async def left() -> list[str]:
            for _ in range(3):
                await do()
            for _ in range(10):  # the ends of finished tasks
                await let_time_pass(0.01)
            return collected()

        await do()  # objects that are created once
        await asyncio.sleep(0)
        collected()
        # This loop may free an earlier test's generator once. Leftovers of a request would recur
        # each time.
        first = await left()
        assert not first or await left() == [], first
