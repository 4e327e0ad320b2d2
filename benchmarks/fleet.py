"""Measures replicas on one PostgreSQL: throughput, streams from elsewhere, and the loss of one.

    python benchmarks/fleet.py [--rounds 5] [--seconds 2]

Everything shares the cores of one machine: the replicas, PostgreSQL, Redis and the load generator.
So a second replica shows what sharing costs, not what a second machine brings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import environments
import load
import services
from processes import HERE, Server, allow_many_files, serving

sys.path.insert(0, str(HERE.parent))  # the tests' kit

PARLEY, OFFICIAL = "Parley", "official SDK's cluster"
LEASE = 3.0
TICKS, APART = 200, 20
TASK_ID = re.compile(rb'"(?:taskId|id)": ?"([0-9a-f-]+)"')


class Kind(NamedTuple):
    """A fleet: who, and with which bus (``""`` for the official SDK, which has none)."""

    who: str
    bus: str

    @property
    def name(self) -> str:
        return f"{self.who}, {BUSES[self.bus]}" if self.bus else self.who


BUSES = {
    "postgres": "PostgreSQL alone",
    "redis": "with Redis",
    "none": "without a bus",
    "pgbouncer": "through PgBouncer",
    "cluster": "with Redis Cluster",
}
KINDS = (Kind(PARLEY, "postgres"), Kind(PARLEY, "redis"), Kind(PARLEY, "none"), Kind(OFFICIAL, ""))
FURTHER = (Kind(PARLEY, "pgbouncer"), Kind(PARLEY, "cluster"))
"""Kinds whose throughput alone is measured."""


class Services:
    """What the fleets of a run share: one PostgreSQL, and a Redis when it is first asked for."""

    def __init__(self, place: Path, stack: contextlib.ExitStack) -> None:
        self.place = place
        self._stack = stack
        self.postgres = stack.enter_context(services.postgres(place / "postgres"))
        self.failed: dict[str, str] = {}
        self._fleets = 0

    @cached_property
    def redis(self) -> str:
        return self._stack.enter_context(services.redis(self.place / "redis"))

    @cached_property
    def cluster(self) -> str:
        from tests.kit.services.redis import cluster

        nodes = self._stack.enter_context(cluster())
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)

    @cached_property
    def pooler(self) -> int:
        """The port of a PgBouncer, in transaction mode."""
        from tests.kit.services.postgres import pooled

        return self._stack.enter_context(pooled(self.postgres, pool_size=20)).port

    @contextlib.contextmanager
    def fleet(
        self, kind: Kind, what: str, replicas: int, *, url: str = "", **more: str
    ) -> Iterator[list[Server]]:
        """Run so many replicas of an agent on a database of their own, or that of ``url``.

        Raises ``Missing``, ``Unavailable`` or ``RuntimeError`` with the reason.
        """
        url = url or self.postgres.database()
        self._fleets += 1
        store = url
        if kind.bus == "pgbouncer":
            store = url.replace(f":{self.postgres.port}/", f":{self.pooler}/")
        arguments = [what, store, "pin=no", *(f"{name}={value}" for name, value in more.items())]
        if kind.who == OFFICIAL:
            python, script = environments.official(), "official.py"
        else:
            python, script = sys.executable, "parley_agents.py"
            if kind.bus == "redis":
                arguments.append(f"bus={self.redis}")
            elif kind.bus == "cluster":
                arguments.append(f"bus={self.cluster}")
            elif kind.bus == "pgbouncer":
                arguments.append(f"bus={url}")
            elif kind.bus == "none":
                arguments.append("bus=none")
        with contextlib.ExitStack() as stack:
            servers = []
            for number in range(replicas):
                log = self.place / f"fleet-{self._fleets}-{number}.log"
                servers.append(stack.enter_context(serving(python, script, *arguments, log=log)))
            yield servers


def throughput(
    shared: Services, rounds: int, seconds: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return tasks and streamed events a second, by fleet, at one and two replicas.

    A fleet that fails is left out; why is in ``shared.failed``.
    """
    cases = [
        ("tasks", "task", ["requests", "--check", "task"]),
        ("events", "stream", ["streams", "--connections", "10", "--seconds", "0"]),
    ]
    kinds = [kind for kind in KINDS if kind.bus != "none"] + [*FURTHER]
    figures: dict[str, Any] = {}
    for unit, what, arguments in cases:
        with contextlib.ExitStack() as stack:
            fleets = {
                (kind, replicas): stack.enter_context(shared.fleet(kind, what, replicas))
                for kind in kinds
                for replicas in (1, 2)
            }
            for number in range(rounds):
                for (kind, replicas), servers in fleets.items():
                    progress(f"{unit} of {replicas}, {kind.name}: round {number + 1} of {rounds}")
                    length = str(int((100 if kind.who == OFFICIAL else 2000) * seconds / 2))
                    further = (
                        ["--chunks", length]
                        if unit == "events"
                        else ["--seconds", str(seconds), "--connections", "64"]
                    )
                    try:
                        measured = generate([*arguments, *further], servers)
                    except RuntimeError as error:
                        shared.failed[f"{unit} of {replicas}, {kind.name}"] = str(error)
                        continue
                    by_replicas = figures.setdefault(unit, {}).setdefault(kind.name, {})
                    by_replicas.setdefault(str(replicas), []).append(measured)
    for by_kind in figures.values():
        for by_replicas in by_kind.values():
            for replicas, measured in by_replicas.items():
                by_replicas[replicas] = medians(measured)
    return figures


def generate(arguments: list[str], servers: list[Server]) -> dict[str, float]:
    """Run the load generator against replicas. Raises ``RuntimeError`` with what it said."""
    command = [sys.executable, str(HERE / "load.py"), *arguments, "--anywhere"]
    for server in servers:
        command += ["--port", str(server.port), "--pid", str(server.pid)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    measured: dict[str, float] = json.loads(done.stdout)
    measured["per_second"] = measured["count"] / measured["seconds"]
    measured["cpu_us"] = measured["cpu_seconds"] / measured["count"] * 1e6
    return measured


class Stream:
    """A stream of ticks, read as it comes: when each was said, and when it was here (ns)."""

    def __init__(self, port: int, method: str, params: dict[str, object]) -> None:
        self.line = load.connect(port)
        self.line.sendall(load.http_request(port, method, params))
        self.ticks: list[tuple[int, int]] = []
        self.task_id = ""
        self.over = False
        self._seen = b""

    def read(self, seconds: float) -> None:
        """Take what comes next. Raises ``TimeoutError`` when nothing does, or at the end."""
        if self.over:
            raise TimeoutError("the stream has ended")
        self.line.settimeout(seconds)
        new = self.line.recv(1 << 16)
        now = time.monotonic_ns()
        self._seen += new
        *whole, self._seen = self._seen.split(b"\n")
        for line in whole:
            if not self.task_id and (
                found := re.search(rb'"(?:taskId|id)": ?"([0-9a-f-]+)"', line)
            ):
                self.task_id = found[1].decode()
            # The snapshot that a subscription begins with has ticks too, which are old.
            if b'"statusUpdate"' in line and (tick := re.search(rb"at (\d+) ", line)):
                self.ticks.append((int(tick[1]), now))
        self.over = self.over or not new or b"TASK_STATE_COMPLETED" in b"".join(whole)


def across(shared: Services, rounds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return how late ticks come on the replica that runs the turn, and on another (ms)."""
    figures = {}
    for kind in KINDS:
        late: dict[str, list[float]] = {"here": [], "elsewhere": []}
        with shared.fleet(kind, "ticks", 2) as (one, other):
            for number in range(rounds):
                progress(f"streams across replicas, {kind.name}: round {number + 1} of {rounds}")
                here, elsewhere = both_streams(one, other, number)
                for name, stream in (("here", here), ("elsewhere", elsewhere)):
                    late[name] += [(came - said) / 1e6 for said, came in stream.ticks]
        figures[kind.name] = {
            name: {"p50_ms": at(values, 0.5), "p99_ms": at(values, 0.99), "ticks": len(values)}
            for name, values in late.items()
        }
    return figures


def both_streams(one: Server, other: Server, number: int) -> tuple[Stream, Stream]:
    """Stream a task from the replica that runs it, and from another, to the end.

    They are read by processes of their own, so that neither waits for the other.
    """
    from concurrent.futures import ThreadPoolExecutor

    said = load.message(f"{TICKS} {APART}", number)
    here = Stream(one.port, "SendStreamingMessage", said)
    while not here.task_id:
        here.read(30)
    elsewhere = Stream(other.port, "SubscribeToTask", {"id": here.task_id})

    def to_the_end(stream: Stream) -> None:
        while not stream.over:
            stream.read(30)
        stream.line.close()

    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(to_the_end, each) for each in (here, elsewhere)]:
            done.result()
    return here, elsewhere


def at(values: list[float], share: float) -> float:
    """Return a quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def loss(
    shared: Services, rounds: int, progress: Callable[[str], None], lease: float = LEASE
) -> dict[str, Any]:
    """Return the seconds from SIGKILL of the replica that runs a turn to an event from another."""
    figures: dict[str, Any] = {"lease": lease}
    for kind in KINDS:
        took = []
        for number in range(rounds if kind.who == PARLEY else 1):
            progress(f"the loss of a replica, {kind.name}: round {number + 1} of {rounds}")
            # Parley's holds a lease; the official cluster knows no such thing.
            more = {"lease": str(lease)} if kind.who == PARLEY else {}
            patience = lease * 3 + 10
            with shared.fleet(kind, "ticks", 2, **more) as (one, other):
                time.sleep(lease if kind.who == PARLEY else 0)  # until all know one another
                took.append(killed(one, other, number, patience))
        figures[kind.name] = {
            "median_s": median(took) if None not in took else None,
            "longest_s": max(took) if None not in took else None,
            "times": len(took),
        }
    return figures


def killed(one: Server, other: Server, number: int, patience: float) -> float | None:
    """Kill the replica that runs a turn; return how long a follower elsewhere heard nothing."""
    here = Stream(one.port, "SendStreamingMessage", load.message(f"1000 {APART}", number))
    while len(here.ticks) < 5:
        here.read(30)
    elsewhere = Stream(other.port, "SubscribeToTask", {"id": here.task_id})
    while len(elsewhere.ticks) < 5:
        elsewhere.read(30)
    one.process.kill()
    begun = time.monotonic_ns()
    deadline = begun + patience * 1e9
    try:
        while time.monotonic_ns() < deadline:
            elsewhere.read(max(0.01, (deadline - time.monotonic_ns()) / 1e9))
            if elsewhere.over:
                return None
            # What the dead one said may still be under way; what another says is said later.
            if elsewhere.ticks and elsewhere.ticks[-1][0] > begun:
                return (elsewhere.ticks[-1][1] - begun) / 1e9
    except TimeoutError:
        pass
    finally:
        elsewhere.line.close()
        here.line.close()
    return None


LEVELS = {
    "SQLite, FULL (every commit is on disk)": ("sqlite", "synchronous=FULL"),
    "SQLite, NORMAL (a power cut loses the last)": ("sqlite", "synchronous=NORMAL"),
    "PostgreSQL, synchronous_commit on": ("postgres", ""),
    "PostgreSQL, synchronous_commit off": ("postgres", "synchronous_commit=off"),
    "memory": ("memory", ""),
}


def durability(
    shared: Services, rounds: int, seconds: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return tasks a second of one replica, by how durable they are when a caller hears of them."""
    measured: dict[str, list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        servers = {}
        for number, (name, (where, level)) in enumerate(LEVELS.items()):
            arguments = ["task"]
            if where == "sqlite":
                arguments += [str(shared.place / f"level-{number}.db"), level]
            elif where == "postgres":
                option = f"?options=-c%20{level.replace('=', '%3D')}" if level else ""
                arguments += [shared.postgres.database() + option, "bus=none"]
            else:
                arguments += ["memory:"]
            log = shared.place / f"level-{number}.log"
            servers[name] = stack.enter_context(
                serving(sys.executable, "parley_agents.py", *arguments, "pin=no", log=log)
            )
        for number in range(rounds):
            for name, server in servers.items():
                progress(f"durability, {name}: round {number + 1} of {rounds}")
                expect = ["--check", "task", "--seconds", str(seconds)]
                measured.setdefault(name, []).append(generate(["requests", *expect], [server]))
    return {name: medians(all_) for name, all_ in measured.items()}


def medians(measured: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    names = ("per_second", "cpu_us", "p50_ms", "p99_ms")
    return {name: median(one[name] for one in measured) for name in names}


def measure(
    place: Path, rounds: int, seconds: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return all figures of a fleet; ``missing`` says what could not be measured, and why."""
    figures: dict[str, Any] = {"missing": {}}
    with contextlib.ExitStack() as stack:
        try:
            shared = Services(place, stack)
        except services.Missing as error:
            return {"missing": {"fleets": str(error)}}
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "throughput": lambda: throughput(shared, rounds, seconds, progress),
            "across": lambda: across(shared, min(rounds, 2), progress),
            "durability": lambda: durability(shared, rounds, seconds, progress),
            "loss": lambda: loss(shared, min(rounds, 2), progress),
        }
        for name, part in parts.items():
            try:
                figures[name] = part()
            except (services.Missing, environments.Unavailable, RuntimeError, OSError) as error:
                figures["missing"][name] = str(error)
        figures["missing"] |= shared.failed
    return figures


def main() -> None:
    """Measure fleets, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    allow_many_files()
    place = HERE.parent / ".bench"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as directory:
        figures = measure(
            Path(directory),
            options.rounds,
            options.seconds,
            lambda line: print(line, file=sys.stderr),
        )
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
