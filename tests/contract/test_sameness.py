"""The same things, read in every way, are the same."""

from __future__ import annotations

import asyncio

import pytest

from parley import Message, Role, Task, TaskState
from tests.contract.agents import release
from tests.contract.conftest import Speech, reach
from tests.contract.saying import PARTS, as_told

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
async def plainest(server):
    """The contract agent over JSON-RPC in version 1.0, which has the data model's own form."""
    async with reach(server.contract, Speech("JSONRPC", "1.0")) as agent:
        yield agent


async def test_a_task_reads_the_same_in_every_way(remote, plainest, speech):
    said = Message(message_id="m-1", role=Role.USER, parts=PARTS, metadata={"skill": "whole"})
    task = await plainest.send(said)
    assert task.history[0].parts == PARTS
    assert await remote.get(task.id) == as_told(speech, task)


async def test_what_is_said_in_any_way_is_kept_the_same(remote, plainest, speech):
    said = Message(
        message_id="m-1",
        role=Role.USER,
        parts=PARTS,
        metadata={"skill": "ask", "deep": {"list": [1, None, {"a": 2.5}]}},
        extensions=("urn:example:x:v1",),
    )
    task = await remote.send(said)
    kept = (await plainest.get(task.id)).history[0]
    assert kept.parts == as_told(speech, said).parts
    assert kept.metadata == said.metadata
    assert kept.extensions == said.extensions
    assert (kept.message_id, kept.role) == ("m-1", Role.USER)


async def test_a_stream_says_the_same_in_every_way(remote, plainest, speech):
    task = await plainest.send("show please", return_immediately=True)
    here, there = remote.subscribe(task.id), plainest.subscribe(task.id)
    async with asyncio.timeout(10):
        for stream in (here, there):
            assert isinstance(await anext(stream), Task)
        release(task)
        collecting = [asyncio.create_task(collected(stream)) for stream in (here, there)]
        asked = await plainest.wait(task.id, timeout=10)
        await plainest.send("42", task_id=asked.id)
        told, events = [await task for task in collecting]
    expected = [as_told(speech, event) for event in events]
    if speech.is_old:
        # A status that asks for input is the last of its stream (0.3 §7.2.2).
        states = [getattr(event, "status", None) and event.status.state for event in events]
        del expected[states.index(TaskState.INPUT_REQUIRED) + 1 :]
    assert told == expected
    assert {type(event).__name__ for event in told} == {
        "TaskStatusUpdateEvent",
        "TaskArtifactUpdateEvent",
    }


async def collected(stream):
    """Return the rest of a stream."""
    return [event async for event in stream]
