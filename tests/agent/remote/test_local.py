"""Agents of one process call each other: ``Agent(uses=[...])``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import (
    Agent,
    BlockingTurn,
    CallContext,
    Caller,
    CardDetails,
    EnvelopeSettings,
    Execution,
    Part,
    Rights,
    TaskState,
    Turn,
)
from parley.extensions.questions import TypedQuestions
from parley.host.host import Host
from parley.model.operations import GetTaskRequest, ListTasksRequest
from parley.security import Bearer, anonymous
from parley.store.memory import MemoryTaskStore
from parley.testing import client
from tests.engine.fleet import Fleet, get, until_state
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


class Peer:
    """An agent that counts its messages; it asks, waits or answers, as the message says."""

    def __init__(self, name: str = "Peer", **options: Any) -> None:
        self.runs: list[str] = []
        self.callers: list[Caller] = []
        self.go = asyncio.Event()
        self.agent = Agent(name, execution=Execution(cancel_grace=0.2), **options)

        @self.agent.skill
        async def work(turn: Turn) -> str:
            """Works."""
            self.callers.append(turn.caller)
            if turn.number == 1 and turn.attempt == 1:
                self.runs.append(turn.text)
            if "ask" in turn.text:
                return f"{turn.text}: {(await turn.ask('Which day?')).text}"
            if "wait" in turn.text:
                await turn.working("at it")
                await self.go.wait()
            return f"did {turn.text}"


def front(*used: Agent, name: str = "Front", **options: Any) -> Agent:
    """Return an agent that sends its text to each agent in ``used``, one after another."""
    agent = Agent(name, uses=used, execution=Execution(cancel_grace=0.2), **options)

    @agent.skill
    async def go(turn: Turn) -> str:
        """Delegates."""
        answers = [await turn.delegate(each, turn.text, progress=True) for each in used]
        return "; ".join(answer.text for answer in answers)

    return agent


async def test_a_typed_question_of_a_part_keeps_its_schema() -> None:
    inner = Agent("Inner")

    @inner.skill
    async def work(turn: Turn) -> str:
        """Asks for a number."""
        return str(await turn.ask("How many?", answer=int) + 1)

    async with client(front(inner), extensions=[TypedQuestions()]) as remote:
        asked = await remote.send("go")
        assert TypedQuestions.uri in asked.status.message.extensions
        assert (await remote.send(data=4, task=asked)).text == "5"


def test_circles_and_keys_that_are_taken_are_refused() -> None:
    one, two = Agent("One"), Agent("Two")
    one.uses, two.uses = (two,), (one,)
    with pytest.raises(ValueError, match="'One' uses 'Two' uses 'One': agents must not use"):
        Host({"": one}, MemoryTaskStore())
    with pytest.raises(ValueError, match="have the same key 'two'"):
        Host({"": Agent("Three", uses=[Agent("Two")]), "/two": Agent("Two")}, MemoryTaskStore())
    with pytest.raises(ValueError, match="uses two agents with the key 'two'"):
        Agent("Three", uses=[Agent("Two"), Agent("Two")])
    with pytest.raises(TypeError, match="give its address to"):
        Agent("Three", uses=["http://localhost:1"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"write uses=\[two\]"):
        Agent("Three", uses=two)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["memory:", "sqlite"])
async def test_what_was_answered_before_a_crash_is_not_asked_again(
    kind: str, tmp_path: Path
) -> None:
    peer, other = Peer("Peer"), Peer("Other")
    agent = Agent("Front", uses=[peer.agent, other.agent])

    @agent.skill(replies="task")
    async def go(turn: Turn) -> str:
        """Calls two; the first answers directly."""
        first = await turn.delegate(peer.agent, "now")
        second = await turn.delegate(other.agent, "wait")
        return f"{first.text}; {second.text}"

    store = kind if kind == "memory:" else f"sqlite:///{tmp_path}/tasks.db"
    async with client(agent, store=store) as remote:
        task = await remote.send("go", return_immediately=True)
        for _ in range(3):
            await remote.settle()
            await remote.crash()
        await remote.settle()
        other.go.set()
        done = await remote.wait(task.id)
        assert done.text == "did now; did wait"
    assert (peer.runs, other.runs) == (["now"], ["wait"])


def everything() -> ListTasksRequest:

    return ListTasksRequest()


@pytest.mark.slow
async def test_a_server_that_stops_fails_nothing_and_loses_no_cancellation(fleet: Fleet) -> None:
    """A draining server starts no second call; another replica resumes the turn."""
    one, two = Peer("One"), Peer("Two")
    agent = front(one.agent, two.agent)
    first = await fleet.add(agent, drain=0.5)
    task = await first.send("wait", return_immediately=True)
    assert task.id
    await until(lambda: one.runs)
    first.host.drain()
    one.go.set()
    two.go.set()
    await fleet.stop(first)
    second = await fleet.add(agent)
    done = await until_state(second, task.id, TaskState.COMPLETED)
    assert done.text == "did wait; did wait"
    assert (one.runs, two.runs) == (["wait"], ["wait"])


async def test_a_part_is_canceled_also_while_the_server_stops(fleet: Fleet) -> None:
    slow, stuck = Peer("Slow"), Peer("Stuck")
    agent = Agent("Front", uses=[slow.agent, stuck.agent], execution=Execution(cancel_grace=0.2))

    @agent.skill(replies="task")
    async def go(turn: Turn) -> str:
        """Calls two at once, and fails when the first has answered."""
        stuck_call = asyncio.create_task(turn.delegate(stuck.agent, "wait"))
        await turn.delegate(slow.agent, "wait")
        stuck_call.cancel()
        turn.fail("enough")

    first = await fleet.add(agent, drain=2.0)
    task = await first.send("go", return_immediately=True)
    assert task.id
    await until(lambda: slow.runs and stuck.runs)
    first.host.drain()
    slow.go.set()
    await fleet.stop(first)
    second = await fleet.add(agent)
    assert (await get(second, task.id)).state is TaskState.FAILED
    listed = await second.host.parts["stuck"].list_tasks(everything(), CallContext())
    [stuck_task] = listed.tasks
    request = GetTaskRequest(id=stuck_task.id)

    async def is_canceled() -> bool:
        stuck = await second.host.parts["stuck"].get_task(request, CallContext())
        return stuck.state is TaskState.CANCELED

    await until(is_canceled, seconds=20)


async def test_the_policy_and_the_scopes_of_a_part_hold_its_schemes_are_not_asked() -> None:
    tokens = Bearer(lambda token: Caller(token, scopes=frozenset(token.split("-"))))
    inner = Agent(
        "Inner",
        security=tokens,
        rights=Rights(policy=lambda access: access.caller.id != "read-bob"),
    )

    @inner.skill(security=tokens.with_scopes("write"), default=True)
    async def write(turn: Turn) -> str:
        """Needs a scope."""
        return f"written for {turn.caller.id}"

    agent = Agent("Front", security=tokens, uses=[inner])

    @agent.skill
    async def go(turn: Turn) -> str:
        """Delegates."""
        try:
            return (await turn.delegate(inner, turn.text)).text
        except parley.A2AError as error:
            return type(error).__name__

    app = parley.asgi(agent, drain=0)
    found = {}
    for token in ("write-ann", "read-ann", "read-bob"):
        async with parley.connect(app, bearer=token) as remote:
            found[token] = (await remote.send("x")).text
    assert found["write-ann"] == "written for write-ann"
    assert found["read-ann"] == "PermissionDeniedError"
    assert found["read-bob"] == "PermissionDeniedError"


@pytest.mark.parametrize(
    "settings",
    [
        EnvelopeSettings(required_permissions=("write",)),
        EnvelopeSettings(data_classification="internal"),
    ],
)
async def test_what_a_part_requires_of_every_caller_holds_in_the_process(settings: Any) -> None:
    tokens = Bearer(lambda token: Caller(token, scopes=frozenset(token.split("-"))))
    inner = Agent("Inner", security=tokens, card=CardDetails(envelope=settings))
    front = Agent("Front", uses=[inner], security=tokens | anonymous)

    @inner.skill
    async def secret(turn: Turn) -> str:
        """Answers whom it may answer."""
        return "secret"

    @front.skill
    async def go(turn: Turn) -> str:
        """Delegates."""
        try:
            return (await turn.delegate(inner, turn.text)).text
        except parley.A2AError as error:
            return type(error).__name__

    app = parley.asgi(front, drain=0)
    async with parley.connect(app) as remote:
        assert (await remote.send("x")).text == "UnauthenticatedError"
    async with parley.connect(app, bearer="write-ann") as remote:
        assert (await remote.send("x")).text == "secret"


async def test_files_by_reference_reach_a_part_and_come_back(tmp_path: Path) -> None:
    inner = Agent("Inner")
    whole = b"0123456789" * 300_000

    @inner.skill
    async def double(turn: Turn) -> None:
        """Gives back a file."""
        data = await turn.files[0].read()
        await turn.artifact(data + data, filename="twice.bin")

    agent = Agent("Front", uses=[inner])

    @agent.skill
    async def go(turn: Turn) -> Part:
        """Passes the caller's file on, and one of its own, and reads what comes back."""
        passed = await turn.delegate(inner, turn.message)
        own = await turn.delegate(inner, files=[whole], key="own")
        async with turn.connect(inner) as local:
            back = await local.read(own.artifacts[0].parts[0])
        assert back == whole * 2
        return passed.artifacts[0].parts[0]

    app = parley.asgi(agent, url="https://agent.test", files=tmp_path, drain=0)
    async with parley.connect(app) as remote:
        done = await remote.send(files=[whole])
        [part] = done.artifacts[0].parts
        assert part.url
        assert await remote.read(part) == whole * 2


async def test_callbacks_and_credentials_of_a_part_arrive_at_the_address_of_the_whole() -> None:
    inner = Agent("Inner")

    @inner.skill
    async def wait(turn: Turn) -> str:
        """Waits for a callback, then for a credential."""
        await turn.working(await turn.callback(f"paid:{turn.task_id}"))
        paid = await turn.wait_event(f"paid:{turn.task_id}")
        credential = await turn.require_auth("May I?", scopes="mail.read")
        return f"{paid} {credential.token}"

    async with client(front(inner), extensions=["urn:parley:in-task-authorization:v1"]) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.settle()
        address = (await remote.get(task.id)).text
        async with remote.http.open("POST", address, {}, b'"yes"') as answer:
            assert answer.status == 204
        await remote.settle()
        await remote.settle()
        asked = await remote.get(task.id)
        assert asked.state is TaskState.AUTH_REQUIRED
        await remote.authorize(asked, "s3cret")
        await remote.advance(5)
        assert (await remote.wait(task.id)).text == "yes s3cret"


async def test_a_plain_function_calls_a_local_agent_too() -> None:
    peer = Peer()
    agent = Agent("Front", uses=[peer.agent])

    @agent.skill
    def go(turn: BlockingTurn) -> str:
        """Blocks."""
        with turn.connect(peer.agent) as local:
            return local.send("one").text + turn.delegate(peer.agent, "two").text

    async with client(agent) as remote:
        assert (await remote.send("x")).text == "did onedid two"


async def test_a_group_shares_a_task_with_the_part_of_whoever_began_it() -> None:
    """The part has separate tasks for each caller; Bob's answer goes to the task of Ann."""
    peer = Peer()
    agent = front(peer.agent, rights=Rights(owner="tenant"))
    async with client(agent, caller=Caller("ann", authenticated=True)) as remote:
        asked = await remote.send("ask")
        other = remote.as_caller(Caller("bob", authenticated=True))
        done = await other.send("Monday", task_id=asked.id)
        assert done.text == "ask: Monday"
    assert {each.id for each in peer.callers} == {"ann"}


async def test_a_part_has_its_lifespan_and_its_limits_and_can_be_streamed() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(agent: Agent) -> AsyncIterator[str]:
        events.append("opened")
        yield "state"
        events.append("closed")

    inner = Agent("Inner", lifespan=lifespan, limits=["2 messages/day per caller"])

    @inner.skill
    async def work(turn: Turn) -> AsyncIterator[str]:
        """Streams."""
        yield turn.state
        yield turn.text

    agent = Agent("Front", uses=[inner])

    @agent.skill(replies="task")
    async def go(turn: Turn) -> str:
        """Streams it."""
        async with turn.connect(inner) as local:
            said = [type(event).__name__ async for event in local.stream(turn.text)]
        assert said.count("TaskArtifactUpdateEvent") >= 2
        return (await turn.delegate(inner, turn.text)).text

    async with client(agent) as remote:
        assert (await remote.send("x")).text == "statex"
        task = await remote.send("x", return_immediately=True)
        await remote.advance(600)  # the call waits for its limit, but not for a day
        assert (await remote.get(task.id)).state is TaskState.FAILED
    assert events == ["opened", "closed"]


async def test_a_text_of_a_caller_is_no_agent_of_the_process() -> None:
    peer = Peer()
    agent = Agent("Front", uses=[peer.agent])

    @agent.skill
    async def go(turn: Turn) -> str:
        """Calls whom the caller names."""
        with pytest.raises(parley.ClientError):
            await turn.delegate(turn.text, "x")
        return "refused"

    async with client(agent) as remote:
        assert (await remote.send("agent:peer")).text == "refused"
    assert peer.runs == []


@pytest.mark.slow
async def test_a_part_reads_no_file_that_the_caller_does_not_own(tmp_path: Path) -> None:
    """This holds even if the message gives the address of another caller's file."""
    inner = Agent("Inner")

    @inner.skill
    async def read(turn: Turn) -> str:
        """Reads the file."""
        try:
            return (await turn.files[0].read()).decode()
        except parley.ClientError as error:
            return type(error).__name__

    def who(scope: Any) -> Caller:
        return Caller(dict(scope["headers"])[b"x-user"].decode(), authenticated=True)

    app = parley.asgi(
        front_of_message(inner), caller=who, url="https://agent.test", files=tmp_path, drain=0
    )
    async with (
        parley.connect(app, headers={"x-user": "ann"}) as ann,
        parley.connect(app, headers={"x-user": "bob"}) as bob,
    ):
        part = await ann.upload(b"secret")
        bare = Part(url=(part.url or "").partition("?")[0])
        assert (await ann.send([bare])).text == "secret"
        assert (await bob.send([bare])).text != "secret"


def front_of_message(used: Agent) -> Agent:
    """Return an agent that passes on the whole message."""
    agent = Agent("Front", uses=[used])

    @agent.skill
    async def go(turn: Turn) -> str:
        """Delegates."""
        return (await turn.delegate(used, turn.message)).text

    return agent
