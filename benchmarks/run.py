"""Measure Parley beside a bare ASGI app and the official SDK's server, in one run.

    make bench                        ten minutes; prints tables, writes results.json beside this
    make bench ARGS=--quick           one short round of one server's cases, to see that it works
    make bench ARGS=--write           and puts the figures into README.md and docs/benchmarks.md
    make bench ARGS='--only tasks'    cases of one server whose name contains a word
    make bench ARGS='--parts fleet'   some parts: servers, memory, fleet, stored
    make bench ARGS=--million         stored tasks up to a million: some minutes more

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
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import environments
import fleet
import fleet_report
import machine
import report
import stored
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

BARE, TYPED, PARLEY = "bare ASGI", "typed ASGI", "Parley"
OFFICIAL = "official SDK"
CASES = (
    Case("direct replies", BARE, "bare.py", (), requests('"ROLE_AGENT"')),
    Case("direct replies", TYPED, "typed.py", (), requests('"ROLE_AGENT"')),
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


SIZES = (1_000, 5_000, 10_000)
MEMORY_OF = tuple(
    Case(
        f"{what} {count}",
        who,
        script,
        ("wait", MEMORY) if what == "idle" else ("ask", DISK),
        (what, "--connections", str(count)),
    )
    for what in ("idle", "parked")
    for count in SIZES
    for who, script in ((PARLEY, "parley_agents.py"), (OFFICIAL, "official.py"))
    if who == PARLEY or count == SIZES[0]  # the official server takes minutes for more
)
PARTS = ("servers", "memory", "fleet", "stored")


class Servers:
    """The servers of a run, each started when it is first needed and stopped at the end."""

    def __init__(self, place: Path, stack: contextlib.ExitStack) -> None:
        self._place = place
        self._stack = stack
        self._running: dict[tuple[str, ...], Server] = {}
        self._failed: dict[str, str] = {}

    def _python(self, case: Case) -> str:
        return environments.official() if case.who == OFFICIAL else sys.executable

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
            python = self._python(case)
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
    elif load[0] in ("idle", "parked") and shrink > 1:
        load[load.index("--connections") + 1] = "100"
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


def run(
    cases: list[Case], rounds: int, seconds: float, shrink: int, started_by: type[Servers] = Servers
) -> dict[str, Any]:
    """Measure all cases; return the figures, and the reasons for those that are missing."""
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    with scratch() as directory, contextlib.ExitStack() as stack:
        servers = started_by(directory, stack)
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
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    parser.add_argument("--million", action="store_true", help="stored tasks up to a million")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts: there is no {', '.join(unknown)}, but {', '.join(PARTS)}")
    if options.quick or options.only:
        parts = ["servers"]
    allow_many_files()
    rounds, seconds, shrink = options.rounds, options.seconds, 1
    if options.quick:
        rounds, seconds, shrink = 1, 0.2, 20
    results: dict[str, Any] = {"machine": machine.describe(), "figures": {}, "missing": {}}
    if "servers" in parts:
        cases = chosen(CASES, options)
        results |= run(cases, rounds, seconds, shrink)
        results["growth"] = run(chosen(GROWTH, options), min(rounds, 3), seconds, shrink)["figures"]
        results["idle"] = run(chosen(IDLE, options), 1, seconds, shrink)["figures"]
        results["import_seconds"] = machine.import_seconds("parley")
        print(report.text(results))
    further: dict[str, Any] = {}
    if "memory" in parts:
        further["memory"] = each_alone(chosen(MEMORY_OF, options))
    for name, part in (("fleet", of_a_fleet), ("stored", of_stored_tasks)):
        if name in parts:
            further[name] = part(options)
    if further:
        print(fleet_report.text(results["machine"] | machine.services(), further))
    whole = not (options.quick or options.only or options.without_official)
    if whole:
        keep(results | further, parts, options.write)


def each_alone(cases: list[Case]) -> dict[str, Any]:
    """Measure cases once, each on a server of its own: memory that was used is used again."""
    figures: dict[str, Any] = {"missing": {}}
    for case in cases:
        measured = run([case], 1, 0, 1)
        figures["missing"] |= measured["missing"]
        for name, by_whom in measured["figures"].items():
            figures.setdefault(name, {}).update(
                {who: figure["bytes"] for who, figure in by_whom.items()}
            )
    return figures


def of_a_fleet(options: argparse.Namespace) -> dict[str, Any]:
    """Measure replicas on PostgreSQL."""
    with scratch() as place:
        return fleet.measure(place, min(options.rounds, 2), options.seconds, report.progress)


def of_stored_tasks(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what reading costs beside many stored tasks."""
    sizes = (*stored.SIZES, stored.MILLION) if options.million else stored.SIZES
    with scratch() as place:
        return stored.measure(place, sizes, report.progress)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Have a directory that is gone afterwards; not the system's: that may have no disk."""
    place = HERE.parent / ".bench"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def keep(results: dict[str, Any], parts: list[str], write: bool) -> None:
    """Write the figures of some parts to results.json, and to the documents if asked."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    measured_on = results["machine"] | machine.services()
    if "servers" not in parts:
        for name in ("machine", "figures", "missing"):
            results.pop(name)
    else:
        kept.pop("missing", None)
    further = [part for part in parts if part != "servers"]
    for part in further:
        results[part]["machine"] = measured_on
    kept |= results
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    if write:
        docs = HERE.parent / "docs/benchmarks.md"
        if "servers" in parts:
            report.write(kept, HERE.parent / "README.md", docs)
        if further:
            fleet_report.write(kept, docs)


if __name__ == "__main__":
    main()
