"""What ``make test`` adds to a run: a last, serial part, and a second try of what failed.

``make test-quick`` runs a part that takes a minute or two.

Tests that are marked ``alone`` need the machine to themselves: they run after all others, one after
another. A test that failed runs once more, in a process of its own with nothing beside it. If it
passes then, it is unstable: the run names it with the reason of its failure, and counts it as
passed. More than ``MAX_UNSTABLE`` of these fail the run. ``tests/unstable.toml`` lists the unstable
tests until the cause of each is mended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

MAX_UNSTABLE = 3
MAX_TRIED_AGAIN = 20
"""More failures than this are no matter of the machine's load."""

LIST = Path(__file__).parent / "unstable.toml"

NOT_QUICK_MARKS = {"alone", "slow", "service", "peer", "may_be_missing", "feature"}
NOT_QUICK_FOLDERS = {
    "attacks",
    "browser",
    "deploy",
    "examples",
    "faults",
    "fleet",
    "fuzz",
    "house",
    "integrations",
    "mutants",
    "peers",
    "simulation",
}
"""What ``make test-quick`` leaves out, and all cases of a function but its first."""

EXPECTED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}

PLUGIN = ("-p", "tests.second_run")

Reports = dict[str, list[pytest.TestReport]]


class SecondRun:
    """The plugin of the process that the user started."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.unstable: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run the serial part and the second tries, as long as nothing stopped the run."""
        done = yield
        if self.config.option.collectonly or session.shouldstop or session.shouldfail:
            return done
        code, reports, output = self._run(self._serial_arguments())
        if code not in EXPECTED:
            raise pytest.UsageError(f"the serial part of the run broke off:\n{output}")
        for report in reports:
            session.testscollected += report.when == "call"
            self.config.hook.pytest_runtest_logreport(report=report)
        self._try_again(session)
        return done

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name the unstable tests, each with its reason."""
        if self.unstable:
            known = tomllib.loads(LIST.read_text("utf-8"))
            terminalreporter.section("unstable: failed, and passed when run again alone")
        for id, reason in self.unstable.items():
            advice = "" if id in known else f" (add it to {LIST.parent.name}/{LIST.name})"
            terminalreporter.write_line(f"unstable: {id}{advice}\n{reason}\n")

    def _try_again(self, session: pytest.Session) -> None:
        stats = self.config.pluginmanager.get_plugin("terminalreporter").stats
        failures: Reports = {}
        for report in [*stats.get("failed", ()), *stats.get("error", ())]:
            if isinstance(report, pytest.TestReport):
                failures.setdefault(report.nodeid, []).append(report)
        if not 0 < len(failures) <= MAX_TRIED_AGAIN:
            return
        for id, failed in failures.items():
            if self._run(["-n0", "--part=all", id])[0] == pytest.ExitCode.OK:
                self.unstable[id] = "\n".join(report.longreprtext for report in failed)
        if len(self.unstable) > MAX_UNSTABLE:
            return
        for id in self.unstable:
            for report in failures[id]:
                stats["failed" if report in stats.get("failed", ()) else "error"].remove(report)
                session.testsfailed -= 1
            if any(report.when != "teardown" for report in failures[id]):
                stats.setdefault("passed", []).append(failures[id][0])

    def _serial_arguments(self) -> list[str]:
        return [*map(str, self.config.invocation_params.args), "-n0", "--part=alone"]

    def _run(self, arguments: Iterable[str]) -> tuple[int, list[pytest.TestReport], str]:
        """Run pytest in a process of its own. Return its exit code, its reports, its output."""
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl", encoding="utf-8") as written:
            ran = subprocess.run(
                [sys.executable, "-m", "pytest", *PLUGIN, *arguments, f"--reports={written.name}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd=self.config.invocation_params.dir,
                check=False,
            )
            reports = [
                self.config.hook.pytest_report_from_serializable(
                    config=self.config, data=json.loads(line)
                )
                for line in written
            ]
        return ran.returncode, reports, ran.stdout


class Reporter:
    """The plugin of a process that ``SecondRun`` started: writes reports into a file."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.path = Path(config.getoption("reports"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a report at once: the process may not live to its end."""
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, default=str) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of ``make test``."""
    group = parser.getgroup("parley", "Parley's own test runs")
    group.addoption(
        "--part",
        choices=("all", "twice", "alone", "quick"),
        default="all",
        help="twice: run tests marked 'alone' last, and what failed once more; alone: only these; "
        "quick: the first case of each test that takes no time, no service and no process",
    )
    group.addoption("--reports", help="write the reports into this file, as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    """Add what the options ask for."""
    if config.getoption("reports"):
        config.pluginmanager.register(Reporter(config))
    elif config.getoption("part") == "twice" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondRun(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the part that runs now."""
    part = config.getoption("part")
    if part == "all":
        return
    if part == "quick":
        kept = list(_quick(items))
    else:
        kept = [i for i in items if (i.get_closest_marker("alone") is None) == (part == "twice")]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no folder that a quick run leaves out."""
    if config.getoption("part") != "quick":
        return None
    is_left_out = collection_path.parent == LIST.parent and (
        collection_path.name in NOT_QUICK_FOLDERS
    )
    return True if is_left_out else None


def _quick(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the first case of each test function without a mark that names a cost."""
    seen: set[str] = set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if function in seen or NOT_QUICK_MARKS & {mark.name for mark in item.iter_markers()}:
            continue
        seen.add(function)
        yield item
