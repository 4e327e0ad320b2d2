"""Measure Parley beside a bare ASGI app and the official SDK's server, in one run.

    make bench                       a few minutes; prints a table, writes results.json beside this
    make bench ARGS=--quick          one short round of everything, to see that it works
    make bench ARGS=--write          and puts the figures into README.md and docs/benchmarks.md
    make bench ARGS='--only tasks'   cases whose name contains a word

Every server runs on one core, the load generator on another. Rounds are interleaved: each round
measures every case once, so that what else the machine does hits all alike; the figures are
medians over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import environments
import machine
import report
from processes import HERE, Server, allow_many_files, serving

MEMORY = "memory:"
RESULTS = HERE / "results.json"


class Case(NamedTuple):
    """One thing to measure. ``load`` are arguments of the load generator."""

    name: str
    who: str
    script: str
    arguments: tuple[str, ...]
    load: tuple[str, ...]


def requests(expect: str) -> tuple[str, ...]:
    """Return the load of a case that counts requests."""
    return ("requests", "--expect", expect)


def streams(connections: int, chunks: int, repeat: int = 1) -> tuple[str, ...]:
    """Return the load of a case that counts streamed chunks."""
    return (
        *("streams", "--connections", str(connections)),
        *("--chunks", str(chunks), "--repeat", str(repeat)),
    )


REPLY = requests('"ROLE_AGENT"')
TASK = requests('"TASK_STATE_COMPLETED"')
ONE = streams(1, 20_000, 3)
TEN = streams(10, 2_000, 3)
DISK = "{store}"

BARE, PARLEY, OFFICIAL = "bare ASGI", "Parley", "official SDK"
CASES = (
    Case("direct replies", BARE, "bare.py", (), requests('"ROLE_AGENT"')),
    Case("direct replies", PARLEY, "parley_agents.py", ("reply", MEMORY), REPLY),
    Case("direct replies", OFFICIAL, "official.py", ("reply", MEMORY), REPLY),
    Case("tasks in memory", PARLEY, "parley_agents.py", ("task", MEMORY), TASK),
    Case("tasks in memory", OFFICIAL, "official.py", ("task", MEMORY), TASK),
    Case("tasks in SQLite", PARLEY, "parley_agents.py", ("task", DISK), TASK),
    Case("tasks in SQLite", OFFICIAL, "official.py", ("task", DISK), TASK),
    Case("one stream in memory", BARE, "bare.py", (), streams(1, 200_000, 3)),
    Case("one stream in memory", PARLEY, "parley_agents.py", ("stream", MEMORY), ONE),
    Case("one stream in memory", OFFICIAL, "official.py", ("stream", MEMORY), streams(1, 2_000)),
    Case("one stream in SQLite", PARLEY, "parley_agents.py", ("stream", DISK), ONE),
    Case("one stream in SQLite", OFFICIAL, "official.py", ("stream", DISK), streams(1, 300)),
    Case("ten streams in memory", PARLEY, "parley_agents.py", ("stream", MEMORY), TEN),
    Case("ten streams in SQLite", PARLEY, "parley_agents.py", ("stream", DISK), TEN),
)
GROWTH = tuple(
    Case(
        f"a stream of {chunks:,} in {'memory' if store == MEMORY else 'SQLite'}",
        PARLEY,
        "parley_agents.py",
        ("stream", store),
        streams(1, chunks, 50_000 // chunks),
    )
    for store in (MEMORY, DISK)
    for chunks in (1_000, 10_000, 50_000)
)


IDLE = tuple(
    Case("idle", who, script, ("wait", MEMORY), ("idle", "--connections", "1000"))
    for who, script in ((PARLEY, "parley_agents.py"), (OFFICIAL, "official.py"))
)


class Servers:
    """The servers of a run, each started when it is first needed and stopped at the end."""

    def __init__(self, place: Path, stack: contextlib.ExitStack) -> None:
        self._place = place
        self._stack = stack
        self._running: dict[tuple[str, ...], Server] = {}
        self._failed: dict[str, str] = {}

    def get(self, case: Case) -> Server | str:
        """Return the case's server, or why there is none."""
        key = (case.script, *case.arguments)
        if case.who in self._failed:
            return self._failed[case.who]
        if key in self._running:
            return self._running[key]
        number = len(self._running)
        arguments = [a.format(store=self._place / f"{number}.db") for a in case.arguments]
        try:
            python = environments.official() if case.who == OFFICIAL else sys.executable
            log = self._place / f"{number}.log"
            server = self._stack.enter_context(serving(python, case.script, *arguments, log=log))
        except (environments.Unavailable, RuntimeError) as error:
            self._failed[case.who] = str(error)
            return str(error)
        self._running[key] = server
        return server


def measure(case: Case, server: Server, seconds: float, shrink: int) -> dict[str, Any]:
    """Measure a case once. Raises ``RuntimeError`` with what the load generator said."""
    load = list(case.load)
    if load[0] == "requests":
        load += ["--seconds", str(seconds)]
    elif load[0] == "streams" and shrink > 1:
        load[load.index("--chunks") + 1] = str(int(load[load.index("--chunks") + 1]) // shrink)
        load[load.index("--repeat") + 1] = "1"
    load += ["--port", str(server.port), "--pid", str(server.pid)]
    done = subprocess.run(
        [sys.executable, str(HERE / "load.py"), *load], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{case.who}, {case.name}: {done.stderr.strip()}")
    measured: dict[str, Any] = json.loads(done.stdout)
    if "count" in measured:
        measured["per_second"] = measured["count"] / measured["seconds"]
    if measured.get("cpu_seconds") is not None:
        measured["cpu_us"] = measured["cpu_seconds"] / measured["count"] * 1e6
    return measured


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of every figure of a case's rounds."""
    names = [name for name, value in rounds[0].items() if isinstance(value, int | float)]
    return {name: median(one[name] for one in rounds) for name in names} | {"rounds": rounds}


def run(cases: list[Case], rounds: int, seconds: float, shrink: int) -> dict[str, Any]:
    """Measure all cases; return the figures, and the reasons for those that are missing."""
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    place = HERE.parent / ".bench"  # not the system's temporary directory: that may have no disk
    place.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as directory,
        contextlib.ExitStack() as stack,
    ):
        servers = Servers(Path(directory), stack)
        for number in range(rounds):
            for case in cases:
                key = (case.name, case.who)
                server = servers.get(case)
                if isinstance(server, str):
                    missing[f"{case.name}, {case.who}"] = server
                    continue
                report.progress(f"round {number + 1} of {rounds}: {case.name}, {case.who}")
                try:
                    measured.setdefault(key, []).append(measure(case, server, seconds, shrink))
                except RuntimeError as error:
                    missing[f"{case.name}, {case.who}"] = str(error)
    report.progress("")
    figures: dict[str, Any] = {}
    for (name, who), results in measured.items():
        if results:
            figures.setdefault(name, {})[who] = medians(results)
    return {"figures": figures, "missing": missing}


def chosen(cases: tuple[Case, ...], options: argparse.Namespace) -> list[Case]:
    """Return the cases that the command line asks for."""
    left_out = OFFICIAL if options.without_official else None
    return [case for case in cases if options.only in case.name and case.who != left_out]


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of each case that counts requests"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="one short round; writes nothing")
    parser.add_argument("--without-official", action="store_true", help="leave that server out")
    parser.add_argument("--write", action="store_true", help="put the figures into the documents")
    options = parser.parse_args()
    allow_many_files()
    rounds, seconds, shrink = options.rounds, options.seconds, 1
    if options.quick:
        rounds, seconds, shrink = 1, 0.2, 20
    cases = chosen(CASES, options)
    results = {"machine": machine.describe(), **run(cases, rounds, seconds, shrink)}
    results["growth"] = run(chosen(GROWTH, options), min(rounds, 3), seconds, shrink)["figures"]
    results["idle"] = run(chosen(IDLE, options), 1, seconds, shrink)["figures"]
    results["import_seconds"] = machine.import_seconds("parley")
    print(report.text(results))
    if not (options.quick or options.only or options.without_official):
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        if options.write:
            report.write(results, HERE.parent / "README.md", HERE.parent / "docs/benchmarks.md")


if __name__ == "__main__":
    main()
