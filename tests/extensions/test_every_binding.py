"""Extensions work the same over every binding; a feature that a card omits is not served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import parley
from parley import (
    Agent,
    AgentSkill,
    Caller,
    CardDetails,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    Turn,
)
from parley.extensions import MessageTimestamps, TaskSearch
from parley.model.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.extensions import IDEMPOTENT_SEND, RESUMABLE_STREAMS
from parley.model.operations import SendMessageRequest, SubscribeToTaskRequest
from parley.model.struct import Timestamp
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.http import JSON, connection
from tests.kit.servers import WAYS, grpc_of

pytestmark = pytest.mark.anyio


NOON = Timestamp.parse("2026-01-31T12:00:00.000Z")
DAWN = Timestamp.parse("2026-01-31T06:00:00.000Z")
URI = MessageTimestamps.uri


def stamping() -> Agent:
    agent = Agent("Stamping", extensions=[MessageTimestamps(clock=lambda: NOON), TaskSearch()])

    @agent.skill
    async def say(turn: Turn) -> str:
        return "said"

    @agent.skill(replies="task")
    async def make(turn: Turn) -> str:
        await turn.working("making")
        return "made"

    @agent.extended_card
    def extended(caller: Caller) -> dict[str, Any]:
        more = AgentSkill(id="more", name="More", description="More", tags=("more",))
        return {"skills": [more]}

    return agent


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    async with serving(parley.asgi(stamping()), grpc=GrpcOptions(port=0)) as url:
        yield url


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(way))
async def remote(request: pytest.FixtureRequest, address: str) -> AsyncIterator[parley.RemoteAgent]:
    binding, version = request.param
    extensions = [MessageTimestamps(clock=lambda: DAWN), TaskSearch()]
    async with parley.connect(
        address, binding=binding, version=version, extensions=extensions
    ) as agent:
        yield agent


MAKE = {"skill": "make"}


async def test_a_profile_is_at_work(remote: parley.RemoteAgent) -> None:
    reply = (await remote.send("Hi")).reply
    assert isinstance(reply, Message)
    assert (MessageTimestamps.of(reply), reply.extensions) == (NOON, (URI,))
    task = await remote.send("Hi", message_metadata=MAKE)
    assert task.id
    assert MessageTimestamps.of(task.history[0]) == DAWN
    assert task.history[0].extensions == (URI,)
    assert MessageTimestamps.of(task.history[-1]) == NOON
    assert MessageTimestamps.of(task.artifacts[0]) == NOON


async def test_a_stream_shows_what_the_task_shows(remote: parley.RemoteAgent) -> None:
    events = [event async for event in remote.stream("Hi", message_metadata=MAKE)]
    (artifact,) = [e.artifact for e in events if isinstance(e, TaskArtifactUpdateEvent)]
    assert isinstance(events[0], Task)
    task = await remote.get(events[0].id)
    assert task.artifacts == (artifact,)
    assert MessageTimestamps.of(artifact) == NOON


async def test_what_an_extension_refuses_is_refused(remote: parley.RemoteAgent) -> None:
    message = Message(
        message_id="m", role=Role.USER, parts=(Part(text="Hi"),), metadata={URI: {"timestamp": 7}}
    )
    request = SendMessageRequest(message=message)
    with pytest.raises(InvalidParamsError):  # bypass the client's own extension
        await remote.service.send_message(request, remote.context)


async def test_what_the_agent_gives_is_told_to_those_who_take_none(
    remote: parley.RemoteAgent,
) -> None:
    with pytest.raises(ContentTypeNotSupportedError, match="text/plain"):
        await remote.send("Hi", accepted_output_modes=["image/png"])


async def test_the_extended_card_has_more(remote: parley.RemoteAgent) -> None:
    assert [skill.id for skill in remote.card.skills] == ["say", "make"]
    card = await remote.extended_card()
    assert [skill.id for skill in card.skills] == ["say", "make", "more"]
    assert card.supported_interfaces


async def test_what_a_webhook_gets_is_chosen_and_its_history_read(
    remote: parley.RemoteAgent,
) -> None:
    made = await remote.send("Hi", message_metadata={"skill": "make"})
    assert made.id
    config = await remote.push.create(made.id, "https://hooks.example.com/")
    if remote.interface.protocol_binding == "GRPC" or remote.version == "0.3":
        with pytest.raises(UnsupportedOperationError, match="push/options/set"):
            await remote.push.set_events(made.id, config.id, "significant")
        return
    await remote.push.set_events(made.id, config.id, "significant")
    [history] = await remote.push.history(made.id)
    assert (history.id, history.events, history.state) == (config.id, "significant", "done")
    with pytest.raises(TaskNotFoundError):
        await remote.push.history(made.id, "another")


# -- the agent does not serve features that its card omits, over every binding and version ---------


def bare(**options: Any) -> Agent:
    agent = Agent("Bare", **options)

    @agent.skill(replies="task")
    async def count(turn: Turn) -> str:
        await turn.working("counting")
        return str(await turn.update("calls", lambda n: n + 1, default=0))

    return agent


def uris(agent: Agent) -> list[str]:
    return [extension.uri for extension in agent.card("http://a").capabilities.extensions]


@pytest.fixture(scope="module")
async def extensions_address() -> AsyncIterator[str]:
    app = parley.asgi(bare(card=CardDetails(default_extensions=False)))
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        yield url


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_events_have_no_numbers_and_repeats_are_new(
    extensions_address: str, binding: str, version: str
) -> None:
    message = Message(message_id="m-1", role=Role.USER, parts=(Part(text="go"),))
    async with parley.connect(
        extensions_address,
        binding=binding,
        version=version,
        trust_origins=await grpc_of(extensions_address),
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
        extensions_address,
        binding=binding,
        version=version,
        trust_origins=await grpc_of(extensions_address),
        headers=headers,
    ) as remote:
        again = await remote.send(message)
        assert again.id not in {task.id for task in tasks}
        context = parley.CallContext(last_event_id="0")
        request = SubscribeToTaskRequest(id=again.id)
        with pytest.raises(UnsupportedOperationError) as caught:
            await anext(aiter(remote.service.subscribe_to_task(request, context)))
    assert "Last-Event-ID" not in str(caught.value)


async def test_schemas_and_files_are_left_out_too(tmp_path: Any) -> None:
    """Typed skills still check their inputs, and large artifacts stay in the task."""
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
