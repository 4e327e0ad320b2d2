"""The text that ``make interop`` writes into ``docs/reference/interoperability.md``.

``python -m tests.peers.pages`` writes the known outcomes, without a run.
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
TITLES = [exchange.replace("refusal", "rejection") for exchange in EXCHANGES]
Results = Mapping[Cell, Mapping[str, Outcome]]


def rendered(results: Results, entries: list[Deviation]) -> str:
    """Return the tables of all results, with a note for each deviation."""
    lines = ["## Peers", "", "| peer | source |", "|---|---|"]
    lines += [f"| {one.title} | {one.had} |" for one in TABLE.values()]
    notes: list[str] = []
    for side, title in ((CLIENT, "Their client, our server"), (SERVER, "Our client, their server")):
        lines += ["", f"## {title}", "", f"| peer | bindings | versions | {' | '.join(TITLES)} |"]
        lines.append("|---" * (len(EXCHANGES) + 3) + "|")
        bindings: dict[tuple[str, str, str], list[str]] = {}
        for cell in results:
            if cell.side == side:
                marks = [_mark(cell, e, results[cell][e], entries, notes) for e in EXCHANGES]
                row = (TABLE[cell.peer].title, cell.version, " | ".join(marks))
                bindings.setdefault(row, []).append(cell.binding)
        versions: dict[tuple[str, str, str], list[str]] = {}
        for (peer, version, marked), spoken in bindings.items():
            versions.setdefault((peer, ", ".join(spoken), marked), []).append(version)
        lines += [
            f"| {peer} | {spoken} | {', '.join(found)} | {marked} |"
            for (peer, spoken, marked), found in versions.items()
        ]
    lines += ["", "## Deviations", ""]
    if notes:
        lines += ["| | peer | side | exchange | fault | reason |", "|---" * 6 + "|"]
        lines += notes
    else:
        lines.append("Everything works.")
    lines += ["", "## Settings that a peer needs", ""]
    for one in TABLE.values():
        if one.client and one.client.settings:
            told = ", ".join(f"{name}={value}" for name, value in one.client.settings.items())
            lines.append(f"- {one.title}: `Settings({told})` on a server with gRPC")
    lines += ["", "## Not offered", "", *_not_offered()]
    return "\n".join([*lines, ""])


def _not_offered() -> list[str]:
    """Return a table of the missing exchanges; peers and exchanges with one reason share a row."""
    peers: dict[tuple[str, str, str], list[str]] = {}
    for name, one in TABLE.items():
        for side in (CLIENT, SERVER):
            if found := side_of(name, side):
                lacks = {**found.lacks, "stream in several chunks": found.whole}
                for exchange, why in lacks.items():
                    if why:
                        peers.setdefault((side, exchange, why), []).append(one.title)
    exchanges: dict[tuple[str, str, str], list[str]] = {}
    for (side, exchange, why), titles in peers.items():
        exchanges.setdefault((", ".join(titles), side, why), []).append(exchange)
    rows = [
        f"| {who} | {side} | {', '.join(e)} | {why} |" for (who, side, why), e in exchanges.items()
    ]
    return ["| peer | side | exchange | reason |", "|---|---|---|---|", *rows]


def _mark(
    cell: Cell, exchange: str, outcome: Outcome, entries: list[Deviation], notes: list[str]
) -> str:
    if not outcome.offered:
        return "–"
    if not outcome.failed:
        return "✓"
    entry = next(e for e in entries if e.covers(cell, exchange))
    told = f"{TABLE[cell.peer].title} | {cell.side} | {exchange} | {entry.whose} | {entry.why} |"
    numbered = [note.partition("| ")[2].partition(" | ")[2] for note in notes]
    if told not in numbered:
        notes.append(f"| {len(notes) + 1} | {told}")
        numbered.append(told)
    return f"✗ ({numbered.index(told) + 1})"


def written(page: str, results: Results, entries: list[Deviation]) -> str:
    """Return the page with a new text between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{rendered(results, entries)}\n{END}{after}"


def as_known(entries: list[Deviation]) -> Results:
    """Return the results of a run in which every outcome is as known."""
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
    """Return the cells that the page needs and that did not run."""
    return [cell for cell in cells() if cell not in results]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), as_known(known()), known()), "utf-8")
