"""Extensions change messages, statuses and artifacts before a caller or an agent sees them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from parley import (
    Agent,
    Artifact,
    CallContext,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
    Turn,
)
from parley.extensions.call_chain import CallChain, Chain, ChainBudget, with_deadline
from parley.extensions.profile import Profile, Profiles
from parley.extensions.questions import Question, question, schema_part
from parley.model.errors import InternalError, InvalidParamsError, PermissionDeniedError
from parley.model.extensions import CALL_CHAIN, Extension
from parley.model.operations import CancelTaskRequest, GetTaskRequest, SendMessageRequest
from parley.model.struct import Timestamp, encode
from tests.engine.in_process import new_store, talk

__all__ = ["new_store", "talk"]

pytestmark = pytest.mark.anyio

URI = "urn:example:mood:v1"


class Mood(Extension):
    """An extension that adds a mood to all output."""

    uri = URI
    data = str

    def receive(self, request: Any, context: CallContext) -> Any:
        if self.of(request.message) == "angry":
            raise PermissionDeniedError("come back in a better mood")
        message = self.put(request.message, f"{self.of(request.message)}, noted")
        return replace(request, message=message)

    def send(self, event: Any) -> Any:
        if isinstance(event, TaskArtifactUpdateEvent):
            return replace(event, artifact=self.put(event.artifact, "proud"))
        if isinstance(event, Message):
            return self.put(event, "polite")
        return self.put(event, "busy")


IN_FORCE = CallContext(extensions=frozenset({URI}))


def agent_with(*extensions: Extension) -> Agent:
    agent = Agent("Moody", extensions=extensions)

    @agent.skill
    async def greet(turn: Turn) -> str:
        return f"Hello, in a {Mood.of(turn.message)} mood"

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        await turn.working("On it")
        return "done"

    @agent.skill(replies="task")
    async def chunks(turn: Turn) -> None:
        async with turn.stream("Poem") as out:
            await out.write("roses")
            await asyncio.sleep(0.03)  # so that the first chunk leaves as its own event
            await out.write("violets")

    return agent


async def test_stream_and_task_agree_on_what_was_enriched(talk: Any) -> None:
    async with talk(agent_with(Mood())) as caller:
        items = [
            item async for item in caller.stream("Go", metadata={"skill": "work"}, context=IN_FORCE)
        ]
        first = items[0].event
        assert first.id
        updates = [item.event for item in items[1:]]
        statuses = [e for e in updates if isinstance(e, TaskStatusUpdateEvent)]
        assert [Mood.of(event) for event in statuses] == ["busy"] * len(statuses)
        (artifact,) = [e.artifact for e in updates if isinstance(e, TaskArtifactUpdateEvent)]
        task = await caller.service.get_task(GetTaskRequest(id=first.id), caller.context)
        assert task.artifacts == (artifact,)
        assert (Mood.of(artifact), artifact.extensions) == ("proud", (URI,))
        assert [item.json for item in items[1:]] == [encode(e) for e in updates]


class Meddler(Extension):
    """An extension that changes protected fields."""

    uri = "urn:example:meddler:v1"

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change = change

    def send(self, event: Any) -> Any:
        return self._change(event)


def other_state(event: Any) -> Any:
    if isinstance(event, TaskStatusUpdateEvent):
        return replace(event, status=replace(event.status, state=TaskState.REJECTED))
    return event


def other_id(event: Any) -> Any:
    if isinstance(event, TaskArtifactUpdateEvent):
        return replace(event, artifact=replace(event.artifact, artifact_id="other"))
    return replace(event, context_id="other")


def nothing(event: Any) -> Any:
    return None


def unreadable(event: Any) -> Any:
    if isinstance(event, TaskArtifactUpdateEvent):
        return replace(event, artifact=replace(event.artifact, name=7))
    return event


@pytest.mark.parametrize("change", [other_state, other_id, nothing, unreadable])
@pytest.mark.parametrize("skill", ["work", "chunks"])
async def test_an_extension_cannot_change_what_the_specification_fixes(
    talk: Any, change: Any, skill: str, caplog: pytest.LogCaptureFixture
) -> None:
    meddler = Meddler(change)
    context = CallContext(extensions=frozenset({meddler.uri}))
    with caplog.at_level(logging.ERROR, "parley.extensions"):
        async with talk(agent_with(meddler)) as caller:
            task = await caller.task("Go", metadata={"skill": skill}, context=context)
    assert task.state is TaskState.FAILED
    assert task.artifacts == ()
    assert "its log says why under" in task.text
    assert "Meddler" in caplog.text


async def test_a_direct_reply_that_an_extension_spoils_is_an_internal_error(talk: Any) -> None:
    meddler = Meddler(other_id)
    context = CallContext(extensions=frozenset({meddler.uri}))
    async with talk(agent_with(meddler)) as caller:
        with pytest.raises(InternalError, match="its log says why"):
            await caller.send("Hi", context=context)


class Censor(Extension):
    """An extension that removes forbidden words."""

    uri = "urn:example:censor:v1"

    def send(self, event: Any) -> Any:
        if isinstance(event, TaskArtifactUpdateEvent) and "violets" in event.artifact.text:
            raise PermissionDeniedError("no flowers")
        return event


async def test_a_task_is_canceled_whatever_an_extension_says(talk: Any) -> None:
    class Never(Extension):
        uri = "urn:example:never:v1"

        def send(self, event: Any) -> Any:
            if isinstance(event, TaskStatusUpdateEvent) and event.status.state.is_terminal:
                raise PermissionDeniedError("this must not end")
            return event

    agent = Agent("Endless", extensions=[Never()])

    @agent.skill(replies="task")
    async def wait(turn: Turn) -> None:
        await asyncio.Event().wait()

    context = CallContext(extensions=frozenset({Never.uri}))
    async with talk(agent) as caller, asyncio.timeout(5):
        task = await caller.task("Go", context=context, return_immediately=True)
        canceled = await caller.service.cancel_task(CancelTaskRequest(id=task.id), context)
        assert canceled.state is TaskState.CANCELED


async def test_a_sub_state_is_in_the_update_and_in_the_task(talk: Any) -> None:
    agent = Agent("Painter", extensions=[Mood()])

    @agent.skill(replies="task")
    async def paint(turn: Turn) -> None:
        await turn.working("Mixing paint", substate={f"{URI}/step": "mixing", "urn:x": 1})
        await turn.ask("Which colour?")

    async with talk(agent) as caller:
        for context, expected in ((IN_FORCE, "mixing"), (caller.context, None)):
            items = [
                item.event
                async for item in caller.stream("Go", metadata={URI: "calm"}, context=context)
            ]
            (update,) = [
                e
                for e in items
                if isinstance(e, TaskStatusUpdateEvent)
                and e.status.message is not None
                and e.status.message.text == "Mixing paint"
            ]
            message = update.status.message
            assert (update.metadata or {}).get(f"{URI}/step") == expected
            assert (message.metadata or {}).get(f"{URI}/step") == expected
            assert "urn:x" not in (message.metadata or {})
            assert message.extensions == ((URI,) if expected else ())
            task = await caller.service.get_task(GetTaskRequest(id=update.task_id), context)
            assert message in task.history


async def test_hooks_run_in_the_order_of_the_agents_extensions(talk: Any) -> None:
    class First(Extension):
        uri = "urn:example:first:v1"

        def send(self, event: Any) -> Any:
            return replace(event, parts=(*event.parts, Part(text=self.uri[-8:])))

    class Second(First):
        uri = "urn:example:second:v1"

    context = CallContext(extensions=frozenset({First.uri, Second.uri}))
    async with talk(agent_with(Second(), First())) as caller:
        reply = await caller.send("Hi", context=context)
        assert [part.text for part in reply.parts[1:]] == ["econd:v1", "first:v1"]
        assert reply.extensions == (Second.uri, First.uri)


async def test_an_asynchronous_hook_is_waited_for(talk: Any) -> None:
    class Slow(Extension):
        uri = "urn:example:slow:v1"

        async def receive(self, request: Any, context: CallContext) -> Any:
            await asyncio.sleep(0)
            return replace(request, message=self.put(request.message, {"checked": True}))

    agent = Agent("Checked", extensions=[Slow()])

    @agent.skill
    async def tell(turn: Turn) -> dict[str, bool]:
        return Slow.of(turn.message)

    async with talk(agent) as caller:
        reply = await caller.send("Hi", context=CallContext(extensions=frozenset({Slow.uri})))
        assert reply.parts == (Part(data={"checked": True}),)


def test_an_unchanged_message_stays_the_same_object() -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="x"),))
    assert Profile([Censor(), Mood()]).send(message) is not message
    assert Profile([Censor()]).send(message) is message


# -- profiles without an agent -----------------------------------------------------------------

NOON = Timestamp.parse("2026-01-31T12:00:00.000Z")
DAWN = Timestamp.parse("2026-01-31T06:00:00.000Z")
HELLO = Message(message_id="m", role=Role.USER, parts=(Part(text="Hi"),), metadata={URI: "calm"})
REQUEST = SendMessageRequest(message=HELLO)


class Asker(Meddler):
    ask = Meddler.send


def test_a_request_names_each_extension_that_changed_its_message_or_has_data_in_it() -> None:
    def traced(request: Any) -> Any:
        return replace(request, metadata={"trace": 1})

    def louder(request: Any) -> Any:
        return replace(request, message=replace(HELLO, parts=(Part(text="HI"),)))

    for change, expected in ((louder, (Asker.uri, URI)), (traced, (URI,))):
        asked = Profile([Asker(change), Mood()]).ask(REQUEST)
        message = replace(change(REQUEST).message, extensions=expected)
        assert asked == replace(change(REQUEST), message=message)


def test_a_hook_cannot_change_the_id_of_an_artifact() -> None:
    artifact = Artifact(artifact_id="a", parts=HELLO.parts)
    event = TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact)
    with pytest.raises(InternalError):
        Profile([Meddler(other_id)]).send(event)


def test_a_question_is_found_by_its_media_type_or_its_members() -> None:
    part, other = schema_part({"type": "string"}), Part(data={"schema": {}, "more": 1})
    typed = replace(other, media_type=part.media_type)
    for asked, schema in (
        (part, {"type": "string"}),
        (Part(data=part.data), {"type": "string"}),
        (typed, {}),
    ):
        message = replace(HELLO, parts=(*HELLO.parts, asked, other))
        assert question(message) == Question("Hi", schema)


def test_the_number_of_kept_profiles_is_bounded() -> None:
    profiles = Profiles([Mood(), CallChain()])
    first = profiles.of(frozenset({URI}))
    assert profiles.of(frozenset({CALL_CHAIN})) is None
    assert first is profiles.of(frozenset({URI}))
    for number in range(200):
        profiles.of(frozenset({f"urn:{number}"}))
    assert len(profiles._made) <= 64


def test_a_chain_at_every_limit_is_read_as_it_was_written() -> None:
    budget = ChainBudget(calls=7, tokens=0, cost=0.5)
    path = ("b", *["a" * 128] * 63)
    chain = Chain(hops=1_000_000, deadline=NOON, path=path, budget=budget)
    assert CallChain.read(CallChain.says(chain)[CALL_CHAIN]) == chain
    assert CallChain.read({"hops": 3.0}) == Chain(hops=3)
    assert all(ChainBudget(**{name: 0}) for name in ("calls", "tokens", "cost"))
    for first, second in ((NOON, DAWN), (DAWN, NOON)):  # the earlier deadline stays
        request = with_deadline(with_deadline(REQUEST, first), second)
        assert CallChain.of(request) == Chain(deadline=DAWN)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *(("hops", each) for each in (True, "1", 0.5, 1_000_001)),
        *(("path", each) for each in ("a", ["a"] * 65, [7], [""], ["a" * 129])),
        ("budget", []),
    ],
)
def test_a_chain_beyond_a_limit_is_refused_with_its_member(member: str, value: Any) -> None:
    with pytest.raises(InvalidParamsError) as raised:
        CallChain.read({member: value})
    assert raised.value.violations[0].field == f"metadata.{CALL_CHAIN}.{member}"
