"""A chain of agents asks the user for a credential; a restarted agent between stores none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import parley
from parley import Agent, Task, TaskState, Turn
from parley.server.run import serving
from tests.kit.servers import served
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

TOKEN = "hush-0a1b2c3d4e5f-hush"


def inner(**options: object) -> Agent:
    agent = Agent("Inner", **options)

    @agent.skill(replies="task")
    async def read(turn: Turn) -> str:
        return str((await turn.require_auth("May I?", scopes="mail.read")).token == TOKEN)

    return agent


def delegating(name: str, where: dict[str, str], target: str, **options: str) -> Agent:
    agent = Agent(name)

    @agent.skill(replies="task")
    async def pass_on(turn: Turn) -> str:
        remote = await turn.connect(where[target], **options)
        return (await turn.delegate(remote, "hi", key="on")).text

    return agent


async def ended(url: str, task: Task) -> str:
    async with parley.connect(url) as remote, asyncio.timeout(30):
        while not (found := await remote.get(task.id)).state.is_terminal:
            await let_time_pass(0.05)
    return found.text


async def test_the_agent_between_is_restarted_while_it_waits(tmp_path: Path) -> None:
    where: dict[str, str] = {}
    store = f"sqlite:///{tmp_path / 'between.db'}"
    between = delegating("Between", where, "inner")
    async with serving(parley.asgi(inner(), drain=0.0)) as where["inner"]:
        async with served(between, store=store, drain=0.0) as remote:
            task = await remote.send("hi")
            assert task.id
            assert task.state is TaskState.AUTH_REQUIRED
        async with (
            serving(parley.asgi(between, store=store, drain=0.0)) as url,
            parley.connect(url) as remote,
        ):
            await remote.authorize(task, TOKEN, trust=[where["inner"]])
            assert await ended(url, task) == "True"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
