"""Output that cannot be written: its text is repaired, or its task fails after one attempt."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley import Agent, Artifact, Message, Part, Retention, Rights, Role, TaskState, Turn
from parley.engine.turn.outcome import TaskOutcome
from parley.host.host import Host, placed
from parley.llm.model import ModelRequest
from parley.llm.model_loop import llm_agent
from parley.model.errors import A2AError
from parley.model.struct import encode
from parley.model.tasks import Task
from parley.store.memory import MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.engine.talk import Talk

DONE = TaskState.COMPLETED


HALF = "x\ud800y"

Say = Callable[[Turn, Any], Awaitable[object]]


def _message(**given: Any) -> Message:
    return Message(message_id="m", role=Role.AGENT, **given)


async def _stream(turn: Turn, value: Any) -> None:
    async with turn.stream("said", metadata={"of": "stream"}) as out:
        await out.write(value)
        await out.write("more")
        await out.close(metadata={"value": value})


async def _stream_named(turn: Turn, value: Any) -> None:
    async with turn.stream(value, description=value, media_type=value) as out:
        await out.write("text")


async def _ended_by(end: Callable[[Any], Any], value: Any) -> None:
    end(value)


async def _raised(turn: Turn, value: Any) -> None:
    raise ValueError(value)


async def _path(turn: Turn, value: Any) -> None:
    name = os.fsencode(str(value).replace("/", "_").replace("\0", "_")[:40] or "x")
    path = Path(os.fsdecode(name))  # as a directory listing returns it
    await turn.artifact(path, name=path.name)


async def _in_a_group(turn: Turn, value: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(turn.artifact(value))
        group.create_task(turn.working(value))


WAYS: dict[str, Say] = {
    "return": lambda turn, value: _returned(value),
    "working": lambda turn, value: turn.working(value),
    "working metadata": lambda turn, value: turn.working("at", metadata={"value": value}),
    "working substate": lambda turn, value: turn.working("at", substate={"urn:x": value}),
    "artifact": lambda turn, value: turn.artifact(value),
    "artifact of a part": lambda turn, value: turn.artifact(Part(data=value)),
    "artifact of parts": lambda turn, value: turn.artifact([Part(text=value), Part(text="y")]),
    "artifact of metadata": lambda turn, value: turn.artifact("a", metadata={"value": value}),
    "artifact of part's metadata": lambda turn, value: turn.artifact(
        Part(text="a", metadata={"value": value})
    ),
    "artifact as a value": lambda turn, value: turn.artifact(
        Artifact(artifact_id=value, name=value, parts=(Part(text="a"),))
    ),
    "artifact's names": lambda turn, value: turn.artifact(
        b"a", name=value, description=value, filename=value, media_type=value, artifact_id=value
    ),
    "file name": _path,
    "stream": _stream,
    "stream's names": _stream_named,
    "ask": lambda turn, value: turn.ask(value),
    "ask for a key": lambda turn, value: turn.ask("?", key=value),
    "require_auth": lambda turn, value: turn.require_auth(value),
    "fail": lambda turn, value: _ended_by(turn.fail, value),
    "reject": lambda turn, value: _ended_by(turn.reject, value),
    "raise": _raised,
    "step": lambda turn, value: turn.step("key", lambda: value),
    "step's key": lambda turn, value: turn.step(value, lambda: 1),
    "wait_event": lambda turn, value: turn.wait_event("e", timeout=0.001, message=value),
    "wait_event's key": lambda turn, value: turn.wait_event(value, timeout=0.001),
    "remember": lambda turn, value: turn.remember("key", value),
    "remember's key": lambda turn, value: turn.remember(value, 1),
    "recall's key": lambda turn, value: turn.recall(value),
    "update": lambda turn, value: turn.update("key", lambda _: value),
    "authorize": lambda turn, value: turn.authorize("read", value),
    "log": lambda turn, value: _returned(turn.log.warning("%s", value)),
    "callback": lambda turn, value: turn.callback(value, expires=timedelta(days=1)),
    "group": _in_a_group,
    "message": lambda turn, value: _returned(_message(parts=(Part(text=value),))),
    "message's metadata": lambda turn, value: _returned(
        _message(parts=(Part(text="a"),), metadata={"value": value})
    ),
    "outcome": lambda turn, value: _returned(
        TaskOutcome(
            TaskState.COMPLETED,
            message=_message(parts=(Part(data=value),)),
            artifact=Artifact(artifact_id="a", parts=(Part(data=value),)),
            metadata={"value": value},
        )
    ),
}


OTHER_WAYS = ["yield", "delegate", "listen", "sleep", "sleep's key"]


async def _returned(value: Any) -> Any:
    return value


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return value


def _endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


TEXTS = st.text(st.characters(categories=["Cs", "Ll", "Cc", "So"]), max_size=6) | st.sampled_from(
    [HALF, "\udcff.txt", "\ud83d", "\ude00", "a\x00b", "\ud83d\ude00"]
)
ODD = st.sampled_from(
    [
        *(float("nan"), float("-inf"), 2**64, -(2**70), 10**5000, 1j, object(), object, print),
        *({1, 2}, {(1, 2): 3}, {HALF: HALF}, [HALF, {"a": HALF}], {None: 1}, b"\xff", range(3)),
        *(
            msgspec.Raw(b'{"a'),
            {"raw": msgspec.Raw(b"\xff")},
            _deep(),
            _endless(),
            Path("/nowhere"),
        ),
        *(_message(parts=(Part(text=HALF),)), Part(text=HALF, filename=HALF, media_type=HALF)),
        *(Part(data=_endless()), Part(data=_deep()), Part(data={1j})),
        *(Part(url=HALF), Part(data=float("nan")), [Part(text=HALF)], Part(raw=b"\xff"), Exception),
        *(os.fsdecode(b"caf\xe9"), "x" * 600, "", 0, None, [], {}),
    ]
)
VALUES = TEXTS | ODD | st.lists(TEXTS, max_size=2) | st.dictionaries(TEXTS, TEXTS, max_size=2)


def _agent(way: str, value: Any, runs: list[int], *, replies: Any) -> Agent:
    listener = Agent("Listener")
    agent = Agent(
        "Speaker",
        retention=Retention(history=True),
        rights=Rights(policy=lambda access: True),
        uses=[listener],
    )

    @listener.skill(replies=replies)
    async def listen(turn: Turn) -> Any:
        return value

    @agent.skill(replies=replies)
    async def say(turn: Turn) -> Any:
        runs.append(turn.attempt)
        if way == "sleep":
            return await turn.sleep(0.001, message=value)
        if way == "sleep's key":
            return await turn.sleep(0.001, key=value)
        if way == "delegate":
            return await turn.delegate(listener, value, artifacts=True)
        if way == "listen":
            return await turn.delegate(listener, "go", artifacts=True)
        return await WAYS[way](turn, value)

    @agent.skill(id="each", replies=None)
    async def each(turn: Turn) -> AsyncIterator[Any]:
        runs.append(turn.attempt)
        yield "before"
        yield value
        yield "after"

    return agent


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
def stores(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], TaskStore]:
    """A maker of new stores; the PostgreSQL stores share one database."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").new_url()
        return lambda: PostgresTaskStore(url)
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("stores") / "tasks.db"
        return lambda: SqliteTaskStore(path, synchronous="OFF")
    return MemoryTaskStore


async def _spoken(
    store: TaskStore, way: str, value: Any, replies: Any
) -> tuple[Task | Message | A2AError, list[int]]:
    """Run an agent that emits a value, and return the reply and its attempts."""
    runs: list[int] = []
    agent = _agent(way, value, runs, replies=replies)
    host = Host(placed(agent), store)
    await host.start()
    try:
        caller = Talk(host.services[""], host)
        reply: Task | Message | A2AError
        try:
            options = {"metadata": {"skill": "each"}} if way == "yield" else {}
            async with asyncio.timeout(20):
                reply = await caller.send("go", **options)
        except A2AError as error:
            reply = error
        assert not caller.executor.may_have_orphans
        assert not await store.held_tasks()
        if isinstance(reply, Task):
            record = await store.load(reply.id)
            assert record is not None
            assert record.task == reply
            json.loads(record.stored.json())
            assert [event.seq for event in await store.events(reply.id, 0, 100)]
        return reply, runs
    finally:
        await host.stop()


@pytest.mark.slow
@given(
    way=st.sampled_from([*WAYS, *OTHER_WAYS]),
    value=VALUES,
    replies=st.sampled_from([None, "task", "message"]),
)
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_whatever_an_agent_says_ends_its_turn_in_one_run(
    stores: Callable[[], TaskStore], way: str, value: Any, replies: Any
) -> None:
    if way == "outcome":  # only adapters return an outcome, and only for tasks
        replies = "task"
    logging.disable()  # pytest's workers cannot transmit invalid text
    try:
        reply, runs = asyncio.run(_spoken(stores(), way, value, replies))
    finally:
        logging.disable(logging.NOTSET)
    assert runs in ([1], [1, 1])  # a turn that slept resumes in the same attempt
    if isinstance(reply, Task):
        assert reply.state.is_terminal or reply.state.is_interrupted
    if not isinstance(reply, A2AError):
        assert encode(reply)


@pytest.mark.parametrize("way", ["ask for a key", "step's key", "sleep's key"])
@pytest.mark.anyio
async def test_a_key_is_not_repaired_because_its_result_is_found_again_by_it(way: str) -> None:
    reply, runs = await _spoken(MemoryTaskStore(), way, HALF, "task")
    assert reply.id
    assert (reply.state, runs) == (TaskState.FAILED, [1])


@pytest.mark.anyio
async def test_an_emoji_that_a_model_cuts_costs_its_answer_nothing_else() -> None:
    asked: list[ModelRequest] = []

    def script(request: ModelRequest) -> str:
        asked.append(request)
        return "cut \ud83d here"

    host = Host(placed(llm_agent("Model", script=script)), MemoryTaskStore())
    await host.start()
    try:
        caller = Talk(host.services[""], host)
        first = await caller.task("go")
        second = await caller.task("again", context_id=first.context_id)
        assert [each.state for each in (first, second)] == [DONE, DONE]
        assert first.text == second.text == "cut \ufffd here"
        assert "cut \ufffd here" in str(asked[1].messages)
        assert len(asked) == 2
    finally:
        await host.stop()
