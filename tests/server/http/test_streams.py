"""Streams: server-sent events from first to last, and all interruptions."""

import asyncio
import contextlib

import pytest

from parley.model.service import StreamItem
from parley.model.struct import encode
from parley.server.app import Settings
from parley.server.run import serving
from tests.kit.http import WAIT, call, connection, id_of, post
from tests.kit.scripted import Scripted, Standstill, app_of, chunk, task
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio


# Errors


# Silence, slowness, disconnects


@pytest.mark.slow
async def test_a_reader_that_stops_holds_up_the_service_at_a_bound_and_loses_nothing(service):
    made = 0
    count = 3000
    text = "x" * 10_000

    async def flood(request, context):
        nonlocal made
        for number in range(1, count + 1):
            made = number
            yield StreamItem(chunk(text), number)

    service.script["subscribe_to_task"] = flood
    async with serving(app_of(service)) as url, connection(url) as http:
        await http.subscribe()
        # Wait until the service is blocked: unread data waits in the sockets (a few megabytes at
        # most), in the connection's buffer and in ours.
        before = -1
        async with asyncio.timeout(WAIT):
            while made != before:
                before = made
                await let_time_pass(0.1)
        assert made < count
        # Other clients are still served.
        assert "result" in (await post(url, call())).json
        numbers = [id_of(frame) async for frame in http.frames()]
    assert numbers == [str(number) for number in range(1, count + 1)]


async def test_a_service_that_never_pauses_leaves_room_for_others(service):
    stop = False

    async def endless(request, context):
        number = 0
        json = encode(chunk("x"))
        while not stop:
            number += 1
            yield StreamItem(chunk("x"), number, json)

    service.script["subscribe_to_task"] = endless
    async with serving(app_of(service)) as url, connection(url) as http:
        await http.subscribe()

        async def read():
            return [frame async for frame in http.frames()]

        reading = asyncio.create_task(read())
        for _ in range(5):
            assert "result" in (await post(url, call())).json
        stop = True
        frames = await asyncio.wait_for(reading, WAIT)
    assert [id_of(frame) for frame in frames] == [str(n) for n in range(1, len(frames) + 1)]


async def test_streams_are_limited_in_number():
    still = Standstill(StreamItem(task(), 1))
    app = app_of(Scripted(subscribe_to_task=still), settings=Settings(max_streams=2))
    async with serving(app) as url, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            http = await stack.enter_async_context(connection(url))
            await http.subscribe()
        response = await post(url, call("SubscribeToTask"))
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
        assert response.error["code"] == -32012
        assert still.open == 2
        # Other requests are accepted, and new streams after one has ended.
        assert "result" in (await post(url, call())).json
        http.writer.close()
        await asyncio.wait_for(still.closed.wait(), WAIT)
        async with connection(url) as again:
            await again.subscribe()
