"""The figures as tables: for a terminal, and for the documentation."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

BARE, PARLEY, OFFICIAL = "bare ASGI", "Parley", "official SDK"
PLACE = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.S)


def progress(line: str) -> None:
    """Show on a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the table: what, who, a second, CPU each, beside bare, beside official."""
    table = []
    for name, by_whom in results["figures"].items():
        unit = "chunks" if "stream" in name else "requests"
        bare = results["figures"].get(bare_of(name), {}).get(BARE)
        official = by_whom.get(OFFICIAL)
        for who, figure in by_whom.items():
            table.append(
                (
                    name,
                    who,
                    f"{figure['per_second']:,.0f} {unit}/s",
                    f"{figure['cpu_us']:,.1f} µs" if "cpu_us" in figure else "",
                    share(bare, figure) if who != BARE else "",
                    times(figure, official) if who == PARLEY else "",
                )
            )
    return table


def bare_of(name: str) -> str:
    """Return the case whose bare figure a case is held against."""
    return "one stream in memory" if "stream" in name else "direct replies"


def share(bare: dict[str, Any] | None, figure: dict[str, Any]) -> str:
    """Return which part of a bare server's throughput is reached per CPU second."""
    if not bare or "cpu_us" not in figure or "cpu_us" not in bare:
        return ""
    return f"{bare['cpu_us'] / figure['cpu_us']:.2f}"


def times(figure: dict[str, Any], official: dict[str, Any] | None) -> str:
    """Return how many times the official SDK's throughput is reached."""
    return f"{figure['per_second'] / official['per_second']:,.0f}x" if official else ""


HEADINGS = ("", "", "throughput", "CPU each", "of bare", "of official")


def text(results: dict[str, Any]) -> str:
    """Return all figures for a terminal."""
    measured = rows(results)
    table = [HEADINGS, *measured] if measured else []
    widths = [
        max((len(row[column]) for row in table), default=0) for column in range(len(HEADINGS))
    ]
    lines = [machine(results["machine"]), ""]
    last = ""
    for row in table:
        cells = list(row)
        if cells[0] == last:
            cells[0] = ""
        last = row[0]
        lines.append(
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
        )
    lines += ["", *besides(results)]
    lines += [f"the load generator was the limit: {case}" for case in limited(results)]
    lines += [f"not measured: {case}: {why}" for case, why in results["missing"].items()]
    return "\n".join(lines)


def limited(results: dict[str, Any]) -> list[str]:
    """Return the cases in which the load generator had hardly any time left."""
    return [
        f"{name}, {who}"
        for name, by_whom in results["figures"].items()
        for who, figure in by_whom.items()
        if figure.get("load_cpu_share", 0) > 0.9
    ]


def machine(described: dict[str, Any]) -> str:
    """Return the machine in one line."""
    return (
        f"{described['cpu']}, {described['system']}, server on one core; "
        f"Python {described['python']}, uvicorn {described['uvicorn']}, "
        f"SQLite {described['sqlite']}, fsync {described['fsync_ms']:.2f} ms; {described['date']}"
    )


def markdown(results: dict[str, Any]) -> str:
    """Return the table for the documentation."""
    lines = [
        "| | | throughput | CPU each | of bare¹ | beside official |",
        "|---|---|--:|--:|--:|--:|",
        *("| " + " | ".join(row) + " |" for row in rows(results)),
        "",
        *besides(results),
    ]
    footnote = f"¹ Throughput per CPU second, bare ASGI = 1. {machine(results['machine'])}."
    return "\n".join([*lines, "", footnote])


def besides(results: dict[str, Any]) -> list[str]:
    """Return the figures that are not in the table, one a line."""
    lines = []
    if idle := results["idle"].get("idle"):
        by_whom = ", ".join(f"{who} {f['bytes'] / 1024:.1f} KiB" for who, f in idle.items())
        lines.append(f"- Memory for one of 1,000 idle subscriptions: {by_whom}.")
    costs: dict[str, list[str]] = {}
    for name, by_whom in results["growth"].items():
        length, _, place = name.removeprefix("a stream of ").partition(" in ")
        costs.setdefault(place, []).append(f"{by_whom[PARLEY].get('cpu_us', 0):.1f} ({length})")
    lines += [
        f"- CPU per chunk by the length of the stream, in {place}: {', '.join(figures)} µs."
        for place, figures in costs.items()
    ]
    return [*lines, f"- `import parley`: {results['import_seconds'] * 1e3:.0f} ms."]


def write(results: dict[str, Any], *documents: Path) -> None:
    """Put the table into documents, between ``<!-- figures -->`` and ``<!-- /figures -->``."""
    table = markdown(results)
    for document in documents:
        page = document.read_text("utf-8")
        written = PLACE.sub(lambda m: f"{m[1]}{table}\n{m[2]}", page)
        if not PLACE.search(page):
            print(f"{document.name} has no place for the figures", file=sys.stderr)
        document.write_text(written, "utf-8")
