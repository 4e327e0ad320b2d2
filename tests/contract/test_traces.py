"""A turn belongs to its message's trace: over every binding and version, and on every store."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import msgspec
import pytest

import parley
from parley import Agent, Turn
from parley.model.service import TraceContext
from tests.contract.conftest import Serve, Speech, reach

pytestmark = pytest.mark.anyio

FIRST = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECOND = "00-11111111111111111111111111111111-2222222222222222-00"

traced = Agent("Traced")


@traced.skill(replies="task", default=True)
async def asking(turn: Turn) -> str:
    """Says what trace each of its turns belongs to."""
    said = f"{turn.trace.traceparent};{turn.trace.tracestate}"
    await turn.ask(said)
    return said


@traced.skill(replies="message")
async def direct(turn: Turn) -> str:
    """Says so in a message."""
    return f"{turn.trace.traceparent};{turn.trace.tracestate}"


@pytest.fixture(scope="session")
async def traces(serve: Serve) -> Any:
    return await serve(partial(parley.asgi, traced))


async def send(traces: Any, speech: Speech, text: str, *trace: str, **options: Any) -> Any:
    """Send as a client does whose context has a trace, to any of the replicas."""
    parent, state = trace
    async with reach([random.choice(traces)], speech) as remote:
        remote.context = msgspec.structs.replace(
            remote.context, trace=TraceContext(traceparent=parent, tracestate=state)
        )
        return await remote.send(text, **options)


async def test_each_turn_belongs_to_the_trace_of_its_message(traces: Any, speech: Speech) -> None:
    task = await send(traces, speech, "go", FIRST, "a=1,b=2")
    assert task.status.message.text == f"{FIRST};a=1,b=2"
    done = await send(traces, speech, "go on", SECOND, "", task_id=task.id)
    assert done.text == f"{SECOND};"
    task = await send(traces, speech, "go", FIRST, "")
    done = await send(traces, speech, "go on", "", "", task_id=task.id)
    assert done.text == ";"


async def test_a_direct_reply_belongs_to_a_trace(traces: Any, speech: Speech) -> None:
    reply = await send(traces, speech, "go", FIRST, "a=1", metadata={"skill": "direct"})
    assert reply.text == f"{FIRST};a=1"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"traceparent": "00-1-2-01", "tracestate": "a=1"}, ";"),
        ({"tracestate": "a=1"}, ";"),
        ({"traceparent": FIRST, "tracestate": "A=1"}, f"{FIRST};"),
        ({"traceparent": FIRST, "tracestate": "a=1 , b=2"}, f"{FIRST};a=1,b=2"),
    ],
)
async def test_what_is_not_valid_is_dropped(
    traces: Any, speech: Speech, sent: dict[str, str], kept: str
) -> None:
    async with reach(traces, speech, headers=sent) as remote:
        assert (await remote.send("go", metadata={"skill": "direct"})).text == kept
