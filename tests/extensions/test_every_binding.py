"""Extensions, extended cards and accepted modes mean the same over every binding and version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import parley
from parley import (
    Agent,
    AgentSkill,
    Caller,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    Turn,
)
from parley.extensions import (
    SEARCH,
    MessageTimestamps,
    SearchTasksRequest,
    SearchTasksResponse,
    TaskSearch,
)
from parley.model.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.operations import SendMessageRequest
from parley.model.struct import Timestamp
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.servers import WAYS

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
    reply = await remote.send("Hi")
    assert isinstance(reply, Message)
    assert (MessageTimestamps.of(reply), reply.extensions) == (NOON, (URI,))
    task = await remote.send("Hi", message_metadata=MAKE)
    assert isinstance(task, Task)
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
    with pytest.raises(InvalidParamsError):  # past the client's own extension
        await remote.service.send_message(request, remote.context)


async def test_methods_are_of_the_http_bindings_in_1_0(remote: parley.RemoteAgent) -> None:
    if remote.interface.protocol_binding == "GRPC" or remote.version == "0.3":
        with pytest.raises(UnsupportedOperationError, match="tasks/search"):
            await remote.call(SEARCH, SearchTasksRequest(text="nothing"))
    else:
        found = await remote.call(SEARCH, SearchTasksRequest(text="nothing like it"))
        assert found == SearchTasksResponse(tasks=(), next_page_token="")


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
    assert isinstance(made, Task)
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
