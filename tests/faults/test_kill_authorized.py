"""The log keeps a decision of the policy: after a kill, the next attempt does not ask again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import parley
from parley import TaskState
from tests.faults.conftest import Served
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).with_name("authorizing.py")


async def test_the_policy_is_asked_once_whatever_dies(tmp_path: Path) -> None:
    served = Served(tmp_path / "tasks.db", script=SCRIPT)
    await served.start()
    try:
        async with parley.connect(served.url) as remote:
            task = await remote.send("go", return_immediately=True)
            assert task.id

            async def begun() -> bool:
                message = (await remote.get(task.id)).status.message
                return message is not None and message.text == "attempt 1"

            await until(begun)
        await served.end()
        await served.start()
        async with parley.connect(served.url) as remote, asyncio.timeout(20):
            done = await remote.wait(task.id)
    finally:
        await served.end()
    assert done.state is TaskState.COMPLETED, done
    assert done.text == "True ada phone ('assistant',) ['order', 'read']"
    asked = Path(f"{tmp_path / 'tasks.db'}.asked").read_text().splitlines()
    assert asked == ["order 100 ada", "order 101 ada"]
