"""``python -m conformance.pages``: write what is known into ``docs/reference/conformance.md``."""

from __future__ import annotations

from conformance.outcomes import Known, known
from conformance.served import ROOT

PAGE = ROOT / "docs" / "reference" / "conformance.md"
BEGIN, END = "<!-- known: begin -->", "<!-- known: end -->"
TITLES = {"tck-1.0": "TCK, 1.0", "tck-0.3": "TCK, 0.3", "itk": "ITK", "ard": "ARD"}
KINDS = {"failed": "Fails", "skipped": "Passed over", "xfailed": "Passed over"}


def rendered(entries: list[Known]) -> str:
    """Return the tables of all that is known not to pass."""
    lines = []
    for run, title in TITLES.items():
        mine = [entry for entry in entries if entry.run == run]
        lines += [f"### {title}", ""]
        if not mine:
            lines += ["Everything passes.", ""]
            continue
        lines += ["| | tests | whose | why |", "|---|---|---|---|"]
        lines += [f"| {KINDS[e.outcome]} | {_named(e)} | {e.whose} | {e.why} |" for e in mine]
        lines.append("")
    return "\n".join(lines)


def _named(entry: Known) -> str:
    tests = [f"`{name.replace('*.', '')}`" for name in entry.tests]
    return "<br>".join([*tests, *(f"“{said.strip('*').strip()}”" for said in entry.said)])


def written(page: str, entries: list[Known]) -> str:
    """Return the page with its part between the marks written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{rendered(entries)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), known()), "utf-8")
