"""What functions may be and return, and what callers get for it."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from parley import Agent, Artifact, Execution, Message, Part, Role, Task, TaskState, Turn
from parley.model.errors import (
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    UnsupportedOperationError,
)
from parley.model.tasks import TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tests.kit.waiting import block_thread

pytestmark = pytest.mark.anyio


@dataclasses.dataclass
class Weather:
    city: str
    degrees: int


class Forecast(msgspec.Struct):
    city: str
    degrees: int


class Outlook(BaseModel):
    city: str
    degrees: int


WARM = {"city": "Rome", "degrees": 30}


async def test_a_quick_function_answers_with_a_direct_message(talk: Any) -> None:
    agent = Agent("Hello")

    @agent.skill
    async def hello(turn: Turn) -> str:
        "Greets."
        return f"Hello, {turn.text}!"

    async with talk(agent) as caller:
        reply = await caller.send("Ada", context_id="c1")
        assert isinstance(reply, Message)
        assert (reply.text, reply.role, reply.context_id) == ("Hello, Ada!", Role.AGENT, "c1")
        assert reply.message_id
        again = await caller.send("Bob")
        assert again.context_id not in ("", "c1")


async def test_a_function_may_take_the_text_or_nothing(talk: Any) -> None:
    agent = Agent("Shouter")

    @agent.skill
    def shout(text: str) -> str:
        return text.upper()

    @agent.skill
    async def ping() -> str:
        return "pong"

    async with talk(agent) as caller:
        assert (await caller.send("hey")).text == "HEY"
        assert (await caller.send("hey", metadata={"skill": "ping"})).text == "pong"
        assert (await caller.send("hey", request_metadata={"skill": "ping"})).text == "pong"


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("text", Part(text="text")),
        (WARM, Part(data=WARM)),
        ([1, 2.5, None], Part(data=[1, 2.5, None])),
        (Weather("Rome", 30), Part(data=WARM)),
        (Forecast("Rome", 30), Part(data=WARM)),
        (Outlook(city="Rome", degrees=30), Part(data=WARM)),
        (7, Part(data=7)),
        (b"\x00\xff", Part(raw=b"\x00\xff", media_type="application/octet-stream")),
        (Part(url="https://example.com/a.png"), Part(url="https://example.com/a.png")),
    ],
)
async def test_values_become_parts(talk: Any, value: object, part: Part) -> None:
    agent = Agent("Values")

    @agent.skill
    async def give(turn: Turn) -> object:
        return value

    @agent.skill(replies="task")
    async def give_task(turn: Turn) -> object:
        return value

    async with talk(agent) as caller:
        reply = await caller.send("give")
        assert isinstance(reply, Message)
        assert reply.parts == (part,)
        task = await caller.task("give", metadata={"skill": "give_task"})
        assert task.state is TaskState.COMPLETED
        assert [a.parts for a in task.artifacts] == [(part,)]
        assert task.artifacts[0].name == "Give task"


async def test_a_path_becomes_a_file_with_name_and_type(talk: Any, tmp_path: Path) -> None:
    (tmp_path / "boat.png").write_bytes(b"png")
    agent = Agent("Files")

    @agent.skill
    def draw(turn: Turn) -> Path:
        return tmp_path / "boat.png"

    async with talk(agent) as caller:
        (part,) = (await caller.send("draw")).parts
        assert (part.raw, part.filename, part.media_type) == (b"png", "boat.png", "image/png")


async def test_a_returned_message_or_artifact_is_sent_as_it_is(talk: Any) -> None:
    agent = Agent("Own")

    @agent.skill
    async def say(turn: Turn) -> Message:
        return Message(
            message_id="mine", role=Role.AGENT, parts=(Part(text="said"),), metadata={"k": 1}
        )

    @agent.skill
    async def make(turn: Turn) -> Artifact:
        return Artifact(artifact_id="a1", name="Made", parts=(Part(text="made"),))

    async with talk(agent) as caller:
        reply = await caller.send("say")
        assert (reply.message_id, reply.text, reply.metadata) == ("mine", "said", {"k": 1})
        task = await caller.task("make", metadata={"skill": "make"})
        assert [(a.artifact_id, a.name, a.text) for a in task.artifacts] == [("a1", "Made", "made")]


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


async def test_each_yield_is_a_chunk_and_the_last_says_so(talk: Any) -> None:
    agent = Agent("Teller")

    @agent.skill
    async def tell(turn: Turn) -> Any:
        for word in ("once ", "upon ", "a time"):
            yield word

    @agent.skill
    def tell_from_thread(turn: Any) -> Any:
        yield from ("once ", "upon ", "a time")

    async with talk(agent) as caller:
        for skill in ("tell", "tell_from_thread"):
            items = [item async for item in caller.stream("go", metadata={"skill": skill})]
            assert [item.seq for item in items] == list(range(1, len(items) + 1))
            chunks = [i.event for i in items if isinstance(i.event, TaskArtifactUpdateEvent)]
            text = "".join(p.text or "" for c in chunks for p in c.artifact.parts)
            assert text == "once upon a time"
            assert [c.append for c in chunks] == [False] + [True] * (len(chunks) - 1)
            assert [c.last_chunk for c in chunks] == [False] * (len(chunks) - 1) + [True]
            assert len({c.artifact.artifact_id for c in chunks}) == 1
            task = items[0].event
            assert isinstance(task, Task)
            got = await caller.service.get_task(get_request(task.id), caller.context)
            assert got.artifacts[0].text == "once upon a time"


def get_request(task_id: str, **options: Any) -> Any:
    from parley.model.operations import GetTaskRequest

    return GetTaskRequest(id=task_id, **options)


@pytest.mark.E6
async def test_plain_functions_run_side_by_side(talk: Any) -> None:
    agent = Agent("Threads")
    together = threading.Barrier(4, timeout=5)

    @agent.skill
    def meet(turn: Any) -> str:
        together.wait()  # passes only when four run at once
        return "met"

    async with talk(agent) as caller:
        replies = await asyncio.gather(*(caller.send("go") for _ in range(4)))
        assert [reply.text for reply in replies] == ["met"] * 4


async def test_a_plain_function_has_the_whole_turn(talk: Any) -> None:
    agent = Agent("Blocking")

    @agent.skill
    def work(turn: Any) -> str:
        turn.working("at it")
        with turn.stream("Log") as out:
            out.write("one ")
            out.write("two")
        turn.remember("count", turn.recall("count", 0) + 1)
        name = turn.ask("Who are you?").text
        total = turn.step("add", lambda: 40 + 2)
        return f"{name} {total} {turn.recall('count')}"

    async with talk(agent) as caller:
        task = await caller.task("go")
        assert task.state is TaskState.INPUT_REQUIRED
        assert task.status.message is not None
        assert task.status.message.text == "Who are you?"
        done = await caller.task("Ada", task_id=task.id)
        assert done.state is TaskState.COMPLETED
        assert done.artifacts[-1].text == "Ada 42 2"
        assert [a.name for a in done.artifacts] == ["Log", "Work"]


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


async def test_reject_and_fail_end_the_task_with_the_reason(talk: Any) -> None:
    agent = Agent("Picky")

    @agent.skill
    async def reject(turn: Turn) -> str:
        turn.reject("I do not do that")

    @agent.skill
    async def fail(turn: Turn) -> str:
        await turn.working()
        turn.fail("The printer is on fire")

    @agent.skill
    async def grouped(turn: Turn) -> str:
        async def inner() -> None:
            turn.fail("inside a group")

        async with asyncio.TaskGroup() as group:
            group.create_task(inner())
        return "never"

    async with talk(agent) as caller:
        for skill, state, said in (
            ("reject", TaskState.REJECTED, "I do not do that"),
            ("fail", TaskState.FAILED, "The printer is on fire"),
            ("grouped", TaskState.FAILED, "inside a group"),
        ):
            task = await caller.task("go", metadata={"skill": skill})
            assert task.state is state
            assert task.status.message is not None
            assert task.status.message.text == said


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


async def test_what_is_said_after_the_end_reaches_nobody(talk: Any) -> None:
    agent = Agent("Late")
    kept: list[Turn] = []

    @agent.skill
    async def late(turn: Turn) -> str:
        await turn.working()
        kept.append(turn)
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go")
        with pytest.raises(RuntimeError, match="has ended"):
            await kept[0].working("too late")
        with pytest.raises(RuntimeError, match="has ended"):
            await kept[0].artifact("too late")
        again = await caller.service.get_task(get_request(task.id), caller.context)
        assert again == task


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


@pytest.mark.E6
async def test_the_loop_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    from parley.engine.maintenance import LoopWatchdog

    dog = LoopWatchdog(threshold=0.3)
    dog.start()
    block_thread(1.2)  # this is what must not be done, and the watchdog must say so
    await asyncio.sleep(0)
    dog.stop()
    assert "has been blocked" in caplog.text
    assert "test_the_loop_is_watched" in caplog.text


STANDS_STILL = """
import asyncio
from parley.engine.maintenance import LoopWatchdog

async def main():
    LoopWatchdog(threshold=0.5).start()
    while True:
        print("alive", flush=True)
        await asyncio.sleep(0.05)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows stops no processes")
def test_a_process_that_stood_still_is_not_said_to_be_blocked() -> None:
    words = [sys.executable, "-c", STANDS_STILL]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        block_thread(1.5)
        process.send_signal(signal.SIGCONT)
        for _ in range(30):
            process.stdout.readline()
        process.kill()
        _, said = process.communicate()
    assert b"blocked" not in said


async def test_progress_comes_before_the_end(talk: Any) -> None:
    agent = Agent("Worker")

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.working("halfway", metadata={"percent": 50})
        return "done"

    async with talk(agent) as caller:
        events = [item.event async for item in caller.stream("go")]
        statuses = [e for e in events if isinstance(e, TaskStatusUpdateEvent)]
        assert [s.status.state for s in statuses] == [TaskState.WORKING, TaskState.COMPLETED]
        assert statuses[0].metadata == {"percent": 50}
        task = await caller.service.get_task(get_request(events[0].id), caller.context)
        assert [m.text for m in task.history] == ["go", "halfway"]
