"""Look in two minutes whether Parley has become slower: ratios beside the typed app of one run.

    make bench-quick                   compares with expected.json, and fails when one left its band
    make bench-quick ARGS=--write      expects from now on what is measured now
    make bench-quick ARGS='--only stream'

A ratio says more than a time: another machine, or other work on this one, hits both sides alike.
The bands are wide enough for what is left of that. They find what became a third slower, not what
became three per cent slower: measure that with ``make bench``. A ratio below its band fails too:
what became so much cheaper is to be expected from now on, or was not done at all.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import rows
import tables
from cases import PARLEY, ROWS, TYPED
from processes import HERE, allow_many_files

EXPECTED = HERE / "expected.json"
BESIDE = {
    "task in SQLite": "task in memory",
    "chunk of 16 streams in SQLite": "chunk of 16 streams",
}
"""Rows that the typed app has no part in, and the one whose typed figure is used."""
BANDS = {"cpu_us": (0.7, 1.35), "p50_ms": (0.4, 2.0), "bytes": (0.6, 1.5)}
"""The bands around what is expected, by the kind of figure: a latency varies more than CPU."""
ABOUT = (
    "Parley's cost divided by the typed app's (servers/typed.py) of one run, and the band that "
    "`make bench-quick` holds it to: for noise, of the machine and of its other work. "
    "`make bench-quick ARGS=--write` writes it."
)


def measured(only: str, rounds: int, seconds: float, shrink: int) -> dict[str, float]:
    """Return the ratio of each row. Raises ``SystemExit`` if a server fails or answers wrongly."""
    figures: dict[str, dict[str, Any]] = {}
    wanted = [row for row in ROWS if only in row.name]
    needed = {row.name for row in wanted} | {BESIDE.get(row.name, row.name) for row in wanted}
    beside = {row["what"]: row["ratio"] for row in calls(only, rounds)}
    for row in ROWS:
        if row.name not in needed:
            continue
        tables.step(f"{row.name} ...")
        found = rows.measure(row, (TYPED, PARLEY), rounds, seconds, shrink)
        if absent := found.missing | found.wrong:
            raise SystemExit("\n".join(f"{row.name}, {who}: {why}" for who, why in absent.items()))
        figures[row.name] = found.figures
    tables.progress("")
    ratios = {
        row.name: tables.ratio(
            row.name, figures[row.name][PARLEY], figures[BESIDE.get(row.name, row.name)][TYPED]
        )
        for row in wanted
    }
    return {name: ratio for name, ratio in ratios.items() if ratio is not None} | beside


def calls(only: str, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of clients and of gRPC that are asked for."""
    if not any(only in name for name in ("client", "gRPC server", "reading a stream")):
        return []
    tables.step("clients and gRPC ...")
    return [row for row in rows.calls(rounds) if only in row["what"]]


def expectation(name: str, ratio: float) -> dict[str, float]:
    """Return what is expected of a row from now on."""
    low, high = BANDS[tables.figure_of(name)]
    return {"ratio": round(ratio, 2), "from": round(ratio * low, 2), "to": round(ratio * high, 2)}


def compared(ratios: dict[str, float], expected: dict[str, Any]) -> tuple[list[str], bool]:
    """Return a table of what is and what was expected, and whether all of it is in its band."""
    lines = [["of typed", "expected", "band", "measured", ""]]
    good = True
    for name, ratio in ratios.items():
        band = expected.get(name)
        if band is None:
            lines.append([name, "", "", f"{ratio:.2f}", "not expected: write it down"])
            good = False
            continue
        verdict = (
            "SLOWER" if ratio > band["to"] else "faster" if ratio < band["from"] else "as ever"
        )
        good = good and verdict == "as ever"
        lines.append(
            [
                name,
                f"{band['ratio']:.2f}",
                f"{band['from']:.2f} to {band['to']:.2f}",
                f"{ratio:.2f}",
                verdict,
            ]
        )
    return tables.aligned(lines), good


def main() -> None:
    """Measure and compare. Ends with status 1 when a ratio left its band."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--shrink", type=int, default=1, help="streams so many times shorter")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--write", action="store_true", help="expect this from now on")
    options = parser.parse_args()
    allow_many_files()
    ratios = measured(options.only, options.rounds, options.seconds, options.shrink)
    told = json.loads(EXPECTED.read_text("utf-8")) if EXPECTED.exists() else {"ratios": {}}
    lines, good = compared(ratios, told["ratios"])
    print("\n".join(lines))
    if options.write:
        told["ratios"] |= {name: expectation(name, ratio) for name, ratio in ratios.items()}
        EXPECTED.write_text(json.dumps({**told, "about": ABOUT}, indent=1) + "\n", "utf-8")
    elif not good:
        raise SystemExit("a ratio left its band: measure again with a quiet machine, then say why")


if __name__ == "__main__":
    main()
