"""What an agent leaves off its card, it does not offer: over every binding and version."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import parley
from parley import Agent, AgentExtension, CardDetails, Message, Part, Role, TaskState, Turn
from parley.extensions import IdempotentSend, ResumableStreams
from parley.model.errors import InvalidParamsError, UnsupportedOperationError
from parley.model.extensions import IDEMPOTENT_SEND, RESUMABLE_STREAMS
from parley.model.operations import SubscribeToTaskRequest
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.http import JSON, call, connection
from tests.kit.servers import WAYS, grpc_of

pytestmark = pytest.mark.anyio


def bare(**options: Any) -> Agent:
    agent = Agent("Bare", **options)

    @agent.skill(replies="task")
    async def count(turn: Turn) -> str:
        await turn.working("counting")
        return str(await turn.update("calls", lambda n: n + 1, default=0))

    return agent


def uris(agent: Agent) -> list[str]:
    return [extension.uri for extension in agent.card("http://a").capabilities.extensions]


def test_a_card_has_those_that_are_chosen() -> None:
    assert {RESUMABLE_STREAMS, IDEMPOTENT_SEND} <= {*uris(bare())}
    assert uris(bare(card=CardDetails(default_extensions=False))) == []
    assert uris(bare(card=CardDetails(default_extensions=[IDEMPOTENT_SEND]))) == [IDEMPOTENT_SEND]
    own = AgentExtension(uri="urn:own")
    assert uris(bare(card=CardDetails(default_extensions=False), extensions=[own])) == ["urn:own"]
    declared = bare(card=CardDetails(default_extensions=False), extensions=[ResumableStreams()])
    assert uris(declared) == [RESUMABLE_STREAMS]


@pytest.mark.parametrize(
    ("chosen", "kind", "words"),
    [
        (IDEMPOTENT_SEND, TypeError, r"write default_extensions=\['urn:parley:idempotent"),
        (["urn:own"], ValueError, "names 'urn:own', which is none of them; they are urn:parley"),
        ([IdempotentSend()], ValueError, "which is none of them"),
        (None, TypeError, "is True, False or a list of URIs, not None"),
    ],
)
def test_what_is_none_of_them_is_refused(chosen: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        bare(card=CardDetails(default_extensions=chosen))


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    app = parley.asgi(bare(card=CardDetails(default_extensions=False)))
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        yield url


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_events_have_no_numbers_and_repeats_are_new(
    address: str, binding: str, version: str
) -> None:
    message = Message(message_id="m-1", role=Role.USER, parts=(Part(text="go"),))
    async with parley.connect(
        address, binding=binding, version=version, trust_origins=await grpc_of(address)
    ) as remote:
        stream = remote.stream("go")
        numbers, events = [], []
        async for event in stream:
            events.append(event)
            numbers.append(stream.seq)
        assert events[-1].status.state is TaskState.COMPLETED
        assert len(numbers) > 2
        assert {*numbers} == {None}
        tasks = [await remote.send(message) for _ in range(2)]
        assert tasks[0].id != tasks[1].id
        headers = {"A2A-Extensions": f"{RESUMABLE_STREAMS}, {IDEMPOTENT_SEND}"}
    async with parley.connect(
        address,
        binding=binding,
        version=version,
        trust_origins=await grpc_of(address),
        headers=headers,
    ) as remote:
        again = await remote.send(message)
        assert again.id not in {task.id for task in tasks}
        context = parley.CallContext(last_event_id="0")
        request = SubscribeToTaskRequest(id=again.id)
        with pytest.raises(UnsupportedOperationError) as caught:
            await anext(aiter(remote.service.subscribe_to_task(request, context)))
    assert "Last-Event-ID" not in str(caught.value)


async def test_a_frame_has_no_id(address: str) -> None:
    part = {"messageId": "m-2", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    async with connection(address) as http:
        await http.request("POST", "/", call("SendStreamingMessage", {"message": part}), {**JSON})
        assert (await http.head())[0] == 200
        frames = [frame async for frame in http.frames()]
    assert len(frames) > 2
    assert all(frame.startswith("data: ") and json.loads(frame[6:]) for frame in frames)


async def test_schemas_and_files_are_left_out_too(tmp_path: Any) -> None:
    """Typed skills check their inputs all the same, and large artifacts stay in the task."""
    agent = Agent("Bare", card=CardDetails(default_extensions=False))

    @agent.skill(replies="task")
    async def add(a: int, b: int) -> bytes:
        return b"x" * (2_000_000 + a + b)

    assert uris(agent) == []
    app = parley.asgi(agent, files=tmp_path / "files")
    async with serving(app) as url, parley.connect(url) as remote:
        assert remote.card.capabilities.extensions == ()
        task = await remote.send(data={"a": 1, "b": 2})
        assert task.artifacts[0].parts[0].raw == b"x" * 2_000_003
        with pytest.raises(InvalidParamsError, match="b: required"):
            await remote.send(data={"a": 1})
        async with connection(url) as http:
            made = await http.ask("POST", "/files", b'{"filename": "a"}', JSON)
        assert made.status in (404, 405)
