"""Runs targets for a while each: ``python -m tests.fuzz.run --seconds 60 [TARGET ...]``.

What takes steps through the code that no input before has taken is kept, and further inputs are
made of it. Ends with status 1 when a promise was broken, with each input that did it in ``.fuzz/``.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import messages
from tests.fuzz.coverage import Traced, traced
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS, regressions

KEPT = Path(".fuzz")
MOST_CRASHES = 20
PATIENCE = 20.0
MOST_MEMORY = 4 * 1024**3
# Lines that may run for an input, and for each byte of it.
MOST_LINES, MOST_LINES_A_BYTE = 30_000, 120


class Hang(BaseException):
    """A call did not come to an end."""


class Outcome(NamedTuple):
    """What came of one target."""

    name: str
    executions: int
    steps: int
    kept: int
    lines: float
    crashes: list[tuple[Path, str]]

    def __str__(self) -> str:
        found = f"{len(self.crashes)} crashes" if self.crashes else "no crash"
        return (
            f"{self.name:24} {self.executions:8,} executions {self.steps:6,} steps "
            f"{self.kept:5,} inputs kept, {self.lines:5.1f} lines a byte at most, {found}"
        )


class Search:
    """The search for inputs that break a target's promise."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._target = TARGETS[name]
        self._chance = random.Random(f"{name} {seed}")
        self._mutator = Mutator(self._chance, self._target.form, messages.words())
        self._kept: list[bytes] = []
        self._seen: set[int] = set()
        self._crashes: dict[str, tuple[Path, str]] = {}
        self._costliest = 0.0
        self._executions = 0

    def run(self, seconds: float, most: int) -> Outcome:
        """Search for so long, with ``most`` inputs at the most."""
        end = time.monotonic() + seconds
        known = [path.read_bytes() for path in (KEPT / self.name / "kept").glob("*")]
        for data in [*self._target.seeds(), *map(Path.read_bytes, regressions(self.name)), *known]:
            self._try(data)
        while time.monotonic() < end and self._executions < most:
            if len(self._crashes) >= MOST_CRASHES:
                break
            self._try(self._mutator.mutated(self._chosen(), self._kept))
        for data in self._kept:
            _write(KEPT / self.name / "kept", data)
        return Outcome(
            self.name,
            self._executions,
            len({feature >> 5 for feature in self._seen}),
            len(self._kept),
            self._costliest,
            [*self._crashes.values()],
        )

    def _chosen(self) -> bytes:
        """Return an input to go on from, the latest found more often than others."""
        if self._chance.random() < 0.3:
            return self._chance.choice(self._kept[-20:])
        return self._chance.choice(self._kept)

    def _try(self, data: bytes) -> None:
        self._executions += 1
        try:
            seen = _within_bounds(self._target.run, data)
        except (Exception, Hang) as error:
            self._crashed(data, error)
            return
        features = seen.features
        if not self._kept or not features <= self._seen:
            self._seen |= features
            self._kept.append(data)
        self._costliest = max(self._costliest, (seen.lines - 1000) / (len(data) + 100))

    def _crashed(self, data: bytes, error: BaseException) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        known_as = f"{type(error).__name__} {place.filename}:{place.lineno}"
        known = self._crashes.get(known_as)
        if known is None or known[0].stat().st_size > len(data):
            if known is not None:
                known[0].unlink()
            path = _write(KEPT / self.name / "crashes", data)
            words = "".join(traceback.format_exception(error))
            self._crashes[known_as] = (path, words)


def _within_bounds(call: Callable[[bytes], None], data: bytes) -> Traced:
    """Call a function; raise when it takes too long, or too many lines."""
    has_timer = hasattr(signal, "setitimer")
    if has_timer:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        seen = traced(call, data)
    finally:
        if has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
    most = MOST_LINES + MOST_LINES_A_BYTE * len(data)
    assert seen.lines <= most, f"{seen.lines} lines for {len(data)} bytes"
    return seen


def _hung(signum: int, frame: object) -> None:
    raise Hang(f"no end within {PATIENCE:g} s")


def _write(folder: Path, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def search(name: str, seconds: float, seed: int, executions: int = 0) -> Outcome:
    """Search in a process of its own."""
    logging.disable()  # what is wrong with an input is told by what is raised
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _hung)
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    return Search(name, seed).run(seconds, executions or sys.maxsize)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--executions", type=int, default=0, help="for each target, at the most")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]}; there are {', '.join(TARGETS)}")
    names = given.targets or [*TARGETS]
    print(f"{len(names)} targets for {given.seconds:g} s each, --seed {given.seed}", flush=True)
    crashed = False
    # A process for each, so that what one has cached changes nothing of the next one's way.
    each_anew = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, each_anew, max_tasks_per_child=1) as pool:
        found = [
            pool.submit(search, name, given.seconds, given.seed, given.executions) for name in names
        ]
        for each in found:
            outcome = each.result()
            print(outcome, flush=True)
            for path, words in outcome.crashes:
                crashed = True
                print(f"\n{path}\n{words}", flush=True)
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main())
