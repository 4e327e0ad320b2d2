"""Broken streams: every event arrives once, in order, whether or not the agent can resume."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from parley.client import connect
from parley.client.errors import ConnectionClosed, StreamCut, Unreachable
from parley.client.retry import Retry
from parley.model.errors import InternalError, TaskNotFoundError, UnsupportedOperationError
from parley.model.parts import Message
from parley.model.tasks import Event, Task, TaskArtifactUpdateEvent, TaskState
from tests.client.log_agent import REPORT, LogAgent, chunk, fold_of, plain, says, task
from tests.kit.scripted_server import Agent as Talker
from tests.kit.scripted_server import Exchange, card, scripted, talk
from tests.kit.scripted_server import task as ended
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

UPDATE = {"taskId": "t-1", "contextId": "c-1"}
AT_ONCE = Retry(calls=3, streams=8, first=0.0, limit=0.0)


async def read(agent: LogAgent, **options) -> list[Event]:
    async with scripted(agent) as server, connect(server.url, retries=AT_ONCE, **options) as remote:
        async with asyncio.timeout(5):
            return [event async for event in remote.stream("go")]


def boundaries(agent: LogAgent) -> list[int]:
    exchange = Exchange("POST", "/", {}, b'{"id": 1}', None)
    ends = [0]
    for frame in agent.frames(exchange, agent.log, 0):
        ends.append(ends[-1] + len(frame))
    return ends


def cut_points(numbered: bool) -> list[int]:
    """Every frame boundary, and points inside every frame."""
    ends = boundaries(LogAgent(REPORT, [], numbered=numbered))
    inside = [
        point
        for start, end in itertools.pairwise(ends)
        for point in (start + 1, (start + end) // 2, end - 1)
    ]
    return sorted({*ends, *inside})


@pytest.mark.parametrize("clean", [False, True], ids=["broken", "closed"])
async def test_numbered_streams_lose_and_repeat_nothing_wherever_they_are_cut(clean: bool) -> None:
    for cut in cut_points(numbered=True):
        agent = LogAgent(REPORT, [cut], numbered=True, clean=clean)
        assert await read(agent) == REPORT, f"cut after {cut} bytes"


async def test_numbered_streams_survive_a_cut_after_every_event() -> None:
    ends = boundaries(LogAgent(REPORT, [], numbered=True))
    sizes = [end - start for start, end in itertools.pairwise(ends)]
    agent = LogAgent(REPORT, [size + 3 for size in sizes], numbered=True)

    assert await read(agent) == REPORT
    assert agent.last_event_ids == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("meanwhile", [0, 1, 2])
async def test_other_streams_tell_what_the_task_shows_wherever_they_are_cut(meanwhile: int) -> None:
    for cut in cut_points(numbered=False):
        agent = LogAgent(REPORT, [cut], numbered=False, meanwhile=meanwhile)
        events = await read(agent)
        where = f"cut after {cut} bytes, {meanwhile} events meanwhile"
        assert text_of(events) == "one two three ", where
        assert said_by(events) == ["thinking", "done"], where
        told = fold_of(events)
        assert (told.state, told.text) == (TaskState.COMPLETED, "one two three "), where
        assert sum(isinstance(event, Task) for event in events) == 1, where


async def test_other_streams_give_the_very_events_when_nothing_happened_meanwhile() -> None:
    for end in boundaries(LogAgent(REPORT, [], numbered=False))[1:]:
        assert await read(LogAgent(REPORT, [end], numbered=False)) == REPORT


def text_of(events: list[Event]) -> str:
    return "".join(e.artifact.text for e in events if isinstance(e, TaskArtifactUpdateEvent))


def said_by(events: list[Event]) -> list[str]:
    statuses = [e.status.message for e in events if hasattr(e, "status")]
    return [message.text for message in statuses if message is not None]


async def test_a_message_is_sent_again_when_nothing_came_and_the_agent_answers_repeats_once() -> (
    None
):
    agent = LogAgent(REPORT, [0, 0, None], numbered=True)
    async with scripted(agent) as server, connect(server.url, retries=AT_ONCE) as remote:
        assert [event async for event in remote.stream("go")] == REPORT
        assert server.calls == ["SendStreamingMessage"] * 3
        ids = {e.params["message"]["messageId"] for e in server.exchanges if e.method == "POST"}
        assert len(ids) == 1


async def test_a_message_is_not_sent_again_when_the_agent_may_do_it_twice() -> None:
    agent = LogAgent(REPORT, [0], numbered=True, idempotent=False)
    async with scripted(agent) as server, connect(server.url, retries=AT_ONCE) as remote:
        with pytest.raises(StreamCut, match="it is unknown whether the agent has the message"):
            await anext(remote.stream("go"))
        assert server.calls == ["SendStreamingMessage"]


async def test_a_stream_that_cannot_be_taken_up_again_ends_with_what_is_needed_to_do_so() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "POST" and exchange.call["method"] == "SubscribeToTask":
            exchange.reset()
        else:
            await agent(exchange)

    agent = LogAgent(REPORT, [], numbered=True)
    agent.cuts = [boundaries(agent)[3]]
    async with scripted(handler) as server, connect(server.url, retries=AT_ONCE) as remote:
        stream = remote.stream("go")
        with pytest.raises(StreamCut) as caught:
            async for _ in stream:
                pass
        assert (caught.value.task_id, caught.value.seq) == ("t-1", 3)
        assert (stream.task_id, stream.seq, stream.state) == ("t-1", 3, TaskState.WORKING)
        assert server.calls.count("SubscribeToTask") == AT_ONCE.streams


async def test_without_retries_a_cut_stream_stays_cut() -> None:
    agent = LogAgent(REPORT, [400], numbered=True)
    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        with pytest.raises(StreamCut):
            async for _ in remote.stream("go"):
                pass
        assert server.calls == ["SendStreamingMessage"]


async def test_a_stream_goes_on_over_a_restart_of_the_server() -> None:
    agent = LogAgent(REPORT, [], numbered=True)
    agent.cuts = [boundaries(agent)[2]]
    patient = Retry(calls=0, streams=200, first=0.01, limit=0.02)
    async with scripted(agent) as server:
        remote = await connect(server.url, retries=patient)
        stream = remote.stream("go")
        events = [await anext(stream), await anext(stream)]
        port = int(server.url.rpartition(":")[2])
    rest = asyncio.create_task(anext(stream))
    async with scripted(agent, port=port):
        events.append(await rest)
        events += [event async for event in stream]
        await remote.aclose()
    assert events == REPORT


@pytest.mark.slow
async def test_a_silent_stream_is_taken_up_again() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "POST" and exchange.call["method"] == "SendStreamingMessage":
            await exchange.open_stream()
            for frame in agent.frames(exchange, agent.log[:2], 0):
                await exchange.chunk(frame)
            await exchange.never()
        await agent(exchange)

    agent = LogAgent(REPORT, [], numbered=True)
    assert await read_with(handler, stream_idle_timeout=0.3) == REPORT


@pytest.mark.slow
async def test_comments_are_signs_of_life() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await agent(exchange)
            return
        assert exchange.call["method"] == "SendStreamingMessage"
        first, second = agent.frames(exchange, agent.log, 0)
        await exchange.open_stream()
        await exchange.chunk(first)
        for _ in range(6):
            await let_time_pass(0.2)  # the test needs real time to pass
            await exchange.chunk(b": still here\n\n")
        await exchange.chunk(second)
        await exchange.end_stream()

    agent = LogAgent([task(), says(TaskState.COMPLETED, "done")], [], numbered=True)
    assert await read_with(handler, stream_idle_timeout=1.0) == agent.log


async def read_with(handler, **options) -> list[Event]:
    async with scripted(handler) as server, connect(server.url, retries=AT_ONCE, **options) as it:
        async with asyncio.timeout(5):
            return [event async for event in it.stream("go")]


async def test_an_error_in_the_stream_is_the_agents_and_is_not_retried() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await agent(exchange)
            return
        await exchange.open_stream()
        await exchange.chunk(agent.frames(exchange, agent.log[:1], 0)[0])
        error = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"a bug"}}'
        await exchange.chunk(b"event: error\ndata: " + error + b"\n\n")
        await exchange.end_stream()

    agent = LogAgent(REPORT, [], numbered=True)
    async with scripted(handler) as server, connect(server.url, retries=AT_ONCE) as remote:
        stream = remote.stream("go")
        assert await anext(stream) == REPORT[0]
        with pytest.raises(InternalError, match="a bug"):
            await anext(stream)
        assert server.calls == ["SendStreamingMessage"]


async def test_a_direct_message_is_a_stream_of_one() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(card(f"http://{exchange.headers['host']}"))
            return
        message = {"messageId": "r", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}
        body = exchange.frame({"message": message})
        await exchange.stream(body, len(body))

    events = await read_with(handler)
    assert [event.text for event in events if isinstance(event, Message)] == ["hi"]
    assert len(events) == 1


async def test_a_plain_json_answer_to_a_stream_request_is_its_event() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(card(f"http://{exchange.headers['host']}"))
            return
        message = {"messageId": "r", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}
        await exchange.result({"message": message})

    events = await read_with(handler)
    assert [str(event) for event in events] == ["hi"]


@pytest.mark.slow
async def test_a_stream_ends_when_the_agent_asks_though_the_server_keeps_it_open() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await agent(exchange)
            return
        await exchange.open_stream()
        for frame in agent.frames(exchange, agent.log, 0):
            await exchange.chunk(frame)
        await exchange.never()

    agent = LogAgent([task(), says(TaskState.INPUT_REQUIRED, "where to?")], [], numbered=True)
    assert await read_with(handler) == agent.log


async def test_the_question_that_a_message_answers_does_not_end_its_stream() -> None:
    log = [
        task(TaskState.INPUT_REQUIRED),
        says(TaskState.WORKING),
        chunk("x", append=False),
        says(TaskState.COMPLETED),
    ]
    ends = boundaries(LogAgent(log, [], numbered=True))
    for numbered in (True, False):
        for end in (ends[1], ends[2]):
            agent = LogAgent(log, [end + 2 * (not numbered)], numbered=numbered)
            async with scripted(agent) as server, connect(server.url, retries=AT_ONCE) as remote:
                async with asyncio.timeout(5):
                    events = [event async for event in remote.stream("Paris", task_id="t-1")]
            assert [e for e in events if not isinstance(e, Task)] == log[1:]


async def test_a_subscription_starts_where_it_is_told_and_survives_cuts() -> None:
    ends = boundaries(LogAgent(REPORT, [], numbered=True))
    agent = LogAgent(REPORT, [ends[4] - ends[2] + 5], numbered=True)
    async with scripted(agent) as server, connect(server.url, retries=AT_ONCE) as remote:
        events = [event async for event in remote.subscribe("t-1", after=2)]
    assert events == REPORT[2:]
    assert agent.last_event_ids == ["2", "4"]


async def test_a_subscription_that_a_server_ends_while_the_task_waits_is_taken_up_again() -> None:
    log = [
        task(),
        says(TaskState.INPUT_REQUIRED, "where to?"),
        says(TaskState.WORKING),
        says(TaskState.COMPLETED),
    ]
    ends = boundaries(LogAgent(log, [], numbered=True))
    agent = LogAgent(log, [ends[2]], numbered=True, clean=True)
    async with scripted(agent) as server, connect(server.url, retries=AT_ONCE) as remote:
        async with asyncio.timeout(5):
            assert [event async for event in remote.subscribe("t-1", after=0)] == log
    assert agent.last_event_ids == ["0", "2"]


async def test_a_subscription_cannot_start_at_a_number_where_events_have_none() -> None:
    agent = LogAgent(REPORT, [], numbered=False)
    async with scripted(agent) as server, connect(server.url) as remote:
        with pytest.raises(ValueError, match="does not number"):
            remote.subscribe("t-1", after=2)


async def test_an_agent_that_streams_no_task_twice_is_polled_to_the_end() -> None:
    looks = [2, 2, 3, 5, 6]

    async def handler(exchange: Exchange) -> None:
        if exchange.method == "POST" and exchange.call["method"] == "SubscribeToTask":
            await exchange.error(-32004, "not here")
        elif exchange.method == "POST" and exchange.call["method"] == "GetTask":
            await exchange.result(plain(fold_of(REPORT[: looks.pop(0)])))
        else:
            await agent(exchange)

    agent = LogAgent(REPORT, [], numbered=False)
    agent.cuts = [boundaries(agent)[1]]
    events = await read_with(handler)
    assert (text_of(events), said_by(events)) == ("one two three ", ["thinking", "done"])
    assert not looks


async def test_events_that_are_no_longer_kept_are_made_up_for_by_the_task() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "POST" and exchange.call["method"] == "SubscribeToTask":
            await exchange.error(-32001, "the events after 2 are no longer kept")
        else:
            await agent(exchange)

    agent = LogAgent(REPORT, [], numbered=True)
    agent.cuts = [boundaries(agent)[2]]
    assert await read_with(handler) == [*REPORT[:2], fold_of(REPORT)]


async def test_a_task_that_is_gone_after_the_cut_is_reported_as_such() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "GET" or exchange.call["method"] == "SendStreamingMessage":
            await agent(exchange)
        else:
            await exchange.error(-32001, "no such task")

    agent = LogAgent(REPORT, [], numbered=True)
    agent.cuts = [boundaries(agent)[1]]
    with pytest.raises(TaskNotFoundError):
        await read_with(handler)


async def test_a_task_that_has_ended_is_not_subscribed_to_however_the_first_try_went() -> None:
    tries = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal tries
        if exchange.method == "GET":
            await agent(exchange)
            return
        tries += 1
        if tries == 1:
            exchange.reset()
        else:
            await exchange.result(plain(fold_of(REPORT)))

    agent = LogAgent(REPORT, [], numbered=False)
    async with scripted(handler) as server, connect(server.url, retries=AT_ONCE) as remote:
        with pytest.raises(UnsupportedOperationError):
            await anext(remote.subscribe("t-1"))
        assert server.calls == ["SubscribeToTask", "GetTask"]


async def test_leaving_a_stream_gives_its_connection_up() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await agent(exchange)
            return
        await exchange.open_stream()
        await exchange.chunk(agent.frames(exchange, agent.log[:1], 0)[0])
        await exchange.never()

    agent = LogAgent(REPORT, [], numbered=True)
    async with scripted(handler) as server, connect(server.url, retries=AT_ONCE) as remote:
        async with remote.stream("left early") as stream:
            await anext(stream)
        await server.until_idle()
        reading = asyncio.create_task(_drain(remote.stream("cancelled")))
        await server.until_asked(3)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await server.until_idle()
        stream = remote.stream("closed")
        await anext(stream)
        waiting = asyncio.create_task(_drain(stream))
        await asyncio.sleep(0)
        await remote.aclose()
        with pytest.raises(ConnectionClosed):
            await waiting
        await server.until_idle()


async def _drain(stream) -> None:
    async for _ in stream:
        pass


async def test_an_agent_that_is_not_there_is_reported_as_that() -> None:
    agent = LogAgent(REPORT, [], numbered=True)
    async with scripted(agent) as server:
        remote = await connect(server.url, retries=AT_ONCE)
    async with remote:
        with pytest.raises(Unreachable, match="cannot connect"):
            await anext(remote.stream("go"))


async def nothing(exchange: Exchange) -> None:
    """Answer a stream without events."""
    await exchange.body_of(b"", 200, content_type="text/event-stream")


async def test_an_empty_stream_of_a_task_that_has_ended_is_a_refusal() -> None:
    async with talk(Talker(nothing, ended("COMPLETED"))) as (remote, server):
        async with asyncio.timeout(5):
            with pytest.raises(UnsupportedOperationError, match="has ended"):
                await anext(remote.subscribe("t-1"))
        assert server.calls == ["SubscribeToTask", "GetTask"]


async def test_a_subscription_starts_with_the_task_where_the_agent_starts_later() -> None:
    working = ended("WORKING", artifacts=[{"artifactId": "a", "parts": [{"text": "one "}]}])
    chunks = [
        {"artifactUpdate": {**UPDATE, "artifact": {"artifactId": "a", "parts": [{"text": text}]}}}
        for text in ("one ", "two ")
    ]
    for each in chunks[1:]:
        each["artifactUpdate"]["append"] = True
    done = {"statusUpdate": {**UPDATE, "status": {"state": "TASK_STATE_COMPLETED"}}}

    async def starts_late(exchange: Exchange) -> None:
        frames = [
            b"data: " + json.dumps({"jsonrpc": "2.0", "id": 1, "result": event}).encode() + b"\n\n"
            for event in (*chunks, done)
        ]
        await exchange.body_of(b"".join(frames), 200, content_type="text/event-stream")

    async with talk(Talker(starts_late, working)) as (remote, server):
        async with asyncio.timeout(5):
            events = [event async for event in remote.subscribe("t-1")]
        assert server.calls == ["SubscribeToTask", "GetTask"]
    assert isinstance(events[0], Task)
    told = fold_of(events)
    assert (told.state, told.text) == (TaskState.COMPLETED, "one two ")
