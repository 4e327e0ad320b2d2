"""Draw mutants, run the tests that reach them, and report the mutants that survive.

    python -m tests.mutants --reach              record, in one run, what tests reach which mutant
    python -m tests.mutants engine store         run the mutants of these rooms
    python -m tests.mutants engine --killers 5   ... until five test functions killed each
    python -m tests.mutants engine --needed      say which tests the kills of the last run need
    python -m tests.mutants engine --before F    compare with F, the result of an earlier run

The same seed draws the same mutants from the same source. The folder ``.mutants`` (or the variable
``PARLEY_MUTANTS``) keeps the record, ``reach.json``, and the results of each room, ``ROOM.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.mutants import loading, reach
from tests.mutants.mutations import mutants
from tests.mutants.runner import Target, chosen

ROOT = loading.ROOT
KEPT = Path(os.environ.get("PARLEY_MUTANTS", ROOT / ".mutants"))
SOURCE = ROOT / "src" / "parley"

MAX_OTHERS = 200
"""The number of test functions of other rooms that are kept for one mutant."""

Result = dict[str, Any]


def rooms() -> list[str]:
    """Return the rooms: the folders of the package, and ``.`` for its own modules."""
    return [".", *sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))]


def drawn(room: str, most: int, seed: int) -> dict[str, Result]:
    """Draw mutants of a room, evenly from all mutable lines."""
    folder = SOURCE / room
    files = folder.glob("*.py") if room == "." else folder.rglob("*.py")
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{mutant.number}": mutant._asdict()
        for path in sorted(files)
        for mutant in mutants(path.read_text("utf-8"))
    }
    names = random.Random(f"{room} {seed}").sample(sorted(found), min(most, len(found)))
    return {name: found[name] for name in names}


def record(options: argparse.Namespace) -> int:
    """Run the tests with a probe at each drawn mutant, and record which tests reach it."""
    names = [
        name
        for room in options.rooms or rooms()
        for name in drawn(room, options.mutants, options.seed)
    ]
    probes: dict[str, dict[str, int]] = {}
    for number, name in enumerate(names):
        path, _, index = name.rpartition(":")
        probes.setdefault(path, {})[index] = number
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "probes.json")
        file.write_text(json.dumps(probes), "utf-8")
        environment = os.environ | {loading.PROBES: str(file), reach.FOLDER: folder}
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(options.jobs)]
        command += ["-p", "tests.mutants.reach", *options.tests]
        status = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
        reached: dict[str, dict[str, list[str]]] = {}
        seconds: dict[str, float] = {}
        failed: set[str] = set()
        for part in Path(folder).glob("[0-9]*.json"):
            data = json.loads(part.read_text("utf-8"))
            seconds |= data["seconds"]
            failed |= set(data["failed"])
            for number, functions in data["reached"].items():
                merged = reached.setdefault(names[int(number)], {})
                for function, cases in functions.items():
                    merged[function] = [*merged.get(function, []), *cases][: reach.CASES]
    numbers = {case: number for number, case in enumerate(seconds)}
    kept = {
        name: [numbers[case] for case in _kept(name, functions) if case not in failed]
        for name, functions in reached.items()
    }
    data = {"drawn": _drawing(options), "cases": list(seconds.items()), "reached": kept}
    KEPT.mkdir(exist_ok=True)
    (KEPT / "reach.json").write_text(json.dumps(data), "utf-8")
    print(f"{len(names)} mutants, {len(reached)} reached; the tests ended with {status}")
    return 0


def _drawing(options: argparse.Namespace) -> list[int]:
    """Return the options that decide which mutants are drawn."""
    return [options.mutants, options.seed]


def _kept(name: str, functions: dict[str, list[str]]) -> Iterator[str]:
    """Yield the cases to keep for a mutant: of its room's tests, and some others."""
    own = f"tests/{Path(name).parts[2]}/"
    others = [function for function in functions if not function.startswith(own)]
    left_out = set(random.Random(name).sample(others, max(0, len(others) - MAX_OTHERS)))
    for function, cases in functions.items():
        if function not in left_out:
            yield from cases


def run(options: argparse.Namespace) -> int:
    """Run the mutants of rooms, and print the survivors."""
    file = KEPT / "reach.json"
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if known.get("drawn") != _drawing(options):
        print(f"{file} records no run with --mutants {options.mutants} --seed {options.seed};")
        print("record one first, and again when tests were added or moved: --reach")
        return 2
    cases = [case for case, _ in known["cases"]]
    seconds = dict(known["cases"])
    for room in options.rooms or rooms():
        found = drawn(room, options.mutants, options.seed)
        targets = []
        for name in found:
            reached: dict[str, list[str]] = {}
            for number in known["reached"].get(name, ()):
                reached.setdefault(cases[number].partition("[")[0], []).append(cases[number])
            targets.append(Target(name, chosen(reached, seconds, [f"tests/{room}"])))
        for name, killers, ran in _outcomes(targets, seconds, options):
            found[name] |= {"ran": ran, "killers": killers}
        (KEPT / f"{room}.json").write_text(json.dumps(found, indent=1), "utf-8")
        show(room, found, options)
    return 0


def _outcomes(
    targets: Sequence[Target], seconds: dict[str, float], options: argparse.Namespace
) -> Iterator[tuple[Any, ...]]:
    """Yield the outcome of each target, from as many processes as there are jobs."""
    workers: list[tuple[subprocess.Popen[bytes], Path]] = []
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder, "outcomes")
        for number in range(options.jobs):
            share = targets[number :: options.jobs]
            cases = {case for target in share for case in target.cases}
            job = {
                "targets": [target._asdict() for target in share],
                "killers": options.killers,
                "seconds": {case: seconds[case] for case in cases},
                "outcomes": str(outcomes),
            }
            file = Path(folder, f"{number}.json")
            file.write_text(json.dumps(job), "utf-8")
            command = [sys.executable, "-m", "tests.mutants.worker", str(file)]
            printed = Path(folder, f"{number}.out")
            with printed.open("w") as out:
                worker = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
            workers.append((worker, printed))
        for worker, printed in workers:
            if worker.wait() not in (0, 5):
                print(printed.read_text("utf-8"))
        if outcomes.exists():
            for line in outcomes.read_text("utf-8").splitlines():
                yield tuple(json.loads(line))


def show(room: str, found: dict[str, Result], options: argparse.Namespace) -> None:
    """Print the score of a room and its survivors, or the difference from an earlier run."""
    tried = {name: result for name, result in found.items() if result.get("ran")}
    killed = {name for name, result in tried.items() if result["killers"]}
    print(
        f"{room}: {len(killed)} of {len(found)} mutants killed, {len(tried) - len(killed)} "
        f"survive, {len(found) - len(tried)} are reached by no test"
    )
    if options.before:
        earlier = json.loads(Path(options.before).read_text("utf-8"))
        lost = {name for name, was in earlier.items() if was.get("killers")} - killed
        _list("killed before, not now", found, sorted(lost & found.keys()))
    elif options.verbose:
        _list("survives", found, sorted(tried.keys() - killed))
        _list("reached by no test", found, sorted(found.keys() - tried.keys()))


def _list(what: str, found: dict[str, Result], names: Sequence[str]) -> None:
    for name in names:
        path, mutant = name.rpartition(":")[0], found[name]
        print(f"{what}: {path}:{mutant['line']} ({name.rpartition(':')[2]})")
        print(f"    {mutant['before']}  ->  {mutant['after']}")


def needed(options: argparse.Namespace) -> int:
    """Print for each test function how many mutants it kills, how many alone, and if it is needed.

    Needed are the functions of a smallest set, found greedily, that kills every killed mutant. A
    function that kills nothing may still state a guarantee.
    """
    own = tuple(f"{folder.rstrip('/')}/" for folder in options.tests) or tuple(
        f"tests/{room}/" for room in options.rooms
    )
    killers = [
        set(result["killers"])
        for room in options.rooms
        for result in json.loads((KEPT / f"{room}.json").read_text("utf-8")).values()
        if result.get("killers")
    ]
    kills = Counter(name for names in killers for name in names)
    alone = Counter(name for names in killers for name in names if len(names) == 1)
    kept: set[str] = set()
    left = killers
    while left:
        counts = Counter(name for names in left for name in names)
        best = max(sorted(counts), key=lambda name: (counts[name], not name.startswith(own)))
        kept.add(best)
        left = [names for names in left if best not in names]
    for name in sorted(name for name in test_functions(own) | kills.keys()):
        mark = "needed" if name in kept else "-"
        print(f"{mark:6} {kills[name]:4} {alone[name]:4}  {name}")
    return 0


def test_functions(folders: Sequence[str]) -> set[str]:
    """Return the names of the test functions in folders."""
    return {
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for folder in folders
        for path in (ROOT / folder).rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.M)
    }


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "rooms", nargs="*", help="rooms of the product; all of them if none is named"
    )
    parser.add_argument("--reach", action="store_true", help="record which tests reach what")
    parser.add_argument("--needed", action="store_true", help="say which tests the kills need")
    parser.add_argument("--mutants", type=int, default=500, help="how many to draw in a room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--killers", type=int, default=1, help="tests to find for each mutant")
    parser.add_argument("--tests", nargs="+", default=[], help="tests to record, instead of all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--before", help="the results of an earlier run, to compare with")
    parser.add_argument("--verbose", "-v", action="store_true", help="list the survivors")
    options = parser.parse_args()
    if unknown := set(options.rooms) - set(rooms()):
        parser.error(f"no such room: {', '.join(sorted(unknown))}; there are {', '.join(rooms())}")
    if options.needed:
        return needed(options)
    return record(options) if options.reach else run(options)


if __name__ == "__main__":
    sys.exit(main())
