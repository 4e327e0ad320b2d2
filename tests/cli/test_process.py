"""Tests that need a real process: signals, pipes, loaded modules, commands of other packages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.scripted import TASK_ID, Answer, task
from tests.kit.processes import Running, free_port

posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.mark.slow
@posix
def test_ctrl_c_leaves_the_task_running_and_says_how_to_find_it(agent, tmp_path):
    """A2ACLI_TASK_POLL_002"""
    agent.says("SendStreamingMessage", Answer(events=[{"task": task("WORKING")}], end="hang"))
    with Running(["send", "go", "-a", agent.url], tmp_path) as ran:
        ran.until(f"note: task {TASK_ID} in context context-1 is running")
        assert ran.end(signal.SIGINT) == 130
        assert f"parley task get --wait -a {agent.url} {TASK_ID}" in ran.stderr
        assert "Traceback" not in ran.stderr
        assert ran.stdout == ""
    assert agent.count("CancelTask") == 0


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=30
    )


def test_without_its_extra_the_command_says_how_to_install_it(tmp_path):
    code = """
import sys
sys.modules["typer"] = None
from parley.cli import main
main(["--help"])
"""
    ran = run_python(code, tmp_path)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert 'pip install "parley-a2a[cli]"' in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--version"], ["the output"]),
        (["send", "--help"], ["the output"]),
        (["task", "get", "gone", "-o", "json"], ["the output", "there is no task"]),
    ],
    ids=["text", "help", "error"],
)
def test_output_that_cannot_be_written_is_said_in_one_line(agent, tmp_path, words, lines):
    agent.says("GetTask", Answer(error={"code": -32001, "message": "there is no task"}))
    where = ["-a", agent.url] if "task" in words else []
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "parley.cli", *words, *where],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    said = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    for line, start in zip(said, lines, strict=True):
        assert line.startswith(f"error: {start}")
    assert "cannot be written: No space left on device" in said[0]
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 1


@pytest.mark.slow
@posix
def test_diagnostics_that_nobody_takes_change_nothing(agent, tmp_path):
    agent.says("GetTask", Answer(result=task()))
    command = f'"{sys.executable}" -m parley.cli task get x --verbose -a {agent.url}'
    for closed in ("2>/dev/full", ">&-"):
        ran = subprocess.run(
            f"{command} {closed}", shell=True, cwd=tmp_path, capture_output=True, timeout=30
        )
        assert ran.returncode == 0, ran.stderr
        assert b"Traceback" not in ran.stderr


# -- a stream on the screen survives the death of its server ---------------------------------------


AGENT = '''
import asyncio
from parley import Agent, Turn

agent = Agent("Counting agent")

@agent.skill
async def count(turn: Turn):
    """Counts."""
    for number in range(30):
        await asyncio.sleep(0.03)
        yield f"{number} "
'''


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_a_killed_server_costs_a_streaming_command_nothing(tmp_path):
    """A2ACLI_TASK_POLL_004 and A2ACLI_TASK_SUBSCRIBE_002, where the agent can resume streams"""
    (tmp_path / "counting.py").write_text(AGENT)
    port = str(free_port())
    serve = ["serve", "counting.py", "--port", port]
    send = ["send", "go", "--stream", "-o", "json", "--poll-interval", "100ms"]
    with Running(serve, tmp_path) as first:
        first.until("Ctrl-C stops the server")
        with Running([*send, "-a", f"http://127.0.0.1:{port}"], tmp_path) as ran:
            ran.until('"text":"9 "')
            first.end(signal.SIGKILL)
            with Running(serve, tmp_path) as second:
                second.until("Ctrl-C stops the server")
                assert ran.end() == 0
            lines = ran.stdout.splitlines()
    assert "TASK_STATE_COMPLETED" in lines[-1]
    said = [line for line in lines if '"artifactUpdate"' in line]
    # Output of the dead server stays; its successor streams the whole artifact again.
    begun = [place for place, line in enumerate(said) if '"append":true' not in line]
    assert len(begun) == 2
    numbers = [re.search(r'"text":"([\d ]+)"', line) for line in said[begun[1] :]]
    assert "".join(found[1] for found in numbers if found) == "".join(f"{n} " for n in range(30))


# -- commands that other packages add through an entry point ---------------------------------------


MODULE = """
import typer

def register(app):
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="fleet", help="Look at all of our agents.")

    @group.command("count")
    def count(names: list[str]):
        print(f"{len(names)} agents")

    @group.command("list")
    def list_all():
        pass

def more(group):
    @group.command("count")
    def count():
        print("no keys")
"""


ENTRIES = """
[parley.commands]
fleet = fleet_tools:register
send = fleet_tools:register
keys count = fleet_tools:more
broken = fleet_tools:missing
"""


def package(folder: Path) -> None:
    """Write an installed package that adds ``fleet``, and wants to replace ``send``."""
    (folder / "fleet_tools.py").write_text(MODULE, "utf-8")
    info = folder / "fleet_tools-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fleet-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES, "utf-8")


def test_a_package_adds_a_command(tmp_path: Path) -> None:
    package(tmp_path)
    assert said(tmp_path, "fleet", "count", "a", "b") == (0, "2 agents\n")
    _, listed = said(tmp_path, "--help")
    table = listed.partition("Start here:")[2].partition("warning:")[0]
    commands = [line.split()[0] for line in table.splitlines() if line.startswith("  ")]
    assert commands[-1] == "fleet"
    assert "'broken' (fleet_tools:missing) cannot be loaded: AttributeError" in listed
    assert {"registry", "mcp", "conformance", "agents", "catalog"} <= set(commands)


def test_a_package_replaces_no_command_of_the_core(tmp_path: Path) -> None:
    package(tmp_path)
    status, text = said(tmp_path, "send", "--help")
    assert status == 0
    assert "Send a message" in text


def test_a_package_adds_a_command_to_a_group_of_the_core(tmp_path: Path) -> None:
    package(tmp_path)
    assert said(tmp_path, "keys", "count") == (0, "no keys\n")
    assert "share" in said(tmp_path, "keys", "--help")[1]


def test_an_unknown_command_is_refused_with_the_known_ones_in_mind(tmp_path: Path) -> None:
    status, text = said(tmp_path, "registri")
    assert status == 2
    assert "registry" in text


def said(folder: Path, *arguments: str) -> tuple[int, str]:
    with Running(arguments, folder, PYTHONPATH=str(folder)) as running:
        status = running.end()
    return status, running.output["stdout"] + running.output["stderr"]
