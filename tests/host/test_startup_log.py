"""What is said when a server starts: once each, and only where it is so."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, Retention, Turn
from parley.host.host import Host, placed, removed_after, several_workers
from parley.host.options import ServerOptions
from parley.store.memory import MemoryTaskStore
from tests.house.sizes import ROOT

APP = """
import logging

import parley
from parley import Agent

agent = Agent("Echo")

@agent.skill
async def say(text: str) -> str:
    return text

app = parley.asgi(agent, store="{store}")
logging.basicConfig(level="INFO", format="%(name)s: %(message)s")
"""


def echo(**options: Any) -> Agent:
    agent = Agent(options.pop("name", "Echo"), **options)

    @agent.skill
    async def say(turn: Turn) -> str:
        return turn.text

    return agent


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Run ``uvicorn`` with options until all of its workers serve; return what they said."""
    running: list[subprocess.Popen[str]] = []

    def serve(*options: str, store: str = "memory:", workers: int = 1, **more: str) -> list[str]:
        (tmp_path / "served_here.py").write_text(APP.format(store=store))
        command = [sys.executable, "-m", "uvicorn", "served_here:app", "--port", "0", *options]
        paths = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
        environ = {k: v for k, v in os.environ.items() if k != "WEB_CONCURRENCY"}
        server = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**environ, "PYTHONPATH": paths, **more},
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(server)
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(line)
            workers -= "startup complete" in line
            if not workers:
                break
        return lines

    yield serve
    for server in running:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        assert server.stderr is not None
        server.stderr.close()


def said(lines: Sequence[str], what: str) -> list[str]:
    return [line for line in lines if what in line]


@pytest.mark.skipif(sys.platform == "win32", reason="signals end no server there")
@pytest.mark.parametrize(
    ("options", "environ"), [(["--workers", "2"], {}), ([], {"WEB_CONCURRENCY": "2"})]
)
def test_several_workers_that_keep_tasks_in_memory_say_so_in_a_line_each(
    served: Callable[..., list[str]], options: list[str], environ: Mapping[str, str]
) -> None:
    lines = served(*options, workers=2, **environ)
    told = said(lines, "one of several worker processes (uvicorn has 2)")
    assert len(told) == 2, lines
    assert "postgresql://host/database" in told[0]


@pytest.mark.skipif(sys.platform == "win32", reason="signals end no server there")
@pytest.mark.parametrize("options", [[], ["--reload"], ["--workers", "1"]])
def test_one_worker_is_told_nothing_of_several(
    served: Callable[..., list[str]], options: list[str]
) -> None:
    lines = served(*options)
    assert said(lines, "worker processes") == []
    assert len(said(lines, "tasks are removed")) == 1


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        (["-w", "4"], {}, "gunicorn has 4"),
        (["-w4"], {}, "gunicorn has 4"),
        (["--workers=3", "app:app"], {}, "gunicorn has 3"),
        ([], {"WEB_CONCURRENCY": "2"}, "gunicorn has 2"),
        ([], {"GUNICORN_CMD_ARGS": "--bind=:80 --workers 5"}, "gunicorn has 5"),
        (["-w", "1"], {"WEB_CONCURRENCY": "4"}, ""),
        (["app:app"], {}, ""),
    ],
)
def test_gunicorns_workers_are_counted_as_it_was_told(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["gunicorn", *argv])
    assert several_workers({"SERVER_SOFTWARE": "gunicorn/23.0.0", **environ}) == expected
    assert several_workers(environ) == ""  # alone, whatever a platform sets for others


@pytest.mark.anyio
async def test_how_long_ended_tasks_are_kept_is_said_in_one_line_when_a_server_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "parley.host")
    host = Host(placed([echo(), echo(name="Time")]), MemoryTaskStore(), ServerOptions(drain=0.0))
    await host.start()
    await host.stop()
    told = [r.getMessage() for r in caplog.records if "removed" in r.getMessage()]
    assert told == [
        "tasks are removed with all that is theirs when they have ended for 7 days; "
        "Retention(tasks=...) says how long they are kept, None for ever"
    ]


def test_agents_that_keep_their_tasks_for_other_times_are_named() -> None:
    day, hours = timedelta(days=1), timedelta(hours=36)
    agents = [
        echo(retention=Retention(tasks=hours)),
        echo(name="Time", retention=Retention(tasks=day)),
        echo(name="A", retention=Retention(tasks=None)),
    ]
    assert re.match(r"for 1 day \(Time\), 1 day, 12:00:00 \(Echo\); ", removed_after(agents))
    assert removed_after([echo(retention=Retention(tasks=None))]) == ""
