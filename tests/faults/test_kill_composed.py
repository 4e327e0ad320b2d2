"""A composition is killed at every step: no answered request is sent again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import parley
from parley import RemoteAgent, Task, TaskState
from tests.faults.conftest import Served
from tests.kit.waiting import let_time_pass

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("composed.py")

EVERYWHERE = ["first-ends", "between", "asks-begins", "asks-answered", "right-ends", "combine"]


@pytest.mark.parametrize(
    ("store", "points"),
    [
        ("sqlite", [each for each in EVERYWHERE if each != "between"]),
        pytest.param("postgres", ["between", "right-ends"], marks=pytest.mark.service),
    ],
)
async def test_a_composition_that_dies_at_every_step_asks_nobody_twice(
    tmp_path: Path, store: str, points: list[str], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else ""
    args = [str(tmp_path), ",".join(points)]
    served = Served(tmp_path / "tasks.db", script=SCRIPT, args=args, store_url=url)
    await served.start()
    try:
        keeper = asyncio.create_task(_kept_alive(served))
        async with asyncio.timeout(50), parley.connect(served.url, retries=50) as remote:
            task = await remote.send("go", return_immediately=True)
            assert task.id
            asked = await _settled(remote, task.id)
            assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "asks: Which day?")
            await remote.send("Monday", task=asked, return_immediately=True)
            done = await _settled(remote, task.id, after=TaskState.INPUT_REQUIRED)
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
        if served.process is not None and served.process.returncode is None:
            await served.end()
    base = "go first between Monday"
    assert (done.state, done.text) == (TaskState.COMPLETED, f"{base} left | {base} right")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in EVERYWHERE) == (
        sorted(points)
    )
    messages = sorted(["asks go first between", "first go", f"left {base}", f"right {base}"])
    ended = Counter((tmp_path / "ended").read_text().splitlines())
    # When a part dies, the result of the parallel part may not be in the log yet.
    assert ended.pop(f"left {base}") <= 2
    assert ended == dict.fromkeys([each for each in messages if not each.startswith("left")], 1)
    if store == "postgres":  # where a message is durable before its function runs
        began = Counter((tmp_path / "began").read_text().splitlines())
        # The process may die when the parallel part's attempt is in the log but has not begun.
        assert began.pop(f"left {base}", 0) <= 1
        assert began == ended


async def _kept_alive(served: Served) -> None:
    """Start the process again whenever it has died."""
    while True:
        assert served.process is not None
        await served.process.wait()
        await served.start()


async def _settled(remote: RemoteAgent, task_id: str, after: TaskState | None = None) -> Task:
    """Return a task that has ended or asks a question; retry while the server restarts."""
    while True:
        try:
            task = await remote.get(task_id)
            if task.state.is_terminal or (task.state.is_interrupted and task.state is not after):
                return task
        except (parley.ClientError, parley.A2AError):
            pass
        await let_time_pass(0.05)
