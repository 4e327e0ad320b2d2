"""The cost of a task's step depends on the step, not on the task's size."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, Execution, Part, TaskState, Turn
from parley.model.errors import OverloadedError
from parley.model.operations import CancelTaskRequest, GetTaskRequest
from parley.store.events import RecordKind
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.waiting import let_time_pass
from tests.store.counting import CountingStore

pytestmark = pytest.mark.anyio


LARGE = 1_000_000


@pytest.mark.parametrize("kind", ["text", "raw", "data", "url", "part metadata", "metadata"])
async def test_what_a_turn_leaves_in_the_log_alone_is_bounded(
    talk: Any, tmp_path: Path, kind: str
) -> None:
    """A reader folds the unsaved records of a turn, so they stay small for chunks of any kind."""
    agent = Agent("Prolific")
    large = "x" * 50_000
    made: dict[str, Any] = {
        "text": large,
        "raw": large.encode(),
        "data": {"large": large},
        "url": Part(url=f"https://example.com/{large}"),
        "part metadata": Part(text="", metadata={"large": large}),
        "metadata": "",
    }

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        for n in range(20):
            metadata = {"large": large} if kind == "metadata" else None
            await turn.artifact(made[kind], name=f"{n}", metadata=metadata)
        await turn.working("all is made")
        await asyncio.Event().wait()
        return "never"

    store = SqliteTaskStore(tmp_path / "tasks.db", synchronous="NORMAL")
    async with talk(agent, store) as caller:
        task = await caller.task("go", return_immediately=True)
        async with asyncio.timeout(20):
            while not (record := await store.load(task.id)) or record.task.status.message is None:
                await let_time_pass(0.01)
        assert len(record.task.artifacts) == 20
        assert len(record.unsaved) <= 2, "about 64 KiB unsaved; the log has 1 MB"
        await caller.service.cancel_task(CancelTaskRequest(id=task.id), caller.context)


async def test_so_many_messages_wait_on_a_task_and_no_more(talk: Any) -> None:
    agent = Agent("Busy", execution=Execution(max_waiting_messages=3, max_running=10))
    release = asyncio.Event()

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        await turn.working("begun")
        await release.wait()
        return (await turn.ask("and then?")).text

    async with talk(agent) as caller:
        task = await caller.task("go", return_immediately=True)
        sends = [
            caller.task(f"more {n}", task_id=task.id, return_immediately=True) for n in range(12)
        ]
        waiting = [asyncio.create_task(send) for send in sends]
        # The senders of accepted messages wait for a reply; the executor rejects the rest at once.
        refused: list[OverloadedError] = []
        for done in asyncio.as_completed(waiting):
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    await done
                except OverloadedError as error:
                    refused.append(error)
            if len(refused) == 9:
                break
        assert all([error.retry_after for error in refused])
        assert "3 messages are waiting on the task already" in str(refused[0])
        received = await caller.store.private_records(task.id, [RecordKind.RECEIVED])
        assert len(received) == 3, "a rejected message leaves no record"
        release.set()
        await asyncio.wait(waiting, timeout=20)
        async with asyncio.timeout(60):
            while not task.state.is_terminal:
                task = await caller.service.get_task(GetTaskRequest(id=task.id), caller.context)
                await let_time_pass(0.01)
        assert task.text.startswith("more")


@pytest.mark.slow
async def test_what_waits_is_not_read_again_for_every_turn(talk: Any, tmp_path: Path) -> None:
    """Each message is read once for its turn, and each turn once for later turns."""
    read = {}
    for count in (10, 40):
        agent = Agent("Patient", execution=Execution(max_waiting_messages=1000))
        gate = asyncio.Event()

        @agent.skill(replies="task")
        async def work(turn: Turn, count: int = count, gate: asyncio.Event = gate) -> str:
            await gate.wait()
            for n in range(count):
                await turn.ask(f"{n}?")
            return "done"

        store = CountingStore(tmp_path / f"{count}.db", synchronous="NORMAL")
        async with talk(agent, store) as caller:
            task = await caller.task("go", return_immediately=True)
            sends = [
                asyncio.create_task(caller.task("w" * 1000, task_id=task.id)) for _ in range(count)
            ]
            async with asyncio.timeout(120):
                while (await store.positions([task.id]))[0].waiting < count:
                    await let_time_pass(0.01)
                store.read = 0
                gate.set()
                while (await store.positions([task.id]))[0].waiting:
                    await let_time_pass(0.01)
            read[count] = store.read
            for send in sends:
                send.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
    assert read[40] < 6 * read[10], read


async def test_a_large_artifact_is_written_once_however_many_questions_follow(
    talk: Any, tmp_path: Path
) -> None:
    agent = Agent("Examiner")

    @agent.skill
    async def examine(turn: Turn) -> str:
        if turn.number == 1:
            await turn.artifact("x" * LARGE, name="syllabus")
        for n in range(100):
            await turn.ask(f"question {n}?")
        return "passed"

    store = SqliteTaskStore(tmp_path / "tasks.db", synchronous="NORMAL")
    wal = tmp_path / "tasks.db-wal"
    async with talk(agent, store) as caller:
        task = await caller.task("begin")
        sizes = []
        for n in range(40):
            before = wal.stat().st_size
            task = await caller.task(f"answer {n}", task_id=task.id)
            sizes.append(max(0, wal.stat().st_size - before))
        assert task.state is TaskState.INPUT_REQUIRED
        assert len(task.history) == 81
        [artifact] = task.artifacts
        assert len(artifact.text) == LARGE
    assert max(sizes) < LARGE // 4  # pages that a turn changes, and nothing of the artifact
    assert sum(sizes[20:]) < 2 * sum(sizes[:20]) + LARGE // 4
