"""The forms of skill functions and their results, and the replies that callers get."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, Artifact, Execution, Message, Part, Role, Task, TaskState, Turn
from parley.model.errors import (
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    UnsupportedOperationError,
)
from tests.kit.waiting import block_thread

pytestmark = pytest.mark.anyio


async def test_a_path_becomes_a_file_with_name_and_type(talk: Any, tmp_path: Path) -> None:
    (tmp_path / "boat.png").write_bytes(b"png")
    agent = Agent("Files")

    @agent.skill
    def draw(turn: Turn) -> Path:
        return tmp_path / "boat.png"

    async with talk(agent) as caller:
        (part,) = (await caller.send("draw")).parts
        assert (part.raw, part.filename, part.media_type) == (b"png", "boat.png", "image/png")


@pytest.mark.E5
async def test_a_function_that_returns_nothing_completes_a_task(talk: Any) -> None:
    agent = Agent("Quiet")

    @agent.skill
    async def quiet(turn: Turn) -> None:
        return None

    async with talk(agent) as caller:
        task = await caller.task("hush")
        assert (task.state, task.artifacts) == (TaskState.COMPLETED, ())


async def test_a_function_that_takes_longer_than_the_moment_answers_with_a_task(talk: Any) -> None:
    agent = Agent("Slow", execution=Execution(direct_reply_timeout=0.05))
    go_on = asyncio.Event()

    @agent.skill
    async def slow(turn: Turn) -> str:
        await go_on.wait()
        return "done"

    async with talk(agent) as caller:
        events = caller.stream("go")
        first = await anext(events)
        assert isinstance(first.event, Task)
        assert first.event.state is TaskState.SUBMITTED
        assert first.event.history[0].text == "go"
        go_on.set()
        rest = [item.event async for item in events]
        assert [type(e).__name__ for e in rest] == [
            "TaskStatusUpdateEvent",
            "TaskArtifactUpdateEvent",
            "TaskStatusUpdateEvent",
        ]
        assert rest[-1].status.state is TaskState.COMPLETED


async def test_a_message_skill_never_makes_a_task(talk: Any) -> None:
    agent = Agent("Oracle", execution=Execution(direct_reply_timeout=0.01))

    @agent.skill(replies="message")
    async def slow(turn: Turn) -> str:
        await asyncio.sleep(0.05)
        return "42"

    @agent.skill(replies="message")
    async def touching(turn: Turn) -> str:
        await turn.working("hm")
        return "never"

    @agent.skill(replies="message")
    async def refusing(turn: Turn) -> str:
        turn.reject("not today")

    async with talk(agent) as caller:
        assert isinstance(await caller.send("go"), Message)
        assert isinstance(await caller.send("go", return_immediately=True), Message)
        with pytest.raises(InternalError):
            await caller.send("go", metadata={"skill": "touching"})
        with pytest.raises(UnsupportedOperationError, match="not today"):
            await caller.send("go", metadata={"skill": "refusing"})
        page = await caller.service.list_tasks(list_request(), caller.context)
        assert page.total_size == 0


def list_request(**options: Any) -> Any:
    from parley.model.operations import ListTasksRequest

    return ListTasksRequest(**options)


@pytest.mark.E6
async def test_plain_functions_run_side_by_side(talk: Any) -> None:
    agent = Agent("Threads")
    together = threading.Barrier(4, timeout=5)

    @agent.skill
    def meet(turn: Any) -> str:
        together.wait()  # passes only when four functions run at once
        return "met"

    async with talk(agent) as caller:
        replies = await asyncio.gather(*(caller.send("go") for _ in range(4)))
        assert [reply.text for reply in replies] == ["met"] * 4


@pytest.mark.E5
async def test_a_function_that_raises_fails_its_task_with_a_safe_message(
    talk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Broken")

    @agent.skill
    async def broken(turn: Turn) -> str:
        raise RuntimeError("password is hunter2")

    @agent.skill(replies="message")
    async def broken_message(turn: Turn) -> str:
        raise RuntimeError("password is hunter2")

    async with talk(agent) as caller:
        task = await caller.task("go")
        assert task.state is TaskState.FAILED
        assert task.status.message is not None
        said = task.status.message.text
        assert "hunter2" not in said
        assert "Reference" in said
        assert "hunter2" in caplog.text
        assert said.rpartition(" ")[2] in caplog.text
        with pytest.raises(InternalError) as refused:
            await caller.send("go", metadata={"skill": "broken_message"})
        assert "hunter2" not in str(refused.value)


WRONG_PART = Part(text="x", filename=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        float("nan"),
        {"x": float("inf")},
        print,
        Part(data=[float("nan")]),
        WRONG_PART,
        [WRONG_PART],
        Artifact(artifact_id="a", name=7, parts=(Part(text="x"),)),  # type: ignore[arg-type]
        Message(message_id="m", role=Role.AGENT, parts=(WRONG_PART,)),
    ],
)
@pytest.mark.E5
async def test_what_cannot_be_sent_fails_the_task(
    talk: Any, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Garbage")

    @agent.skill
    async def garbage(turn: Turn) -> object:
        return value

    @agent.skill
    async def garbage_chunks(turn: Turn) -> Any:
        yield "fine"
        yield value

    async with talk(agent) as caller:
        assert (await caller.task("go")).state is TaskState.FAILED
        streamed = await caller.task("go", metadata={"skill": "garbage_chunks"})
        assert streamed.state is TaskState.FAILED
        assert streamed.artifacts[0].text == "fine"


async def test_a_router_chooses_and_an_explicit_skill_wins(talk: Any) -> None:
    agent = Agent("Two")

    @agent.skill
    async def one(turn: Turn) -> str:
        return "one"

    @agent.skill
    async def two(turn: Turn) -> str:
        return "two"

    @agent.router
    async def choose(message: Any) -> str | None:
        return "two" if "2" in message.text else None

    async with talk(agent) as caller:
        assert (await caller.send("2")).text == "two"
        assert (await caller.send("1")).text == "one"
        assert (await caller.send("2", metadata={"skill": "one"})).text == "one"
        with pytest.raises(InvalidParamsError, match="no skill 'three'; it has one, two"):
            await caller.send("2", metadata={"skill": "three"})


async def test_declared_input_modes_are_kept(talk: Any) -> None:
    agent = Agent("Text only", input_modes=["text/*"])

    @agent.skill
    async def read(turn: Turn) -> str:
        return turn.text

    async with talk(agent) as caller:
        message = Message(
            message_id="m", role=Role.USER, parts=(Part(raw=b"x", media_type="image/png"),)
        )
        with pytest.raises(ContentTypeNotSupportedError, match=r"accepts text/\*"):
            await caller.send(message)
        assert (await caller.send("fine")).text == "fine"


@pytest.mark.slow
@pytest.mark.E6
async def test_the_loop_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    from parley.engine.maintenance import LoopWatchdog

    dog = LoopWatchdog(threshold=0.3)
    dog.start()
    block_thread(1.2)  # this blocks the loop on purpose; the watchdog must report it
    await asyncio.sleep(0)
    dog.stop()
    assert "has been blocked" in caplog.text
    assert "test_the_loop_is_watched" in caplog.text
