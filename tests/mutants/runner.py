"""Running tests against mutants.

One process collects the tests. For each mutant it forks: the child puts the mutant in, runs tests
that reach it, reports which of them failed, and ends. A child whose test hangs is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mutants import loading

PATIENCE = 8.0
"""The seconds that a test may take beyond four times its usual time before it counts as failed."""

MAX_CASES = 40
MAX_SECONDS = 15.0
"""Limits for one mutant: the cases that run, and their seconds without the mutant."""


class Target(NamedTuple):
    """A mutant to run tests against, and the cases that reach it, in the order to run them."""

    name: str
    cases: Sequence[str]


class Outcome(NamedTuple):
    """The result for a mutant: the test functions that killed it, and how many cases ran."""

    name: str
    killers: tuple[str, ...]
    ran: int


def chosen(
    reached: Mapping[str, Sequence[str]], seconds: Mapping[str, float], first: Sequence[str]
) -> list[str]:
    """Return the cases to run against a mutant: a room's own folders first, then the fast cases.

    Cases of one module stay together, because they share its fixtures.
    """
    own = tuple(f"{folder.rstrip('/')}/" for folder in first)
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for function in reached:
        modules[function.partition("::")[0]].append(function)

    def cost(module: str) -> tuple[bool, float]:
        cases = [reached[function][0] for function in modules[module]]
        mean = sum(seconds.get(case, 1.0) for case in cases) / len(cases)
        return not module.startswith(own), mean

    cases: list[str] = []
    spent = 0.0
    for round_ in range(3):
        for module in sorted(modules, key=cost):
            for function in sorted(
                modules[module], key=lambda name: seconds.get(reached[name][0], 1.0)
            ):
                if round_ >= len(reached[function]):
                    continue
                case = reached[function][round_]
                spent += seconds.get(case, 1.0)
                if len(cases) >= MAX_CASES or (spent > MAX_SECONDS and cases):
                    return cases
                cases.append(case)
    return cases


class Runner:
    """A pytest plugin that replaces the test run by runs against mutants."""

    def __init__(
        self, targets: Iterable[Target], seconds: Mapping[str, float], killers: int, file: Path
    ) -> None:
        self.targets = targets
        self.seconds = seconds
        self.killers = killers
        self.file = file

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every target in a fork."""
        items = {item.nodeid: item for item in session.items}
        os.environ["PYTHONPATH"] = loading.environment_of_children()
        loading._live()
        for target in self.targets:
            cases = [items[case] for case in target.cases if case in items]
            self.report(self._tried(target, cases))
        return True

    def report(self, outcome: Outcome) -> None:
        """Write the result for a mutant, for the parent process."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")

    def _tried(self, target: Target, items: Sequence[pytest.Item]) -> Outcome:
        """Fork, and read from the child the tests that begin and fail."""
        if not items:
            return Outcome(target.name, (), 0)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            self._child(target, items, writing)
        os.close(writing)
        killers: dict[str, None] = {}
        ran = 0
        running = ""
        for line in self._lines(reading):
            what, _, case = line.partition(" ")
            if what == "run":
                running, ran = case, ran + 1
            elif what == "failed":
                killers[case.partition("[")[0]] = None
            elif what == "late":
                killers[running.partition("[")[0] or items[0].nodeid.partition("[")[0]] = None
            elif what == "end":
                break
        else:
            if running and not killers:  # the mutant killed the process
                killers[running.partition("[")[0]] = None
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return Outcome(target.name, tuple(killers), ran)

    def _lines(self, reading: int) -> Iterator[str]:
        """Yield the lines of a child, and ``late`` after a long silence."""
        rest = b""
        patience = 4 * PATIENCE
        while True:
            ready, _, _ = select.select([reading], [], [], patience)
            if not ready:
                yield "late"
                return
            data = os.read(reading, 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in map(bytes.decode, lines):
                if line.startswith("run "):
                    patience = PATIENCE + 4 * self.seconds.get(line[4:], 5.0)
                yield line

    def _child(self, target: Target, items: Sequence[pytest.Item], writing: int) -> None:
        """Run the tests with the mutant, until enough of them failed."""
        os.setsid()
        if sys.platform == "linux":  # it may loop forever, and must not outlive this process
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)

        def say(line: str) -> None:
            os.write(writing, f"{line}\n".encode())

        try:
            os.environ[loading.MUTANT] = target.name
            loading.load_mutant(target.name)
            failed: set[str] = set()
            for item, following in zip(items, [*items[1:], None], strict=True):
                function = item.nodeid.partition("[")[0]
                if function in failed:
                    continue
                say(f"run {item.nodeid}")
                reports = _reports(item, following)
                if any(report.failed for report in reports):
                    failed.add(function)
                    say(f"failed {item.nodeid}")
                    if len(failed) >= self.killers:
                        break
            say("end")
        except BaseException as error:
            say(f"failed {items[0].nodeid} {type(error).__name__}")
            say("end")
        finally:
            os._exit(0)


def _reports(item: pytest.Item, following: Any) -> list[pytest.TestReport]:
    from _pytest.runner import runtestprotocol

    return runtestprotocol(item, log=False, nextitem=following)
