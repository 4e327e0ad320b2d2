"""Measuring one row of the table: its servers are started, and measured in turns."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import tables
from cases import MEMORY, PARLEY, PYTHON, Row, load_of
from environments import COMMANDS, Unavailable
from processes import HERE, Server, running

WRONG = 3
"""The exit status of the load generator after a wrong answer."""


class WrongAnswer(RuntimeError):
    """A server answered with something else than what is measured; the message has it."""


def generate(load: Sequence[str], server: Server) -> dict[str, Any]:
    """Run the load generator once; return its figures, with the rate and the CPU time of each.

    Raises ``WrongAnswer``, or ``RuntimeError`` with what it said.
    """
    command = [sys.executable, str(HERE / "load.py"), *load]
    command += ["--port", str(server.port), "--pid", str(server.pid)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise (WrongAnswer if done.returncode == WRONG else RuntimeError)(done.stderr.strip())
    measured: dict[str, Any] = json.loads(done.stdout)
    if "count" in measured:
        measured["per_second"] = measured["count"] / measured["seconds"]
    if measured.get("cpu_seconds") is not None:
        measured["cpu_us"] = measured["cpu_seconds"] / measured["count"] * 1e6
    return measured


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of every figure of some rounds; ``each`` has the CPU times of all."""
    names = [name for name, value in rounds[0].items() if isinstance(value, int | float)]
    each = [one["cpu_us"] for one in rounds if "cpu_us" in one]
    return {name: median(one[name] for one in rounds) for name in names} | {"each": each}


class Measured:
    """What was measured of a row, and why the rest is missing.

    ``wrong`` has who gave a wrong answer, and that answer.
    """

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, Any]] = {}
        self.missing: dict[str, str] = {}
        self.wrong: dict[str, str] = {}


def measure(
    row: Row,
    who: Sequence[str],
    rounds: int,
    seconds: float,
    shrink: int = 1,
    commands: Mapping[str, Callable[[], list[str]]] = COMMANDS,
) -> Measured:
    """Measure those of a row who are asked for, in interleaved rounds, and check every answer."""
    found = Measured()
    by_whom: dict[str, list[dict[str, Any]]] = {}
    if row.figure == "bytes":
        rounds = 1  # memory that was used is used again
    with scratch() as place, contextlib.ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in row.who:
            if name not in who:
                continue
            try:
                arguments = arguments_of(row, name, place / f"{len(servers)}.db")
                server = running(
                    commands[name](), *arguments, log=place / f"{name}.log", pinned=True
                )
                servers[name] = stack.enter_context(server)
            except (Unavailable, RuntimeError) as error:
                found.missing[name] = str(error)
        for number in range(rounds):
            for name, server in list(servers.items()):
                tables.progress(f"{row.name}, {name}: {number + 1} of {rounds}")
                try:
                    measured = generate(load_of(row, name, seconds, shrink), server)
                except WrongAnswer as error:
                    found.wrong[name] = str(error)
                    del servers[name]
                except RuntimeError as error:
                    found.missing[name] = str(error)
                    del servers[name]
                else:
                    by_whom.setdefault(name, []).append(measured)
    absent = {**found.missing, **found.wrong}
    found.figures = {name: medians(of) for name, of in by_whom.items() if name not in absent}
    return found


def calls(rounds: int) -> list[dict[str, Any]]:
    """Measure clients and gRPC by ``calls.py``, which has processes of its own.

    Without that script there is nothing. Raises ``SystemExit`` with what went wrong.
    """
    script = HERE / "calls.py"
    if not script.exists():
        return []
    command = [sys.executable, str(script), "--json", "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"calls.py: {done.stderr.strip()[-2000:]}")
    measured: list[dict[str, Any]] = json.loads(done.stdout)
    return measured


def arguments_of(row: Row, who: str, store: Path) -> list[str]:
    """Return what a server is told after its port. Only two have more than one store."""
    where = [row.where.format(store=store)] if who in (PARLEY, PYTHON) else []
    assert where or row.where == MEMORY
    return [row.does, *where]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Have a directory that is gone afterwards; not the system's: that may have no disk."""
    place = HERE.parent / ".bench"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as directory:
        yield Path(directory)
