"""The Technology Compatibility Kits of 1.0 and of 0.3, against the conformance agent."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.peers.environments import python_of

from conformance.kits import TCK_0_3, TCK_1_0, Kit, files_of
from conformance.outcomes import Outcomes, read_junit
from conformance.served import conformance_agent

MINUTES = 8

# Which tests there are depends on what the card declares, so the agent is shown in several ways.
MODES_1_0: dict[str, tuple[str, ...]] = {
    "all": (),
    "few": (),
    "required": ("-k", "TestCapabilityExtensionRequired"),
}
# The kit of 0.3 runs most tests over one transport.
STRATEGIES_0_3 = {"jsonrpc": "prefer_jsonrpc", "grpc": "prefer_grpc", "rest": "prefer_rest"}
TESTS_0_3 = (
    "tests/mandatory",
    "tests/optional/capabilities",
    "tests/optional/multi_transport",
    "tests/optional/quality",
    "tests/optional/features",
)


def run_1_0() -> Outcomes:
    """Run the kit of 1.0: what a test that can be run comes to. Raises ``NotAtHand``.

    A test passes that is passed where it applies, and fails that is failed anywhere.
    """
    files = files_of(TCK_1_0)

    def run(mode: str) -> Outcomes:
        with conformance_agent("--card", "1.0", "--mode", mode) as url:
            words = ("tests/compatibility", f"--sut-host={url}", *MODES_1_0[mode])
            return _pytest(TCK_1_0, files, *words)

    outcomes: Outcomes = {}
    with ThreadPoolExecutor(len(MODES_1_0)) as pool:
        for found in pool.map(run, MODES_1_0):
            for test, outcome in found.items():
                before = outcomes.get(test, outcome)
                outcomes[test] = min(before, outcome, key=lambda one: _WEIGHT.index(one.kind))
    return outcomes


_WEIGHT = ("error", "failed", "xfailed", "passed", "skipped")


def run_0_3() -> Outcomes:
    """Run the kit of 0.3 over each transport. Raises ``NotAtHand``."""
    files = files_of(TCK_0_3)

    def run(transport: str) -> Outcomes:
        with conformance_agent("--kit", "0.3") as url:
            found = _pytest(
                TCK_0_3,
                files,
                *TESTS_0_3,
                f"--sut-url={url}",
                "--test-scope=all",
                f"--transport-strategy={STRATEGIES_0_3[transport]}",
                "--transports=jsonrpc,grpc,rest",
            )
        return {f"{transport}: {test}": outcome for test, outcome in found.items()}

    with ThreadPoolExecutor(len(STRATEGIES_0_3)) as pool:
        return {k: v for found in pool.map(run, STRATEGIES_0_3) for k, v in found.items()}


def _pytest(kit: Kit, files: Path, *words: str) -> Outcomes:
    python = python_of(kit.name, kit.packages)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "junit.xml"
        said = _run(
            [
                str(python),
                *("-W", "ignore", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
                f"--junitxml={report}",
                *words,
            ],
            files,
        )
        if not report.exists():
            raise RuntimeError(f"the kit did not run: {said[-2000:]}")
        if told := os.environ.get("CONFORMANCE_LOG"):
            with Path(told).open("a") as log:
                log.write(said)
        return read_junit(report)


def _run(words: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60 * MINUTES,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    return done.stdout
