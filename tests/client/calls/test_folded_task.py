"""What is kept of a task while its stream tells it: bounded, whatever the agent sends."""

from __future__ import annotations

import pytest

from parley.client import connect
from parley.client.bindings import http
from parley.client.calls.stream_reader import FoldedTask
from parley.model.tasks import Task, TaskState
from tests.client.calls.test_resume import AT_ONCE, boundaries, text_of
from tests.client.log_agent import LogAgent, chunk, fold_of, says, task
from tests.kit.scripted_server import scripted

pytestmark = pytest.mark.anyio

LIMIT = 10_000


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE", LIMIT)


def test_a_task_is_whole_until_no_answer_could_hold_it_and_then_an_outline(small) -> None:
    told = FoldedTask(task(TaskState.WORKING))
    told.add(chunk("x" * 100, append=False))
    assert told.is_whole
    assert told.task.text == "x" * 100
    for n in range(200):
        told.add(chunk("y" * 100))
        told.add(says(TaskState.WORKING, f"step {n}"))
    assert not told.is_whole
    assert (told.task.artifacts, told.task.history) == ((), ())
    told.add(says(TaskState.COMPLETED, "done"))
    assert (told.task.id, told.task.context_id) == ("t-1", "c-1")
    assert (told.task.state, told.task.text) == (TaskState.COMPLETED, "done")


def test_what_takes_the_place_of_something_else_does_not_add_up(small) -> None:
    told = FoldedTask(task(TaskState.WORKING))
    for n in range(100):
        told.add(chunk(f"{n} " + "x" * 1000, append=False))
    assert told.is_whole
    assert told.task.text.startswith("99 ")


def test_a_task_that_is_too_large_to_begin_with_is_an_outline(small) -> None:
    large = fold_of([task(TaskState.WORKING), chunk("x" * 2 * LIMIT, append=False)])
    assert not FoldedTask(large).is_whole
    assert FoldedTask(large).task.id == "t-1"


@pytest.mark.parametrize("large", [False, True])
async def test_a_cut_stream_of_a_large_task_goes_on_with_the_task_as_it_stands(
    small, large
) -> None:
    text = "x" * (LIMIT // 4 if not large else LIMIT)
    log = [
        task(TaskState.WORKING),
        chunk(text, append=False),
        chunk(text),
        says(TaskState.COMPLETED, "done"),
    ]
    agent = LogAgent(log, [], numbered=False)
    agent.cuts = [boundaries_of(log)[3]]
    async with scripted(agent) as server, connect(server.url, retries=AT_ONCE) as remote:
        events = [event async for event in remote.stream("go")]
    tasks = [event for event in events if isinstance(event, Task)]
    assert text_of(events) == 2 * text
    assert len(tasks) == (2 if large else 1)  # what is not known is told again
    last = fold_of(events[events.index(tasks[-1]) :])
    assert (last.state, last.artifacts[0].text) == (TaskState.COMPLETED, 2 * text)


def boundaries_of(log) -> list[int]:
    return boundaries(LogAgent(log, [], numbered=False))
