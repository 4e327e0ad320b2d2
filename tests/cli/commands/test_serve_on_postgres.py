"""What ``parley serve`` says about the services that it uses, and never says."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.processes import Running, free_port
from tests.kit.services.postgres import PostgresServer

pytestmark = pytest.mark.service

AGENT = '''
from parley import Agent, Turn

agent = Agent("Mover")


@agent.skill
async def work(turn: Turn) -> str:
    """Works."""
    return "worked"
'''
LINE = re.compile(r"\d\d:\d\d:\d\d (DEBUG|INFO|WARNING) +[\w.]+: \S.*")


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Running]:
    """Starts the command."""
    (tmp_path / "mover.py").write_text(AGENT)
    return lambda *options: Running(["serve", "mover.py", "--port", "0", *options], tmp_path)


def check(said: str) -> None:
    """See that a log is for people, and keeps secrets."""
    assert "hunter2" not in said
    assert "Traceback" not in said
    assert "<Address" not in said
    for line in said.splitlines():
        assert LINE.fullmatch(line), line


@pytest.mark.parametrize(
    "options",
    [(), ("--bus", "none"), ("--role", "api"), ("--role", "worker"), ("--log-level", "debug")],
    ids=" ".join,
)
def test_its_log_is_for_people(
    serve: Callable[..., Running], postgres_url: str, options: tuple[str, ...]
) -> None:
    url = postgres_url.replace("parley@", "parley:hunter2@")
    with serve("--store", url, *options) as server:
        said = server.until("Ctrl-C stops the server")
        assert "hunter2" not in said
        assert server.end(signal.SIGTERM) == 0
    assert ": new, with schema version" in server.stderr
    check(server.stderr)


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_bus_that_is_away_is_told_in_a_line_and_holds_up_nothing(
    serve: Callable[..., Running], postgres_url: str, scheme: str
) -> None:
    bus = f"{scheme}://parley:hunter2@127.0.0.1:{free_port()}/0"
    with serve("--store", postgres_url, "--bus", bus) as server:
        server.until("Ctrl-C stops the server")
        server.until("does not work, hints come late until it does")
        assert server.end(signal.SIGTERM) == 0
    check(server.stderr)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("127.0.0.1:{port}/none", "there is no such database; create it"),
        ("127.0.0.1:{free}/postgres", "the database cannot be reached"),
        ("nowhere.invalid/postgres", "the database cannot be reached"),
    ],
)
def test_a_store_that_cannot_be_had_is_told_in_a_line(
    serve: Callable[..., Running], postgres: PostgresServer, place: str, words: str
) -> None:
    place = place.format(port=postgres.port, free=free_port())
    with serve("--store", f"postgresql://parley:hunter2@{place}") as server:
        assert server.end() == 1
    assert server.stdout == ""
    [line] = server.stderr.splitlines()
    assert line.startswith("error: the store cannot be used: postgresql://")
    assert words in line
    assert "hunter2" not in line
