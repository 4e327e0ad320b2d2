"""What ``make interop`` writes into ``docs/reference/interoperability.md``.

``python -m tests.peers.pages`` writes what is known, without a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .deviations import Deviation, known
from .exchanges import EXCHANGES
from .matrix import CLIENT, SERVER, Cell, Outcome, cells, side_of
from .table import TABLE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "interoperability.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
Results = Mapping[Cell, Mapping[str, Outcome]]


def rendered(results: Results, entries: list[Deviation]) -> str:
    """Return the tables of all results, and what is to be said of them."""
    lines = ["## What is run", "", "| peer | how it is had | its client | its server |"]
    lines.append("|---|---|---|---|")
    for name, one in TABLE.items():
        sides = [_spoken(name, side) for side in (CLIENT, SERVER)]
        lines.append(f"| {one.title} | {one.had} | {sides[0]} | {sides[1]} |")
    notes: list[str] = []
    for side, title in ((CLIENT, "Their client, our server"), (SERVER, "Our client, their server")):
        lines += ["", f"## {title}", ""]
        lines.append("| peer | binding | version | " + " | ".join(EXCHANGES) + " |")
        lines.append("|---" * (len(EXCHANGES) + 3) + "|")
        for cell in results:
            if cell.side == side:
                marks = [_mark(cell, e, results[cell][e], entries, notes) for e in EXCHANGES]
                row = [TABLE[cell.peer].title, cell.binding, cell.version, *marks]
                lines.append(f"| {' | '.join(row)} |")
    lines += ["", "## What does not work, and whose fault it is", ""]
    if notes:
        lines += ["| | peer | | exchange | whose | what happens, and why |", "|---" * 6 + "|"]
        lines += notes
    else:
        lines.append("Everything works.")
    lines += ["", "## Settings that a peer needs", ""]
    lines.append("Every server of ours serves gRPC beside HTTP. These clients need a setting then:")
    lines.append("")
    for one in TABLE.values():
        if one.client and one.client.settings:
            told = ", ".join(f"{name}={value}" for name, value in one.client.settings.items())
            lines.append(f"- {one.title}: `Settings({told})`")
    lines += ["", "## What is not offered", ""]
    lines += ["| peer | | exchange | why |", "|---|---|---|---|"]
    for name, one in TABLE.items():
        for side in (CLIENT, SERVER):
            found = side_of(name, side)
            for exchange, why in (found.lacks if found else {}).items():
                lines.append(f"| {one.title} | {side} | {exchange} | {why} |")
            if found and found.whole:
                lines.append(f"| {one.title} | {side} | stream in several chunks | {found.whole} |")
    return "\n".join([*lines, ""])


def _spoken(peer: str, side: str) -> str:
    found = side_of(peer, side)
    if found is None:
        return "none"
    versions: dict[str, list[str]] = {}
    for binding, version in found.speaks:
        versions.setdefault(version, []).append(binding)
    return "; ".join(f"{version}: {', '.join(each)}" for version, each in versions.items())


def _mark(
    cell: Cell, exchange: str, outcome: Outcome, entries: list[Deviation], notes: list[str]
) -> str:
    if not outcome.offered:
        return "not offered"
    if not outcome.failed:
        return "works"
    entry = next(e for e in entries if e.covers(cell, exchange))
    told = f"{TABLE[cell.peer].title} | {cell.side} | {exchange} | {entry.whose} | {entry.why} |"
    numbered = [note.partition("| ")[2].partition(" | ")[2] for note in notes]
    if told not in numbered:
        notes.append(f"| {len(notes) + 1} | {told}")
        numbered.append(told)
    return f"no ({numbered.index(told) + 1})"


def written(page: str, results: Results, entries: list[Deviation]) -> str:
    """Return the page with its part between the marks written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{rendered(results, entries)}\n{END}{after}"


def as_known(entries: list[Deviation]) -> Results:
    """Return the results of a run in which everything comes out as it is known to."""
    results = {}
    for cell in cells():
        side = side_of(cell.peer, cell.side)
        assert side is not None
        results[cell] = {
            exchange: Outcome(
                offered=exchange not in side.lacks,
                failed="".join(e.happens for e in entries if e.covers(cell, exchange)),
            )
            for exchange in EXCHANGES
        }
    return results


def missing(results: Results) -> list[Cell]:
    """Return the cells that the page needs and that were not run."""
    return [cell for cell in cells() if cell not in results]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), as_known(known()), known()), "utf-8")
