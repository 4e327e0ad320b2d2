"""Reports of conformance runs: as text, JSON, Markdown and an HTML page."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec

from parley.conformance.verdicts import Outcome, Verdict, shown
from parley.model.distribution import VERSION

Format = Literal["text", "json", "markdown", "html"]
FORMATS: tuple[Format, ...] = ("text", "json", "markdown", "html")
_MARKS = {"passed": "passed", "failed": "FAILED", "noted": "noted", "skipped": "skipped"}


class ConformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run. ``kind`` is ``server`` or ``client``, ``subject`` names the tested
    party.
    """

    kind: Literal["server", "client"]
    subject: str
    verdicts: tuple[Verdict, ...]

    @property
    def failed(self) -> tuple[Verdict, ...]:
        """The verdicts of all requirements that are not met."""
        return tuple(each for each in self.verdicts if each.outcome == "failed")

    @property
    def conforms(self) -> bool:
        """Return whether at least one requirement was tested, and every tested MUST is met."""
        return self._tried and not any(each.breaks for each in self.verdicts)

    @property
    def summary(self) -> str:
        """A line with the numbers of passed, failed and skipped requirements."""
        if not self._tried:
            return "nothing was tried"
        counts = Counter(each.outcome for each in self.verdicts)
        musts = sum(each.breaks for each in self.verdicts)
        ids = len({each.requirement.id for each in self.verdicts if each.outcome != "skipped"})
        word = "conforms" if self.conforms else "does not conform"
        return f"{word}: {_counted(counts, f' ({musts} MUST)')}, of {ids} requirements tested"

    def written(self, format: Format) -> str:
        """Return the report in a format."""
        match format:
            case "json":
                return self._json()
            case "markdown":
                return "\n".join(self._markdown())
            case "html":
                return "\n".join(self._html())
        return "\n".join(self._text(whole=True))

    def brief(self) -> str:
        """Return the text with a line for each place, and the failed requirements only."""
        return "\n".join(self._text(whole=False))

    @property
    def _tried(self) -> bool:
        return any(each.outcome != "skipped" for each in self.verdicts)

    def _text(self, *, whole: bool) -> Iterator[str]:
        yield f"{self.kind} {self.subject}"
        for where in self._places():
            yield ""
            counts = Counter(each.outcome for each in self._at(where))
            yield f"{where}: {_counted(counts)}"
            if not whole and counts["skipped"] == counts.total():
                reasons = Counter(each.reason for each in self._at(where))
                yield f"          {reasons.most_common(1)[0][0]}"
            for each in self._at(where):
                if not whole and each.outcome != "failed":
                    continue
                need = each.requirement
                yield f"  {_MARKS[each.outcome]:7} {need.id:10} {need.level:6} {need.title}"
                if each.reason:
                    yield f"          {each.reason}"
                if each.outcome == "failed":
                    yield f"          {need.link}"
                    yield from (f"          | {line}" for line in each.evidence.splitlines())
        yield ""
        yield self.summary

    def _json(self) -> str:
        document = {
            "report": "a2a-conformance",
            "tool": f"parley {VERSION}",
            "kind": self.kind,
            "subject": self.subject,
            "conforms": self.conforms,
            "summary": self.summary,
            "results": [
                {
                    "id": each.requirement.id,
                    "level": each.requirement.level,
                    "title": each.requirement.title,
                    "section": each.requirement.section,
                    "link": each.requirement.link,
                    "where": each.where,
                    "outcome": each.outcome,
                    "reason": each.reason,
                    "evidence": each.evidence,
                }
                for each in self.verdicts
            ],
        }
        return json.dumps(document, indent=2, ensure_ascii=False)

    def _markdown(self) -> Iterator[str]:
        yield f"# A2A conformance of the {self.kind} {_cell(self.subject)}"
        yield ""
        yield f"{self.summary}. Made with parley {VERSION}."
        for where in self._places():
            yield from ("", f"## {_cell(where)}", "")
            yield "| requirement | | title | outcome | reason |"
            yield "|---|---|---|---|---|"
            for each in self._at(where):
                need = each.requirement
                outcome = "**failed**" if each.outcome == "failed" else each.outcome
                yield (
                    f"| [{need.id}]({need.link}) | {need.level} | {_cell(need.title)} | {outcome} "
                    f"| {_cell(each.reason)} |"
                )
        yield ""

    def _html(self) -> Iterator[str]:
        title = html.escape(f"A2A conformance of the {self.kind} {self.subject}")
        yield "<!doctype html>"
        yield f'<html lang="en"><meta charset="utf-8"><title>{title}</title>'
        yield (
            "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;"
            "padding:0 1em}table{border-collapse:collapse;width:100%}td,th{text-align:left;"
            "padding:.3em .6em;border-bottom:1px solid #ddd;vertical-align:top}"
            ".failed{color:#b00020;font-weight:600}.passed{color:#1b6e2d}.skipped{color:#666}"
            "pre{white-space:pre-wrap;font-size:13px;background:#f6f6f6;padding:.5em}</style>"
        )
        yield f"<h1>{title}</h1>"
        yield f"<p>{html.escape(self.summary)}. Made with parley {html.escape(VERSION)}.</p>"
        for where in self._places():
            yield f"<h2>{html.escape(where)}</h2>"
            yield "<table><tr><th>requirement<th><th>what<th>outcome<th>why</tr>"
            for each in self._at(where):
                need = each.requirement
                why = html.escape(each.reason)
                if each.evidence:
                    why += f"<pre>{html.escape(each.evidence)}</pre>"
                yield (
                    f'<tr><td><a href="{html.escape(need.link)}" title="'
                    f'{html.escape(shown(need.section))}">{need.id}</a><td>{need.level}'
                    f'<td>{html.escape(need.title)}<td class="{each.outcome}">{each.outcome}'
                    f"<td>{why}</tr>"
                )
            yield "</table>"
        yield "</html>"

    def _places(self) -> list[str]:
        return list(dict.fromkeys(each.where for each in self.verdicts))

    def _at(self, where: str) -> list[Verdict]:
        return [each for each in self.verdicts if each.where == where]


def _counted(counts: Counter[Outcome], more: str = "") -> str:
    """Return the number of verdicts by outcome; ``more`` is added after the failed ones."""
    noted = f"{counts['noted']} noted, " if counts["noted"] else ""
    failed = f"{counts['passed']} passed, {counts['failed']} failed{more}, "
    return f"{failed}{noted}{counts['skipped']} skipped"


def _cell(text: str) -> str:
    plain = text.replace("\n", " ").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace("[", "\\[")
