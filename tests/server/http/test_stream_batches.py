"""Batches of a stream: sent together, with the same bytes as single events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from parley.model.service import CallContext, ItemStream, StreamItem
from parley.model.struct import encode
from parley.server.app import Settings
from parley.server.http.streams import Streams
from parley.wire import sse, versions
from tests.kit.scripted import chunk
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

BEFORE, AFTER = b'{"jsonrpc":"2.0","id":"a-1","result":', b"}"


def numbered(events: Sequence[object], known: Sequence[bool], numbers: bool) -> list[StreamItem]:
    return [
        StreamItem(event, n if numbers else None, encode(event) if known[n % len(known)] else None)
        for n, event in enumerate(events, 1)
    ]


class Reader:
    """The reading end of a stream: records the pieces in order."""

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
    # One event is being sent with the next, or waits for it; two more hold the allowed bytes.
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
