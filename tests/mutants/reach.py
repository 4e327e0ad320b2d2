"""A pytest plugin that records which tests reach which mutants, by probes in the product.

``python -m tests.mutants --reach`` runs the tests with it. For the runner, it writes the duration
of each test, and the cases that reached each mutant.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.mutants import loading

FOLDER = "PARLEY_REACH_FOLDER"
"""Variable: the folder for the records of the run's workers."""

CASES = 3
"""The number of cases of one parametrised test function that are kept for a mutant."""


class Recorder:
    """The records of one process of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.here: set[int] = set()
        self.elsewhere = Path(tempfile.mkdtemp(dir=folder))
        self.read: dict[str, int] = {}
        self.reached: dict[int, dict[str, list[str]]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        os.environ[loading.REACHED] = str(self.elsewhere)
        os.environ["PYTHONPATH"] = loading.environment_of_children()
        loading.load_probes(os.environ[loading.PROBES], self.here.add)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note the probes that run between a test's setup and its teardown."""
        self.here.clear()
        self._of_children()
        begun = time.perf_counter()
        done = yield
        self.seconds[item.nodeid] = round(time.perf_counter() - begun, 4)
        function = item.nodeid.partition("[")[0]
        for number in self.here | self._of_children():
            cases = self.reached.setdefault(number, {}).setdefault(function, [])
            if len(cases) < CASES:
                cases.append(item.nodeid)
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Exclude tests that fail without a mutant."""
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the records."""
        data = {"reached": self.reached, "seconds": self.seconds, "failed": sorted(self.failed)}
        (self.folder / f"{os.getpid()}.json").write_text(json.dumps(data), "utf-8")

    def _of_children(self) -> set[int]:
        """Return the probes that other processes reached since the last call."""
        found: set[int] = set()
        for file in self.elsewhere.iterdir():
            text = file.read_text("ascii")
            found |= {int(n) for n in text[self.read.get(file.name, 0) :].split()}
            self.read[file.name] = len(text)
        return found


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests: the workers, or the only one."""
    is_controller = not hasattr(config, "workerinput") and bool(config.getoption("numprocesses", 0))
    if not is_controller:
        config.pluginmanager.register(Recorder(Path(os.environ[FOLDER])))
