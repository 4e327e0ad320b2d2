"""When a turn appends its events: the number of appends per task, and what must precede what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from parley import Agent, Execution, Task, TaskState, Turn
from parley.engine.turn.task_writer import TaskWriter
from parley.model.operations import ListTasksRequest
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import Scope, TurnStarted
from parley.store.fold import Fold
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import Fenced, StoreError
from parley.store.protocols.task_log import Append
from parley.store.task_store import TaskStore
from tests.engine.talk import Talk
from tests.kit.records import task as first

pytestmark = pytest.mark.anyio

WAIT = 20


def counted(store: TaskStore) -> tuple[TaskStore, list[int]]:
    """Return a store and the list to which each append adds its number of events."""
    appends: list[int] = []
    append = store.append

    def noted(given: Append) -> Any:
        appends.append(len(given.events))
        return append(given)

    store.append = noted  # type: ignore[method-assign]
    return store, appends


def worker(appends: list[int], seen: list[int], **options: Any) -> Agent:
    """Return an agent that writes, yields to the event loop, and writes again."""
    agent = Agent("Worker", execution=Execution(direct_reply_timeout=WAIT))

    @agent.skill(**options)
    async def work(turn: Turn) -> None:
        seen.append(len(appends))
        await turn.working("begun")
        for _ in range(5):
            await asyncio.sleep(0)
        if turn.text == "step":
            await turn.step("counted", int)
        if turn.text == "id":
            assert turn.task_id
            await asyncio.sleep(0)
        seen.append(len(appends))
        await turn.artifact("done", name="result")

    return agent


@pytest.mark.parametrize("said", ["step", "id"])
async def test_a_task_that_can_be_known_is_written_as_it_grows(
    talk: Any, new_store: Callable[[], TaskStore], said: str
) -> None:
    """A step must not run twice, and the function may have passed the task's id on."""
    store, appends = counted(new_store())
    seen: list[int] = []
    async with talk(worker(appends, seen), store) as caller:
        await caller.task(said)
    assert seen[1] >= 1
    assert len(appends) >= 2


@pytest.mark.parametrize("how", ["at once", "declared", "stream"])
async def test_every_other_send_is_durable_before_its_function_goes_on(
    talk: Any, new_store: Callable[[], TaskStore], how: str
) -> None:
    store, appends = counted(new_store())
    seen: list[int] = []
    agent = worker(appends, seen, **({"replies": "task"} if how == "declared" else {}))
    async with talk(agent, store) as caller:
        if how == "stream":
            async for item in caller.stream("go"):
                assert sum(appends) >= item.seq
        else:
            task = await caller.task("go", return_immediately=how == "at once")
            async with asyncio.timeout(WAIT):
                while not (await store.positions([task.id]))[0].ended:
                    await asyncio.sleep(0)
    assert seen[0] == (0 if how == "stream" else 1)
    assert seen[1] > seen[0]


async def listed(caller: Talk) -> Sequence[Task]:
    """Return the tasks that a caller can list."""
    return (await caller.service.list_tasks(ListTasksRequest(), caller.context)).tasks


async def test_a_task_that_takes_longer_is_written_after_the_time_for_a_direct_reply(
    talk: Any, new_store: Callable[[], TaskStore]
) -> None:
    agent = Agent("Slow", execution=Execution(direct_reply_timeout=0.02))
    done = asyncio.Event()

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.working("begun")
        await done.wait()
        return "done"

    store, appends = counted(new_store())
    async with talk(agent, store) as caller:
        sending = asyncio.create_task(caller.task("go"))
        async with asyncio.timeout(WAIT):
            while not appends:
                await asyncio.sleep(0)
            while not (shown := await listed(caller)):
                await asyncio.sleep(0)
        assert [task.state for task in shown] == [TaskState.WORKING]
        done.set()
        assert (await sending).state is TaskState.COMPLETED


# -- a writer and its store ------------------------------------------------------------------------


async def writer_of(store: TaskStore, **options: Any) -> TaskWriter:
    await store.open(lambda records: None)
    writer = TaskWriter(
        store, task_id="t", context_id="c", scope=Scope("agent"), fold=Fold(strict=True),
        seq=0, turn=1, hints=LocalHints(), **options,
    )  # fmt: skip
    writer.write(first("t", context_id="c"))
    writer.open_turn()
    return writer


async def test_an_append_that_failed_at_once_stops_the_writer() -> None:
    store = MemoryTaskStore()
    failed: list[str] = []
    writer = await writer_of(store, on_error=lambda: failed.append("now"))
    await writer.flush()
    await store.claim("t")  # another executor claims the task
    writer.write(TurnStarted(turn=1, attempt=2))
    with pytest.raises(Fenced):
        await writer.flush()
    assert failed == ["now"]
    with pytest.raises(StoreError):
        writer.write(TurnStarted(turn=1, attempt=3))


# -- the first write of a stream -------------------------------------------------------------------


def writes(kind: str) -> Callable[[Agent, Callable[[], None]], None]:
    """Return a function that adds a skill which writes once and then calls a function."""

    def add(agent: Agent, then: Callable[[], None]) -> None:
        if kind == "yield":

            @agent.skill
            async def generate(turn: Turn) -> AsyncIterator[str]:
                yield "first"
                then()
                yield "second"

            return

        @agent.skill
        async def write(turn: Turn) -> str | None:
            if kind == "status":
                await turn.working("first")
            elif kind == "artifact":
                await turn.artifact("first")
            else:
                async with turn.stream() as out:
                    await out.write("first")
                    then()
                    await out.write("second")
                return None
            then()
            return "second"

    return add


@pytest.mark.parametrize("kind", ["status", "artifact", "stream", "yield"])
async def test_the_first_write_is_with_its_reader_before_the_function_goes_on(
    talk: Any, new_store: Callable[[], TaskStore], kind: str
) -> None:
    agent, shown, before = Agent("Teller"), "", []
    writes(kind)(agent, lambda: before.append(shown))
    async with talk(agent, new_store()) as caller:
        async for item in caller.stream("go"):
            shown += repr(item.event)
    [known] = before
    assert "first" in known
    assert "second" not in known
    assert "second" in shown
