"""The figures as tables: for a terminal, and for the documentation."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from cases import EVERYONE, PARLEY, PEERS, ROWS, TYPED

SLOWEST_CLOCK = 0.9
"""The part of its time that the load generator may be busy: beyond it, it was the limit."""


def step(line: str) -> None:
    """Say what was done, or comes next."""
    progress("")
    print(line, file=sys.stderr, flush=True)


def progress(line: str) -> None:
    """Show on a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def cell(row: str, figure: dict[str, Any] | None) -> str:
    """Return a figure as it stands in the table."""
    if not figure:
        return ""
    counts = figure_of(row)
    if counts == "bytes":
        return f"{figure['bytes'] / 1024:.1f} KiB"
    if counts == "p50_ms":
        return f"{figure['p50_ms']:.2f} ms"
    cpu = figure.get("cpu_us")
    digits = 0 if cpu is not None and cpu >= 100 else 1
    return f"{figure['per_second']:,.0f}" + (f" ({cpu:,.{digits}f})" if cpu is not None else "")


def figure_of(row: str) -> str:
    """Return which figure of a row counts."""
    return next((of.figure for of in ROWS if of.name == row), "cpu_us")


def ratio(row: str, ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> float | None:
    """Return how much more the first costs than the second.

    Of CPU times it is the median of the rounds' ratios: what disturbs a round disturbs both.
    """
    counts = figure_of(row)
    if ours and theirs and counts == "cpu_us":
        pairs = list(zip(ours.get("each", ()), theirs.get("each", ()), strict=False))
        if pairs:
            return median(our / their for our, their in pairs)
    if not ours or not theirs or ours.get(counts) is None or not theirs.get(counts):
        return None
    return float(ours[counts] / theirs[counts])


def of_typed(row: str, by_whom: dict[str, Any]) -> str:
    """Return what Parley costs beside the typed app."""
    found = ratio(row, by_whom.get(PARLEY), by_whom.get(TYPED))
    return f"{found:.2f}" if found is not None else ""


def best_peer(row: str, by_whom: dict[str, Any]) -> str:
    """Return which SDK costs the least, and what it costs beside Parley."""
    costs = {
        who: found
        for who in PEERS
        if (found := ratio(row, by_whom.get(who), by_whom.get(PARLEY))) is not None
    }
    if not costs:
        return ""
    best = min(costs, key=costs.__getitem__)
    digits = 0 if costs[best] >= 10 else 2
    return f"{best}: {costs[best]:.{digits}f}"


def table(results: dict[str, Any]) -> list[list[str]]:
    """Return the table: a row for each workload, a column for everyone."""
    measured = results.get("rows", {})
    who = [name for name in EVERYONE if any(name in by_whom for by_whom in measured.values())]
    lines = [["", *who, "of typed¹", "best SDK beside it²"]]
    lines += [
        [
            name,
            *(cell(name, by_whom.get(each)) for each in who),
            of_typed(name, by_whom),
            best_peer(name, by_whom),
        ]
        for name, by_whom in measured.items()
    ]
    return lines if len(lines) > 1 else []


def calls_table(results: dict[str, Any]) -> list[list[str]]:
    """Return the table of clients and of gRPC: µs of CPU for each."""
    return [
        ["CPU of each", "Parley", "typed", "of typed"],
        *(
            [
                row["what"],
                f"{row['parley_us']:.1f} µs",
                f"{row['typed_us']:.1f} µs",
                f"{row['ratio']:.2f}",
            ]
            for row in results["calls"]
        ),
    ]


def choices_table(results: dict[str, Any]) -> list[list[str]]:
    """Return the table of what a user's choices cost."""
    return [
        ["choice", "beside", "CPU of each", "times as much"],
        *(
            [name, found["beside"], f"{found['cpu_us']:.1f} µs", f"{found['ratio']:.2f}"]
            for name, found in results["choices"]["figures"].items()
        ),
    ]


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a table for a terminal."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def marked(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a table for the documentation."""
    rule = "|---|" + "--:|" * (len(lines[0]) - 1)
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return [rows[0], rule, *rows[1:]]


def text(results: dict[str, Any]) -> str:
    """Return all figures for a terminal."""
    lines = [machine(results["machine"]), ""]
    for part in (table(results), *(make(results) for make in further(results))):
        if part:
            lines += [*aligned(part), ""]
    lines += besides(results)
    lines += [f"the load generator was the limit: {case}" for case in limited(results)]
    lines += left_out(results)
    return "\n".join(lines)


def further(results: dict[str, Any]) -> list[Any]:
    """Return what makes the tables beside the first that there are figures for."""
    made = []
    if results.get("calls"):
        made.append(calls_table)
    if results.get("choices", {}).get("figures"):
        made.append(choices_table)
    return made


def limited(results: dict[str, Any]) -> list[str]:
    """Return the cases in which the load generator had hardly any time left."""
    return [
        f"{name}, {who}"
        for name, by_whom in results.get("rows", {}).items()
        for who, figure in by_whom.items()
        if figure.get("load_cpu_share", 0) > SLOWEST_CLOCK
    ]


def machine(described: dict[str, Any]) -> str:
    """Return the machine in one line."""
    return (
        f"{described['cpu']}, {described['system']}, server on one core; "
        f"Python {described['python']}, uvicorn {described['uvicorn']}, "
        f"SQLite {described['sqlite']}, fsync {described['fsync_ms']:.2f} ms; {described['date']}"
        + (
            f"; **the machine had other work (load {described['busy']:g}): compare CPU, not rates**"
            if described.get("busy", 0) > 1.5
            else ""
        )
    )


def besides(results: dict[str, Any]) -> list[str]:
    """Return the figures that are not in a table, one a line."""
    lines = []
    costs: dict[str, list[str]] = {}
    for name, figure in results.get("growth", {}).items():
        length, _, place = name.partition(" chunks in ")
        costs.setdefault(place, []).append(f"{figure.get('cpu_us', 0):.1f} ({length})")
    lines += [
        f"- CPU per chunk by the length of the stream, in {place}: {', '.join(figures)} µs."
        for place, figures in costs.items()
    ]
    if "import_seconds" in results:
        lines.append(f"- `import parley`: {results['import_seconds'] * 1e3:.0f} ms.")
    return lines


def first_place(results: dict[str, Any]) -> list[str]:
    """Return what stands at the place of the figures: the table, and how to read it."""
    return [
        *marked(table(results)),
        "",
        "Requests or chunks a second on one core, and in brackets the server's CPU time of each in"
        " µs; KiB are memory for each.",
        "",
        *besides(results),
        "",
        f"¹ Parley's cost divided by the typed app's. ² The SDK that costs the least, divided by "
        f"Parley. {machine(results['machine'])}.",
    ]


def where_better(results: dict[str, Any]) -> list[str]:
    """Return a line for each row in which an SDK costs less than Parley."""
    lines = []
    for name, by_whom in results.get("rows", {}).items():
        for who in PEERS:
            found = ratio(name, by_whom.get(who), by_whom.get(PARLEY))
            if found is not None and found < 1:
                lines.append(f"- {name}: {who} takes {found:.2f} of what Parley takes.")
    return lines or ["- In this run, nowhere."]


def left_out(results: dict[str, Any]) -> list[str]:
    """Return a line for each figure that could not be measured."""
    choices = results.get("choices", {}).get("missing", {})
    missing = {**results.get("missing", {}), **choices}
    return [f"- Not measured: {case}: {why}" for case, why in missing.items()]


PLACES = {
    "figures": first_place,
    "calls": lambda results: marked(calls_table(results)) if results.get("calls") else [],
    "choices": lambda results: marked(choices_table(results)) if results.get("choices") else [],
    "better": where_better,
    "left out": left_out,
}


def write(results: dict[str, Any], *documents: Path) -> None:
    """Put the tables into documents, each between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""
    for document in documents:
        page = document.read_text("utf-8")
        found = 0
        for name, make in PLACES.items():
            place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
            if place.search(page):
                found += 1
                lines = "".join(f"{line}\n" for line in make(results))
                page = place.sub(lambda m, lines=lines: f"{m[1]}{lines}{m[2]}", page)
        if not found:
            print(f"{document.name} has no place for the figures", file=sys.stderr)
        document.write_text(page, "utf-8")
