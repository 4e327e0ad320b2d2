"""Batches of a stream: framed and sent together, and the same bytes as one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley import Agent, Turn, asgi
from parley.model.service import CallContext, ItemStream, StreamItem
from parley.model.struct import encode
from parley.model.tasks import TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.server.app import Settings
from parley.server.http.streams import Streams
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from parley.wire import jsonrpc, sse, versions
from tests.kit.http import JSON, call, connection, id_of
from tests.kit.scripted import Scripted, app_of, chunk, task
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

ID = b'"a-1"'
BEFORE, AFTER = b'{"jsonrpc":"2.0","id":"a-1","result":', b"}"


def status(state: TaskState) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(task_id="t-1", context_id="c-1", status=TaskStatus(state=state))


EVENTS = st.one_of(
    st.text(max_size=40).map(chunk),
    st.sampled_from([TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.COMPLETED]).map(status),
)


def numbered(events: Sequence[object], known: Sequence[bool], numbers: bool) -> list[StreamItem]:
    return [
        StreamItem(event, n if numbers else None, encode(event) if known[n % len(known)] else None)
        for n, event in enumerate(events, 1)
    ]


async def in_batches(items, lengths, pauses):
    """Yield the items in batches of some lengths, and let others run between some."""
    at = turn = 0
    while at < len(items):
        length = lengths[turn % len(lengths)]
        yield items[at : at + length]
        at, turn = at + length, turn + 1
        if pauses[turn % len(pauses)]:
            await asyncio.sleep(0)


async def one_by_one(items):
    for item in items:
        yield item


class Reader:
    """The end of a stream: what was sent, a piece at a time."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.is_over = False
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def receive(self):
        await asyncio.get_running_loop().create_future()

    async def send(self, message):
        if message["type"] == "http.response.body":
            self.pieces.append(message["body"])
            self.is_over = not message["more_body"]
            await self.go_on.wait()


class InProcess(Reader):
    """Calls an app as an ASGI server does, and takes each piece after some passes of the loop."""

    def __init__(self, body: bytes, passes: int) -> None:
        super().__init__()
        self._body = [body]
        self._passes = passes
        headers = [(b"host", b"localhost")]
        headers += [(name.lower().encode(), value.encode()) for name, value in JSON.items()]
        self.scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80),
        }  # fmt: skip

    async def receive(self):
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        return await super().receive()

    async def send(self, message):
        await super().send(message)
        for _ in range(self._passes):
            await asyncio.sleep(0)


async def served(reader, items, codec, *, streams=None, answers_message=True, **limits):
    streams = streams or Streams(Settings(**limits))
    return await streams.serve(
        items,
        CallContext(),
        frame=lambda item: sse.frame(codec.write_event(item), item.seq, BEFORE, AFTER),
        failed=lambda error: sse.frame(codec.write_error(error)),
        ends=codec.ends_stream,
        answers_message=answers_message,
        headers=tuple,
        receive=reader.receive,
        send=reader.send,
    )


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(EVENTS, max_size=40),
    known=st.lists(st.booleans(), min_size=1, max_size=3),
    numbers=st.booleans(),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    pauses=st.lists(st.booleans(), min_size=1, max_size=4),
    limit=st.sampled_from([1024, 4096, 65536]),
    version=st.sampled_from(versions.SUPPORTED_VERSIONS),
)
async def test_batches_of_any_lengths_are_the_frames_of_their_items(
    events, known, numbers, lengths, pauses, limit, version
) -> None:
    codec = versions.dialect(version).jsonrpc
    items = numbered(events, known, numbers)
    expected = b""
    for item in items:
        expected += sse.frame(jsonrpc.response(ID, codec.write_event(item)), item.seq)
        if codec.ends_stream(item.event):
            break
    for stream in (ItemStream(in_batches(items, lengths, pauses)), one_by_one(items)):
        reader = Reader()
        assert await served(reader, stream, codec, send_buffer=limit) is None
        assert reader.is_over
        assert b"".join(reader.pieces) == expected


async def test_items_of_batches_can_be_read_one_by_one_and_closed_early() -> None:
    items = numbered([chunk(str(n)) for n in range(7)], [True], True)
    closed = False

    async def batches():
        nonlocal closed
        try:
            yield items[:3]
            yield items[3:]
        finally:
            closed = True

    assert [item async for item in ItemStream(batches())] == items
    stream = ItemStream(batches())
    closed = False
    async with aclosing(stream):
        assert [await anext(stream) for _ in range(4)] == items[:4]
    assert closed
    assert await anext(stream, None) is None


async def test_a_batch_is_sent_in_pieces_of_the_size_that_is_allowed() -> None:
    codec = versions.dialect("1.0").jsonrpc
    items = numbered([chunk("x" * 500) for _ in range(40)], [True], True)
    reader = Reader()
    await served(reader, ItemStream(in_batches(items, [40], [False])), codec, send_buffer=2048)
    assert max(map(len, reader.pieces)) < 2048 + 1024
    whole = Reader()
    await served(whole, ItemStream(in_batches(items, [40], [False])), codec)
    assert [len(piece) > 0 for piece in whole.pieces] == [True, False]  # the frames, the end


@pytest.mark.parametrize("known", [False, True])
async def test_items_of_a_slow_reader_are_bounded_by_their_bytes(known) -> None:
    codec = versions.dialect("1.0").jsonrpc
    taken = 0

    async def items():
        nonlocal taken
        for item in numbered([chunk("x" * 600) for _ in range(9)], [known], True):
            taken += 1
            yield item

    reader = Reader()
    reader.go_on.clear()
    serving_it = asyncio.create_task(served(reader, items(), codec, send_buffer=1024))
    await until(lambda: reader.pieces)
    for _ in range(50):
        await asyncio.sleep(0)
    # One is being sent with the next, or waits for it; two more have the bytes that are allowed.
    assert taken <= 4
    reader.go_on.set()
    assert await serving_it is None
    assert sum(piece.count(b"data: ") for piece in reader.pieces) == 9


async def test_nothing_is_taken_from_the_service_while_a_piece_is_not_read() -> None:
    codec = versions.dialect("1.0").jsonrpc
    taken = 0

    async def batches():
        nonlocal taken
        for n in range(1, 10):
            taken = n
            yield numbered([chunk("x")], [True], True)

    reader = Reader()
    reader.go_on.clear()
    serving_it = asyncio.create_task(served(reader, ItemStream(batches()), codec))
    await until(lambda: reader.pieces)
    for _ in range(10):
        await asyncio.sleep(0)
    assert taken == 1
    reader.go_on.set()
    await serving_it
    assert taken == 9


async def test_a_drained_stream_ends_cleanly_and_leaves_its_task_as_it_was() -> None:
    codec = versions.dialect("1.0").jsonrpc
    streams = Streams(Settings())
    closed = False

    async def batches():
        nonlocal closed
        try:
            yield numbered([chunk("x")], [True], True)
            await asyncio.get_running_loop().create_future()
        finally:
            closed = True

    async def request():
        failure = await served(reader, ItemStream(batches()), codec, streams=streams)
        return failure, asyncio.current_task().cancelling()

    reader = Reader()
    asked = asyncio.create_task(request())
    await until(lambda: reader.pieces)
    await asyncio.sleep(0)
    streams.drain()
    assert await asked == (None, 0)
    assert closed
    assert reader.is_over
    assert reader.pieces[-1] == b""


async def test_a_comment_under_way_is_whole_before_the_event_that_follows() -> None:
    codec = versions.dialect("1.0").jsonrpc
    speak = asyncio.Event()

    async def batches():
        await speak.wait()
        yield numbered([chunk("x")], [True], True)

    reader = Reader()
    reader.go_on.clear()
    asked = asyncio.create_task(
        served(reader, ItemStream(batches()), codec, keep_alive=0.01)  # the comment waits
    )
    await until(lambda: reader.pieces)
    speak.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert reader.pieces == [sse.KEEP_ALIVE]
    reader.go_on.set()
    await asked
    assert reader.pieces[0] == sse.KEEP_ALIVE
    assert reader.pieces[1].startswith(b"id: 1\n")


async def test_an_open_stream_has_one_task() -> None:
    async def still(request, context):
        yield (StreamItem(task(), 1),)
        await asyncio.get_running_loop().create_future()

    service = Scripted(subscribe_to_task=lambda *given: ItemStream(still(*given)))
    async with serving(app_of(service)) as url, AsyncExitStack() as stack:

        async def tasks_with(count: int) -> int:
            for _ in range(count):
                http = await stack.enter_async_context(connection(url))
                await http.subscribe()
                assert id_of(await anext(http.frames())) == "1"
            return len(asyncio.all_tasks())

        few = await tasks_with(5)
        assert await tasks_with(20) - few == 20


@pytest.mark.parametrize("passes", [0, 16])
async def test_a_stream_falls_behind_its_own_writer_only_if_its_reader_does(
    monkeypatch, passes
) -> None:
    read = 0
    events = MemoryTaskStore.events

    async def counted(self, *given):
        nonlocal read
        found = await events(self, *given)
        read += len(found)
        return found

    async def count(turn: Turn):
        for number in range(int(turn.text)):
            yield f"{number} "

    monkeypatch.setattr(MemoryTaskStore, "events", counted)
    agent = Agent(name="Counter", description="Counts.", version="1.0.0")
    agent.skill(tags=["count"], replies="task")(count)
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "3000"}]}
    body = call("SendStreamingMessage", {"message": message})
    # No socket: its other end would read on this event loop too, when the system lets it.
    reader = InProcess(body, passes)
    app = asgi(agent, store="memory:")
    async with app.lifespan():
        await app(reader.scope, reader.receive, reader.send)
    frames = b"".join(reader.pieces).decode().split("\n\n")[:-1]
    assert [id_of(frame) for frame in frames] == [str(n) for n in range(1, len(frames) + 1)]
    assert len(frames) > 3000
    if passes:
        assert read > len(frames) / 2
    else:
        assert read == 0
