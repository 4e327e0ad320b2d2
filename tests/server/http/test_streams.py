"""Streams: server-sent events from the first to the last, and all that can come between."""

import asyncio
import contextlib
import gc
import logging

import pytest

from parley.model.errors import TaskNotFoundError, UnsupportedOperationError
from parley.model.service import StreamItem
from parley.model.struct import encode
from parley.server.app import Settings
from parley.server.http.streams import OpenStream
from parley.server.run import serving
from tests.kit.http import JSON, WAIT, ask, call, connection, data_of, id_of, post
from tests.kit.scripted import (
    EXTENSION,
    Scripted,
    Standstill,
    app_of,
    card_of,
    chunk,
    extension,
    reply,
    task,
)
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio


async def frames_of(http):
    return [frame async for frame in http.frames()]


async def test_every_event_is_a_frame_with_its_number(url):
    async with connection(url) as http:
        headers = await http.subscribe()
        frames = await frames_of(http)
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    assert headers["a2a-version"] == "1.0"
    assert [id_of(frame) for frame in frames] == ["1", "2", "3"]
    answers = [data_of(frame) for frame in frames]
    assert [answer["id"] for answer in answers] == [1, 1, 1]
    assert [[*answer["result"]] for answer in answers] == [
        ["task"],
        ["artifactUpdate"],
        ["artifactUpdate"],
    ]
    assert answers[1]["result"]["artifactUpdate"]["artifact"]["parts"] == [{"text": "one"}]


async def test_a_frame_is_two_lines(url):
    async with connection(url) as http:
        await http.subscribe()
        assert [frame.count("\n") for frame in await frames_of(http)] == [1, 1, 1]


async def test_an_event_without_a_number_has_no_id(url, service):
    async def direct(request, context):
        yield StreamItem(reply())

    service.script["send_streaming_message"] = direct
    async with connection(url) as http:
        await http.subscribe("SendStreamingMessage")
        (frame,) = await frames_of(http)
    assert id_of(frame) is None
    assert data_of(frame)["result"]["message"]["messageId"] == "r-1"


async def test_json_that_is_at_hand_is_sent_as_it_is(url, service):
    async def kept(request, context):
        yield StreamItem(task(), 1, b'{"id":"as it is"}')

    service.script["subscribe_to_task"] = kept
    async with connection(url) as http:
        await http.subscribe()
        (frame,) = await frames_of(http)
    assert data_of(frame)["result"]["task"] == {"id": "as it is"}


async def test_text_with_line_ends_stays_in_its_frame(url, service):
    text = "a\n\nb\r\nid: 7\r\rdata: x\u2028"

    async def lines(request, context):
        yield StreamItem(chunk(text), 1)

    service.script["subscribe_to_task"] = lines
    async with connection(url) as http:
        await http.subscribe()
        (frame,) = await frames_of(http)
    result = data_of(frame)["result"]
    assert result["artifactUpdate"]["artifact"]["parts"] == [{"text": text}]


async def test_the_connection_can_be_used_after_a_stream(url):
    async with connection(url) as http:
        for _ in range(3):
            await http.subscribe()
            assert len(await frames_of(http)) == 3
            assert "result" in (await http.ask("POST", "/", call(), JSON)).json


async def test_a_stream_without_events_is_an_empty_one(url, service):
    async def nothing(request, context):
        return
        yield

    service.script["subscribe_to_task"] = nothing
    async with connection(url) as http:
        await http.subscribe()
        assert await frames_of(http) == []


async def test_the_place_of_the_reader_is_told_to_the_service(url, service):
    async with connection(url) as http:
        await http.subscribe(headers={"Last-Event-ID": "17"})
        await frames_of(http)
    assert service.context.last_event_id == "17"


async def test_extensions_are_echoed_on_a_stream():
    card = card_of(extensions=(extension(),))
    async with serving(app_of(card=card)) as url, connection(url) as http:
        headers = await http.subscribe(headers={"A2A-Extensions": EXTENSION})
        assert headers["a2a-extensions"] == EXTENSION
        await frames_of(http)


# Errors


@pytest.mark.parametrize("error", [TaskNotFoundError(), UnsupportedOperationError("it has ended")])
async def test_an_error_before_the_first_event_is_a_plain_answer(url, service, error):
    async def refused(request, context):
        raise error
        yield

    service.script["subscribe_to_task"] = refused
    response = await post(url, call("SubscribeToTask"))
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.error["code"] == error.code
    assert response.json["id"] == 1


async def test_an_error_after_the_first_event_is_the_last_frame(url, service):
    async def cut(request, context):
        yield StreamItem(task(), 1)
        raise TaskNotFoundError("the task was removed")

    service.script["subscribe_to_task"] = cut
    async with connection(url) as http:
        await http.subscribe()
        first, last = await frames_of(http)
        assert id_of(first) == "1"
        assert id_of(last) is None
        assert data_of(last)["error"]["code"] == -32001
        assert data_of(last)["id"] == 1
        assert "result" in (await http.ask("POST", "/", call(), JSON)).json


async def test_an_exception_in_a_stream_is_logged_and_told_only_by_its_reference(
    url, service, caplog
):
    async def broken(request, context):
        yield StreamItem(task(), 1)
        raise RuntimeError("the password is hunter2")

    service.script["subscribe_to_task"] = broken
    async with connection(url) as http:
        await http.subscribe()
        with caplog.at_level(logging.ERROR, "parley.server"):
            _, last = await frames_of(http)
    error = data_of(last)["error"]
    assert error["code"] == -32603
    assert "hunter2" not in last
    assert any(
        error["data"][0]["metadata"]["reference"] in record.getMessage() and record.exc_info
        for record in caplog.records
    )


async def test_an_event_that_is_none_ends_the_stream_with_an_internal_error(url, service, caplog):
    async def garbage(request, context):
        yield StreamItem(task(), 1)
        yield StreamItem("garbage", 2)

    service.script["subscribe_to_task"] = garbage
    async with connection(url) as http:
        await http.subscribe()
        frames = await frames_of(http)
    assert data_of(frames[-1])["error"]["code"] == -32603


async def test_a_service_that_cancels_itself_ends_the_stream_as_if_cut_there(url, service):
    async def gives_up(request, context):
        yield StreamItem(task(), 1)
        raise asyncio.CancelledError

    service.script["subscribe_to_task"] = gives_up
    async with connection(url) as http:
        await http.subscribe()
        assert [id_of(frame) for frame in await frames_of(http)] == ["1"]


# Silence, slowness, going away


async def test_a_silent_stream_carries_comments():
    still = Standstill(StreamItem(task(), 1))
    app = app_of(Scripted(subscribe_to_task=still), settings=Settings(keep_alive=0.02))
    async with serving(app) as url, connection(url) as http:
        await http.subscribe()
        frames = http.frames()
        assert id_of(await anext(frames)) == "1"
        assert [await anext(frames) for _ in range(3)] == [":", ":", ":"]


async def test_a_stream_whose_first_event_is_late_is_kept_alive_too():
    still = Standstill()
    app = app_of(Scripted(subscribe_to_task=still), settings=Settings(keep_alive=0.02))
    async with serving(app) as url, connection(url) as http:
        await http.subscribe()
        assert await anext(http.frames()) == ":"


async def test_a_busy_stream_carries_no_comments(service):
    async def busy(request, context):
        for number in range(1, 40):
            yield StreamItem(chunk("x"), number)
            await let_time_pass(0.005)

    service.script["subscribe_to_task"] = busy
    app = app_of(service, settings=Settings(keep_alive=5))
    async with serving(app) as url, connection(url) as http:
        await http.subscribe()
        assert ":" not in await frames_of(http)


async def test_a_client_that_goes_closes_the_stream_of_the_service(url, service):
    still = Standstill(StreamItem(task(), 1))
    service.script["subscribe_to_task"] = still
    async with connection(url) as http:
        await http.subscribe()
        await anext(http.frames())
        assert still.open == 1
    await asyncio.wait_for(still.closed.wait(), WAIT)
    assert still.open == 0


async def test_a_client_that_goes_before_the_first_event_is_noticed_too(url, service):
    still = Standstill()
    service.script["subscribe_to_task"] = still
    async with connection(url) as http:
        await http.request("POST", "/", call("SubscribeToTask"), JSON)
        await until(lambda: still.open == 1)
    await asyncio.wait_for(still.closed.wait(), WAIT)


async def test_a_client_that_goes_does_not_disturb_another(url, service):
    gate = asyncio.Event()

    async def gated(request, context):
        yield StreamItem(task(), 1)
        await gate.wait()
        yield StreamItem(chunk("late"), 2)

    service.script["subscribe_to_task"] = gated
    async with connection(url) as stays:
        await stays.subscribe()
        frames = stays.frames()
        await anext(frames)
        async with connection(url) as goes:
            await goes.subscribe()
            await anext(goes.frames())
        gate.set()
        assert [id_of(frame) async for frame in frames] == ["2"]


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
        # Wait until the service is held up: what is not read waits in the sockets (a few
        # megabytes at most), in the connection's buffer and in ours.
        before = -1
        async with asyncio.timeout(WAIT):
            while made != before:
                before = made
                await let_time_pass(0.1)
        assert made < count
        # Others are served meanwhile.
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


async def test_many_events_at_once_go_out_in_few_pieces(service):
    async def many(request, context):
        json = encode(chunk("x"))
        for number in range(1, 1001):
            yield StreamItem(chunk("x"), number, json)

    service.script["subscribe_to_task"] = many
    async with serving(app_of(service)) as url, connection(url) as http:
        await http.subscribe()
        pieces = []
        while piece := await http.chunk():
            pieces.append(piece)
    assert sum(piece.count(b"\n\n") for piece in pieces) == 1000
    assert len(pieces) < 50


async def test_one_event_may_be_larger_than_the_buffer(url, service):
    async def large(request, context):
        yield StreamItem(chunk("x" * 1_000_000), 1)
        yield StreamItem(chunk("y"), 2)

    service.script["subscribe_to_task"] = large
    async with connection(url) as http:
        await http.subscribe()
        first, second = await frames_of(http)
    assert len(first) > 1_000_000
    assert id_of(second) == "2"


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
        # Other requests are taken, and streams again when one has gone.
        assert "result" in (await post(url, call())).json
        http.writer.close()
        await asyncio.wait_for(still.closed.wait(), WAIT)
        async with connection(url) as again:
            await again.subscribe()


async def test_a_stream_that_is_refused_leaves_no_timer():
    still = Standstill(StreamItem(task(), 1))
    app = app_of(Scripted(subscribe_to_task=still), settings=Settings(max_streams=1))
    async with serving(app) as url, connection(url) as http:
        await http.subscribe()
        for _ in range(5):
            assert (await post(url, call("SubscribeToTask"))).status == 503
        gc.collect()
        left = [each for each in gc.get_objects() if type(each) is OpenStream]
        assert [each._timer.cancelled() for each in left].count(False) == 1


async def test_two_hundred_readers_get_the_same(url, service):
    gate = asyncio.Event()

    async def gated(request, context):
        yield StreamItem(task(), 1)
        await gate.wait()
        for number in range(2, 12):
            yield StreamItem(chunk(str(number)), number)

    service.script["subscribe_to_task"] = gated
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(connection(url)) for _ in range(200)]
        for http in readers:
            await http.subscribe()
        gate.set()
        streams = await asyncio.gather(*[frames_of(http) for http in readers])
    assert len({tuple(frames) for frames in streams}) == 1
    assert [id_of(frame) for frame in streams[0]] == [str(n) for n in range(1, 12)]


async def test_a_get_of_the_stream_is_no_stream(url):
    response = await ask(url, "GET", "/", headers={"Accept": "text/event-stream"})
    assert response.status == 405
