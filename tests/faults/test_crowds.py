"""Many readers, also slow, silent and disconnected ones: none delays others, and none misses
events."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import parley
from parley import RemoteAgent, Task, TaskState
from tests.faults.conftest import Served
from tests.kit.http import JSON, Connection, call, data_of, id_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STEADY, SLOW, GONE = 120, 50, 30
STOPPED = 40
SUBSCRIPTIONS = 1000

# The server's memory limit for a slow reader: a page of events and the data in transit.
BYTES_A_READER = 2 << 20
BYTES_A_SUBSCRIPTION = 60_000


@asynccontextmanager
async def subscribed(served: Served, task_id: str, *, room: int = 0) -> AsyncIterator[Connection]:
    """Subscribe to a task; with ``room``, on a socket with this receive buffer in bytes."""
    sock = socket.socket()
    if room:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", served.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=room or 65536)
    try:
        http = Connection(reader, writer)
        await http.request("POST", "/", call("SubscribeToTask", {"id": task_id}), JSON)
        status, _ = await http.head()
        assert status == 200
        yield http
    finally:
        writer.close()


@pytest.fixture
def many_sockets() -> None:
    """Allow this process and its children two sockets for every subscription."""
    try:
        import resource
    except ImportError:  # Windows, which does not count them
        return
    wanted = 2 * SUBSCRIPTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < wanted:
        pytest.skip(f"a process may have {hard} open files here, and {wanted} are needed")
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def memory_of(agent: RemoteAgent) -> int:
    """Return the peak memory of the server."""
    reply = await agent.send("how much?", metadata={"skill": "memory"})
    assert reply.task is None
    return int(reply.text)


async def flood(agent: RemoteAgent, count: int, size: int) -> Task:
    """Start a task that streams this many chunks of this many characters after a word."""
    task = await agent.send(f"{count} {size}", metadata={"skill": "flood"})
    assert task.id
    assert task.state is TaskState.INPUT_REQUIRED
    return task


def number_of(frame: str) -> int:
    """Return the number of an event in the task's log."""
    number = id_of(frame)
    assert number is not None
    return int(number)


async def test_two_hundred_readers_some_slow_some_gone(served: Served) -> None:
    chance = random.Random(1)
    written = asyncio.Event()

    async def read(http: Connection, stop: int, leave: int) -> list[int]:
        """Read to the end; or pause after ``stop`` events until all is written; or leave after
        ``leave``."""
        numbers = []
        async for frame in http.frames():
            numbers.append(number_of(frame))
            if len(numbers) == leave:
                http.writer.transport.abort()
                break
            if len(numbers) == stop:
                await written.wait()
        return numbers

    async with AsyncExitStack() as stack, asyncio.timeout(60):
        agent = await stack.enter_async_context(parley.connect(served.url))
        task = await flood(agent, 600, 500)
        behaviour = [(0, 0)] * STEADY
        behaviour += [(chance.randint(1, 100), 0) for _ in range(SLOW)]
        behaviour += [(0, chance.randint(1, 300)) for _ in range(GONE)]
        readers = [await stack.enter_async_context(subscribed(served, task.id)) for _ in behaviour]
        reading = [
            asyncio.create_task(read(http, *how))
            for http, how in zip(readers, behaviour, strict=True)
        ]
        # The slow readers resume only after the agent has written everything and its sender knows.
        done = await agent.send("now", task=task)
        assert done.id
        assert done.state is TaskState.COMPLETED
        steady = await asyncio.gather(*reading[:STEADY])
        written.set()
        slow = await asyncio.gather(*reading[STEADY : STEADY + SLOW])
        gone = await asyncio.gather(*reading[STEADY + SLOW :])
        stream = agent.subscribe(task.id, after=0)
        events = [event async for event in stream]
    assert stream.seq == len(events) > 600
    for numbers in (*steady, *slow):
        assert numbers == list(range(numbers[0], len(events) + 1))
    for numbers in gone:
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


async def test_readers_that_stop_cost_little_and_catch_up_from_the_store(served: Served) -> None:
    """The agent writes more than the operating system buffers for a reader: 12 MB for each."""
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        agent = await stack.enter_async_context(parley.connect(served.url))
        for stopped in (0, STOPPED):
            before = await memory_of(agent)
            task = await flood(agent, 1500, 8000)
            readers = [
                (await stack.enter_async_context(subscribed(served, task.id, room=8192))).frames()
                for _ in range(stopped)
            ]
            seen = [[number_of(await anext(frames))] for frames in readers]
            done = await agent.send("now", task=task)
            assert done.id
            assert done.state is TaskState.COMPLETED
        after = await memory_of(agent)
        for frames, numbers in list(zip(readers, seen, strict=True))[:3]:
            numbers += [number_of(frame) async for frame in frames]
            assert len(numbers) > 1500
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert after - before < STOPPED * BYTES_A_READER


async def test_a_reader_that_stops_again_and_again_loses_nothing(served: Served) -> None:
    async with parley.connect(served.url) as agent:
        task = await flood(agent, 1500, 4000)
        async with subscribed(served, task.id, room=8192) as http, asyncio.timeout(30):
            frames = http.frames()
            numbers, text = [number_of(await anext(frames))], ""
            done = await agent.send("now", task=task)
            assert done.id
            async for frame in frames:
                numbers.append(number_of(frame))
                update = data_of(frame)["result"].get("artifactUpdate")
                if update is not None:
                    text += "".join(part["text"] for part in update["artifact"]["parts"])
                if len(numbers) % 300 == 0:  # the server also does other work
                    assert (await agent.get(task.id)).state is TaskState.COMPLETED
                    other = await flood(agent, 10, 10)
                    await agent.send("now", task=other)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert text == done.text


async def test_a_thousand_idle_subscriptions_hear_of_their_tasks(
    many_sockets: None, served: Served
) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        agent = await stack.enter_async_context(parley.connect(served.url))
        skills = ("chat", "forever")  # one suspends its task, one keeps it running
        tasks = []
        for _ in range(SUBSCRIPTIONS // 20):  # not all at once, which would need extra memory
            tasks += await asyncio.gather(
                *(
                    agent.send("go", metadata={"skill": skills[n % 2]}, return_immediately=True)
                    for n in range(20)
                )
            )
        before = await memory_of(agent)
        readers = []
        for task in tasks:
            assert task.id
            http = await stack.enter_async_context(subscribed(served, task.id))
            readers.append((task, http.frames()))
        firsts = [await anext(frames) for _, frames in readers]
        assert all("task" in data_of(frame)["result"] for frame in firsts)
        after = await memory_of(agent)
        for begin in range(0, SUBSCRIPTIONS, 50):
            some = readers[begin : begin + 50]
            await asyncio.gather(*(agent.cancel(task.id) for task, _ in some))
        for task, frames in readers:
            events = [data_of(frame)["result"]["statusUpdate"] async for frame in frames]
            assert [event["taskId"] for event in events] == [task.id] * len(events)
            assert events[-1]["status"]["state"] == "TASK_STATE_CANCELED", json.dumps(events)
    assert after - before < SUBSCRIPTIONS * BYTES_A_SUBSCRIPTION
