"""The pytest plugin, in separate runs: with anyio, with pytest-asyncio, and without either."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

AGENT = """
import asyncio
import pytest
from parley import Agent, Turn
from parley.testing import working, submitted, completed

agent = Agent("Echo")
ended = []

@agent.skill
async def echo(turn: Turn) -> str:
    await turn.working("At it")
    if turn.text == "wait":
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(turn.text)
    return turn.text
"""

TESTS = """
async def test_it_is_closed_by_itself(parley_client):
    remote = await parley_client(agent)
    assert await remote.send("Hello") == completed("Hello")
    await remote.send("wait", return_immediately=True)
    await remote.settle()

async def test_and_was(parley_client):
    assert ended == ["wait"]
    async with parley_client(agent, caller="ann") as remote:
        assert await remote.send("Hello") == completed("Hello")
        await remote.crash()

class TestMethods:
    async def test_methods_too(self, parley_client):
        remote = await parley_client(agent)
        assert await remote.send("Hello") == completed("Hello")
"""

FAILING = """
async def test_list(parley_client):
    async with parley_client(agent) as remote:
        events = [event async for event in remote.stream("Hello")]
    assert events == [submitted(), working("Not at it"), completed()]

async def test_one(parley_client):
    async with parley_client(agent) as remote:
        task = await remote.send("Hello")
    assert task == completed("Bye")
"""


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_agent.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    if not _is_registered():
        command += ["-p", "parley.testing.plugin"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def _is_registered() -> bool:
    from importlib.metadata import entry_points

    return any(each.value == "parley.testing.plugin" for each in entry_points(group="pytest11"))


ANYIO = """
pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


@pytest.mark.slow
def test_with_anyio_what_a_test_leaves_open_is_closed(tmp_path: Path) -> None:
    done = run(tmp_path, AGENT + ANYIO + TESTS, "-p", "no:asyncio")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.skipif(find_spec("pytest_asyncio") is None, reason="pytest-asyncio is not installed")
@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_with_pytest_asyncio_too(tmp_path: Path, mode: str) -> None:
    mark = "\npytestmark = pytest.mark.asyncio\n"
    scope = "asyncio_default_fixture_loop_scope=function"
    done = run(
        tmp_path, AGENT + mark + TESTS, f"--asyncio-mode={mode}", "-p", "no:anyio", "-o", scope
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_failed_comparisons_print_the_difference(tmp_path: Path) -> None:
    done = run(tmp_path, AGENT + ANYIO + FAILING, "-p", "no:asyncio")
    assert done.returncode == 1
    for line in (
        "the events are those expected",
        "- working('Not at it')",
        "+ working('At it')",
        "text: 'At it' is not 'Not at it'",
        "completed('Hello') == completed('Bye')",
        "text: 'Hello' is not 'Bye'",
    ):
        assert line in done.stdout, done.stdout


@pytest.mark.slow
def test_the_plugin_costs_little(tmp_path: Path) -> None:
    """A run without agents loads nothing of the server or the client."""
    code = (
        "import sys, parley.testing.plugin\n"
        "loaded = {name for name in sys.modules if name.startswith('parley')}\n"
        "print(*sorted(loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "parley", "parley.model", "parley.model.distribution", "parley.testing",
        "parley.testing.plugin",
    ]  # fmt: skip
