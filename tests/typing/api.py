"""What type checkers make of Parley's API. mypy reads this file; nothing runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_type

import parley
from parley import (
    Agent,
    Answer,
    Artifact,
    BlockingFile,
    BlockingTurn,
    Caller,
    Message,
    Part,
    RoutedMessage,
    Task,
    TraceContext,
    Turn,
    TurnFile,
    UserAnswer,
)
from parley.client import SyncRemoteAgent
from parley.compose import Budget, Composition, sequence
from parley.model.tasks import Event
from parley.server.app import App
from parley.testing import ScriptedAgent, TestedAgent, assert_events, client, completed, submitted


@dataclass
class Dates:
    start: str
    nights: int


agent = Agent("Typed agent", description="Checked, never run", version="1.0.0")


def one_more(n: int) -> int:
    return n + 1


@agent.skill
async def bare(turn: Turn) -> str:
    assert_type(turn.text, str)
    assert_type(turn.parts, tuple[Part, ...])
    assert_type(turn.task, Task | None)
    assert_type(turn.caller, Caller)
    assert_type(turn.trace, TraceContext)
    assert_type(await turn.ask("Which?"), UserAnswer)
    assert_type(turn.base_url, str)
    assert_type(await turn.callback("paid"), str)
    assert_type(await parley.complete("paid", {"amount": 1}, agent=agent, store="x"), bool)
    assert_type(parley.complete_sync("paid", agent="typed-agent", store="x"), bool)
    assert_type((await turn.ask("Which?")).replayed, bool)
    assert_type(await turn.ask("When?", answer=Dates), Dates)
    assert_type(await turn.ask("Which?", answer=list[str], key="which"), list[str])
    assert_type(await turn.ask("Which?", answer=Literal["a", "b"]), Any)
    assert_type(await turn.update("n", one_more, 0), int)
    assert_type(await turn.step("double", double, 2), int)
    assert_type(await turn.step("slowly", slowly, 2), int)
    assert_type(await turn.references(), tuple[Task, ...])
    assert_type(await turn.artifact("text", name="a"), str)
    assert_type(await turn.delegate("http://localhost:9999", "Hi", key="k"), Answer[Any])
    assert_type(await turn.delegate(Agent("Beside"), "Hi"), Answer[Any])
    assert_type(sequence(Agent("First"), str.upper, "http://localhost:9999"), Composition)
    assert_type(turn.budget, Budget | None)
    async with turn.connect("http://localhost:9999", bearer="token") as other:
        remote: parley.RemoteAgent = other
        assert_type(await other.send("Hi", key="other", progress=True), Answer[Any])
        assert_type(await turn.delegate(other, data={"a": 1}, timeout=3), Answer[Any])
        assert_type(await turn.delegate(other, "Hi", returns=Dates, skill="typed"), Answer[Dates])
        assert_type((await other.send("Hi", returns=Dates, key="typed")).data, Dates)
        assert_type(await remote.get("id"), Task)
    async with turn.stream(name="b") as out:
        await out.write("chunk")
    async for message in turn.messages():
        assert_type(message, Message)
        break
    assert_type(turn.files, tuple[TurnFile, ...])
    assert_type(await turn.files[0].read(), bytes)
    assert_type(await turn.file(turn.parts[0]).save("a"), Path)
    async with turn.files[0].open(limit=10) as stream:
        assert_type(stream, parley.FileStream)
        assert_type(stream.size, int | None)
        async for chunk in stream:
            assert_type(chunk, bytes)
    if turn.text:
        turn.reject("No.")
    return turn.text


assert_type(bare.__name__, str)


@agent.skill(invalid_input="ask")
async def typed(turn: Turn, amount: float, currency: Literal["EUR", "USD"] = "EUR") -> Dates:
    assert_type(amount, float)
    return Dates(currency, 1)


@agent.skill
def typed_whole(dates: Dates) -> float | None:
    return float(dates.nights)


assert_type(typed_whole(Dates("today", 1)), float | None)


@agent.skill(tags=["x"], examples=("y",), replies="task", default=True)
def blocking(turn: BlockingTurn) -> dict[str, int]:
    assert_type(turn.ask("Which?"), UserAnswer)
    assert_type(turn.ask("When?", answer=Dates), Dates)
    assert_type(turn.ask("Sure?", answer=bool, key="sure"), bool)
    assert_type(turn.update("n", one_more, default=0), int)
    with turn.connect("http://localhost:9999") as other:
        assert_type(other.send("Hi", pass_questions=True), Answer[Any])
        assert_type(turn.delegate(other, "Hi", artifacts=True), Answer[Any])
        assert_type(turn.delegate(other, "Hi", returns=Dates), Answer[Dates])
        assert_type(next(other.stream("Hi", key="again")), Event)
    with turn.stream("report", media_type="text/plain") as report:
        assert_type(report.write("Done"), None)
    for message in turn.messages():
        assert_type(message, Message)
    assert_type(turn.artifact("Done", name="report"), str)
    assert_type(turn.step("double", double, 2), int)
    assert_type(turn.step("slowly", slowly, 2), int)
    assert_type(turn.files, tuple[BlockingFile, ...])
    assert_type(turn.files[0].read(), bytes)
    assert_type(turn.file(turn.parts[0]).save("a"), Path)
    with turn.files[0].open() as stream:
        for chunk in stream:
            assert_type(chunk, bytes)
    return {"a": 1}


@agent.skill
async def streaming(turn: Turn) -> AsyncIterator[str]:
    yield turn.text


@agent.skill
def streaming_in_a_thread(text: str) -> Iterator[bytes]:
    yield text.encode()


@agent.skill
async def whole() -> Artifact:
    return Artifact(artifact_id="a", parts=(Part(data={"any": ["json", None]}),))


@agent.router
def route(asked: RoutedMessage) -> str:
    return asked.text


def double(number: int) -> int:
    return 2 * number


async def slowly(number: int) -> int:
    return number


def identify(scope: Any) -> Caller:
    return Caller(id="ada", authenticated=True)


app = parley.asgi(agent, store="memory:", caller=identify, settings=parley.Settings(max_parts=10))
both = parley.asgi({"/a": agent, "/b": agent}, url="https://example.com")


async def call() -> None:
    async with parley.connect("http://localhost:9999", timeout=10) as remote:
        assert_type(remote, parley.RemoteAgent)
        answer = await remote.send("Hello", files=["a.txt"], data={"b": 1})
        assert_type(answer, Answer[Any])
        assert_type(answer.text, str)
        assert_type(answer.files, tuple[Part, ...])
        assert_type(answer.task, Task | None)
        assert_type((await remote.send("Hello", returns=Dates, task=answer)).data, Dates)
        assert_type((await remote.wait(answer, returns=list[Dates])).data, list[Dates])
        assert_type(await remote.skill("typed", returns=Dates)(amount=1.5), Dates)
        assert_type(await remote.authorize(answer, "token"), Answer[Any])
        async for event in remote.stream("Hello"):
            if isinstance(event, Task):
                assert_type(event.state, parley.TaskState)
        async for task in remote.tasks():
            assert_type(task, Task)
        assert_type(await remote.get("id"), Task)
        assert_type(remote.interface, parley.AgentInterface)
        assert_type(remote.version, str)
        assert_type(await remote.extended_card(), parley.AgentCard)
        await remote.send("Hi", push="https://hooks.example/1", metadata={}, message_metadata={})
        hook = parley.TaskPushNotificationConfig(url="https://hooks.example/1")
        assert_type(await remote.push.create("id", hook), parley.TaskPushNotificationConfig)
        async for config in remote.push.list("id"):
            assert_type(config, parley.TaskPushNotificationConfig)
        await remote.push.delete("id", hook.id)
        part = await remote.upload(Path("a"), progress=lambda sent, whole: None)
        assert_type(part, Part)
        assert_type(await remote.upload(iter([b"a"]), filename="a", media_type="x/y"), Part)
        assert_type(await remote.read(part), bytes)
        assert_type(await remote.download(part), Path)
        assert_type(await remote.download(Artifact(artifact_id="a", parts=())), list[Path])
        async with remote.open(part) as stream:
            async for chunk in stream:
                assert_type(chunk, bytes)


def call_without_await() -> None:
    with parley.connect_sync("http://localhost:9999", binding="GRPC", version="0.3") as remote:
        assert_type(remote.send("Hello"), Answer[Any])
        assert_type(remote.send("Hello", returns=Dates).data, Dates)
        assert_type(remote.skill("typed", returns=Dates)(amount=1.5), Dates)
        assert_type(remote.version, str)
        for config in remote.push.list("id"):
            assert_type(config, parley.TaskPushNotificationConfig)
        part = remote.upload(b"a")
        assert_type(part, Part)
        assert_type(remote.read(part), bytes)
        assert_type(remote.download(part, "a"), Path)
        assert_type(remote.download(Artifact(artifact_id="a", parts=())), list[Path])
        with remote.open(part) as stream:
            for chunk in stream:
                assert_type(chunk, bytes)
        for event in remote.stream("Hello"):
            print(event)


async def testing_an_agent(app: App) -> None:
    async with parley.connect(agent) as local:
        assert_type(local, parley.RemoteAgent)
    async with parley.connect(app, path="/typed", bearer="token") as mounted:
        assert_type(mounted, parley.RemoteAgent)
    async with parley.connect("https://example.com", binding="HTTP+JSON") as remote:
        assert_type(remote, parley.RemoteAgent)
    parley.connect(3)  # type: ignore[arg-type]
    parley.connect(agent, colour="red")  # type: ignore[call-arg]
    with parley.connect_sync(agent) as blocking:
        assert_type(blocking, SyncRemoteAgent)
    rates = ScriptedAgent("Rates").on("convert", reply="97.20").on("fail").fails("No.")
    assert_type(rates, ScriptedAgent)
    async with client(agent, remotes={"https://rates.example": rates}) as tested:
        assert_type(tested, TestedAgent)
        assert_type(tested.as_caller("bob"), TestedAgent)
        assert_events(tested.webhooks, [submitted(), ..., completed("97.20")])
