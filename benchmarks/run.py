"""Measure Parley beside the least that a server can do and beside other SDKs, in one run.

    make bench                        the rows, calls and choices: ten minutes; writes results.json
    make bench ARGS=--write           and puts the figures into README.md and docs
    make bench ARGS=--quick           one short round of the rows, to see that it works
    make bench ARGS='--only stream'   rows whose name contains a word
    make bench ARGS='--who Parley,a2a-go'
    make bench ARGS='--parts fleet'   some parts: rows, calls, choices; memory, fleet, stored
    make bench ARGS=--million         stored tasks up to a million: some minutes more
    make bench ARGS=--again           from the beginning, though a run was broken off

Every server runs on one core, the load generator on another. The rounds of a row are interleaved:
each round measures everyone once, so that what else the machine does hits all alike; the figures
are medians over the rounds. Every answer is checked: a wrong one of an SDK leaves it out of its
row, one of ours makes the run fail.

A run that is broken off goes on where it was, if neither the sources nor its options have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import time
from collections.abc import Callable
from typing import Any

import choices
import fleet
import fleet_report
import machine
import rows
import stored
import tables
from cases import DISK, EVERYONE, MEMORY, OURS, PARLEY, PYTHON, ROWS, Row
from processes import HERE, allow_many_files

ROOT = HERE.parent
RESULTS = HERE / "results.json"
SOURCES = (".py", ".sql", ".rs", ".go", ".cjs")
PARTS = ("rows", "calls", "choices")
OF_A_FLEET = ("memory", "fleet", "stored")
GROWTH = tuple(
    Row(
        f"{chunks:,} chunks in {kind}", "stream", where, (*load, "--chunks", str(chunks)), (PARLEY,)
    )
    for kind, where in (("memory", MEMORY), ("SQLite", DISK))
    for chunks, load in (
        (1_000, ("streams", "--connections", "1", "--seconds", "0", "--repeat", "25")),
        (25_000, ("streams", "--connections", "1", "--seconds", "0")),
    )
)
MEMORY_OF = tuple(
    Row(
        f"{what} {count}",
        "wait" if what == "idle" else "ask",
        MEMORY if what == "idle" else DISK,
        (what, "--connections", str(count)),
        # The official server takes minutes for more.
        (PARLEY, PYTHON) if count == 1_000 else (PARLEY,),
        "bytes",
    )
    for what in ("idle", "parked")
    for count in (1_000, 5_000, 10_000)
)


class Kept:
    """The pieces of a run that are done, in a file, for when it is broken off."""

    def __init__(self, key: str, *, again: bool) -> None:
        self._path = ROOT / ".bench" / "measured.json"
        self._path.parent.mkdir(exist_ok=True)
        self._all: dict[str, Any] = {"key": key, "pieces": {}}
        if not again and self._path.exists():
            found = json.loads(self._path.read_text("utf-8"))
            if found["key"] == key:
                self._all = found

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a piece: as it was measured before, else measured now."""
        pieces = self._all["pieces"]
        if name in pieces:
            tables.step(f"{name}: measured before")
            return pieces[name]
        began = time.monotonic()
        tables.step(f"{name} ...")
        pieces[name] = measure()
        self._path.write_text(json.dumps(self._all), "utf-8")
        tables.step(f"{name}: {time.monotonic() - began:.0f} s")
        return pieces[name]

    def done(self) -> None:
        """Forget all: the run has come to its end."""
        self._path.unlink(missing_ok=True)


def key_of(options: argparse.Namespace) -> str:
    """Return a digest of what is measured, and how."""
    how = options.rounds, options.seconds, options.who, options.quick, options.million
    digest = hashlib.sha256(repr(how).encode())
    for folder in (ROOT / "src", HERE):
        for path in sorted(folder.rglob("*")):
            if path.suffix in SOURCES:
                digest.update(path.read_bytes())
    return digest.hexdigest()


def measured(row: Row, options: argparse.Namespace, shrink: int) -> rows.Measured:
    """Measure a row as the options say."""
    return rows.measure(row, options.who, options.rounds, options.seconds, shrink)


def main() -> None:
    """Measure, print, and keep the figures."""
    options = parsed()
    allow_many_files()
    kept = Kept(key_of(options), again=options.again)
    results: dict[str, Any] = {"machine": machine.describe()}
    shrink = 20 if options.quick else 1
    wrong: list[str] = []

    def row_of(row: Row) -> dict[str, Any]:
        """Measure a row; the wrong answers of others leave them out, those of ours end the run."""
        piece = kept.get(row.name, lambda: vars(measured(row, options, shrink)))
        for who, why in piece["wrong"].items():
            if who in OURS:
                wrong.append(f"{row.name}, {who}: {why}")
            piece["missing"][who] = f"a wrong answer: {why}"
        for who, why in piece["missing"].items():
            results["missing"][f"{row.name}, {who}"] = " ".join(why.split())[:200]
        return piece["figures"]

    if "rows" in options.parts:
        results |= {"rows": {}, "missing": {}, "growth": {}}
        for row in ROWS:
            if options.only in row.name and set(options.who) & set(row.who):
                results["rows"][row.name] = row_of(row)
        if not options.only and PARLEY in options.who:
            for row in GROWTH:
                results["growth"][row.name] = row_of(row).get(PARLEY, {})
            results["import_seconds"] = machine.import_seconds("parley", 3)
    if "calls" in options.parts:
        results["calls"] = kept.get("calls", lambda: rows.calls(options.rounds))
    if "choices" in options.parts:
        results["choices"] = kept.get(
            "choices", lambda: choices.measure(options.rounds, options.seconds)
        )
    further = of_fleets(options, kept)
    tables.progress("")
    print(tables.text(results))
    if further:
        print(fleet_report.text(results["machine"] | machine.services(), further))
    if wrong:
        raise SystemExit("\n".join(["WRONG ANSWERS, so nothing is kept:", *wrong]))
    if not options.partial:
        keep(results, further, options.write)
    kept.done()


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="of each case that counts requests"
    )
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--who", default=",".join(EVERYONE), help="some of them, with commas")
    parser.add_argument("--quick", action="store_true", help="one short round; writes nothing")
    parser.add_argument("--write", action="store_true", help="put the figures into the documents")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, or all")
    parser.add_argument("--million", action="store_true", help="stored tasks up to a million")
    parser.add_argument("--again", action="store_true", help="measure all, though some is done")
    options = parser.parse_args()
    options.who = options.who.split(",")
    options.parts = [*PARTS, *OF_A_FLEET] if options.parts == "all" else options.parts.split(",")
    for name, given, known in (
        ("parts", options.parts, (*PARTS, *OF_A_FLEET)),
        ("who", options.who, EVERYONE),
    ):
        if unknown := set(given) - set(known):
            parser.error(f"--{name}: there is no {', '.join(unknown)}, but {', '.join(known)}")
    options.partial = bool(options.quick or options.only or len(options.who) < len(EVERYONE))
    if options.quick or options.only:
        options.parts = ["rows"]
    if options.quick:
        options.rounds, options.seconds = 1, 0.1
    return options


def of_fleets(options: argparse.Namespace, kept: Kept) -> dict[str, Any]:
    """Measure memory, replicas on PostgreSQL, and many stored tasks, as far as asked for."""
    further: dict[str, Any] = {}
    if "memory" in options.parts:
        further["memory"] = {"missing": {}}
        for row in MEMORY_OF:
            piece = kept.get(row.name, lambda row=row: vars(measured(row, options, 1)))
            absent = piece["missing"] | piece["wrong"]
            figures = {who: figure["bytes"] for who, figure in piece["figures"].items()}
            further["memory"][row.name] = figures
            further["memory"]["missing"] |= {f"{row.name}, {w}": why for w, why in absent.items()}
    if "fleet" in options.parts:
        further["fleet"] = kept.get("fleet", lambda: of_replicas(options))
    if "stored" in options.parts:
        further["stored"] = kept.get("stored", lambda: of_stored_tasks(options))
    return further


def of_replicas(options: argparse.Namespace) -> dict[str, Any]:
    """Measure replicas on PostgreSQL."""
    with rows.scratch() as place:
        return fleet.measure(place, min(options.rounds, 2), options.seconds, tables.progress)


def of_stored_tasks(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what reading costs beside many stored tasks."""
    sizes = (*stored.SIZES, stored.MILLION) if options.million else stored.SIZES
    with rows.scratch() as place:
        return stored.measure(place, sizes, tables.progress)


def keep(results: dict[str, Any], further: dict[str, Any], write: bool) -> None:
    """Write the figures beside those of other parts, and into the documents if asked."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    measured_on = results.pop("machine")
    if results:
        kept["machine"] = measured_on
    for part in further.values():
        part["machine"] = measured_on | machine.services()
    kept |= results | further
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    if write and results:
        tables.write(kept, ROOT / "README.md", ROOT / "docs/internals/performance.md")
    if write and further:
        fleet_report.write(kept, ROOT / "docs/internals/benchmarks.md")


def broken_off(signum: int, frame: object) -> None:
    """End in order, so that the servers end too."""
    raise SystemExit("\nbroken off: the same command goes on from here")


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, broken_off)
    main()
