"""A process that runs one share of the mutants: ``python -m tests.mutants.worker JOB``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.mutants.runner import Runner, Target


def main(file: str) -> int:
    """Collect the tests of a job once, and run its mutants."""
    job = json.loads(Path(file).read_text("utf-8"))
    targets = [Target(**target) for target in job["targets"]]
    modules = {case.partition("::")[0] for target in targets for case in target.cases}
    if not modules:
        return 0
    plugin = Runner(targets, job["seconds"], job["killers"], Path(job["outcomes"]))
    return int(pytest.main(sorted(modules), plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
