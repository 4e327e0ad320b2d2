"""Servers die while a task waits for a credential, and after the credential arrives."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

import parley
from parley import Task, TaskState
from tests.faults.conftest import Served
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio

TOKEN = "hush-0a1b2c3d4e5f-hush"


async def asking(remote: parley.RemoteAgent, text: str) -> Task:
    task = await remote.send(text, metadata={"skill": "authorized"})
    assert task.id
    assert task.state is TaskState.AUTH_REQUIRED
    return task


def is_asleep(served: Served, task: Task) -> bool:
    with closing(sqlite3.connect(f"file:{served.store}?mode=ro", uri=True)) as database:
        query = "SELECT wakes_at FROM tasks WHERE task_id = ?"
        return bool(database.execute(query, [task.id]).fetchone()[0])


async def ended(served: Served, task: Task) -> str:
    async with parley.connect(served.url) as remote, asyncio.timeout(40):
        while not (found := await remote.get(task.id)).state.is_terminal:
            await let_time_pass(0.05)
    return found.text


async def test_a_server_dies_while_the_task_waits(served: Served) -> None:
    async with parley.connect(served.url) as remote:
        task = await asking(remote, "quick")
        await until(lambda: is_asleep(served, task))
    await served.end()
    await served.start()
    async with parley.connect(served.url) as remote:
        assert (await remote.get(task.id)).state is TaskState.AUTH_REQUIRED
        await remote.authorize(task, TOKEN, return_immediately=True)
    assert await ended(served, task) == f"{len(TOKEN)} in attempt 1"


async def test_a_server_dies_after_the_credential_has_arrived(served: Served) -> None:
    async with parley.connect(served.url) as remote:
        task = await asking(remote, "slow")
        await remote.authorize(task, TOKEN, return_immediately=True)
        async with asyncio.timeout(20):
            while b"step:arrived" not in b"".join(
                path.read_bytes()
                for path in served.store.parent.glob("tasks.db*")
                if path.is_file()
            ):
                await let_time_pass(0.02)
    await served.end()
    files = [path for path in served.store.parent.glob("tasks*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    await served.start()
    assert await ended(served, task) == f"{len(TOKEN)} in attempt 2"
    await served.end()
    with sqlite3.connect(served.store) as connection:
        script = "\n".join(connection.iterdump())
    assert "urn:parley:credential:" not in script
    assert TOKEN not in script
    assert TOKEN not in served.log.read_text()
