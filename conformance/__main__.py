"""``python -m conformance``: run the kits, and say whether they come out as they are known to."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance import ard, itk, tck
from conformance.kits import NotAtHand
from conformance.outcomes import Outcomes, differences, known, summary

RUNS = {"tck-1.0": tck.run_1_0, "tck-0.3": tck.run_0_3, "itk": itk.run, "ard": ard.run}


def main() -> int:
    """Run what was asked for; 1 when something is otherwise than it is known to be."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="run", help=f"one of {', '.join(RUNS)}")
    parser.add_argument("--outcomes", metavar="FILE", help="write every test's outcome, as JSON")
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time (3)")
    parser.add_argument(
        "--where-possible", action="store_true", help="pass over kits that cannot be fetched"
    )
    asked = parser.parse_args()
    names = [name for name in RUNS if not asked.runs or name.startswith(tuple(asked.runs))]
    if not names:
        parser.error(f"there is no run {asked.runs[0]!r}; there are {', '.join(RUNS)}")
    entries = known()
    everything: dict[str, Outcomes] = {}
    wrong = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        started = {name: pool.submit(_timed, name) for name in names}
        for name, result in started.items():
            try:
                seconds, outcomes = result.result()
            except NotAtHand as error:
                print(f"{name}: not run: {error}", flush=True)
                wrong += not asked.where_possible
                continue
            everything[name] = outcomes
            print(f"{summary(name, outcomes)} ({seconds:.0f} s)", flush=True)
            for line in differences(name, outcomes, entries):
                wrong += 1
                print(f"  {line}", flush=True)
    if asked.outcomes:
        Path(asked.outcomes).write_text(json.dumps(everything, indent=1))
    if not everything:
        print("no kit was run")
        return 1 if wrong else 0
    print("as known" if not wrong else f"{wrong} otherwise than known (conformance/expected.toml)")
    return 1 if wrong else 0


def _timed(name: str) -> tuple[float, Outcomes]:
    begun = time.monotonic()
    outcomes = RUNS[name]()
    return time.monotonic() - begun, outcomes


if __name__ == "__main__":
    sys.exit(main())
