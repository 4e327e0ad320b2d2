"""The agent of ``examples/javascript_agent`` joins in: a Parley agent delegates to it."""

from __future__ import annotations

import asyncio
import os
import runpy
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import parley
from parley import TaskState
from tests.house.sizes import ROOT
from tests.kit.servers import served

from .environments import JS_1_3, NotMade, command

pytestmark = pytest.mark.anyio

FOLDER = ROOT / "examples" / "javascript_agent"


@pytest.fixture
async def guide(tmp_path: Path) -> AsyncIterator[str]:
    """The address of the agent, which finds its packages as ``npm install`` puts them."""
    try:
        node, _, home = command(JS_1_3, "driven.cjs")
    except NotMade as error:
        pytest.skip(str(error))
    for name in ("agent.js", "package.json"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(Path(home) / "node_modules")
    process = await asyncio.create_subprocess_exec(
        node,
        "agent.js",
        cwd=tmp_path,
        env={**os.environ, "PORT": "0"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        assert url
        yield url
    finally:
        process.kill()
        await process.wait()


async def test_a_parley_agent_delegates_to_the_agent_in_javascript(
    guide: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with parley.connect(guide) as remote:
        assert remote.card.name == "Local guide"
        assert "Tower" in (await remote.send("What is there to see in London?")).text
    monkeypatch.setenv("GUIDE", guide)
    agent = runpy.run_path(str(FOLDER / "trip.py"))["agent"]
    async with served(agent, allow_private_agents=True) as planner:
        planned = await planner.send("Plan a day in Helsinki")
        assert planned.text.splitlines() == [
            "In the morning: The fortress of Suomenlinna",
            "At noon: The market square",
            "In the evening: A sauna by the sea",
        ]
        asked = await planner.send("Plan a day")
        assert asked.id
        assert asked.state is TaskState.INPUT_REQUIRED
        assert asked.status.message is not None
        assert asked.status.message.text == "Which city: Helsinki, London or Tokyo?"
        done = await planner.send("Tokyo", task=asked)
        assert done.id
        assert (done.state, done.id) == (TaskState.COMPLETED, asked.id)
        assert "Rikugien" in done.text
