"""``python -m conformance.pages``: write what is known into ``docs/reference/conformance.md``."""

from __future__ import annotations

from conformance.outcomes import Known, known
from conformance.served import ROOT

PAGE = ROOT / "docs" / "reference" / "conformance.md"
BEGIN, END = "<!-- known: begin -->", "<!-- known: end -->"
TITLES = {"tck-1.0": "TCK, 1.0", "tck-0.3": "TCK, 0.3", "itk": "ITK", "ard": "ARD"}
KINDS = {"failed": "Fails", "skipped": "Skipped", "xfailed": "Skipped"}


def rendered(entries: list[Known]) -> str:
    """Return the tables of the tests that are known not to pass."""
    lines = []
    for run, title in TITLES.items():
        mine = [entry for entry in entries if entry.run == run]
        lines += [f"### {title}", ""]
        if not mine:
            lines += ["Everything passes.", ""]
            continue
        lines += ["| | tests | fault | why |", "|---|---|---|---|"]
        lines += [f"| {KINDS[e.outcome]} | {_named(e)} | {e.whose} | {e.why} |" for e in mine]
        lines.append("")
    return "\n".join(lines)


def _named(entry: Known) -> str:
    """Return the tests of an entry, and the first of the reasons that they print."""
    tests = [f"`{name.replace('*.', '')}`" for name in entry.tests]
    said = [f"“{said.strip('*').strip()}”" for said in entry.said[:1]]
    more = [f"and {len(entry.said) - 1} more"] if len(entry.said) > 1 else []
    return "<br>".join([*tests, *said, *more])


def written(page: str, entries: list[Known]) -> str:
    """Return the page with a new text between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{rendered(entries)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), known()), "utf-8")
